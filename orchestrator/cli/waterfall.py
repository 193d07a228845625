"""Where the milliseconds of a run went, drawn in the terminal from its journal. Values in, lines out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from orchestrator.bars import Bar, Iterations, bar_json, bars, iterations, part_rows, phase_totals
from orchestrator.telemetry.lineprotocol import Point
from orchestrator.telemetry.progress import counted

__all__ = ["Bar", "Iterations", "bar_json", "bars", "draw", "iteration_lines", "iterations", "phase_totals", "reconfig_lines"]

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LABEL = 12
_NUMBER = 11
_LEAST = 20
"""A picture narrower than this many characters shows nothing."""


def draw(all_bars: Sequence[Bar], width: int, *, unicode: bool = True) -> list[str]:
    """Draw the phases of the run, then, on its own axis, what each device and the hosts did inside them."""
    phases = [b for b in all_bars if b.kind == "run"]
    parts = [b for b in all_bars if b.kind != "run"]
    if not all_bars:
        return ["  no phases were recorded"]
    lines = _chart("phase", [(b.phase, b) for b in phases], width, unicode)
    if parts:
        rows = part_rows(parts)
        # Hosts' and devices' milliseconds would vanish beside Ansible's seconds: they get an axis of their own.
        lines += ["", *_chart("part", rows, width, unicode)]
    return lines


def reconfig_lines(points: Iterable[Point]) -> list[str]:
    """One line per reconfiguration with the parts of its dark window, in the order they happen."""
    order = ("ack", "command", "dark", "power", "link", "route", "first_packet", "resume", "total")
    lines = []
    for p in points:
        if p.measurement != "reconfig":
            continue
        found = [f"{name.replace('_', ' ')} {float(p.fields[f'{name}_ms']):.1f}" for name in order if f"{name}_ms" in p.fields]
        lines.append(
            f"  reconfiguration {p.fields.get('seq', 1)}: {p.fields.get('n_circuits', '?')} circuits, ms: {', '.join(found)}"
        )
    return lines


def iteration_lines(found: Iterable[Iterations]) -> list[str]:
    """One line per job and operation."""
    return [
        f"  job {i.job} ({i.what}): {counted(i.count, 'iteration')}, median {i.median_ms:.1f} ms, "
        f"p99 {i.p99_ms:.1f} ms, max {i.max_ms:.1f} ms" + (f", busbw {i.busbw_gbps:.3f} Gb/s" if i.busbw_gbps is not None else "")
        for i in found
    ]


def _chart(title: str, rows: Sequence[tuple[str, Bar]], width: int, unicode: bool) -> list[str]:
    if not rows:
        return []
    begin = min(bar.begin_ms for _, bar in rows)
    end = max(bar.end_ms for _, bar in rows)
    label = max(_LABEL, *(len(name) for name, _ in rows)) + 1
    said = {bar: _remark(bar) for _, bar in rows}
    room = max(_LEAST, width - label - _NUMBER - 3 - max(map(len, said.values())))
    axis = _axis(begin, end, room)
    lines = [f"  {title:<{label}}{'ms':>{_NUMBER - 1}}  {axis}"]
    draw_bar: Callable[[float, float, int], str] = _blocks if unicode else _hashes
    span = (end - begin) or 1.0
    for name, bar in rows:
        picture = draw_bar((bar.begin_ms - begin) / span, (bar.end_ms - begin) / span, room)
        lines.append(f"  {name:<{label}}{bar.ms:>{_NUMBER - 1}.1f}  {picture:<{room}}{said[bar]}".rstrip())
    return lines


def _remark(bar: Bar) -> str:
    return ("  FAILED" if not bar.ok else "") + (f"  {bar.detail}" if bar.detail and bar.kind == "host" else "")


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
