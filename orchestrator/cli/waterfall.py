"""The waterfall of a run for the terminal: how long each of its phases took."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from optics.plain import counted
from orchestrator.telemetry.lineprotocol import Point
from orchestrator.views.waterfall import OVERLAPPING, Bar, IterationSummary, part_rows, run_rows

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LABEL = 12
_NUMBER = 11
_LEAST = 20
"""Least width of the bars, in characters."""


def draw(
    all_bars: Sequence[Bar], width: int, *, unicode: bool = True, working: Collection[str] = ()
) -> list[str]:
    """Draw the phases of the run, then, on an axis of its own, the parts of each device and of the
    hosts.

    working: the phases whose last bar goes on.
    """
    parts = [b for b in all_bars if b.kind != "run"]
    if not all_bars:
        return ["  no phases were recorded"]
    lines = _chart("phase", run_rows(all_bars), width, unicode, working)
    if parts:
        rows = [(name, (bar,)) for name, bar in part_rows(parts)]
        # Milliseconds of hosts and devices would vanish next to Ansible's seconds, so they get
        # their own axis.
        lines += ["", *_chart("part", rows, width, unicode)]
    return lines


def reconfig_lines(points: Iterable[Point]) -> list[str]:
    """One line per reconfiguration with the parts of its dark window, in the order they happen."""
    order = ("ack", "command", "dark", "power", "link", "route", "first_packet", "resume", "total")
    lines = []
    for p in points:
        if p.measurement != "reconfig":
            continue
        found = [
            f"{name.replace('_', ' ')} {float(p.fields[f'{name}_ms']):.1f}"
            for name in order
            if f"{name}_ms" in p.fields
        ]
        lines.append(
            f"  reconfiguration {p.fields.get('seq', 1)}: {p.fields.get('n_circuits', '?')} circuits, ms: {', '.join(found)}"
        )
    return lines


def iteration_lines(found: Iterable[IterationSummary], run: str) -> list[str]:
    """One line per job and operation; of a job that another than `run` launched, until the next
    change.
    """
    return [
        f"  job {i.job} ({i.what}{f', launched by {i.run}' if i.run != run else ''}): "
        f"{counted(i.count, 'iteration')}, median {i.median_ms:.1f} ms, p99 {i.p99_ms:.1f} ms, max {i.max_ms:.1f} ms"
        + (f", busbw {i.busbw_gbps:.3f} Gb/s" if i.busbw_gbps is not None else "")
        for i in found
    ]


def _chart(
    title: str,
    rows: Sequence[tuple[str, Sequence[Bar]]],
    width: int,
    unicode: bool,
    working: Collection[str] = (),
) -> list[str]:
    if not rows:
        return []
    begin = min(bar.begin_ms for _, some in rows for bar in some)
    end = max(bar.end_ms for _, some in rows for bar in some)
    label = max(_LABEL, *(len(name) for name, _ in rows)) + 1
    reply = {name: "  so far" if name in working else _remark(some) for name, some in rows}
    room = max(_LEAST, width - label - _NUMBER - 3 - max(map(len, reply.values())))
    axis = _axis(begin, end, room)
    lines = [f"  {title:<{label}}{'ms':>{_NUMBER - 1}}  {axis}"]
    draw_bar: Callable[[float, float, int], str] = _blocks if unicode else _hashes
    span = (end - begin) or 1.0
    for name, some in rows:
        picture = ""
        for bar in some:
            drawn = draw_bar((bar.begin_ms - begin) / span, (bar.end_ms - begin) / span, room)
            picture += drawn[len(picture) :]
        if name in OVERLAPPING:
            picture = "".join(c if c == " " else "░" if unicode else "-" for c in picture)
        ms = sum(bar.ms for bar in some)
        lines.append(
            f"  {name:<{label}}{ms:>{_NUMBER - 1}.1f}  {picture:<{room}}{reply[name]}".rstrip()
        )
    return lines


def _remark(some: Sequence[Bar]) -> str:
    detail = (
        some[0].detail
        if some[0].kind == "host"
        else "overlaps others"
        if some[0].phase in OVERLAPPING
        else ""
    )
    return ("  FAILED" if not all(bar.ok for bar in some) else "") + (
        f"  {detail}" if detail else ""
    )


def _axis(begin: float, end: float, room: int) -> str:
    left, right = f"{begin:.0f}", f"{end:.0f}"
    return left + right.rjust(room - len(left))


def _blocks(begin: float, end: float, room: int) -> str:
    """A bar to an eighth of a character at its right end; never thinner than an eighth."""
    first = min(int(begin * room), room - 1)
    eighths = max(1, round((end * room - first) * 8))
    full, rest = divmod(min(eighths, (room - first) * 8), 8)
    return " " * first + "█" * full + _EIGHTHS[rest].strip()


def _hashes(begin: float, end: float, room: int) -> str:
    first = min(int(begin * room), room - 1)
    length = min(round(end * room) - first, room - first)
    return " " * first + ("#" * length if length > 0 else "|")
