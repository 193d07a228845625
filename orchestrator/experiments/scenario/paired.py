"""Ratios of two arms, one of each round in which both were measured, and the interval of what they
have in common. Pure.

What slows a whole round down is in both arms of it, and cancels. Within a round they are measured
one after the other; between rounds nothing is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, exp, fsum, log, pi, sin, sqrt, tan
from typing import Literal

from orchestrator.experiments.scenario.interval import LEVEL, Interval

LARGEST_LOG = 700.0
"""Of a number that a float holds: two rounds that have nothing in common say next to nothing."""
How = Literal["t", "arithmetic", ""]
HOW_TEXT = {
    "t": f"geometric mean of the rounds' ratios, {LEVEL} % t-interval of their logarithms",
    "arithmetic": f"mean of the rounds' ratios, of which one is 0, and their {LEVEL} % t-interval",
}


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
    half = t_quantile(n - 1) * sqrt(fsum((each - mean) ** 2 for each in values) / (n - 1) / n)
    if how == "arithmetic":
        return PairedRatio(Interval(mean, max(0.0, mean - half), mean + half), n, how)
    return PairedRatio(
        Interval(exp(mean), exp(mean - half), exp(min(mean + half, LARGEST_LOG))), n, how
    )


def t_quantile(freedom: int) -> float:
    """How many standard errors the middle `LEVEL` % of Student's t with these degrees of freedom
    reach from its centre.

    >>> [round(t_quantile(freedom), 3) for freedom in (1, 2, 4, 9, 30)]
    [12.706, 4.303, 2.776, 2.262, 2.042]
    """
    low, high = 0.0, pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < LEVEL / 100 else (low, middle)
    return sqrt(freedom) * tan(low)


def _within(angle: float, freedom: int) -> float:
    """How much of Student's t is within +- sqrt(freedom) tan(angle): M. Abramowitz, I. Stegun,
    26.7.3 and 26.7.4.
    """
    odd = freedom % 2
    term, total = (cos(angle), 0.0) if odd else (1.0, 0.0)
    for k in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cos(angle) ** 2 * (k - 1) / k
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
