"""A demand on a topology as a TopoOpt task graph, for the packet simulator: one GPU a node, no
switches.

Each node computes, then its transfers go, then its part of every all-reduce begins. Paths list both
ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.formats.taskgraph import (
    ALLREDUCE,
    BACKWARD,
    FORWARD,
    GBPS,
    GPU,
    NOMINAL_COMM,
    NW_COMM,
    write,
)
from planner.model.demand import Demand
from planner.model.shape import Shape
from planner.predict.routing import Routes


def taskgraph(demand: Demand, shape: Shape, routes: Routes, rate_gbps: float) -> bytes:
    """The file. rate_gbps: of one link."""
    return write(tables(demand, shape, routes, rate_gbps))


def tables(demand: Demand, shape: Shape, routes: Routes, rate_gbps: float) -> dict[str, Any]:
    """Its tables as dictionaries."""
    n, rate = demand.n, round(rate_gbps * GBPS)
    pairs = [(int(src), int(dst)) for src, dst in zip(*np.nonzero(demand.mp), strict=True)]
    devices = [
        {"type": GPU, "deviceid": node, "nodeid": node, "deviceproperty": 0, "bandwidth": 0}
        for node in range(n)
    ]
    devices += [
        {
            "type": NW_COMM,
            "deviceid": n + k,
            "nodeid": src,
            "deviceproperty": src * n + dst,
            "bandwidth": rate,
        }
        for k, (src, dst) in enumerate(pairs)
    ]
    # Tasks by number: a node's forward pass, its backward pass, the transfers, the all-reduces.
    sums = [group for group in demand.groups if group.bytes]
    first_pair, first_sum = 2 * n, 2 * n + len(pairs)
    tasks: list[dict[str, Any]] = []
    for node in range(n):
        onward = [first_pair + k for k, (src, _) in enumerate(pairs) if src == node]
        tasks.append(
            _task(FORWARD, node, node, [*onward, n + node], runtime=demand.compute_s * 1e3)
        )
    for node in range(n):
        tasks.append(
            _task(
                BACKWARD,
                n + node,
                node,
                [first_sum + k for k, group in enumerate(sums) if node in group.members],
            )
        )
    for k, (src, dst) in enumerate(pairs):
        tasks.append(
            _task(
                NOMINAL_COMM, first_pair + k, n + k, [n + dst], xfersize=round(demand.mp[src, dst])
            )
        )
    for k, group in enumerate(sums):
        tasks.append(_task(ALLREDUCE, first_sum + k, 0, list(group.members), xfersize=group.bytes))
    return {
        "ngpupernode": 1,
        "nnode": n,
        "nswitch": 0,
        "netbw": float(rate),
        "conn": [
            {"fromnode": int(a), "tonode": int(b), "nconn": int(shape.adjacency[a, b])}
            for a, b in zip(*np.nonzero(shape.adjacency), strict=True)
        ],
        "ops": [],
        "tasks": tasks,
        "devices": devices,
        "routes": [
            {
                "fromnode": src,
                "tonode": dst,
                "paths": [{"hopnode": list(path), "chance": weight} for path, weight in paths],
            }
            for (src, dst), paths in routes.paths.items()
        ],
        "rings": _rings(shape),
    }


def _task(
    kind: int,
    number: int,
    device: int,
    onward: list[int],
    *,
    runtime: float = 0.0,
    xfersize: int = 0,
) -> dict[str, Any]:
    return {
        "type": kind,
        "taskid": number,
        "deviceid": device,
        "runtime": runtime,
        "xfersize": xfersize,
        "nexttasks": onward,
    }


def _rings(shape: Shape) -> list[dict[str, Any]]:
    """Rings by size, each as its jumps modulo the nodes, step by step: n/g times the stride in a
    group of every (n/g)th node.
    """
    by_size: dict[int, list[dict[str, list[int]]]] = {}
    for ring in shape.rings:
        jumps = [
            (b - a) % shape.n
            for a, b in zip(ring.order, ring.order[1:] + ring.order[:1], strict=True)
        ]
        by_size.setdefault(len(ring.order), []).append({"jumps": jumps})
    return [{"ringsz": size, "ringpaths": paths} for size, paths in sorted(by_size.items())]
