"""The report's part on the ranks of a job: what each computed and waited for, as a picture of ranks
x iterations and as a table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import mean, median
from typing import TYPE_CHECKING

from optics.plain import printable
from orchestrator.views.report.figures import one_figure
from orchestrator.views.report.gather import Source
from orchestrator.views.report.ledger import Answer, quoted
from orchestrator.views.report.model import ReportContext, ReportSection, result_table
from orchestrator.views.report.questions import before_next

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BEFORE_S, AFTER_S = 60.0, 600.0
"""Iterations from this long (s) before the run until this long after it."""
MOST_RANKS, MOST_CELLS, MOST_COLUMNS = 64, 6000, 120
LEAST_MS = 1.0
"""A usual time below this (ms) counts as this: a multiple of next to nothing says nothing."""
LEVELS = (1.1, 1.25, 1.5, 2.0, 4.0)
"""Multiples of the usual time from which on a cell is darker."""
_SHADES = (0.07, 0.22, 0.4, 0.6, 0.8, 1.0)
_HUES = {"compute_ms": "#C4162A", "exposed_ms - wait_ms": "#3274D9", "iter_ms": "#C4162A"}
_TEXTS = {
    "compute_ms": "computing",
    "exposed_ms - wait_ms": "exchanging",
    "iter_ms": "whole iteration",
}
"""What a panel shows, in SQL and in words."""

Rows = Mapping[str, Mapping[int, float]]
"""By rank: iteration -> ms."""


def ranks_section(c: ReportContext, source: Source) -> None:
    """Add the section, if the journal of the job around this run has times of its ranks."""
    run = source.now or source.was
    if run not in c.campaign.journals:
        return
    record = source.record
    begin = round((record.started - BEFORE_S) * 1e9)
    end = before_next(c.book, source, round(((record.ended or record.started) + AFTER_S) * 1e9))
    c.book.read_more(c.campaign.journals[run], "rank", [(begin, end)])
    where = f"run = {quoted(run)} AND time_ns BETWEEN {begin} AND {end}"
    times = ("compute_ms", "exposed_ms", "wait_ms", "iter_ms")
    answer = c.book.query(
        "ranks",
        "each rank of the job: medians over the iterations that were recorded around the run, the longest to compute first",
        f"SELECT rank, COUNT(*) AS n, {', '.join(f'median({name}) AS {name}' for name in times)}, MAX(iter_ms) AS most_ms"
        f" FROM rank WHERE {where} GROUP BY rank ORDER BY median(compute_ms) DESC, rank LIMIT {MOST_RANKS}",
    )
    if not answer:
        del c.book.answers["ranks"]
        return
    shown = [line["rank"].value for line in answer.lines()]
    names = ("compute_ms", "exposed_ms - wait_ms") if answer.values("compute_ms") else ("iter_ms",)
    panels = {name: _rows(c, where, name, sorted(shown)) for name in names}
    made = ReportSection("ranks", "Ranks of the job")
    c.draw(
        made,
        "ranks",
        "times of every rank",
        _caption(panels, answer),
        heat_map(panels),
        "One iteration was recorded: no picture.",
    )
    heads = {
        "rank": "rank",
        "n": "iterations",
        "compute_ms": "computing",
        "exposed_ms": "waiting for the exchange",
    }
    heads |= {"wait_ms": "of it for other ranks", "iter_ms": "iteration", "most_ms": "longest"}
    made.tables.append(result_table(answer, heads))
    made.notes.append(
        "Medians. Computing: all but the wait for its exchange. For other ranks: no byte moved, because some had not begun with the"
        " exchange, or were slow to pass on. Exchanging: the rest of that wait. A late rank computes longer than the others; one"
        " that is late only in exchanging is slow itself, or bytes come to it slowly; either way it waits less than the others."
    )
    c.sections.append(made)


def _rows(c: ReportContext, where: str, name: str, ranks: Sequence[str]) -> Rows:
    found: dict[str, dict[int, float]] = {rank: {} for rank in ranks}
    for rank, iteration, ms in c.book.database.execute(
        f"SELECT rank, iter, {name} FROM rank WHERE {where} AND {name} IS NOT NULL"
    ):
        if rank in found:
            found[rank][iteration] = ms
    return found


def _caption(panels: Mapping[str, Rows], answer: Answer) -> str:
    per = _per_column(next(iter(panels.values())))
    more = f" A column is the mean of {per} recorded iterations." if per > 1 else ""
    more += f" The {MOST_RANKS} ranks that computed longest." if len(answer) == MOST_RANKS else ""
    return f"A row is a rank, a column an iteration; the darker, the longer it took beyond the usual.{more} White: not recorded."


def _per_column(rows: Rows) -> int:
    iterations = {n for row in rows.values() for n in row}
    return math.ceil(len(iterations) / max(20, min(MOST_COLUMNS, MOST_CELLS // max(1, len(rows)))))


def heat_map(panels: Mapping[str, Rows]) -> Figure | None:
    """A panel per time, ranks from top to bottom; each cell by its multiple of the panel's median.
    None without two iterations.
    """
    rows = next(iter(panels.values()))
    if len({n for row in rows.values() for n in row}) < 2:
        return None
    height = max(0.7, 0.13 * len(rows))
    with one_figure((height + 0.62) * len(panels), 1, len(panels), squeeze=False, sharex=True) as (
        figure,
        grid,
    ):
        for axes, (name, found) in zip(grid[:, 0], panels.items(), strict=True):
            _panel(axes, name, found)
        grid[-1][0].set_xlabel("iteration")
    return figure


def _panel(axes: Axes, name: str, rows: Rows) -> None:
    from matplotlib.patches import Patch, PathPatch
    from matplotlib.path import Path

    iterations, per = sorted({n for row in rows.values() for n in row}), _per_column(rows)
    bins = [iterations[k : k + per] for k in range(0, len(iterations), per)]
    usual = max(LEAST_MS, median(ms for row in rows.values() for ms in row.values()))
    shaded: dict[int, list[tuple[int, int, int]]] = {}
    for y, row in enumerate(rows.values()):
        took = [
            mean(existing) if (existing := [row[n] for n in some if n in row]) else None
            for some in bins
        ]
        levels = [
            None if ms is None else sum(ms > level * usual for level in LEVELS) for ms in took
        ]
        # neighbours alike are one box
        for level, same in groupby(range(len(bins)), levels.__getitem__):
            columns = list(same)
            if level is not None:
                shaded.setdefault(level, []).append((columns[0], columns[-1], y))
    for level, boxes in sorted(shaded.items()):
        corners = [
            [(a - 0.5, y - 0.44), (b + 0.5, y - 0.44), (b + 0.5, y + 0.44), (a - 0.5, y + 0.44)]
            for a, b, y in boxes
        ]
        path = Path.make_compound_path(*(Path([*box, box[0]], closed=True) for box in corners))
        axes.add_patch(PathPatch(path, facecolor=_HUES[name], alpha=_SHADES[level], linewidth=0))
    axes.set_xlim(-0.5, len(bins) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    step = max(1, math.ceil(len(rows) / 32))
    axes.set_yticks(
        range(0, len(rows), step),
        [printable(rank) for rank in list(rows)[::step]],
        fontsize=6.5 if len(rows) > 8 else 8,
    )
    ticks = range(0, len(bins), max(1, len(bins) // 8))
    axes.set_xticks(list(ticks), [str(bins[k][0]) for k in ticks])
    axes.tick_params(length=0)
    axes.set_title(f"{_TEXTS[name]}, usually {usual:.3g} ms")
    tokens = [
        f"to {LEVELS[0]:g} x",
        *(f"to {level:g} x" for level in LEVELS[1:]),
        f"over {LEVELS[-1]:g} x",
    ]
    patches = [
        Patch(facecolor=_HUES[name], alpha=shade, label=reported)
        for shade, reported in zip(_SHADES, tokens, strict=True)
    ]
    axes.legend(
        handles=patches,
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=len(patches),
        borderpad=0,
        borderaxespad=0.2,
        handlelength=1.0,
        handletextpad=0.3,
        columnspacing=0.8,
        fontsize=6.5,
    )
