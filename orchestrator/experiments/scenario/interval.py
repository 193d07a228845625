"""Medians of two arms' measurements, their ratio, and bootstrap intervals of both. The one place
that computes them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from orchestrator.results import Json, to_json

SEED = 1
RESAMPLES = 2000
LEVEL = 95
"""Percentage of the resamples inside an interval."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its interval; low and high are None if there are too few measurements."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class ArmComparison:
    """a, b: median of each arm, of iterations in ms. difference: b - a. ratio: b / a. measured,
    iterations: number of measurements and of values in them, of each arm; seed, resamples: of the
    intervals, which come from drawing measurements and the values in each again (bootstrap in two
    stages)."""

    a: Interval
    b: Interval
    difference: Interval
    ratio: Interval
    measured: tuple[int, int]
    iterations: tuple[int, int]
    seed: int = SEED
    resamples: int = RESAMPLES
    level: int = LEVEL

    @property
    def sure(self) -> bool:
        """Whether the interval of the ratio excludes 1."""
        return (
            self.ratio.low is not None
            and self.ratio.high is not None
            and not self.ratio.low <= 1.0 <= self.ratio.high
        )

    def text(self, a: str, b: str) -> str:
        """The result for arms of these names."""
        share = abs(self.ratio.value - 1) * 100
        longer = "longer" if self.ratio.value > 1 else "shorter"
        if self.ratio.low is None or self.ratio.high is None:
            unsure = "an interval needs at least two measurements of each plan"
            return f"{b}: iterations {share:.1f} % {longer} than {a}; {unsure}"
        interval = f"ratio {self.ratio.value:.3f}, {self.level} % interval {self.ratio.low:.3f} to {self.ratio.high:.3f}"
        if not self.sure:
            return f"no difference found between {a} and {b}: {interval}"
        return f"{b}: iterations {share:.1f} % {longer} than {a}: {interval}"

    def to_json(self) -> dict[str, Json]:
        return {
            name: to_json(getattr(self, name))
            for name in (
                "a",
                "b",
                "difference",
                "ratio",
                "measured",
                "iterations",
                "seed",
                "resamples",
                "level",
                "sure",
            )
        }


def compare_arms(
    a: Sequence[Sequence[float]],
    b: Sequence[Sequence[float]],
    seed: int = SEED,
    resamples: int = RESAMPLES,
    middle: Callable[[Iterable[float]], float] = median,
) -> ArmComparison | None:
    """Compare measurements, each a list of values such as iteration times (ms); None if one side
    has none.

    The median of an arm, or another `middle`, is that of all its values. The interval is the middle
    95 % of the results when measurements, and values inside each, are drawn again with replacement;
    a ratio to a median of 0 has none.
    """
    a, b = [list(v) for v in a if v], [list(v) for v in b if v]
    if not a or not b:
        return None
    found = [middle(x for values in side for x in values) for side in (a, b)]
    drawn: list[tuple[float, float]] = []
    if min(len(a), len(b)) > 1:
        generator = random.Random(seed)
        drawn = [
            (middle(_redrawn(a, generator)), middle(_redrawn(b, generator)))
            for _ in range(resamples)
        ]

    def interval(value: float, resampled: list[float]) -> Interval:
        if not resampled:
            return Interval(value, None, None)
        resampled.sort()
        tail = round(len(resampled) * (100 - LEVEL) / 200)
        return Interval(value, resampled[tail], resampled[-1 - tail])

    return ArmComparison(
        interval(found[0], [x for x, _ in drawn]),
        interval(found[1], [y for _, y in drawn]),
        interval(found[1] - found[0], [y - x for x, y in drawn]),
        interval(_over(found[1], found[0]), [_over(y, x) for x, y in drawn]),
        (len(a), len(b)),
        (sum(map(len, a)), sum(map(len, b))),
        seed,
        resamples,
    )


def _over(y: float, x: float) -> float:
    return y / x if x else inf if y else 1.0


def _redrawn(side: Sequence[Sequence[float]], generator: random.Random) -> list[float]:
    pooled: list[float] = []
    for values in generator.choices(side, k=len(side)):
        pooled += generator.choices(values, k=len(values))
    return pooled
