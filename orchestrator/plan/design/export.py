"""Exports a design to the formats of other tools; what a format cannot express is reported with the
reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from optics import Infeasible, Missing
from orchestrator.fabric.next_hops import Hop
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.segments import Segment
from orchestrator.plan.design.design import Design
from planner.formats.exporters import astra, graphviz, msccl, mscclpp, ns3, ranks, svg
from planner.formats.exporters.switches import Switch
from planner.formats.exporters.taskgraph import taskgraph
from planner.model.demand import Demand
from planner.predict.iteration import Shared
from planner.predict.routing import even

Files = Mapping[str, str | bytes | Infeasible]
"""File name -> content, or the reason why there is none."""


def export_design(found: Design, lab: Lab) -> tuple[dict[str, str | bytes], list[str]]:
    """The files that apply, by name, and a line for each that does not."""
    written: dict[str, str | bytes] = {}
    refused = []
    for kind, make in KINDS.items():
        try:
            files = make(found, lab)
        except (Infeasible, Missing) as error:
            files = {kind: Infeasible(str(error), hint=error.hint)}
        for name, content in files.items():
            if isinstance(content, Infeasible):
                refused.append(
                    f"{kind}: {content}" + (f" ({content.hint})" if content.hint else "")
                )
                continue
            written[name] = content
    return written, refused


def picture(found: Design, lab: Lab, title: str) -> str:
    """Rings, or packet switches; and maps of bytes before and, on links of light, after."""
    return svg.svg(
        title,
        found.shape,
        found.hosts,
        before(found.read.demand),
        after(found),
        switches(found, lab),
    )


def switches(found: Design, lab: Lab) -> tuple[Switch, ...]:
    """The packet switches that a design uses, with its own hosts only; none for a design over
    optical links.
    """
    return tuple(_switch(segment, found.hosts) for segment in _segments(found, lab))


def _segments(found: Design, lab: Lab) -> list[Segment]:
    return [lab.segments[name] for name, _ in found.found.segments]


def _switch(segment: Segment, hosts: Sequence[str]) -> Switch:
    ports = f"ports of {segment.link_mbps:g} Mb/s"
    if not segment.racks:
        return Switch(
            segment.name,
            tuple(r for r, host in enumerate(hosts) if host in segment.ports),
            message=ports,
        )
    below = []
    for number, rack in enumerate(segment.racks, 1):
        if ranks := tuple(rank for rank, host in enumerate(hosts) if host in rack.hosts):
            below.append(
                Switch(
                    f"{segment.name} rack {number}",
                    ranks,
                    message=f"uplink {rack.uplink_mbps:g} Mb/s",
                )
            )
    return Switch(segment.name, below=tuple(below), message=ports)


def before(demand: Demand) -> NDArray[np.float64]:
    """Bytes from row to column: transfers, and sums passed on in the order of the members."""
    matrix = np.array(demand.mp)
    for group in demand.groups:
        each = group.wire_bytes / len(group.members)
        for a, b in pairwise((*group.members, group.members[0])):
            matrix[a, b] += each
    return matrix


def after(found: Design) -> NDArray[np.float64]:
    """Bytes on the links from row to column, those of parallel links together, at the workload's
    own size.
    """
    rank = {host: index for index, host in enumerate(found.hosts)}
    matrix = np.zeros((found.shape.n, found.shape.n))
    for link, size in found.own.loads.items():
        hop = link.name if isinstance(link, Shared) else link
        if isinstance(hop, Hop):  # the others are limits, not hops
            matrix[rank[hop.out.host], rank[hop.into.host]] += size
    return matrix


def _nccl(found: Design) -> Files:
    environment = ranks.nccl_environment(found.orders, found.shape.n)
    whole = next(
        (order for each in found.orders.values() for order in each if len(order) == found.shape.n),
        None,
    )
    order = whole or tuple(range(found.shape.n))
    return {
        "ranks.txt": ranks.rank_file(found.hosts, order, found.read.workload.ranks_per_host),
        "nccl.env": "".join(f"{key}={value}\n" for key, value in environment.items()),
        "nccl_tuner.conf": ranks.nccl_tuner(
            found.orders, found.shape.n, found.read.workload.ranks_per_host
        ),
    }


def _msccl(found: Design) -> Files:
    """A program for each group, and a list of the hosts of its communicator's ranks."""
    _one_rank_per_host(found, "MSCCL programs")
    return _each_group(
        found,
        "xml",
        lambda group, name: (
            msccl.scheduled(name, found.shape.n, found.schedules[group])
            if group in found.schedules
            else msccl.xml(name, found.orders[group])
        ),
    )


def _mscclpp(found: Design) -> Files:
    _one_rank_per_host(found, "MSCCL++ plans")

    def made(group: str, name: str) -> str:
        if group in found.schedules:
            raise Infeasible(
                "its links wait for more of each other than MSCCL++ has semaphores for",
                hint="design for --backend ring-groups",
            )
        return mscclpp.plan(name, found.orders[group])

    return _each_group(found, "mscclpp.json", made)


