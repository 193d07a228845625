"""A design in the words of other tools, a file each; what a tool cannot take is named with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from optics import Infeasible
from orchestrator.designing import Design
from orchestrator.paths import Hop
from planner.demand import Demand
from planner.exporters import astra, graphviz, msccl, ranks, svg
from planner.exporters.taskgraph import taskgraph
from planner.predict import Shared
from planner.routing import even

Files = Mapping[str, str | bytes | Infeasible]
"""By name; or why one cannot be."""


def export(found: Design, folder: Path) -> tuple[list[str], list[str]]:
    """Write every file that applies; return their names, and a line for each that does not."""
    folder.mkdir(parents=True, exist_ok=True)
    written, refused = [], []
    for kind, make in KINDS.items():
        try:
            files = make(found)
        except Infeasible as error:
            files = {kind: error}
        for name, content in files.items():
            if isinstance(content, Infeasible):
                refused.append(f"{kind}: {content}" + (f" ({content.hint})" if content.hint else ""))
                continue
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
            written.append(name)
    return written, refused


def picture(found: Design, title: str) -> str:
    """Rings, and maps of bytes before and after."""
    return svg.svg(title, found.shape, found.hosts, before(found.read.demand), after(found))


def before(demand: Demand) -> NDArray[np.float64]:
    """Bytes from row to column: transfers, and sums passed on in the order of the members."""
    matrix = np.array(demand.mp)
    for group in demand.groups:
        each = group.wire_bytes / len(group.members)
        for a, b in pairwise((*group.members, group.members[0])):
            matrix[a, b] += each
    return matrix


def after(found: Design) -> NDArray[np.float64]:
    """Bytes on the links from row to column, those of parallel links together, at the workload's own size."""
    rank = {host: index for index, host in enumerate(found.hosts)}
    matrix = np.zeros((found.shape.n, found.shape.n))
    for link, size in found.home.loads.items():
        hop = link.name if isinstance(link, Shared) else link
        if isinstance(hop, Hop):  # the rest limits hops and is none
            matrix[rank[hop.out.host], rank[hop.into.host]] += size
    return matrix


def _nccl(found: Design) -> Files:
    environment = ranks.nccl_environment(found.orders, found.shape.n)
    whole = next((order for each in found.orders.values() for order in each if len(order) == found.shape.n), None)
    order = whole or tuple(range(found.shape.n))
    return {
        "ranks.txt": ranks.rank_file(found.hosts, order),
        "nccl.env": "".join(f"{key}={value}\n" for key, value in environment.items()),
    }


def _msccl(found: Design) -> Files:
    """A program for each group, with the hosts of its communicator's ranks beside it."""
    files: dict[str, str | bytes | Infeasible] = {}
    for group in found.read.demand.groups:
        name, file = f"{found.read.workload.name}-{group.id}", f"allreduce-{group.id}"
        try:
            if sends := found.schedules.get(group.id):
                files[f"{file}.xml"] = msccl.scheduled(name, found.shape.n, sends)
            else:
                files[f"{file}.xml"] = msccl.xml(name, found.orders[group.id])
        except Infeasible as error:
            files[file] = Infeasible(f"group {group.id}: {error}", hint=error.hint)
            continue
        files[f"{file}.ranks.txt"] = ranks.rank_file(found.hosts, msccl.ranks_of(group.members))
    if not files:
        raise Infeasible("no group sums anything", hint="export a workload with all-reduces")
    return files


def _astra(found: Design) -> Files:
    demand = found.read.demand
    files = {"astra-network.yml": astra.network(found.shape, found.read.workload.rate_gbps)}
    files["astra-communicators.json"] = astra.communicators(demand)
    return {**files} | {f"astra.{rank}.et": astra.trace(demand, rank) for rank in range(demand.n)}


def _taskgraph(found: Design) -> Files:
    return {"taskgraph.fbuf": taskgraph(found.read.demand, found.shape, even(found.shape), found.read.workload.rate_gbps)}


KINDS: dict[str, Callable[[Design], Files]] = {
    "nccl": _nccl,
    "ring-groups": lambda found: {"ring-groups.json": ranks.ring_groups(found.orders)},
    "msccl": _msccl,
    "astra-sim": _astra,
    "taskgraph": _taskgraph,
    "graphviz": lambda found: {"topology.dot": graphviz.dot(found.shape, found.hosts, found.read.workload.name)},
    "picture": lambda found: {"picture.svg": picture(found, f"{found.read.workload.name}: {found.found.name}")},
}
