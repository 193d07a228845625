"""Where the time of a run went, drawn: its phases, and the parts of each device in one
reconfiguration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.telemetry.palette import ALL_COLOURS, PHASE_COLOURS
from orchestrator.views.report.figures import GREY, boxes, downwards, one_figure
from orchestrator.views.report.ledger import Answer
from orchestrator.views.waterfall import OVERLAPPING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOVING = frozenset({"arm", "drain", "hold", "switch", "move", "rings"})
_JOB = frozenset({"job", "launch", "resume"})


def run_waterfall(phases: Answer) -> Figure | None:
    """The phases of a run in three charts, each on an axis of its own: before light moves, the
    move, the job.

    A move takes milliseconds and a job seconds: on one axis the move would be a dash.
    """
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for line in phases.lines():
        if line["kind"].value == "run":
            rows.setdefault(line["phase"].value, []).append(line)
    if not rows:
        return None
    charts = _charts(rows)
    sizes = [len(names) + 0.2 for _, names in charts]
    height = 0.7 * len(charts) + 0.2 * sum(sizes)
    with one_figure(height, 1, len(charts), squeeze=False, height_ratios=sizes) as (figure, grid):
        for (title, names), (axes,) in zip(charts, grid, strict=True):
            _phase_chart(axes, title, {name: rows[name] for name in names})
    return figure


def _charts(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[tuple[str, list[str]]]:
    """The chart of each phase; phases that overlap others are drawn last."""
    begin = {name: some[0]["begin_ms"].value for name, some in rows.items()}
    moved = min((begin[name] for name in rows if name in _MOVING), default=math.inf)
    job = [name for name in rows if name in _JOB]
    before = [name for name in rows if name not in job and begin[name] < moved]
    move = [name for name in rows if name not in job and begin[name] >= moved]
    found = [("before light moves", before), ("the move", move), ("the job", job)]
    return [
        (title, sorted(names, key=lambda n: (n in OVERLAPPING, begin[n])))
        for title, names in found
        if names
    ]


def _phase_chart(axes: Axes, title: str, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    every = [line for some in rows.values() for line in some]
    first, last = (
        min(x["begin_ms"].value for x in every),
        max(x["begin_ms"].value + x["duration_ms"].value for x in every),
    )
    unit, per = ("s", 1e3) if last - first >= 2000 else ("ms", 1.0)
    for y, (name, some) in enumerate(rows.items()):
        for line in some:
            colour = PHASE_COLOURS["fault"] if not line["ok"].value else ALL_COLOURS.get(name, GREY)
            begin, took = (line["begin_ms"].value - first) / per, line["duration_ms"].value / per
            if name in OVERLAPPING:
                axes.barh(
                    y,
                    took,
                    left=begin,
                    height=0.5,
                    facecolor="none",
                    edgecolor=colour,
                    hatch="////",
                    linewidth=0.8,
                )
            else:
                axes.barh(y, took, left=begin, height=0.7, color=colour)
        text = " + ".join(line["duration_ms"].text() for line in some) + (
            "" if all(x["ok"].value for x in some) else "  FAILED"
        )
        end = (max(x["begin_ms"].value + x["duration_ms"].value for x in some) - first) / per
        text += "  in parallel" if name in OVERLAPPING else ""
        axes.annotate(text, (end, y), (3, 0), textcoords="offset points", va="center", fontsize=7)
    axes.set_title(title)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(-0.6, len(rows) - 0.4)  # turned round below
    since = "the start of the run" if first < 1 else f"{first / 1e3:.1f} s"
    downwards(axes, f"{unit} since {since}")
    axes.set_xlim(0, max(1e-3, (last - first) / per) * 1.22)


def device_waterfall(devices: Answer, phases: Answer | None, one: str) -> Figure | None:
    """The parts of each device in one reconfiguration, and below them the hosts; milliseconds since
    the first command.
    """
    rows = [line for line in devices.lines() if line["reconfig_id"].value == one]
    if not rows:
        return None
    hosts = _host_bars(phases) if phases is not None else []
    with one_figure(0.75 + 0.24 * (len(rows) + len(hosts))) as (figure, axes):
        for y, line in enumerate(rows):
            ms = {name: cell.value for name, cell in line.items()}
            marks = [
                ("command", ms["send_ms"], ms["ack_ms"]),
                ("dark", ms["dark_begin_ms"], ms["dark_end_ms"]),
            ]
            marks += [
                ("power", ms["dark_end_ms"], ms["power_ms"]),
                ("link", ms["dark_end_ms"], ms["link_up_ms"]),
            ]
            marks += [
                (
                    "route",
                    max(x for x in (ms["link_up_ms"], ms["dark_end_ms"], 0.0) if x is not None),
                    ms["route_ms"],
                )
            ]
            for k, (name, begin, end) in enumerate(marks):
                if begin is not None and end is not None and end > begin:
                    at, height = {"command": (y - 0.3, 0.16), "power": (y + 0.38, 0.16)}.get(
                        name, (y + 0.04, 0.46)
                    )
                    axes.barh(
                        at,
                        end - begin,
                        left=begin,
                        height=height,
                        color=PHASE_COLOURS[name],
                        zorder=2 + k,
                    )
        offset = _first_command(rows, phases)
        for y, (_, colour, begin, end, reported) in enumerate(hosts, len(rows)):
            axes.barh(y, end - begin, left=begin - offset, height=0.5, color=colour)
            axes.annotate(
                reported,
                (end - offset, y),
                (3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
            )
        axes.set_yticks(
            range(len(rows) + len(hosts)),
            [f"{r['device'].value}" for r in rows] + [h[0] for h in hosts],
        )
        axes.margins(x=0.16)
        axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
        downwards(axes, "ms since the first command")
        shown = {"commands": "command", "dark": "dark", "carrier": "link", "routes": "route"}
        if any(line["power_ms"].value is not None for line in rows):
            shown["light seen"] = "power"
        boxes(figure, {text: PHASE_COLOURS[name] for text, name in shown.items()})
    return figure


def _host_bars(phases: Answer) -> list[tuple[str, str, float, float, str]]:
    """The hosts' parts, each from the first host's begin to the last one's end, ms since the start
    of the run.
    """
    found = []
    for phase, colour in (("light", PHASE_COLOURS["link"]), ("commit", PHASE_COLOURS["route"])):
        some = [
            (
                line["begin_ms"].value,
                line["begin_ms"].value + line["duration_ms"].value,
                line["subject"].value,
            )
            for line in phases.lines()
            if line["kind"].value == "host" and line["phase"].value == phase
        ]
        if some:
            last = max(some, key=lambda bar: bar[1])
            found.append(
                (
                    f"hosts: {phase}",
                    colour,
                    min(s[0] for s in some),
                    last[1],
                    f"{len(some)} hosts, last {last[2]}",
                )
            )
    return found


def _first_command(rows: Sequence[Mapping[str, Any]], phases: Answer | None) -> float:
    """When the first command was sent, ms since the start of the run: hosts' `light` begins
    there.
    """
    if phases is None:
        return 0.0
    light = [
        line["begin_ms"].value
        for line in phases.lines()
        if line["kind"].value == "host" and line["phase"].value == "light"
    ]
    return float(min(light, default=0.0))
