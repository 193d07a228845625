"""A topology as another program wrote it: nodes, and wires between them, each with its place in the
file.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from optics.plain import printable
from orchestrator.inventory.positions import Spot

MOST_NODES = 4096
MOST_WIRES = 8192
"""As many as a plan has links at most (`plan/edges.py`)."""

MOST_NAME = 256
"""Characters of a node's name; hosts have names of 63 at most."""


def excerpt(text: str) -> str:
    """Text of the file for a message: its first characters, on one line."""
    return printable(text[:63], keep="")


def fault_of_name(node: str) -> str:
    """Why a node cannot be called so, empty if it can."""
    if not node:
        return "has no name"
    if len(node) > MOST_NAME:
        return f"has a name of {len(node)} characters; at most {MOST_NAME} are read"
    return (
        ""
        if node.isprintable()
        else f"has characters in its name that cannot be printed: {excerpt(node)}"
    )


@dataclass(frozen=True, slots=True)
class Node:
    """`names`: its id, then its labels; any of them may be what the lab calls it. switch: the file
    says that it is one.
    """

    names: tuple[str, ...]
    spot: Spot = (1, 1)
    switch: bool = False


@dataclass(frozen=True, slots=True)
class End:
    """One end of a wire: the id of a node, and the interface there, empty if the file does not
    say.
    """

    node: str
    interface: str = ""


@dataclass(frozen=True, slots=True)
class Wire:
    """`what`: its name in messages, such as `topology.links[3]`. directed: it leads from `a` to `b`
    only.
    """

    a: End
    b: End
    what: str
    spot: Spot = (1, 1)
    directed: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes by id, in the order of the file. kind: the format; file: for messages."""

    file: str
    kind: str
    name: str = ""
    nodes: dict[str, Node] = field(default_factory=dict)
    wires: tuple[Wire, ...] = ()
