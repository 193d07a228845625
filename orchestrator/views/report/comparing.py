"""The result of a comparison: medians of two plans' iteration times, with confidence intervals."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from orchestrator.results import to_json
from orchestrator.views.report.ledger import Answer, Ledger, quoted

if TYPE_CHECKING:
    from orchestrator.results import Json

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
class Verdict:
    """a, b: median iteration (ms) of each plan. difference: b - a (ms). ratio: b / a. measured: of each plan; seed, resamples: of
    the intervals, which come from drawing measurements and iterations again (bootstrap in two stages)."""

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
        return self.ratio.low is not None and self.ratio.high is not None and not self.ratio.low <= 1.0 <= self.ratio.high

    def words(self, arms: Mapping[str, str]) -> str:
        share = abs(self.ratio.value - 1) * 100
        longer = "longer" if self.ratio.value > 1 else "shorter"
        if self.ratio.low is None or self.ratio.high is None:
            unsure = "an interval needs at least two measurements of each plan"
            return f"{arms['b']}: iterations {share:.1f} % {longer} than {arms['a']}; {unsure}"
        interval = f"ratio {self.ratio.value:.3f}, {self.level} % interval {self.ratio.low:.3f} to {self.ratio.high:.3f}"
        if not self.sure:
            return f"no difference found between {arms['a']} and {arms['b']}: {interval}"
        return f"{arms['b']}: iterations {share:.1f} % {longer} than {arms['a']}: {interval}"

    def to_json(self) -> dict[str, Json]:
        return {
            name: to_json(getattr(self, name))
            for name in ("a", "b", "difference", "ratio", "measured", "iterations", "seed", "resamples", "level", "sure")
        }


def verdict(
    a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], seed: int = SEED, resamples: int = RESAMPLES
) -> Verdict | None:
    """Compare measurements of iteration times (ms); None if one side has none.

    The median of a plan is that of all its iterations. The interval is the middle 95 % of the results when measurements, and
    iterations inside each, are drawn again with replacement.
    """
    a, b = [list(v) for v in a if v], [list(v) for v in b if v]
    if not a or not b:
        return None
    middle = [median(x for values in side for x in values) for side in (a, b)]
    drawn: list[tuple[float, float]] = []
    if min(len(a), len(b)) > 1:
        generator = random.Random(seed)
        drawn = [(_redrawn(a, generator), _redrawn(b, generator)) for _ in range(resamples)]

    def interval(value: float, found: list[float]) -> Interval:
        if not found:
            return Interval(value, None, None)
        found.sort()
        tail = round(len(found) * (100 - LEVEL) / 200)
        return Interval(value, found[tail], found[-1 - tail])

    return Verdict(
        interval(middle[0], [x for x, _ in drawn]),
        interval(middle[1], [y for _, y in drawn]),
        interval(middle[1] - middle[0], [y - x for x, y in drawn]),
        interval(middle[1] / middle[0], [y / x for x, y in drawn]),
        (len(a), len(b)),
        (sum(map(len, a)), sum(map(len, b))),
        seed,
        resamples,
    )


def _redrawn(side: Sequence[Sequence[float]], generator: random.Random) -> float:
    pooled: list[float] = []
    for values in generator.choices(side, k=len(side)):
        pooled += generator.choices(values, k=len(values))
    return median(pooled)


def compared(book: Ledger, comparison: Mapping[str, Any]) -> Answer:
    """The iterations of a comparison's measurements, without the first of each launch, in order of time."""
    slots = [slot for slot in comparison["slots"] if slot["state"] == "done"]
    runs = ", ".join(quoted(str(slot["job_run"])) for slot in slots) or "''"
    most = int(comparison["iterations"])
    return book.query(
        "compared",
        f"the first {most} iterations of each measurement after the very first",
        "SELECT run, iter, iter_ms FROM"
        " (SELECT run, iter, iter_ms, time_ns, ROW_NUMBER() OVER (PARTITION BY run ORDER BY time_ns) AS n"
        f" FROM iteration WHERE run IN ({runs})) WHERE n > 1 AND n <= {most + 1} AND iter_ms IS NOT NULL ORDER BY run, time_ns",
    )


def by_arm(answer: Answer, comparison: Mapping[str, Any]) -> dict[str, list[list[float]]]:
    """The iteration times (ms) of each plan, measurement by measurement."""
    times: dict[str, list[float]] = {}
    for run, _, ms in answer.rows:
        times.setdefault(run, []).append(ms)
    found: dict[str, list[list[float]]] = {"a": [], "b": []}
    for slot in comparison["slots"]:
        if slot["state"] == "done" and slot["job_run"] in times:
            found[slot["arm"]].append(times[slot["job_run"]])
    return found
