"""Reads the traffic of a TopoOpt task graph: all-reduces by group, transfers by pair, compute time.

Transfers are nominal ones, from node to node whatever lies between; a transfer within a node and
groups of one node carry nothing over the network. Run times are in ms (Flasew/ffsim-opera,
src/clos/ffapp.cpp takes them times 10^9 as picoseconds).
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from planner.formats.taskgraph import (
    ALLREDUCE,
    BACKWARD,
    FORWARD,
    NOMINAL_COMM,
    NW_COMM,
    NW_NOMINAL,
    UPDATE,
    read,
)
from planner.model.demand import Demand, Group, Infeasible

AGAIN = "give a taskgraph.fbuf that FlexNet wrote with --taskgraph"


def demand(data: bytes) -> Demand:
    """The demand between nodes. Raises: Infeasible - not a task graph, or one that names what it
    does not have.
    """
    graph = read(data)
    nodes, total = graph["nnode"], graph["nnode"] + graph["nswitch"]
    if not 2 <= nodes <= 65536:
        raise Infeasible(f"a task graph of {nodes} nodes", AGAIN)
    devices = {device["deviceid"]: device for device in graph["devices"]}
    mp = np.zeros((nodes, nodes))
    buffers: Counter[tuple[int, ...]] = Counter()
    busy: Counter[int] = Counter()
    for task in graph["tasks"]:
        if task["type"] == ALLREDUCE:
            members = tuple(sorted(set(task["nexttasks"])))
            if members and members[-1] >= nodes:
                raise Infeasible(
                    f"task {task['taskid']} reduces at node {members[-1]}; there are {nodes}", AGAIN
                )
            if len(members) > 1:
                buffers[members] += task["xfersize"]
            continue
        device = devices.get(task["deviceid"])
        if device is None:
            raise Infeasible(
                f"task {task['taskid']} runs on device {task['deviceid']}, which is not there",
                AGAIN,
            )
        if task["type"] == NOMINAL_COMM and device["type"] in (NW_COMM, NW_NOMINAL):
            src, dst = divmod(device["deviceproperty"], total)
            if src >= nodes or dst >= nodes:
                raise Infeasible(
                    f"task {task['taskid']} sends from node {src} to node {dst}; there are {nodes}",
                    AGAIN,
                )
            if src != dst:
                mp[src, dst] += task["xfersize"]
        elif task["type"] in (FORWARD, BACKWARD, UPDATE):
            busy[task["deviceid"]] += task["runtime"]
    groups = tuple(
        Group(f"group{number}", members, size)
        for number, (members, size) in enumerate(sorted(buffers.items()))
    )
    return Demand(nodes, groups, mp, max(busy.values(), default=0.0) / 1e3)