def _one_rank_per_host(found: Design, what: str) -> None:
    if (each := found.read.workload.ranks_per_host) > 1:
        raise Infeasible(
            f"{what} are written for one rank per host, not {each}",
            hint="export a workload of one rank per host",
        )


def _each_group(found: Design, ending: str, made: Callable[[str, str], str]) -> Files:
    """made: of a group's id and a name."""
    files: dict[str, str | bytes | Infeasible] = {}
    for group in found.read.demand.groups:
        file = f"allreduce-{group.id}"
        try:
            program = made(group.id, f"{found.read.workload.name}-{group.id}")
        except Infeasible as error:
            files[file] = Infeasible(f"group {group.id}: {error}", hint=error.hint)
            continue
        files[f"{file}.{ending}"] = program
        files[f"{file}.ranks.txt"] = ranks.rank_file(found.hosts, msccl.ranks_of(group.members))
    if not files:
        raise Infeasible("no group has an all-reduce", hint="export a workload with all-reduces")
    return files


def _astra(found: Design, lab: Lab) -> Files:
    demand, rate = found.read.demand, found.read.workload.rate_gbps
    if segments := _segments(found, lab):
        network = astra.switched(
            found.shape.n, _one_switch(segments, found.hosts).link_mbps / found.link_mbps * rate
        )
    else:
        network = astra.network(found.shape, rate)
    files = {"astra-network.yml": network, "astra-communicators.json": astra.communicators(demand)}
    return {**files} | {f"astra.{rank}.et": astra.trace(demand, rank) for rank in range(demand.n)}


def _ns3(found: Design, lab: Lab) -> Files:
    _one_rank_per_host(found, "edge lists")
    rate = found.read.workload.rate_gbps
    if segments := _segments(found, lab):
        edges = _switched(segments, found.hosts, rate / found.link_mbps)
    else:
        edges = ns3.light(found.shape, rate)
    return {"ns3-topology.txt": edges.astra(), "simai-topology.txt": edges.simai()}


def _switched(segments: Sequence[Segment], hosts: Sequence[str], scale: float) -> ns3.Edges:
    """A switch for each segment, or for its racks and what joins them. scale: Gb/s per Mb/s."""
    links: dict[tuple[int, int], float] = {}
    number = len(hosts)
    for segment in segments:
        core, number = number, number + 1
        below = dict.fromkeys(range(len(hosts)), core)
        for rack in segment.racks:
            inside = [rank for rank, host in enumerate(hosts) if host in rack.hosts]
            below |= dict.fromkeys(inside, number)
            if inside:
                links[core, number] = rack.uplink_mbps * scale
                number += 1
        for rank, host in enumerate(hosts):
            if segment.port(host) is not None:
                links[rank, below[rank]] = segment.link_mbps * scale
    return ns3.forwarding(len(hosts), links)


def _one_switch(segments: Sequence[Segment], hosts: Sequence[str]) -> Segment:
    """The segment that limits nothing but ports. Raises: Infeasible - there are several, or hosts
    share uplinks.
    """
    hint = "export a design over one switch, or over a ring of light"
    if len(segments) > 1:
        raise Infeasible(
            f"the analytical network cannot describe {len(segments)} parallel packet switches",
            hint=hint,
        )
    if not segments[0].full and len({segments[0].rack(host) for host in hosts}) > 1:
        raise Infeasible(
            "the analytical network cannot describe uplinks that several hosts share", hint=hint
        )
    return segments[0]


def _taskgraph(found: Design) -> Files:
    if found.found.segments:
        raise Infeasible(
            "the task graph has links from host to host only, no packet switches",
            hint="export a design over light",
        )
    return {
        "taskgraph.fbuf": taskgraph(
            found.read.demand, found.shape, even(found.shape), found.read.workload.rate_gbps
        )
    }


def _graphviz(found: Design, lab: Lab) -> Files:
    return {
        "topology.dot": graphviz.dot(
            found.shape, found.hosts, found.read.workload.name, switches(found, lab)
        )
    }


KINDS: dict[str, Callable[[Design, Lab], Files]] = {
    "nccl": lambda found, _: _nccl(found),
    "ring-groups": lambda found, _: {"ring-groups.json": ranks.ring_groups(found.orders)},
    "msccl": lambda found, _: _msccl(found),
    "mscclpp": lambda found, _: _mscclpp(found),
    "astra-sim": _astra,
    "ns-3": _ns3,
    "taskgraph": lambda found, _: _taskgraph(found),
    "graphviz": _graphviz,
    "picture": lambda found, lab: {
        "picture.svg": picture(found, lab, f"{found.read.workload.name}: {found.found.name}")
    },
}
