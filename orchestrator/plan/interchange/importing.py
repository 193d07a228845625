"""Makes a plan of a topology of another program: its nodes become hosts and packet switches of the
lab, its wires links.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from optics import BadFile, HostName, Infeasible
from optics.plain import did_you_mean, summary
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.positions import Document, Problems
from orchestrator.plan.interchange.graph import Graph, Wire
from orchestrator.plan.ports import assign_ports
from orchestrator.plan.reader import read_plan

_PORT = re.compile(r"(?:p|eth)([1-9][0-9]{0,2})")
"""Interfaces that name a port of a host by its number; eth0 is the management network of
containerlab's nodes.
"""
_PLACE = re.compile(r"\b(links|segments)\[(\d+)\](?:\.(?:a|b|count|name|hosts)\b(?:\[\d+\])?)?")
_WITH_HOSTS = "choose the hosts yourself: --hosts gpu01,gpu02,... in the order of the file's nodes"
_ANY_PORT = "let the program choose the ports: --any-port"


@dataclass(frozen=True, slots=True)
class Imported:
    """A plan, as the text of its file and its content. hosts: of the lab, by node of the file;
    by_name: the file named them itself.

    segments: packet switches of the lab, by node. named: ends of links whose port the file gives.
    """

    text: str
    plan: dict[str, Any]
    hosts: dict[str, HostName]
    segments: dict[str, str]
    by_name: bool
    named: int


def imported(
    graph: Graph,
    lab: Lab,
    name: str,
    hosts: Sequence[HostName] = (),
    *,
    any_port: bool = False,
    duplex: bool = False,
) -> Imported:
    """The plan of a topology on this lab. name: of the plan. hosts: in the order of the nodes that
    are no packet switches, instead of the names in the file; any_port: interfaces of the file mean
    nothing; duplex: directions of the file mean nothing.

    Raises: BadFile - with line and column of each part that has no place on this lab. Infeasible -
    no choice of ports exists.
    """
    problems = Problems(Document(graph.file, None, {}, {}))
    segments = _segments(graph, lab, problems)
    placed, by_name = _hosts(graph, lab, segments, hosts, problems)
    if duplex:
        graph = replace(graph, wires=tuple(replace(wire, directed=False) for wire in graph.wires))
    links, used, named = _links(graph, lab, placed, segments, any_port, problems)
    if problems:
        raise BadFile(problems.lines(), hint=_hint(problems.lines(), bool(hosts)))
    content: dict[str, Any] = {
        "schema": "testbed.plan/1",
        "name": name,
        "description": f"imported from a {graph.kind} file",
        "producer": {"name": "testbed-design", "method": f"import-{graph.kind}"},
        "links": [link for link, _ in links],
    }
    if used:
        content["segments"] = [
            {"name": segments[node], "hosts": list(members)} for node, members in used.items()
        ]
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    _accepted(graph, lab, text, [wire for _, wire in links], list(used))
    return Imported(text, content, placed, segments, by_name, named)


def _segments(graph: Graph, lab: Lab, problems: Problems) -> dict[str, str]:
    """The packet switches of the lab that nodes stand for: those that bear one's name."""
    found: dict[str, str] = {}
    for node, reported in graph.nodes.items():
        name = next((one for one in reported.names if one in lab.segments), None)
        if name is not None and name in found.values():
            problems.at(reported.spot, f"node {node}: another node is segment {name} already")
        elif name is not None:
            found[node] = name
        elif reported.switch:
            known = (
                summary(lab.segments, "segment")
                if lab.segments
                else "it has none; fibres.yml lists them"
            )
            problems.at(
                reported.spot,
                f"node {node}: packet switch {node} is no segment of the lab ({known}){did_you_mean(node, lab.segments)}",
            )
    return found


