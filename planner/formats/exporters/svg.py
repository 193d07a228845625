"""A design as a self-contained picture: rings and pairs, or packet switches, and hosts on a circle;
with maps of the traffic.

Before: bytes from row to column of one iteration, sums passed on in rank order. After: bytes on
each link, routes followed; what is empty there is no link. Both maps have one scale. Over packet
switches there are no links from rank to rank, and only the first map.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, sin
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from planner.formats.exporters.graphviz import COLOURS
from planner.formats.exporters.switches import Switch
from planner.model.shape import Shape

SIDE, TOP, GAP = 360, 76, 50
RADIUS = SIDE / 2 - 40
MOST = 128
"""Ranks up to which maps are drawn, a square for each pair."""
_PAIR, _INK, _GRID = "#777777", "#222222", "#e4e4e4"
_DASH = ' stroke-dasharray="4 3"'

Point = tuple[float, float]
Line = tuple[str, str, str]
"""Of a legend: its words, its colour, how it is dashed."""


def svg(
    title: str,
    shape: Shape,
    hosts: Sequence[str],
    before: NDArray[np.float64],
    after: NDArray[np.float64],
    switches: Sequence[Switch] = (),
) -> str:
    """The picture; `before` and `after` are bytes from row to column. switches: what joins the
    hosts, if it is not links.
    """
    maps = [
        ("before: bytes from rank to rank", before),
        *([] if switches else [("after: bytes on links", after)]),
    ]
    maps = maps if shape.n <= MOST else []
    at = [
        (
            GAP + SIDE / 2 + RADIUS * sin(2 * pi * k / shape.n),
            TOP + SIDE / 2 - RADIUS * cos(2 * pi * k / shape.n),
        )
        for k in range(shape.n)
    ]
    if switches:
        count = sum(1 for top in switches for _ in top.tree())
        text = f"{count} packet switch{'es' if count > 1 else ''}: {', '.join(top.name for top in switches)}"
        legend, drawn = _named(switches), _switched(switches, at)
    else:
        text = f"{len(shape.cables)} links, diameter {shape.diameter}, mean {shape.mean_hops():.2f} hops"
        legend, drawn = _legend(shape), _links(shape, at)
    # switches have longer words, which go below the scale
    across, first = (1, 52) if switches else (2, 34)
    width = 2 * GAP + SIDE + len(maps) * (SIDE + GAP)
    height = TOP + SIDE + first + 12 + 18 * -(-len(legend) // across)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{_INK}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{GAP}" y="28" font-size="16">{escape(title)}</text>',
        _heading(GAP, _short(text, 58)),
        *drawn,
        *_hosts(hosts, at),
    ]
    for number, (name, tone, dash) in enumerate(legend):
        x, y = GAP + number % across * (SIDE / 2), TOP + SIDE + first + number // across * 18
        parts.append(
            f'<line x1="{x}" y1="{y - 4}" x2="{x + 22}" y2="{y - 4}" stroke="{tone}" stroke-width="2.5"{dash}/>'
        )
        parts.append(f'<text x="{x + 28}" y="{y}">{escape(name)}</text>')
    if maps:
        top = max(float(matrix.max(initial=0)) for _, matrix in maps)
        for number, (text, matrix) in enumerate(maps):
            left = GAP + (number + 1) * (SIDE + GAP)
            parts.append(_heading(left, f"{text}, at most {_bytes(float(matrix.max(initial=0)))}"))
            parts += _map(matrix, left, top)
        parts.append(_scale(GAP + SIDE + GAP, TOP + SIDE + 24, top))
    return "\n".join([*parts, "</svg>", ""])


def _heading(x: float, text: str) -> str:
    return f'<text x="{x}" y="{TOP - 20}" fill="#444444">{escape(text)}</text>'


def _legend(shape: Shape) -> list[Line]:
    """Rings by their colours, and what is dashed."""
    tokens = [
        f"{ring.group}, stride {ring.stride}" if ring.stride else ring.group
        for ring in shape.rings[:12]
    ]
    named = [(name, COLOURS[number % len(COLOURS)], "") for number, name in enumerate(tokens)]
    return [*named, *([("matched pairs", _PAIR, _DASH)] if shape.matched else [])]


def _links(shape: Shape, at: Sequence[Point]) -> list[str]:
    middle = (GAP + SIDE / 2, TOP + SIDE / 2)
    parts = [_link(at[a], at[b], middle, _PAIR, 0.0, _DASH) for a, b in shape.matched]
    for number, ring in enumerate(shape.rings):
        for a, b in zip(ring.order, ring.order[1:] + ring.order[:1], strict=True):
            parts.append(
                _link(at[a], at[b], middle, COLOURS[number % len(COLOURS)], 0.05 * number, "")
            )
    return parts


def _hosts(hosts: Sequence[str], at: Sequence[Point]) -> list[str]:
    parts, n = [], len(at)
    x, y = GAP + SIDE / 2, TOP + SIDE / 2
    size = max(2.5, min(9.0, 90 / n))
    for rank, (px, py) in enumerate(at):
        name = f"<title>{escape(hosts[rank])}</title>"
        parts.append(
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="{size:.1f}" fill="white" stroke="{_INK}">{name}</circle>'
        )
        if n <= 32:
            lx, ly = px + (px - x) / RADIUS * (size + 4), py + (py - y) / RADIUS * (size + 9)
            anchor = "middle" if abs(px - x) < RADIUS / 8 else "start" if px > x else "end"
            parts.append(
                f'<text x="{lx:.1f}" y="{ly + 4:.1f}" text-anchor="{anchor}" font-size="10">{escape(hosts[rank])}</text>'
            )
    return parts


def _named(switches: Sequence[Switch]) -> list[Line]:
    """Switches by their colours, with their rates."""
    found = []
    for number, top in enumerate(switches[:12]):
        below = f", {len(top.below)} racks with {_alike(top.below)}" if top.below else ""
        found.append(
            (f"{_short(top.name, 24)}: {top.message}{below}", COLOURS[number % len(COLOURS)], "")
        )
    return found


def _alike(switches: Sequence[Switch]) -> str:
    """What they have in common, in words."""
    texts = dict.fromkeys(switch.message for switch in switches)
    return next(iter(texts)) if len(texts) == 1 else "uplinks of different rates"


def _switched(switches: Sequence[Switch], at: Sequence[Point]) -> list[str]:
    """Each switch a box between those it joins, drawn over all cables."""
    places: dict[str, Point] = {}
    cables, boxes = [], []
    for number, top in enumerate(switches):
        tone = COLOURS[number % len(COLOURS)]
        for switch in top.tree():
            label = switch.name
            if switch is not top:
                label = (
                    switch.name.removeprefix(f"{top.name} ")
                    if len(top.below) <= 8
                    else switch.name.rpartition(" ")[2]
                )
            members = [at[rank] for rank in switch.every_rank]
            x, y = _place(
                members, list(places.values()), 6 * len(label) + 24, middle=bool(switch.below)
            )
            places[switch.name] = x, y
            cables += [_cable((x, y), at[rank], tone, 1.6) for rank in switch.ranks]
            boxes.append(_box(x, y, _short(label, 16), tone, f"{switch.name}: {switch.message}"))
        cables += [_cable(places[top.name], places[lower.name], tone, 3.2) for lower in top.below]
    return cables + boxes


def _place(members: Sequence[Point], taken: Sequence[Point], wide: float, *, middle: bool) -> Point:
    """Between the middle of the circle and the middle of those it joins, or in the circle's; above
    or below what is there.
    """
    centre = (GAP + SIDE / 2, TOP + SIDE / 2)
    share = 0.0 if middle else 0.75
    x, y = (
        centre[k] + share * (sum(one[k] for one in members) / len(members) - centre[k])
        for k in (0, 1)
    )
    for step in range(2 * len(taken) + 1):
        neighbour = y + 24 * ((step + 1) // 2) * (1 if step % 2 else -1)
        if all(abs(x - other[0]) > wide or abs(neighbour - other[1]) > 20 for other in taken):
            return x, neighbour
    return x, y


def _cable(a: Point, b: Point, tone: str, width: float) -> str:
    return f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" stroke="{tone}" stroke-width="{width}"/>'


def _box(x: float, y: float, label: str, tone: str, message: str) -> str:
    wide = 6 * len(label) + 12
    place = f'x="{x - wide / 2:.1f}" y="{y - 9:.1f}" width="{wide}" height="18" rx="3"'
    box = f'<rect {place} fill="white" stroke="{tone}" stroke-width="1.6">'
    text = f'<text x="{x:.1f}" y="{y + 3.5:.1f}" text-anchor="middle" font-size="10">{escape(label)}</text>'
    return f"{box}<title>{escape(message)}</title></rect>{text}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _link(a: Point, b: Point, middle: Point, tone: str, bend: float, more: str) -> str:
    """A curve that bends to the middle, parallel links differently so."""
    cx, cy = ((a[k] + b[k]) / 2 * (0.92 - bend) + middle[k] * (0.08 + bend) for k in (0, 1))
    curve = f"M{a[0]:.1f},{a[1]:.1f} Q{cx:.1f},{cy:.1f} {b[0]:.1f},{b[1]:.1f}"
    return f'<path d="{curve}" fill="none" stroke="{tone}" stroke-width="1.6"{more}/>'


def _map(matrix: NDArray[np.float64], left: float, top: float) -> list[str]:
    n = len(matrix)
    cell = SIDE / n
    parts = [
        f'<rect x="{left}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="white" stroke="{_GRID}"/>'
    ]
    for row, column in zip(*(index.tolist() for index in np.nonzero(matrix)), strict=True):
        share = float(matrix[row, column]) / top if top else 0.0
        where = f'x="{left + column * cell:.2f}" y="{TOP + row * cell:.2f}" width="{cell:.2f}" height="{cell:.2f}"'
        text = f"<title>{row} to {column}: {_bytes(float(matrix[row, column]))}</title>"
        parts.append(f'<rect {where} fill="{_tone(share)}">{text}</rect>')
    step = 1 if n <= 16 else 4 if n <= 64 else 16
    for k in range(0, n, step):
        parts.append(
            f'<text x="{left - 5}" y="{TOP + (k + 0.5) * cell + 3:.1f}" text-anchor="end" font-size="9">{k}</text>'
        )
        parts.append(
            f'<text x="{left + (k + 0.5) * cell:.1f}" y="{TOP - 5}" text-anchor="middle" font-size="9">{k}</text>'
        )
    return parts


def _scale(x: float, y: float, top: float) -> str:
    boxes = "".join(
        f'<rect x="{x + 12 * k}" y="{y}" width="12" height="10" fill="{_tone((k + 1) / 16)}"/>'
        for k in range(16)
    )
    return f'{boxes}<text x="{x + 200}" y="{y + 9}" font-size="10">up to {_bytes(top)} an iteration</text>'


def _tone(share: float) -> str:
    """From pale to dark blue; the square root lets small amounts show."""
    share = min(1.0, max(0.0, share)) ** 0.5
    low, high = (222, 235, 247), (8, 48, 107)
    return "#" + "".join(
        f"{round(a + (b - a) * share):02x}" for a, b in zip(low, high, strict=True)
    )


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
