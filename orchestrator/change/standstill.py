"""How long a job lost because of a change, from the ends of its iterations, and what that is
made of. Pure.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.telemetry.names import USUAL


@dataclass(frozen=True, slots=True)
class Standstill:
    """paused_ms: time lost beyond the usual. before_ms, after_ms: as `telemetry.names` defines
    them.
    """

    paused_ms: float | None = None
    before_ms: float | None = None
    after_ms: float | None = None


def standstill(
    records: Sequence[Mapping[str, Any]], ends: Sequence[int], since_ns: int, after: int
) -> Standstill:
    """What the iterations that overlap [since_ns, end of iteration `after` + 1] took beyond the
    usual.

    records: of rank 0, in order; ends: when they ended (ns, of the clock of `since_ns`). after: the
    last one on the earlier rings. An iteration counts from the end of the one before, so that a
    pause between two counts for the second.
    """
    spans = list[tuple[int, float, int]]()
    for at, (record, end) in enumerate(zip(records, ends, strict=True)):
        took, number = float(record["iter_ms"]), int(record["iter"])
        if at and int(records[at - 1]["iter"]) == number - 1:
            took = max(took, (end - ends[at - 1]) / 1e6)
        spans.append((number, took, end))
    earlier = [took for number, took, end in spans[1:] if number <= after and end < since_ns][
        -USUAL:
    ]
    later = [took for number, took, _ in spans if number > after + 1][:USUAL]
    if not earlier:
        return Standstill(after_ms=_median(later))
    before_ms, after_ms = statistics.median(earlier), _median(later)
    usual = {True: before_ms, False: before_ms if after_ms is None else after_ms}
    met = [(number, took) for number, took, end in spans if end >= since_ns and number <= after + 1]
    paused = sum(max(0.0, took - usual[number <= after]) for number, took in met)
    return Standstill(round(paused, 3), round(before_ms, 3), after_ms)


def pause_parts(paused: float, dark: float | None, commit: float | None) -> dict[str, float]:
    """What the time that a job lost is made of, all in ms; a job does not stand for all of the
    darkness where it has other paths.

    The parts add up to `paused`; those that are None are left out.
    """
    parts, rest = dict[str, float](), paused
    for name, ms in (("dark", dark), ("commit", commit)):
        if ms is not None:
            parts[name] = min(ms, rest)
            rest -= parts[name]
    return parts | {"boundary": rest}


def pause_text(paused: float, dark: float | None, commit: float | None, mode: str) -> str:
    """In words: `job lost 96 ms: 60 dark, 4 commit, 32 boundary`; the times are in ms, mode: as
    `ScheduleReport`.
    """
    whole = [None if ms is None else round(ms) for ms in (dark, commit)]
    parts = pause_parts(round(paused), *whole)
    other = "; traffic had other paths" if mode == "drain" else ""
    return (
        f"job lost {paused:.0f} ms: "
        + ", ".join(f"{ms:.0f} {name}" for name, ms in parts.items())
        + other
    )


def _median(took: Sequence[float]) -> float | None:
    return round(statistics.median(took), 3) if took else None
