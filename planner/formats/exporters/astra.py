"""A demand for ASTRA-sim: its analytical network as YAML, communicators as JSON, a Chakra trace for
each rank.

The analytical network knows rings, full connection and switches, one per dimension
(astra-sim/astra-sim, network inputs), so only topologies that are one of those can be written. A
trace is a metadata message and nodes, each behind its length as a varint; the field numbers are
those of mlcommons/chakra, schema/protobuf/et_def.proto (MIT licence). Written by the schema; not
run there.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np

from planner.model.demand import Demand, Infeasible
from planner.model.shape import Shape

COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
ALL_REDUCE = 0


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
    """The trace of a rank: computing, then its transfers, then the all-reduces of its groups."""
    nodes: list[bytes] = []

    def add(
        name: str, kind: int, after: Iterable[int], micros: int = 0, **attributes: int | bool | str
    ) -> int:
        number = len(nodes)
        body = _whole(1, number) + _text(2, name) + _whole(3, kind)
        body += b"".join(_whole(5, other) for other in after) + _whole(7, micros)
        body += b"".join(_nested(10, _attribute(key, value)) for key, value in attributes.items())
        nodes.append(body)
        return number

    begin = add("compute", COMPUTE, (), round(demand.compute_s * 1e6), is_cpu_op=False)
    moved = []
    for other in range(demand.n):
        for src, dst, kind in ((rank, other, SEND), (other, rank, RECEIVE)):
            size = round(float(demand.mp[src, dst]))
            if size:
                name = f"{'send' if kind == SEND else 'receive'} {src} to {dst}"
                ends: dict[str, Any] = {
                    "comm_src": src,
                    "comm_dst": dst,
                    "comm_tag": src * demand.n + dst,
                    "comm_size": size,
                }
                moved.append(add(name, kind, (begin,), is_cpu_op=False, **ends))
    for number, group in enumerate(demand.groups, 1):
        if rank in group.members and group.bytes:
            what: dict[str, Any] = {
                "comm_type": ALL_REDUCE,
                "comm_size": group.bytes,
                "pg_name": str(number),
            }
            add(f"all-reduce {group.id}", COLLECTIVE, moved or (begin,), is_cpu_op=False, **what)
    return b"".join(_varint(len(message)) + message for message in (_text(1, "0.0.4"), *nodes))


def _attribute(name: str, value: int | bool | str) -> bytes:
    """A named value: bool_val, string_val, or int64_val; zero is written, too, to say which it
    is.
    """
    if isinstance(value, bool):
        return _text(1, name) + _key(27, 0) + _varint(int(value))
    if isinstance(value, str):
        return _text(1, name) + _text(29, value)
    return _text(1, name) + _key(9, 0) + _varint(value)


def _key(field: int, wire: int) -> bytes:
    return _varint(field << 3 | wire)


def _whole(field: int, value: int) -> bytes:
    return _key(field, 0) + _varint(value)


def _text(field: int, value: str) -> bytes:
    return _nested(field, value.encode())


def _nested(field: int, body: bytes) -> bytes:
    return _key(field, 2) + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the top bit says that more follow."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(found) + struct.pack("B", value)
