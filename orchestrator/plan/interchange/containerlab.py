"""Topology files of containerlab (https://containerlab.dev/manual/topo-def-file): reads nodes and
links, writes those of a plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import yaml
from pydantic import BaseModel, ConfigDict, Field

from optics import BadFile, HostPort, Infeasible, LinkKind
from optics.plan import Plan
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.positions import Document, Problems
from orchestrator.inventory.schema import check
from orchestrator.inventory.yaml_reader import read_yaml
from orchestrator.plan.interchange.graph import (
    MOST_NODES,
    MOST_WIRES,
    End,
    Graph,
    Node,
    Wire,
    excerpt,
    fault_of_name,
)
from orchestrator.plan.ports import assign_ports

SWITCHES = ("bridge", "ovs-bridge")
"""Kinds of nodes that are packet switches of the machine."""
OUTSIDE = ("host", "mgmt-net", "macvlan", "vxlan", "vxlan-stitch", "dummy")
"""Types of links, and words in place of a node's name, that join a node with something that is no
node.
"""
IMAGE = "alpine:3"
LONGEST_INTERFACE = 15
"""Characters of a Linux interface's name; a bridge is one."""
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class _Part(BaseModel):
    """A mapping of the file; what makes no difference to a plan (images, startup files, addresses)
    is not read.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class _Endpoint(_Part):
    node: str
    interface: str = ""


class _Link(_Part):
    type: str = "veth"
    endpoints: list[str | _Endpoint] = Field(default_factory=list)


class _Node(_Part):
    kind: str | None = None
    group: str | None = None


class _Topology(_Part):
    nodes: dict[str, _Node | None]
    links: list[_Link] = Field(default_factory=list)
    defaults: _Node | None = None
    groups: dict[str, _Node | None] = Field(default_factory=dict)


class _File(_Part):
    name: str = ""
    topology: _Topology


def read_containerlab(text: str, name: str) -> Graph:
    """The nodes and links of a containerlab file. Raises: BadFile - it is none, or has links that
    join no two nodes.
    """
    document = read_yaml(text, name)
    problems = Problems(document)
    found = check(_File, document.value, problems)
    if found is None:
        raise BadFile(
            problems.lines(),
            hint="wanted GraphML, or a topology file of containerlab: name, topology.nodes, topology.links",
        )
    topology = found.topology
    for what, many, most in (
        ("nodes", len(topology.nodes), MOST_NODES),
        ("links", len(topology.links), MOST_WIRES),
    ):
        if many > most:
            problems.add(("topology", what), f"{many} are more than {most}, the most that are read")
    for node in topology.nodes:
        if fault := fault_of_name(node):
            problems.at(document.spot(("topology", "nodes", node), key=True), f"a node {fault}")
    nodes = {
        node: Node(
            (node,),
            document.spot(("topology", "nodes", node), key=True),
            _kind(topology, reported) in SWITCHES,
        )
        for node, reported in topology.nodes.items()
    }
    wires = [
        wire
        for index, link in enumerate(topology.links)
        if (wire := _wire(index, link, nodes, document, problems))
    ]
    if problems:
        raise BadFile(problems.lines(), hint="correct the file; nothing was written")
    return Graph(name, "containerlab", found.name, nodes, tuple(wires))


def _kind(topology: _Topology, node: _Node | None) -> str:
    group = topology.groups.get(node.group) if node and node.group else None
    return next((one.kind for one in (node, group, topology.defaults) if one and one.kind), "")


def _wire(
    index: int, link: _Link, nodes: dict[str, Node], document: Document, problems: Problems
) -> Wire | None:
    path = ("topology", "links", index)
    if link.type != "veth":
        known = (
            "joins a node with the machine, and" if link.type in OUTSIDE else "is not known here;"
        )
        problems.add(
            (*path, "type"),
            f"a link of type {excerpt(link.type)} {known} light joins two hosts: wanted veth",
        )
        return None
    if len(link.endpoints) != 2:
        problems.add((*path, "endpoints"), f"wanted 2 endpoints, got {len(link.endpoints)}")
        return None
    ends = []
    for at, text in enumerate(link.endpoints):
        node, _, interface = (
            text.partition(":") if isinstance(text, str) else (text.node, "", text.interface)
        )
        if node not in nodes:
            more = (
                ", but a part of the machine; a link of light joins two hosts"
                if node in OUTSIDE
                else ""
            )
            problems.add((*path, "endpoints", at), f"{excerpt(node)} is no node of the file{more}")
        ends.append(End(node, interface))
    return Wire(ends[0], ends[1], f"topology.links[{index}]", document.spot(path))


def containerlab(plan: Plan, lab: Lab, image: str = IMAGE) -> tuple[str, list[str]]:
    """A topology file with the plan's hosts as containers of `image`, its links between them as
    veth pairs (port p3 is eth3), and its packet switches as bridges, which containerlab expects on
    the machine; and a line for what it leaves out.

    Raises: Infeasible - the plan has links of one direction, or names that containerlab does not
    take, or no links at all.
    """
    optical = [link for link in plan.links if not link.place.startswith("segments")]
    if simplex := [link for link in optical if link.kind is LinkKind.SIMPLEX]:
        text = f"{simplex[0].place}: {simplex[0].a} -> {simplex[0].b} is a link of one direction; containerlab's have both"
        raise Infeasible(text, hint="export a plan of duplex links")
    if not plan.links:
        raise Infeasible(
            "no link of the plan is always there", hint="export a plan with `links` or `segments`"
        )
    if odd := [host for host in plan.hosts if not _NODE.fullmatch(host)]:
        raise Infeasible(
            f"{odd[0]} is a partition of a host, which containerlab has no name for",
            hint="export a plan of whole hosts",
        )
    if long := [name for name in plan.segments if len(name) > LONGEST_INTERFACE]:
        text = f"segment {long[0]} has {len(long[0])} characters; a bridge has {LONGEST_INTERFACE} at most"
        raise Infeasible(text, hint="give it a shorter name in fibres.yml")
    nodes: dict[str, dict[str, str]] = {
        host: {"kind": "linux", "image": image} for host in sorted(plan.hosts)
    }
    links = [{"endpoints": [_end(link.a), _end(link.b)]} for link in assign_ports(optical, lab)]
    for index, name in enumerate(plan.segments):
        nodes[name] = {"kind": "bridge"}
        over = [link for link in plan.links if link.place == f"segments[{index}]"]
        for port in _ports(lab, name, dict.fromkeys(host for link in over for host in link.hosts)):
            # names of the machine, so each only once
            links.append({"endpoints": [_end(port), f"{name}:tb{len(links) + 1}"]})
    left = (
        ["the slots of its schedule: only links that are always lit are written"]
        if plan.schedule
        else []
    )
    left += (
        ["its job, fixed routes and addresses: containerlab's file has none"]
        if plan.job or plan.routes
        else []
    )
    body = yaml.safe_dump(
        {"name": plan.name, "topology": {"nodes": nodes, "links": links}},
        sort_keys=False,
        default_flow_style=None,
        width=200,
    )
    bridges = "".join(
        f"# needs a bridge on the machine: ip link add {name} type bridge && ip link set {name} up\n"
        for name in plan.segments
    )
    return f"# The links of plan {plan.name}: port p1 of a host is eth1.\n{bridges}{body}", left


def _ports(lab: Lab, segment: str, hosts: Iterable[str]) -> list[HostPort]:
    return [port for host in hosts if (port := lab.segments[segment].port(host))]


def _end(port: HostPort) -> str:
    return f"{port.host}:eth{port.number}"
