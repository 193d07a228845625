"""Reads GraphML with expat, whose events have line and column; a document type, and so any entity,
is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn
from xml.parsers import expat

from optics import BadFile
from orchestrator.inventory.positions import MAX_DEPTH, Document, Problems, Spot
from orchestrator.plan.interchange.graph import (
    MOST_NAME,
    MOST_NODES,
    MOST_WIRES,
    End,
    Graph,
    Node,
    Wire,
    excerpt,
    fault_of_name,
)

NAMESPACE = "http://graphml.graphdrawing.org/"
"""All versions of the format's namespace begin so; some programs write none."""
LABELS = ("label", "name", "hostname", "id")
"""Names (`attr.name`) of a node's data that may be what the lab calls it."""
DIRECTED = {
    "directed": True,
    "true": True,
    "1": True,
    "undirected": False,
    "false": False,
    "0": False,
}
"""What a graph's `edgedefault` and an edge's `directed` may say."""


def read_graphml(data: bytes, name: str) -> Graph:
    """The graph of a GraphML file. Raises: BadFile - no XML, none of GraphML, or parts of it that
    have no place in a plan.
    """
    return _Reader(name).read(data)


class _Reader:
    def __init__(self, name: str) -> None:
        self.name = name
        self.problems = Problems(Document(name, None, {}, {}))
        self.parser = expat.ParserCreate(namespace_separator=" ")
        self.parser.buffer_text = True
        self.parser.StartDoctypeDeclHandler = self.doctype
        self.parser.StartElementHandler = self.start
        self.parser.EndElementHandler = self.end
        self.parser.CharacterDataHandler = self.characters
        self.open: list[str] = []
        self.keys: dict[str, str] = {}
        self.nodes: dict[str, tuple[Spot, list[str]]] = {}
        self.wires: list[Wire] = []
        self.graph_id, self.graphs, self.directed = "", 0, False
        self.node = ""
        self.taken = False
        """Whether the text that follows is a label of `node`."""
        self.text = ""

    def read(self, data: bytes) -> Graph:
        try:
            self.parser.Parse(data, True)
        except BadFile:
            raise
        except expat.ExpatError as error:
            self.fail(f"not XML: {expat.ErrorString(error.code)}", (error.lineno, error.offset + 1))
        # an encoding that expat does not know, or not of one byte each
        except (UnicodeError, LookupError, ValueError) as error:
            self.fail(f"not XML: {error}", (1, 1))
        if not self.graphs and not self.problems:
            self.problems.at((1, 1), "the file has no <graph>")
        for wire in self.wires:
            for role, end in (("source", wire.a), ("target", wire.b)):
                if end.node not in self.nodes:
                    self.problems.at(
                        wire.spot,
                        f"{wire.what}: its {role} {excerpt(end.node)} is no node of the file",
                    )
        if self.problems:
            raise BadFile(self.problems.lines(), hint="correct the file; nothing was written")
        nodes = {
            node: Node((node, *dict.fromkeys(label for label in labels if label)), spot)
            for node, (spot, labels) in self.nodes.items()
        }
        return Graph(self.name, "graphml", self.graph_id, nodes, tuple(self.wires))

    @property
    def spot(self) -> Spot:
        return self.parser.CurrentLineNumber, self.parser.CurrentColumnNumber + 1

    def fail(self, what: str, spot: Spot | None = None) -> NoReturn:
        line, column = spot or self.spot
        raise BadFile(
            [f"{self.name}:{line}:{column}: {what}"], hint="correct the file; nothing was written"
        )

    def doctype(self, *_: object) -> None:
        self.fail(
            "a document type (<!DOCTYPE ...>) is not read, because it could define entities; remove it"
        )

    def start(self, tag: str, given: Mapping[str, str]) -> None:
        space, _, local = tag.rpartition(" ")
        ours = not space or space.startswith(NAMESPACE)
        if not self.open and (local, ours) != ("graphml", True):
            self.fail(f"wanted the root element <graphml>, found <{excerpt(local)}>")
        if len(self.open) >= MAX_DEPTH:
            self.fail(f"nested deeper than {MAX_DEPTH} levels")
        self.open.append(local if ours else "")
        if not ours:
            if local == "NodeLabel":  # of yEd, which keeps labels in elements of its own
                self.taken, self.text = bool(self.node), ""
            return
        match local:
            case "key":
                self.keys[given.get("id", "")] = given.get("attr.name", "").lower()
            case "graph":
                self.graph(given)
            case "node":
                self.a_node(given)
            case "edge":
                self.edge(given)
            case "data":
                self.taken, self.text = (
                    bool(self.node) and self.keys.get(given.get("key", "")) in LABELS,
                    "",
                )
            case "hyperedge":
                self.problems.at(
                    self.spot,
                    "a <hyperedge> joins any number of nodes; wanted <edge>, which joins two",
                )

    def graph(self, given: Mapping[str, str]) -> None:
        self.graphs += 1
        if self.graphs > 1:
            self.fail("a second <graph>: a plan is made of a file with one, not nested ones")
        self.graph_id = given.get("id", "")[:MOST_NAME]
        self.directed = self.direction("edgedefault", given.get("edgedefault", "undirected"))

    def direction(self, attribute: str, message: str) -> bool:
        if message not in DIRECTED:
            self.problems.at(
                self.spot,
                f"{attribute}: wanted one of {', '.join(DIRECTED)}, got {excerpt(message)}",
            )
        return DIRECTED.get(message, False)

    def a_node(self, given: Mapping[str, str]) -> None:
        node = given.get("id", "")
        if fault := fault_of_name(node):
            self.problems.at(self.spot, f"a <node> {fault}")
        elif node in self.nodes:
            self.problems.at(self.spot, f"node {node} is already in line {self.nodes[node][0][0]}")
        elif len(self.nodes) >= MOST_NODES:
            self.fail(f"more than {MOST_NODES} nodes")
        else:
            self.nodes[node] = (self.spot, [])
            self.node = node

    def edge(self, given: Mapping[str, str]) -> None:
        if len(self.wires) >= MOST_WIRES:
            self.fail(f"more than {MOST_WIRES} edges, the most links of a plan")
        what = f"edge {excerpt(given['id'])}" if given.get("id") else f"edge {len(self.wires) + 1}"
        source, target = given.get("source", ""), given.get("target", "")
        if not source or not target:
            self.problems.at(self.spot, f"{what}: no {'target' if source else 'source'}")
            return
        directed = (
            self.direction("directed", given["directed"]) if "directed" in given else self.directed
        )
        ends = End(source, given.get("sourceport", "")), End(target, given.get("targetport", ""))
        self.wires.append(Wire(*ends, what, self.spot, directed))

    def end(self, tag: str) -> None:
        local = self.open.pop()
        if self.taken and (local == "data" or tag.endswith(" NodeLabel")):
            self.nodes[self.node][1].append(self.text.strip()[:MOST_NAME])
            self.taken = False
        if local == "node":
            self.node = ""

    def characters(self, text: str) -> None:
        if self.taken and len(self.text) < MOST_NAME:
            self.text += text[:MOST_NAME]
