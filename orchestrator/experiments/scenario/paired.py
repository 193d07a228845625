"""Ratios of two arms, one of each round in which both were measured, and the interval of what they
have in common: the only one of comparisons. Pure.

What slows a whole round down is in both arms of it, and cancels. Within a round they are measured
one after the other; between rounds nothing is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, fsum, log, sqrt
from typing import Literal

LEVEL = 95
"""Percentage of intervals that hold the truth."""
LARGEST_LOG = 700.0
"""Of a number that a float holds: two rounds that have nothing in common say next to nothing."""
How = Literal["t", "arithmetic", ""]
HOW_TEXT = {
    "t": f"geometric mean of the rounds' ratios, {LEVEL} % t-interval of their logarithms",
    "arithmetic": f"mean of the rounds' ratios, of which one is 0, and their {LEVEL} % t-interval",
}


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its interval; low and high are None if there are too few measurements."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class PairedRatio:
    """What the rounds say: the ratio, its interval, from how many rounds, and how it was made
    (`HOW_TEXT`).
    """

    found: Interval
    n: int
    how: How


def paired_ratio(ratios: Sequence[float]) -> PairedRatio:
    """The ratio that the rounds have in common, whatever their order. Ratios are of times, bytes or
    losses: 0 or more.

    Where one of them is 0 there is no logarithm, and the mean is taken in place of the geometric
    mean. Raises: ValueError - there is no ratio.
    """
    from scipy.special import stdtrit  # slow to import: not before the first verdict

    if not ratios:
        raise ValueError("no round has a ratio")
    n = len(ratios)
    if n == 1:
        return PairedRatio(Interval(ratios[0], None, None), 1, "")
    how: How = "t" if min(ratios) > 0 else "arithmetic"
    if min(ratios) == max(ratios):  # as it is: exp(log(x)) is not always x
        return PairedRatio(Interval(ratios[0], ratios[0], ratios[0]), n, how)
    values = [log(ratio) for ratio in ratios] if how == "t" else ratios
    mean = fsum(values) / n
    error = sqrt(fsum((each - mean) ** 2 for each in values) / (n - 1) / n)
    half = float(stdtrit(n - 1, 0.5 + LEVEL / 200)) * error
    if how == "arithmetic":
        return PairedRatio(Interval(mean, max(0.0, mean - half), mean + half), n, how)
    return PairedRatio(
        Interval(exp(mean), exp(mean - half), exp(min(mean + half, LARGEST_LOG))), n, how
    )
