"""Past and present runs, from their journals: a waterfall for each, marks on the time axis.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

from orchestrator.results import Json
from orchestrator.telemetry.lineprotocol import Point
from orchestrator.views.waterfall import OVERLAPPING, Bar, bar_json, bars, part_rows, run_rows

KEPT = 12
"""Number of runs kept."""
MOST_BARS = 2000
"""Bars kept of one run: a robot's run of hours has one per move."""
MOST_ROWS = 60
"""Rows of a picture; the parts of devices beyond that are shown as a count."""


@dataclass
class RunProgress:
    """One run as its journal shows it so far. at: wall ms of the reconfiguration's first command,
    or of the first phase.
    """

    run: str
    at: float = 0.0
    bars: list[Bar] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    began: float = 0.0
    """Wall ms at which the run's clock was zero."""
    working: dict[str, float] = field(default_factory=dict)
    """The phases that have begun and not ended, with their begin (ms since the start of the run);
    the latest last.
    """

    @property
    def moved(self) -> bool:
        """Light moved."""
        return bool(self.figures) or any(b.kind == "device" for b in self.bars)

    def phase(self, point: Point) -> Bar:
        bar = bars([point])[0]
        if bar.kind == "run":
            self.working.pop(bar.phase, None)
        if len(self.bars) < MOST_BARS:
            self.bars.append(bar)
        self.began = point.time_ns / 1e6 - bar.begin_ms
        return bar

    def begin(self, point: Point) -> None:
        """A phase begins."""
        name, begin_ms = point.tags["phase"], float(point.fields["begin_ns"]) / 1e6
        self.began = point.time_ns / 1e6 - begin_ms
        self.working.pop(name, None)
        self.working[name] = begin_ms

    def at_work(self, now: float) -> list[Bar]:
        """A bar until now (wall ms) for each phase that has begun and not ended."""
        return [
            Bar("run", "", name, begin, max(0.0, now - self.began - begin))
            for name, begin in self.working.items()
        ]

    def reconfig(self, point: Point) -> None:
        self.at = point.time_ns / 1e6
        self.figures = {
            k: float(v)
            for k, v in point.fields.items()
            if k.endswith("_ms") or k in ("n_circuits", "seq")
        }

    def rows(self) -> tuple[list[dict[str, Json]], list[dict[str, Json]]]:
        """The run's phases, and the parts of devices and hosts inside them, as rows of two
        charts.
        """
        parts = part_rows(
            sorted((b for b in self.bars if b.kind != "run"), key=lambda b: b.begin_ms)
        )
        return [_row(n, some) for n, some in run_rows(self.bars)[:MOST_ROWS]], [
            _row(n, (b,)) for n, b in parts[:MOST_ROWS]
        ]


def _row(name: str, some: Sequence[Bar]) -> dict[str, Json]:
    """One row: for a repeated phase its first begin, its total time, and each occurrence in
    `bars`.
    """
    row = {
        **bar_json(some[0]),
        "name": name,
        "ms": sum(bar.ms for bar in some),
        "ok": all(bar.ok for bar in some),
        "detail": some[-1].detail,
        "bars": [[bar.begin_ms, bar.ms] for bar in some],
        "overlaps": name in OVERLAPPING,
    }
    return cast(dict[str, Json], row)


def run_to_draw(runs: Iterable[RunProgress], running: str) -> RunProgress | None:
    """The run whose waterfall is drawn: the running one, once it has any points, else the newest
    that moved light.
    """
    known = {r.run: r for r in runs if r.bars or r.figures or r.run == running}
    if running in known:
        return known[running]
    newest = sorted(known, reverse=True)
    return next((known[r] for r in newest if known[r].moved), known[newest[0]] if newest else None)
