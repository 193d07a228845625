"""A demand for ASTRA-sim: its analytical network as YAML, communicators as JSON, a Chakra trace for
each rank.

The analytical network knows rings, full connection and switches, one per dimension
(astra-sim/astra-sim, network inputs), so only topologies that are one of those can be written.
Written by the schema; not run there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from planner.formats.chakra import (
    ALL_REDUCE,
    COLLECTIVE,
    COMPUTE,
    RECEIVE,
    SEND,
    Node,
    written,
)
from planner.model.demand import Demand, Infeasible
from planner.model.shape import Shape


def network(shape: Shape, rate_gbps: float, alpha_s: float = 0.0) -> str:
    """The network file; bandwidth in GB/s of a rank's links in one direction (ring) or together.
    Raises: Infeasible - none.
    """
    parallel = int(shape.adjacency.max())
    arcs = {(int(a), int(b)) for a, b in np.argwhere(shape.adjacency)}
    even = bool((shape.adjacency[shape.adjacency > 0] == parallel).all())
    orders = {ring.order for ring in shape.rings if len(ring.order) == shape.n}
    if even and len(arcs) == shape.n * (shape.n - 1):
        name, width = "FullyConnected", rate_gbps / 8 * parallel * (shape.n - 1)
    elif (
        even
        and len(orders) == 1
        and not shape.matched
        and all(len(ring.order) == shape.n for ring in shape.rings)
    ):
        name, width = "Ring", rate_gbps / 8 * parallel
    else:
        raise Infeasible(
            "ASTRA-sim's analytical network knows rings, full connection and switches only",
            "design a ring, or export the task graph for the packet simulator",
        )
    return _network(name, shape.n, width, alpha_s)


def switched(n: int, rate_gbps: float, alpha_s: float = 0.0) -> str:
    """The network file of one packet switch that joins all ranks by ports of this rate."""
    return _network("Switch", n, rate_gbps / 8, alpha_s)


def _network(name: str, n: int, width: float, alpha_s: float) -> str:
    lines = {
        "topology": name,
        "npus_count": n,
        "bandwidth": f"{width:.6g}",
        "latency": f"{alpha_s * 1e9:.6g}",
    }
    return "".join(f"{key}: [ {value} ]\n" for key, value in lines.items())


def communicators(demand: Demand) -> str:
    """The groups by number, as JSON; traces name them."""
    return (
        json.dumps(
            {str(number): list(group.members) for number, group in enumerate(demand.groups, 1)},
            indent=1,
        )
        + "\n"
    )


def trace(demand: Demand, rank: int) -> bytes:
    """The trace of a rank: computing, then its transfers, then the all-reduces of its groups.
    Raises: Missing - the package protobuf is not installed.
    """
    nodes: list[Node] = []

    def add(
        name: str, kind: int, after: Sequence[int], micros: int = 0, **attributes: int | str
    ) -> int:
        given = {"is_cpu_op": False, **attributes}
        nodes.append(Node(len(nodes), name, kind, tuple(after), micros, given))
        return len(nodes) - 1

    begin = add("compute", COMPUTE, (), round(demand.compute_s * 1e6))
    moved = []
    for other in range(demand.n):
        for src, dst, kind in ((rank, other, SEND), (other, rank, RECEIVE)):
            size = round(float(demand.mp[src, dst]))
            if size:
                name = f"{'send' if kind == SEND else 'receive'} {src} to {dst}"
                ends = {
                    "comm_src": src,
                    "comm_dst": dst,
                    "comm_tag": src * demand.n + dst,
                    "comm_size": size,
                }
                moved.append(add(name, kind, (begin,), **ends))
    for number, group in enumerate(demand.groups, 1):
        if rank in group.members and group.bytes:
            what = {"comm_type": ALL_REDUCE, "comm_size": group.bytes}
            add(
                f"all-reduce {group.id}", COLLECTIVE, moved or (begin,), **what, pg_name=str(number)
            )
    return written(nodes)
