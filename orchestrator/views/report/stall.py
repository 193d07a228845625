"""The stall curve as a figure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from orchestrator.store.records import StallPoint
from orchestrator.telemetry.palette import PHASE_COLOURS
from orchestrator.views.report.figures import Drawing, one_figure, prepare
from orchestrator.views.report.traffic import plain_numbers

COLOURS = {
    "drained": PHASE_COLOURS["up"],
    "sending": PHASE_COLOURS["dark"],
    "held": PHASE_COLOURS["link"],
}


def stall_svg(points: Sequence[StallPoint], lab: str, cache_dir: Path) -> str:
    """The time lost over the darkness (ms, both logarithmic), a curve through the medians of each
    mode, as an SVG document.
    """
    prepare(cache_dir)
    with one_figure(3.2) as (figure, axes):
        for mode, colour in COLOURS.items():
            here = [p for p in points if p.mode == mode]
            axes.plot(list(map(_dark, here)), list(map(_lost, here)), ".", color=colour, alpha=0.5)
            at = [
                [p for p in here if p.asked_ms == asked]
                for asked in sorted({p.asked_ms for p in here})
            ]
            dark, lost = (
                [statistics.median(ms(p) for p in group) for group in at] for ms in (_dark, _lost)
            )
            if here:
                axes.plot(dark, lost, "-", color=colour, label=mode)
        ends = [min(p.dark_ms for p in points), max(p.dark_ms for p in points)]
        axes.plot(ends, ends, ":", color="#8e8e8e", label="as long as the darkness")
        axes.set_xscale("log")
        axes.set_yscale("log")
        plain_numbers(axes.xaxis)
        plain_numbers(axes.yaxis)
        axes.set_xlabel("dark (ms)")
        axes.set_ylabel("time lost (ms; 1 or less at 1)")
        axes.grid(True)
        axes.legend(loc="best")
    return Drawing("stall", f"Stall curve of {lab}", "", figure).svg()


def _dark(point: StallPoint) -> float:
    return point.dark_ms


def _lost(point: StallPoint) -> float:
    """Never 0, which a logarithmic axis does not have."""
    return max(point.lost_ms, 1.0)
