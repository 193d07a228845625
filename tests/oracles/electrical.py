"""Packet switches as rates: what designs over them are compared with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.model.demand import Demand, Group
from planner.model.shape import Lab
from planner.predict.score import ring_bytes


@dataclass(frozen=True)
class Electrical:
    """Packet switches as rates: of a host, each way, and of each rack's uplinks together (None: one
    switch without racks).
    """

    name: str
    host_bytes_per_s: float
    racks: tuple[tuple[int, ...], ...] = ()
    uplink_bytes_per_s: float | None = None

    def seconds(self, loads: NDArray[np.float64]) -> float:
        """Time to carry bytes from row to column: the fullest host or uplink, out or in."""
        busiest = (
            float(max(loads.sum(axis=0).max(initial=0), loads.sum(axis=1).max(initial=0)))
            / self.host_bytes_per_s
        )
        if self.uplink_bytes_per_s is None:
            return busiest
        for rack in self.racks:
            inside = np.zeros(len(loads), dtype=bool)
            inside[list(rack)] = True
            crossing = max(
                float(loads[inside][:, ~inside].sum()), float(loads[~inside][:, inside].sum())
            )
            busiest = max(busiest, crossing / self.uplink_bytes_per_s)
        return busiest

    def allreduce_s(self, n: int, groups: tuple[Group, ...], alpha_s: float = 0.0) -> float:
        """All groups at once, each round one ring that visits rack after rack."""
        place = {
            rank: number for number, rank in enumerate(rank for rack in self.racks for rank in rack)
        }
        loads = np.zeros((n, n))
        for group in groups:
            order = np.array(sorted(group.members, key=lambda rank: place.get(rank, rank)))
            loads[order, np.roll(order, -1)] += ring_bytes(group)
        steps = max((2 * (len(group.members) - 1) for group in groups), default=0)
        return self.seconds(loads) + steps * alpha_s

    def iteration_s(self, demand: Demand, alpha_s: float = 0.0) -> float:
        """As `score.iteration_s`: compute, then traffic between pairs, then all-reduce."""
        return (
            demand.compute_s
            + self.seconds(demand.mp)
            + self.allreduce_s(demand.n, demand.groups, alpha_s)
        )


def oversubscribed(lab: Lab, factor: float, rack: int) -> Electrical:
    """Racks of `rack` hosts whose uplinks carry 1/factor of what the hosts could send."""
    host = lab.degree * lab.port_bytes_per_s
    racks = tuple(tuple(range(first, first + rack)) for first in range(0, lab.n, rack))
    return Electrical(f"{factor:g}:1 oversubscribed fat-tree", host, racks, rack * host / factor)
