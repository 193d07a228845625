"""A topology as a GraphViz file: hosts on a circle, an edge for each link, rings in colours,
matched pairs dashed.

Over packet switches: a box for each, an edge for each cable.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, sin

from planner.formats.exporters.switches import Switch
from planner.model.shape import Shape

COLOURS = ("#2f6f9f", "#d98200", "#3f8f3f", "#8a4fb0", "#b3261e", "#5f6f00", "#00808a", "#a0407f")
"""Colours of rings, in turn; distinguishable with most colour vision."""


def dot(
    shape: Shape, hosts: Sequence[str], name: str = "plan", switches: Sequence[Switch] = ()
) -> str:
    """The file; `neato -n` keeps the circle, where there are no switches: their places are left to
    GraphViz.

    switches: what joins the hosts; `shape` counts for links only where there are none.
    """
    kind, edge = ("graph", "--") if shape.duplex else ("digraph", "->")
    lines = [f'{kind} "{name}" {{', '  node [shape=circle, fontname="sans-serif", fontsize=10];']
    for rank, host in enumerate(hosts[: shape.n]):
        x, y = (300 * f(pi / 2 - 2 * pi * rank / shape.n) for f in (cos, sin))
        place = "" if switches else f', pos="{x:.0f},{y:.0f}"'
        lines.append(f'  "{host}" [label="{host}\\n{rank}"{place}];')
    if switches:
        return "\n".join([*lines, *_switched(switches, hosts, edge), "}", ""])
    lines += [
        f'  "{hosts[a]}" {edge} "{hosts[b]}" [style=dashed, label="pair"];'
        for a, b in shape.matched
    ]
    for number, ring in enumerate(shape.rings):
        steps = list(zip(ring.order, ring.order[1:] + ring.order[:1], strict=True))
        if shape.duplex and len(ring.order) == 2:
            steps = steps[:1]
        tone = COLOURS[number % len(COLOURS)]
        lines += [
            f'  "{hosts[a]}" {edge} "{hosts[b]}" [color="{tone}", tooltip="{ring.group}"];'
            for a, b in steps
        ]
    return "\n".join([*lines, "}", ""])


def _switched(switches: Sequence[Switch], hosts: Sequence[str], edge: str) -> list[str]:
    """The boxes and their cables; a box is named so that no host can be."""
    lines = []
    for number, top in enumerate(switches):
        tone = COLOURS[number % len(COLOURS)]
        for switch in top.tree():
            text = f"\\n{switch.message}" if switch.message else ""
            lines.append(
                f'  "switch {switch.name}" [shape=box, color="{tone}", label="{switch.name}{text}"];'
            )
        for switch in top.tree():
            cables = [f'"{hosts[rank]}"' for rank in switch.ranks] + [
                f'"switch {lower.name}"' for lower in switch.below
            ]
            lines += [
                f'  "switch {switch.name}" {edge} {cable} [color="{tone}"];' for cable in cables
            ]
    return lines