def _hosts(
    graph: Graph, lab: Lab, segments: dict[str, str], given: Sequence[HostName], problems: Problems
) -> tuple[dict[str, HostName], bool]:
    """Which host each node is: as given, as the file names them, or if it names none of the lab, in
    the order of both.
    """
    nodes = {
        node: reported
        for node, reported in graph.nodes.items()
        if node not in segments and not reported.switch
    }
    first = next(iter(nodes.values())).spot if nodes else (1, 1)
    if given:
        for host in given:
            if host not in lab.hosts:
                problems.at(
                    first,
                    f"--hosts {host}: not in the lab ({summary(lab.hosts, 'host')}){did_you_mean(host, lab.hosts)}",
                )
            elif given.count(host) > 1:
                problems.at(first, f"--hosts {host}: named twice")
        if len(given) != len(nodes):
            problems.at(
                first, f"the file has {len(nodes)} nodes to be hosts, --hosts names {len(given)}"
            )
        return {
            node: host for node, host in zip(nodes, given, strict=False) if host in lab.hosts
        }, False
    known = {
        node: next((name for name in reported.names if name in lab.hosts), "")
        for node, reported in nodes.items()
    }
    if any(known.values()):
        twice = Counter(host for host in known.values() if host)
        for node, host in known.items():
            if not host:
                text = (
                    f"node {node}: no host of the lab has its name ({summary(lab.hosts, 'host')})"
                )
                problems.at(nodes[node].spot, text + did_you_mean(nodes[node].names[-1], lab.hosts))
            elif twice[host] > 1:
                problems.at(nodes[node].spot, f"node {node}: {twice[host]} nodes are named {host}")
        return {node: host for node, host in known.items() if host}, True
    fibred = {port.host for port in lab.fibres}
    free = [name for name, host in lab.hosts.items() if host.partition is None and name in fibred]
    if len(nodes) > len(free):
        problems.at(
            first,
            f"the file has {len(nodes)} nodes to be hosts, the lab {len(free)} hosts with fibres",
        )
    return dict(zip(nodes, free, strict=False)), False


def _links(
    graph: Graph,
    lab: Lab,
    hosts: dict[str, HostName],
    segments: dict[str, str],
    any_port: bool,
    problems: Problems,
) -> tuple[list[tuple[dict[str, str], Wire]], dict[str, dict[HostName, None]], int]:
    """Links with the wires they are made of, the hosts at each packet switch, and how many ends
    have the port of the file.

    Wires of one direction that lead back between the same ends are one duplex link with them.
    """
    links: list[tuple[dict[str, str], Wire]] = []
    used: dict[str, dict[HostName, None]] = {}
    open_: dict[tuple[str, str], list[int]] = {}
    named = 0
    for wire in graph.wires:
        switches = [end.node for end in (wire.a, wire.b) if end.node in segments]
        if len(switches) == 2:
            problems.at(
                wire.spot,
                f"{wire.what}: joins two packet switches; cables between them are no part of a plan",
            )
            continue
        if switches:
            (other,) = (end.node for end in (wire.a, wire.b) if end.node not in segments)
            if other in hosts:
                used.setdefault(switches[0], {})[hosts[other]] = None
            continue
        if wire.a.node not in hosts or wire.b.node not in hosts:
            continue  # its node is a problem of its own
        ends = []
        for end in (wire.a, wire.b):
            host = hosts[end.node]
            port = None if any_port else _PORT.fullmatch(end.interface)
            if port and int(port[1]) not in lab.hosts[host].ports:
                has = ", ".join(f"p{number}" for number in lab.hosts[host].ports)
                problems.at(
                    wire.spot,
                    f"{wire.what}: {end.node} has interface {end.interface}, but {host} has no port p{port[1]} (it has {has})",
                )
            ends.append(f"{host}:p{port[1]}" if port else host)
            named += port is not None
        a, b = ends
        if wire.directed and (back := open_.get((b, a))):
            del links[back.pop()][0]["kind"]
            named -= sum(":p" in end for end in ends)
        else:
            if wire.directed:
                open_.setdefault((a, b), []).append(len(links))
            links.append(({"a": a, "b": b} | ({"kind": "simplex"} if wire.directed else {}), wire))
    return links, used, named


def _hint(lines: Sequence[str], given: bool) -> str:
    if any(
        text in line
        for line in lines
        for text in ("has no port p", "is already used by", "no fibre path")
    ):
        return _ANY_PORT
    return "correct the file; nothing was written" if given else _WITH_HOSTS


def _accepted(
    graph: Graph, lab: Lab, text: str, wires: Sequence[Wire], switches: Sequence[str]
) -> None:
    """Raises: BadFile - `up` would refuse the plan, in terms of the file it is made of. Infeasible
    - no choice of ports exists.
    """

    def place(found: re.Match[str]) -> str:
        index = int(found[2])
        return wires[index].what if found[1] == "links" else f"node {switches[index]}"

    try:
        plan = read_plan(text, graph.file, lab)
    except BadFile as error:
        lines = []
        for problem in error.problems:
            at, what = _PLACE.search(problem), problem.removeprefix(graph.file).partition(": ")[2]
            line, column = (1, 1)
            if at:
                line, column = (
                    wires[int(at[2])].spot
                    if at[1] == "links"
                    else graph.nodes[switches[int(at[2])]].spot
                )
            lines.append(f"{graph.file}:{line}:{column}: {_PLACE.sub(place, what)}")
        raise BadFile(lines, hint=_hint(lines, True)) from error
    try:
        assign_ports(plan.links, lab)
    except Infeasible as error:
        raise Infeasible(f"{graph.file}: {error}", hint=error.hint) from error
