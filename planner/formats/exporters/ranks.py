"""Rank orders as files and environment: for launchers, for NCCL, for workloads/."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from planner.model.backend import Order
from planner.model.demand import Infeasible


def rank_file(hosts: Sequence[str], order: Order, each: int = 1) -> str:
    """A host a line; line k is rank k, so that stock NCCL's ring, which follows ranks, follows
    `order`. each: ranks per host.
    """
    return "".join(f"{hosts[rank]}\n" for rank in order for _ in range(each))


CHANNEL_BYTES = 512 * 64
"""NCCL gives a channel of the Simple protocol this many bytes before it takes another: 512 threads,
64 bytes each (src/enqueue.cc, NCCL_SIMPLE_THREAD_THRESHOLD of src/include/comm.h in NVIDIA/nccl).
"""


def nccl_environment(orders: Mapping[str, Sequence[Order]], size: int) -> dict[str, str]:
    """Variables for stock NCCL: as many channels as there are parallel links along the one order,
    rings only. Raises: as `nccl_tuner`.
    """
    channels = str(_channels(orders, size))
    return {
        "NCCL_ALGO": "Ring",
        "NCCL_MIN_NCHANNELS": channels,
        "NCCL_MAX_NCHANNELS": channels,
        "NCCL_CROSS_NIC": "0",
    }


def nccl_tuner(orders: Mapping[str, Sequence[Order]], size: int, each: int = 1) -> str:
    """The table of NCCL's example tuner: rings for every size, and as many channels as it fills,
    up to the parallel links along the one order. each: ranks per host.

    A line is collective, least and most bytes, algorithm, protocol, channels, nodes, ranks, numbers
    of pipelined operations and registered buffers, -1 for any (plugins/tuner/example of
    NVIDIA/nccl). Raises: Infeasible - a group of all ranks has several orders; NCCL runs one.
    """
    channels = _channels(orders, size)
    least = [0, *(count * CHANNEL_BYTES for count in range(2, channels + 1))]
    most = [*(begin - 1 for begin in least[1:]), 2**64 - 1]
    lines = [
        "# collective,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"
    ]
    lines += [
        f"{kind},{begin},{end},ring,simple,{count},{size},{size * each},-1,-1"
        for kind in ("allreduce", "allgather", "reducescatter")
        for count, (begin, end) in enumerate(zip(least, most, strict=True), 1)
    ]
    return "\n".join([*lines, ""])


def _channels(orders: Mapping[str, Sequence[Order]], size: int) -> int:
    whole = [order for group in orders.values() for order in group if len(order) == size]
    if len(set(whole)) > 1:
        raise Infeasible(
            f"{len(set(whole))} different orders of all {size} ranks; stock NCCL runs one on every channel",
            "design for --backend single-order, or export ring groups",
        )
    return max(1, len(whole))


def ring_groups(orders: Mapping[str, Sequence[Order]]) -> str:
    """The orders by group as JSON, each order a list of ranks: what workloads/host/place.py reads
    of one group as TESTBED_RINGS.
    """
    return (
        json.dumps(
            {group: [list(order) for order in each] for group, each in orders.items()}, indent=1
        )
        + "\n"
    )
