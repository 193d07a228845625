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


def nccl_environment(orders: Mapping[str, Sequence[Order]], size: int) -> dict[str, str]:
    """Variables for stock NCCL: as many channels as there are parallel links along the one order,
    rings only.

    Raises: Infeasible - a group of all ranks has several orders; NCCL runs one.
    """
    whole = [order for group in orders.values() for order in group if len(order) == size]
    if len(set(whole)) > 1:
        raise Infeasible(
            f"{len(set(whole))} different orders of all {size} ranks; stock NCCL runs one on every channel",
            "design for --backend single-order, or export ring groups",
        )
    channels = str(max(1, len(whole)))
    return {
        "NCCL_ALGO": "Ring",
        "NCCL_MIN_NCHANNELS": channels,
        "NCCL_MAX_NCHANNELS": channels,
        "NCCL_CROSS_NIC": "0",
    }


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
