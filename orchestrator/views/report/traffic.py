"""Figures of the effect of moves on traffic and jobs, and of comparisons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from orchestrator.telemetry.palette import MARK, PHASE_COLOURS
from orchestrator.views.report.figures import GREY, MADE, boxes, downwards, one_figure
from orchestrator.views.report.ledger import Answer
from orchestrator.views.report.questions import Reconfiguration
from orchestrator.views.report.svg import INK

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

BEFORE, AFTER = "#8E8E8E", "#3274D9"
ARMS = ("#3274D9", "#E0752D", "#56A64B", "#8F3BB8", "#C4162A", "#707070")

Samples = Sequence[tuple[str, int, int]]
"""Port, wall ns, bytes sent since it came up; in order of time."""


def sending_rate(samples: Samples) -> tuple[list[int], list[float]]:
    """The total sending rate of all ports: wall ns at which it changes, and Mb/s from there to the
    next.

    Each port's rate is taken as constant between two samples, the finest resolution there is.
    """
    last: dict[str, tuple[int, int]] = {}
    steps: dict[int, float] = {}
    for port, at, sent in samples:
        if port in last and at > last[port][0] and sent >= last[port][1]:
            begin, had = last[port]
            rate = (sent - had) * 8000.0 / (at - begin)
            steps[begin] = steps.get(begin, 0.0) + rate
            steps[at] = steps.get(at, 0.0) - rate
        last[port] = (at, sent)
    times, total, now = sorted(steps), [], 0.0
    for at in times:
        now += steps[at]
        total.append(max(0.0, now))
    return times, total


def throughput_charts(found: Sequence[tuple[Reconfiguration, Samples]]) -> Figure | None:
    """Throughput around moves, as a row of small charts; zero is the first command of each."""
    drawn = [(move, *sending_rate(samples)) for move, samples in found]
    drawn = [(move, times, total) for move, times, total in drawn if times]
    if not drawn:
        return None
    columns = min(3, len(drawn))
    lines = math.ceil(len(drawn) / columns)
    height = 0.35 + 1.75 * lines if len(drawn) > 1 else 2.3
    with one_figure(height, columns, lines, sharey=True, squeeze=False) as (figure, grid):
        for k, (move, times, total) in enumerate(drawn):
            axes = grid[k // columns][k % columns]
            seconds = [(t - move.t0) / 1e9 for t in times]
            axes.axvspan(
                0, (move.back - move.t0) / 1e9, color=PHASE_COLOURS["dark"], alpha=0.35, linewidth=0
            )
            axes.axvline(0, color=MARK, linewidth=1)
            axes.fill_between(seconds, total, step="post", color=MADE, alpha=0.25, linewidth=0)
            axes.step(seconds, total, where="post", color=MADE, linewidth=1.1)
            if len(drawn) > 1:
                axes.set_title(move.id)
            axes.grid(True)
            if k % columns == 0:
                axes.set_ylabel("Mb/s, all hosts")
            if k // columns == lines - 1 or k + columns >= len(drawn):
                axes.set_xlabel("s since the first command")
        grid[0][0].set_ylim(0, 1.05 * max(max(total) for _, _, total in drawn) or 1.0)
        for k in range(len(drawn), lines * columns):
            grid[k // columns][k % columns].axis("off")
    return figure


def iteration_chart(
    move: Reconfiguration,
    points: Sequence[tuple[int, float, str]],
    before: float | None,
    after: float | None,
    ring_changes: Sequence[tuple[int, str]] = (),
) -> Figure | None:
    """A job's iterations around one move: when each began (wall ns), how long it took, which run
    launched it.

    ring_changes: when its ranks changed rings (wall ns), and what is written there.
    """
    if not points:
        return None
    with one_figure(2.3) as (figure, axes):
        seconds = [(at - move.t0) / 1e9 for at, _, _ in points]
        colours = [BEFORE if at < move.t0 else AFTER for at, _, _ in points]
        axes.axvspan(
            0,
            max((move.t1 - move.t0) / 1e9, 0.01),
            color=PHASE_COLOURS["dark"],
            alpha=0.35,
            linewidth=0,
        )
        axes.axvline(0, color=MARK, linewidth=1)
        axes.scatter(seconds, [ms for _, ms, _ in points], s=9, c=colours, linewidths=0)
        was = [(at, at + ms * 1e6) for at, ms, _ in points if at + ms * 1e6 <= move.t0]
        now = [(at, at + ms * 1e6) for at, ms, _ in points if at >= move.t1]
        for value, colour, some in ((before, BEFORE, was), (after, AFTER, now)):
            if value is not None and some:  # the time between them is unknown
                ends = [(t - move.t0) / 1e9 for t in (some[0][0], some[-1][1])]
                axes.plot(ends, [value, value], color=colour, linewidth=1)
        axes.set_ylim(bottom=0)
        for at, text in ring_changes:
            x = (at - move.t0) / 1e9
            axes.axvline(x, color=INK, linewidth=0.9)
            axes.plot(
                [x],
                [1],
                "v",
                color=INK,
                markersize=5,
                transform=axes.get_xaxis_transform(),
                clip_on=False,
            )
            left = x > sum(axes.get_xlim()) / 2
            place = {
                "xytext": (-6 if left else 6, 5),
                "textcoords": "offset points",
                "ha": "right" if left else "left",
            }
            axes.annotate(
                text,
                (x, 1),
                xycoords=axes.get_xaxis_transform(),
                fontsize=7.5,
                fontweight="bold",
                **place,
            )
        axes.set_xlabel("s since the first command")
        axes.set_ylabel("iteration, ms")
        axes.grid(True)
    return figure


def before_after(job: Answer) -> Figure | None:
    """Iteration time before and after each of the latest 40 moves."""
    rows = [line for line in job.lines() if line["before_ms"] and line["after_ms"]][-40:]
    if not rows:
        return None
    with one_figure(0.8 + 0.17 * len(rows)) as (figure, axes):
        for y, line in enumerate(rows):
            was, now = line["before_ms"].value, line["after_ms"].value
            axes.plot([was, now], [y, y], color=GREY, linewidth=1)
            axes.plot(was, y, "o", color=BEFORE, markersize=5)
            axes.plot(now, y, "o", color=AFTER, markersize=5)
        axes.set_yticks(range(len(rows)), [line["reconfig_id"].value for line in rows])
        axes.set_xlim(
            0, 1.05 * max(line[name].value for line in rows for name in ("before_ms", "after_ms"))
        )
        downwards(axes, "median iteration, ms")
        boxes(figure, {"before": BEFORE, "after": AFTER})
    return figure


def measurements(arms: Mapping[str, Sequence[Sequence[float]]], what: str) -> Figure | None:
    """Every value of each arm's measurements, with each measurement's median.

    what: the name of the values with their unit. A logarithmic axis where arms differ by more than
    a factor of 20.
    """
    every = [value for slots in arms.values() for values in slots for value in values]
    if not every:
        return None
    with one_figure(2.9) as (figure, axes):
        for k, slots in enumerate(arms.values()):
            colour = ARMS[k % len(ARMS)]
            for j, values in enumerate(v for v in slots if v):
                width = 0.6 / max(1, len(slots))
                x = k - 0.3 + width * (j + 0.5)
                spread = [
                    x + width * 0.35 * (((i * 7919) % 101) / 50.5 - 1) for i in range(len(values))
                ]
                axes.scatter(spread, values, s=5, color=colour, alpha=0.45, linewidths=0)
                middle = median(values)
                axes.plot(
                    [x - width * 0.4, x + width * 0.4], [middle, middle], color=INK, linewidth=0.8
                )
        axes.set_xticks(range(len(arms)), list(arms))
        axes.set_xlim(-0.5, len(arms) - 0.5)
        if min(every) > 0 and max(every) > 20 * min(every):
            axes.set_yscale("log")
            plain_numbers(axes.yaxis)
        else:
            axes.set_ylim(bottom=0)
        axes.set_ylabel(what)
        axes.grid(True, axis="y")
    return figure


def ratios(
    rows: Sequence[tuple[str, tuple[float, float, float], tuple[float | None, float | None], bool]],
) -> Figure | None:
    """Ratios with their intervals on bands: words, (low, middle, high), the band's ends (None:
    open), whether it holds.
    """
    if not rows:
        return None
    edges = [
        x
        for _, found, band, _ in rows
        for x in (*found, *band, 1.0)
        if x is not None and 0 < x < math.inf
    ]
    left, right = min(edges) / 1.5, max(edges) * 1.5
    with one_figure(0.6 + 0.42 * len(rows)) as (figure, axes):
        for y, (_, (low, middle, high), (least, most), holds) in enumerate(rows):
            begin, end = least if least is not None else left, most if most is not None else right
            begin = max(begin, left)
            axes.barh(y, end - begin, left=begin, height=0.62, color=MADE, alpha=0.18, linewidth=0)
            axes.plot([max(low, left), min(high, right)], [y, y], color=INK, linewidth=1.4)
            axes.plot(
                [min(max(middle, left), right)],
                [y],
                "D" if holds else "X",
                color=MADE if holds else ARMS[1],
                markersize=5,
            )
        axes.axvline(1, color=MARK, linewidth=0.8)
        axes.set_xscale("log")
        plain_numbers(axes.xaxis)
        axes.set_xlim(left, right)
        axes.set_yticks(range(len(rows)), [text for text, *_ in rows])
        downwards(axes, "ratio; shaded: the band that counts as reproduced")
        axes.grid(True, axis="x")
    return figure


def sweep(
    lines: Mapping[str, Sequence[tuple[float, tuple[float, float, float]]]], what: str
) -> Figure | None:
    """Ratios over a swept parameter (logarithmic): by line, the parameter's value and (low, middle,
    high).
    """
    lines = {name: sorted(points) for name, points in lines.items() if len(points) > 1}
    if not lines:
        return None
    with one_figure(2.9) as (figure, axes):
        for k, (name, points) in enumerate(lines.items()):
            x, middle = [x for x, _ in points], [m for _, (_, m, _) in points]
            around = [
                [m - low for _, (low, m, _) in points],
                [high - m for _, (_, m, high) in points],
            ]
            axes.errorbar(
                x,
                middle,
                around,
                fmt="o-",
                color=ARMS[k % len(ARMS)],
                capsize=3,
                markersize=4,
                linewidth=1.1,
                label=name,
            )
        axes.axhline(1, color=MARK, linewidth=0.8)
        axes.set_xscale("log")
        axes.set_yscale("log")
        plain_numbers(axes.xaxis)
        plain_numbers(axes.yaxis)
        axes.set_xlabel(what)
        axes.set_ylabel("ratio")
        axes.grid(True)
        boxes(figure, {name: ARMS[k % len(ARMS)] for k, name in enumerate(lines)})
    return figure


def plain_numbers(axis: Axis) -> None:
    """Label a logarithmic axis, of which the data are drawn already, with plain numbers: as many a
    decade as have room.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    decades = math.log10(high / low)
    subs = (
        (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
        if decades < 1.5
        else (1.0, 2.0, 5.0)
        if decades < 3
        else (1.0,)
    )
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_minor_formatter(NullFormatter())
