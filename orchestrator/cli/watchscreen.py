"""The screen of `testbed watch`: hosts with circuits and rates, devices, curves, the waterfall of
the last change.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from rich.console import Group
from rich.table import Table
from rich.text import Text

from optics.plain import printable, seconds_text
from orchestrator.cli.waterfall import draw
from orchestrator.results import Json
from orchestrator.telemetry.palette import ALL_COLOURS
from orchestrator.views.live.fabric import DARK, LIT, LOST, MAKING
from orchestrator.views.live.slots import BY_SCHEDULE, WAITS

if TYPE_CHECKING:
    from orchestrator.views.live import Picture

_LOOK = {
    LIT: ("●", "*", "green"),
    MAKING: ("◌", "+", "bright_black"),
    DARK: ("○", "o", "magenta"),
    LOST: ("✗", "X", "bold red"),
}
_LOOK |= {WAITS: ("·", "-", "bright_black"), BY_SCHEDULE: ("◐", "~", "cyan")}
_PHASE = {"up": "green", "idle": "bright_black", "fault": "bold red"}
_SPARKS = "▁▂▃▄▅▆▇█"
_CURVE = 48
OLD_MS = 15_000.0
"""A curve that ends longer ago (ms) shows the time of its end."""
_RING_CHANGE = ("▼", "v")
"""The mark of a ring change."""
_BLOCKS = re.compile(r"[▏▎▍▌▋▊▉█]+|(?<= )[#|]+(?= |$)")


def screen(picture: Picture, width: int, height: int, *, unicode: bool = True) -> Group:
    """The picture in this many columns and rows; what does not fit is left out, the waterfall of
    the phases first.
    """
    move = picture.move
    running = picture.running
    now = move.at_work(time.time() * 1e3) if move and running and running.id == move.run else []
    bars = sorted([*move.bars, *now], key=lambda b: b.begin_ms) if move else []
    parts = [b for b in bars if b.kind != "run"]
    chart = draw(bars, width, unicode=unicode, working=[bar.phase for bar in now]) if bars else []
    small = draw(parts, width, unicode=unicode) if parts else chart
    changed = [
        *slot_lines(picture, width, unicode=unicode),
        *carried_lines(picture),
        *rank_line(picture),
    ]
    changed += ring_change_line(picture, width, unicode=unicode)
    fixed = 4 + len(picture.lab.devices) // 6 + len(changed)
    room = height - fixed
    hosts = min(len(picture.lab.hosts), max(3, room - min(len(small), 8) - 4))
    room -= hosts + 1 + (hosts < len(picture.lab.hosts))
    fall = (
        chart
        if len(chart) + 4 <= room
        else small
        if len(small) + 1 <= room
        else small[: max(0, room - 1)]
    )
    room -= len(fall) + 1
    news = list(picture.events.log)[-min(room - 1, 12) :] if room > 1 else []
    blocks: list[Text | Table] = [_head(picture), Text(summary(picture, width)), Text()]
    blocks += [
        _hosts(picture, hosts, width, unicode=unicode),
        _devices(picture),
        *curves(picture, unicode=unicode),
        *changed,
    ]
    if fall and move is not None:
        title = f"{move.run}  " + (
            "running now" if running and running.id == move.run else "the last change"
        )
        blocks += [Text(title, style="bold"), *_coloured(fall)]
    blocks += [
        Text(f"{clock(e.at)}  {printable(e.message, keep='')}", style="bright_black") for e in news
    ]
    blocks += [Text(printable(text, keep=""), style="cyan") for text in picture.state.reserved]
    for text in picture.trouble.values():
        blocks.append(Text(f"! {printable(text, keep='')}", style="yellow"))
    for block in blocks:
        if isinstance(block, Text):
            block.truncate(width, overflow="ellipsis" if unicode else "crop")
    return Group(*blocks)


def clock(at_ms: float) -> str:
    """A wall time (ms), local."""
    return time.strftime("%H:%M:%S", time.localtime(at_ms / 1e3))


def rate_text(mbps: float) -> str:
    """A rate with the unit that suits it."""
    return f"{mbps / 1e3:.2f} Gb/s" if mbps >= 1000 else f"{mbps:.0f} Mb/s"


def counts(picture: Picture) -> tuple[int, int]:
    """Numbers of lit circuits and of all; one that is being moved counts once."""
    states = list(picture.light.states.values())
    lit, moved = states.count(LIT), max(states.count(DARK), states.count(MAKING))
    return lit, lit + states.count(LOST) + moved


def summary(picture: Picture, width: int = 0) -> str:
    """The figures in one line; those that come last are left out where they are not within the
    width, if there is one.
    """
    lit, total = counts(picture)
    ring_changes = list(picture.light.states.values()).count(BY_SCHEDULE)
    argv = (
        [f"{lit}/{total} circuits lit"] if total or not (picture.switched or ring_changes) else []
    )
    argv += [f"{ring_changes} in turn"] if ring_changes else []
    if picture.switched:
        argv.append(f"over packet switches: {', '.join(sorted(set(picture.switched.values())))}")
    move = picture.move
    if move is not None and "dark_ms" in move.figures:
        argv.append(f"last change dark {seconds_text(move.figures['dark_ms'] / 1e3)}")
    sent = [r[0] for r in picture.rates.values() if r[0] is not None]
    if sent:
        argv.append(f"traffic {rate_text(sum(sent))}")
    took: Json = picture.job.get("iteration_ms")
    if picture.state.job_ended:
        argv.append(printable(picture.state.job_ended, keep=""))
    elif isinstance(took, float) and not picture.job.get("ended"):
        named = f"iteration {seconds_text(took / 1e3)}"
        name = printable(str(picture.job.get("name") or picture.job.get("of")), keep="")
        argv.append(
            f"{named} ({name})"
            if not width or len(", ".join([*argv, f"{named} ({name})"])) <= width
            else named
        )
    while width and len(argv) > 1 and len(", ".join(argv)) > width:
        argv.pop()
    return ", ".join(argv)


def _head(picture: Picture) -> Text:
    up = picture.state.plans or {}
    plans = ", ".join(
        p.plan_name if len(up) < 2 else f"{p.plan_name} ({owner})" for owner, p in up.items()
    )
    head = Text(picture.lab.name, style="bold")
    head.append(f"   {plans or 'no plan is up: testbed up --topology PLAN'}", style="cyan")
    run = picture.running or next(iter(picture.state.runs), None)
    if run is None:
        return head.append("   no run yet", style="bright_black")
    title = f"{run.verb} {run.plan_name}".rstrip()
    if run.status == "running":
        doing = picture.doing
        return head.append(f"   {doing + ': ' if doing else ''}{title}", style="bold magenta")
    style = "bright_black" if run.status == "ok" else "bold red"
    return head.append(f"   {title} {run.status}, {clock(run.started * 1e3)}", style=style)


def _hosts(picture: Picture, most: int, width: int, *, unicode: bool) -> Table:
    """One row per host: the receiver or packet switch of each of its ports, and its sending rate.

    Ports without a fibre and outside the plan are left out.
    """
    lab = picture.lab
    waiting = sorted(
        picture.light.circuits.values(), key=lambda w: picture.light.states[w.id] != WAITS
    )
    leaving = {str(w.sender): w for w in waiting}  # of several in turn the present one
    used = {port.number for port in lab.fibres} | {
        int(port.rpartition(":p")[2]) for port in picture.switched
    }
    ports = sorted({n for h in lab.hosts.values() for n in h.ports} & used)
    table = Table(
        box=None,
        padding=(0, 1, 0, 0),
        show_header=True,
        header_style="bright_black",
        pad_edge=False,
    )
    table.add_column("host", no_wrap=True)
    for n in ports:
        table.add_column(
            f"p{n}, Mb/s", no_wrap=True, min_width=max(9, min(16, (width - 18) // len(ports) - 1))
        )
    table.add_column("sent", justify="right", no_wrap=True)
    for host in list(lab.hosts.values())[:most]:
        cells: list[Text] = []
        total, known = 0.0, False
        for n in ports:
            port = f"{host.name}:p{n}"
            rate = picture.rates.get(port, [None])[0]
            if rate is not None:
                total, known = total + rate, True
            path = leaving.get(port)
            if port in picture.switched:
                name = picture.switched[port]
                cell = Text(name if len(name) <= 9 else name[:7] + ("…" if unicode else "."))
                cells.append(
                    cell.append(f" {rate:.0f}" if rate is not None else "", "bright_black")
                )
                continue
            if path is None:
                cells.append(Text("·" if unicode else "-", style="bright_black"))
                continue
            mark, plain, style = _LOOK[picture.light.states[path.id]]
            cell = (
                Text()
                .append(f"{mark if unicode else plain} ", style)
                .append(str(path.receiver), "" if style == "green" else style)
            )
            cells.append(cell.append(f" {rate:.0f}" if rate is not None else "", "bright_black"))
        table.add_row(Text(host.name, style="bold"), *cells, Text(f"{total:.0f}" if known else ""))
    if most < len(lab.hosts):
        table.add_row(Text(f"and {len(lab.hosts) - most} more", style="bright_black"))
    return table


def _devices(picture: Picture) -> Text:
    line = Text()
    for name, device in picture.devices.items():
        line.append(f"{name} ", style="bold")
        line.append(
            f"{device.phase}{f' {device.message}' if device.message else ''}   ",
            style=_PHASE.get(device.phase, "bold magenta"),
        )
    return line


def curves(picture: Picture, *, unicode: bool) -> list[Text]:
    """Curves of traffic and iteration time."""
    if not unicode:
        return []
    found = []
    for name, points, unit in (
        ("traffic", picture.traffic.series.all(picture.traffic.until), rate_text),
        ("iteration", picture.iterations.all(), lambda v: seconds_text(v / 1e3)),
    ):
        if points:
            at, value = points[-1]
            old = f"  at {clock(at)}" if time.time() * 1e3 - at > OLD_MS else ""
            curve = Text(spark([v for _, v in points[-_CURVE:]]), style="cyan")
            if name == "iteration":
                curve = _marked(curve, [t for t, _ in points[-_CURVE:]], picture)
            found.append(
                Text(f"{name:<10}")
                .append_text(curve)
                .append(f"  {unit(value)}")
                .append(old, "bright_black")
            )
    return found


def _marked(curve: Text, times: Sequence[float], picture: Picture) -> Text:
    """The curve with a mark before the first iteration that began after each ring change."""
    marked = Text()
    at = [
        float(cast(float, ring_change["at"]))
        for ring_change in picture.training.ring_changes.values()
        if ring_change["ok"]
    ]
    for k, time_ms in enumerate(times):
        if any((times[k - 1] if k else time_ms) < ring_change <= time_ms for ring_change in at):
            marked.append(_RING_CHANGE[0], "bold")
        marked.append_text(curve[k])
    return marked


def rank_line(picture: Picture) -> list[Text]:
    """Which ranks are silent, else which is the slowest; nothing of a job that has ended."""
    text, trouble = picture.ranks.text(time.time() * 1e3)
    return (
        [Text(f"{'ranks':<10}{printable(text, keep='')}", style="yellow" if trouble else "")]
        if text and not picture.job.get("ended")
        else []
    )


def slot_lines(picture: Picture, width: int, *, unicode: bool) -> list[Text]:
    """The slots of a schedule with the present one marked, and what services of extensions did;
    nothing where there is nothing.
    """
    found, slots = [], picture.slots
    if text := slots.text():
        line = Text(
            f"{'slots':<10}{printable(text, keep='')}",
            style="yellow" if slots.status in ("died", "repairing") else "",
        )
        found.append(line)
        count = len(slots.cycle.settings) if slots.cycle is not None else 0
        if not slots.fast and count + 12 <= width:
            marks = ("■", "·") if unicode else ("#", ".")
            strip = Text(" " * 10)
            for index in range(count):
                strip.append(
                    marks[index != slots.slot], "cyan" if index == slots.slot else "bright_black"
                )
            found.append(strip)
    return [
        *found,
        *(Text(f"{name:<10}{printable(text, keep='')}") for name, text in picture.services.text()),
    ]


def carried_lines(picture: Picture) -> list[Text]:
    """A line each for attachments, what is sent, lost and saved; nothing where there is none."""
    found = []
    for name, text, bad in picture.carrying.text(ended=bool(picture.job.get("ended"))):
        found.append(Text(f"{name:<10}{printable(text, keep='')}", style="yellow" if bad else ""))
    return found


def ring_change_line(picture: Picture, width: int, *, unicode: bool) -> list[Text]:
    """What the job lost at its latest ring change, in as many of the words as the width has room
    for."""
    ring_change = picture.ring_change
    if ring_change is None:
        return []
    mark, plain = _RING_CHANGE
    text = printable(str(ring_change["message"]), keep="")
    line = f"{mark if unicode else plain} {clock(float(cast(float, ring_change['at'])))} "
    paused, short = text.partition(";")[0], text.partition(":")[0]
    brief = text.replace("; iteration ", "; ")
    longest = [
        f"{'rings':<10}{line}{text}",
        *(f"rings {line}{text}" for text in (text, brief, paused, short)),
    ]
    fits = next((reported for reported in longest if len(reported) <= width), longest[-1])
    return [Text(fits, style="" if ring_change["ok"] else "yellow")]


def spark(values: Sequence[float]) -> str:
    """A curve of block characters, from zero to the largest."""
    top = max(values, default=0.0) or 1.0
    return "".join(_SPARKS[min(7, int(8 * max(0.0, v) / top))] for v in values)


def _coloured(lines: Sequence[str]) -> list[Text]:
    colours = ALL_COLOURS
    found = []
    for line in lines:
        text = Text(line)
        message = line[2:].split("  ")[0].strip()
        colour = (
            colours.get(message.replace(" ", "_"))
            or colours.get("_".join(message.split()[1:]))
            or "bright_black"
        )
        for block in _BLOCKS.finditer(line):
            text.stylize(colour, *block.span())
        found.append(text)
    return found
