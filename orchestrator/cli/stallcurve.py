"""The stall curve as a table for the terminal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from optics.plain import counted
from orchestrator.cli.text import columns, ms_text, when
from orchestrator.store.records import StallPoint
from orchestrator.verify.report import StallReport

MODES = ("drained", "sending", "held")


def text(report: StallReport) -> str:
    """The curve just measured, and the earlier ones if asked for."""
    lines = []
    if report.points:
        usual = statistics.median(p.usual_ms for p in report.points)
        lines += [f"  {line}" for line in columns(table(report.points))]
        lines.append(
            f"  time lost, median (least to most); the longest gap while nothing was dark: {ms_text(usual)}"
        )
    lines += [f"  {note}" for note in report.notes]
    if report.points:
        lines += [f"  journal  {report.journal}"] if report.journal else []
        times = counted(len(report.points), "time")
        lines.append(
            f"Stall curve of {report.lab}: {report.link} was dark {times}; circuits and routes are as before"
        )
    runs = list(dict.fromkeys(p.run for p in report.earlier))
    for run in runs:
        points = [p for p in report.earlier if p.run == run]
        lines += ["", f"{when(points[0].at)}  {points[0].link} by {points[0].devices}, run {run}"]
        lines += [f"  {line}" for line in columns(table(points))]
    if not runs and not report.points:
        lines.append(f"no stall curve of {report.lab} was measured yet: testbed verify --stall")
    return "\n".join(lines)


def table(points: Sequence[StallPoint]) -> list[Sequence[str]]:
    """A header, and a row for each darkness asked for: what it was, and the time lost in each
    mode.
    """
    rows: list[Sequence[str]] = [("asked", "dark", *MODES)]
    for asked in sorted({p.asked_ms for p in points}):
        here = [p for p in points if p.asked_ms == asked]
        dark = statistics.median(p.dark_ms for p in here)
        lost = [[p.lost_ms for p in here if p.mode == mode] for mode in MODES]
        rows.append((ms_text(asked) if asked else "shortest", ms_text(dark), *map(_spread, lost)))
    return rows


def _spread(lost: Sequence[float]) -> str:
    return f"{statistics.median(lost):.0f} ms ({min(lost):.0f} to {max(lost):.0f})" if lost else "-"
