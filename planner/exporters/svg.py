"""A design as a picture that stands alone: rings and pairs on a circle; what ranks send each other before and after the topology.

Before: bytes from row to column of one iteration, sums passed on in rank order. After: bytes on each link, routes followed; what is
empty there is no link. Both maps have one scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, sin
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from planner.exporters.graphviz import COLOURS
from planner.shape import Shape

SIDE, TOP, GAP = 360, 76, 50
MOST = 128
"""Ranks up to which maps are drawn, a square for each pair."""
_PAIR, _INK, _GRID = "#777777", "#222222", "#e4e4e4"


def svg(title: str, shape: Shape, hosts: Sequence[str], before: NDArray[np.float64], after: NDArray[np.float64]) -> str:
    """The picture; `before` and `after` are bytes from row to column."""
    maps = shape.n <= MOST
    legend = [(f"{ring.group}, stride {ring.stride}" if ring.stride else ring.group) for ring in shape.rings]
    rows = -(-(len(legend[:12]) + bool(shape.matched)) // 2)
    width = 2 * GAP + SIDE + (2 * (SIDE + GAP) if maps else 0)
    height = TOP + SIDE + 46 + 18 * rows
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{_INK}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{GAP}" y="28" font-size="16">{escape(title)}</text>',
        _heading(GAP, f"{len(shape.cables)} links, diameter {shape.diameter}, mean {shape.mean_hops():.2f} hops"),
        *_circle(shape, hosts, GAP + SIDE / 2, TOP + SIDE / 2),
    ]
    for number, words in enumerate([*legend[:12], *(["matched pairs"] if shape.matched else [])]):
        pair = number == len(legend[:12])
        x, y = GAP + number % 2 * (SIDE / 2), TOP + SIDE + 34 + number // 2 * 18
        dash = ' stroke-dasharray="4 3"' if pair else ""
        tone = _PAIR if pair else COLOURS[number % len(COLOURS)]
        parts.append(f'<line x1="{x}" y1="{y - 4}" x2="{x + 22}" y2="{y - 4}" stroke="{tone}" stroke-width="2.5"{dash}/>')
        parts.append(f'<text x="{x + 28}" y="{y}">{escape(words)}</text>')
    if maps:
        top = float(max(before.max(initial=0), after.max(initial=0)))
        for number, (words, matrix) in enumerate((("before: bytes from rank to rank", before), ("after: bytes on links", after))):
            left = GAP + (number + 1) * (SIDE + GAP)
            parts.append(_heading(left, f"{words}, at most {_bytes(float(matrix.max(initial=0)))}"))
            parts += _map(matrix, left, top)
        parts.append(_scale(GAP + SIDE + GAP, TOP + SIDE + 24, top))
    return "\n".join([*parts, "</svg>", ""])


def _heading(x: float, words: str) -> str:
    return f'<text x="{x}" y="{TOP - 20}" fill="#444444">{escape(words)}</text>'


def _circle(shape: Shape, hosts: Sequence[str], x: float, y: float) -> list[str]:
    radius = SIDE / 2 - 40
    at = [(x + radius * sin(2 * pi * k / shape.n), y - radius * cos(2 * pi * k / shape.n)) for k in range(shape.n)]
    parts = []
    for a, b in shape.matched:
        parts.append(_link(at[a], at[b], (x, y), _PAIR, 0.0, ' stroke-dasharray="4 3"'))
    for number, ring in enumerate(shape.rings):
        for a, b in zip(ring.order, ring.order[1:] + ring.order[:1], strict=True):
            parts.append(_link(at[a], at[b], (x, y), COLOURS[number % len(COLOURS)], 0.05 * number, ""))
    size = max(2.5, min(9.0, 90 / shape.n))
    for rank, (px, py) in enumerate(at):
        name = f"<title>{escape(hosts[rank])}</title>"
        parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="{size:.1f}" fill="white" stroke="{_INK}">{name}</circle>')
        if shape.n <= 32:
            lx, ly = px + (px - x) / radius * (size + 4), py + (py - y) / radius * (size + 9)
            anchor = "middle" if abs(px - x) < radius / 8 else "start" if px > x else "end"
            parts.append(f'<text x="{lx:.1f}" y="{ly + 4:.1f}" text-anchor="{anchor}" font-size="10">{escape(hosts[rank])}</text>')
    return parts


def _link(a: tuple[float, float], b: tuple[float, float], middle: tuple[float, float], tone: str, bend: float, more: str) -> str:
    """A curve that bends to the middle, parallel links differently so."""
    cx, cy = ((a[k] + b[k]) / 2 * (0.92 - bend) + middle[k] * (0.08 + bend) for k in (0, 1))
    curve = f"M{a[0]:.1f},{a[1]:.1f} Q{cx:.1f},{cy:.1f} {b[0]:.1f},{b[1]:.1f}"
    return f'<path d="{curve}" fill="none" stroke="{tone}" stroke-width="1.6"{more}/>'


def _map(matrix: NDArray[np.float64], left: float, top: float) -> list[str]:
    n = len(matrix)
    cell = SIDE / n
    parts = [f'<rect x="{left}" y="{TOP}" width="{SIDE}" height="{SIDE}" fill="white" stroke="{_GRID}"/>']
    for row, column in zip(*(index.tolist() for index in np.nonzero(matrix)), strict=True):
        share = float(matrix[row, column]) / top if top else 0.0
        where = f'x="{left + column * cell:.2f}" y="{TOP + row * cell:.2f}" width="{cell:.2f}" height="{cell:.2f}"'
        words = f"<title>{row} to {column}: {_bytes(float(matrix[row, column]))}</title>"
        parts.append(f'<rect {where} fill="{_tone(share)}">{words}</rect>')
    step = 1 if n <= 16 else 4 if n <= 64 else 16
    for k in range(0, n, step):
        parts.append(f'<text x="{left - 5}" y="{TOP + (k + 0.5) * cell + 3:.1f}" text-anchor="end" font-size="9">{k}</text>')
        parts.append(f'<text x="{left + (k + 0.5) * cell:.1f}" y="{TOP - 5}" text-anchor="middle" font-size="9">{k}</text>')
    return parts


def _scale(x: float, y: float, top: float) -> str:
    boxes = "".join(f'<rect x="{x + 12 * k}" y="{y}" width="12" height="10" fill="{_tone((k + 1) / 16)}"/>' for k in range(16))
    return f'{boxes}<text x="{x + 200}" y="{y + 9}" font-size="10">up to {_bytes(top)} an iteration</text>'


def _tone(share: float) -> str:
    """From pale to dark blue; the square root lets small amounts show."""
    share = min(1.0, max(0.0, share)) ** 0.5
    low, high = (222, 235, 247), (8, 48, 107)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(low, high, strict=True))


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
