"""A topology as a GraphViz file: hosts on a circle, an edge for each link, rings in colours, matched pairs dashed."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, sin

from planner.shape import Shape

COLOURS = ("#2f6f9f", "#d98200", "#3f8f3f", "#8a4fb0", "#b3261e", "#5f6f00", "#00808a", "#a0407f")
"""Of rings, in turn; told apart by most eyes."""


def dot(shape: Shape, hosts: Sequence[str], name: str = "plan") -> str:
    """The file; `neato -n` keeps the circle."""
    kind, edge = ("graph", "--") if shape.duplex else ("digraph", "->")
    lines = [f'{kind} "{name}" {{', '  node [shape=circle, fontname="sans-serif", fontsize=10];']
    for rank, host in enumerate(hosts[: shape.n]):
        x, y = (300 * f(pi / 2 - 2 * pi * rank / shape.n) for f in (cos, sin))
        lines.append(f'  "{host}" [label="{host}\\n{rank}", pos="{x:.0f},{y:.0f}"];')
    lines += [f'  "{hosts[a]}" {edge} "{hosts[b]}" [style=dashed, label="pair"];' for a, b in shape.matched]
    for number, ring in enumerate(shape.rings):
        steps = list(zip(ring.order, ring.order[1:] + ring.order[:1], strict=True))
        if shape.duplex and len(ring.order) == 2:
            steps = steps[:1]
        tone = COLOURS[number % len(COLOURS)]
        lines += [f'  "{hosts[a]}" {edge} "{hosts[b]}" [color="{tone}", tooltip="{ring.group}"];' for a, b in steps]
    return "\n".join([*lines, "}", ""])
