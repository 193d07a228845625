"""A periodic schedule of matchings in which every pair meets in turn: the time of an iteration on it. A calculation only.

Between two slots the fabric is dark while circuits move: duty = dwell / (dwell + dark). A pair's bytes wait for the slots in which
it has a link. Sums go pair by pair, too: each member sends each other its part to reduce, then its sum to gather; both phases, and
transfers before them, take whole cycles.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from planner.baselines import round_robin_slots
from planner.demand import Demand, Infeasible
from planner.shape import Lab, Shape


@dataclass(frozen=True, eq=False)
class Periodic:
    """Topologies in turn, each for `dwell_s`, then `dark_s` without any."""

    slots: tuple[Shape, ...]
    dwell_s: float
    dark_s: float

    def __post_init__(self) -> None:
        for name, value, least in (("a dwell", self.dwell_s, "above 0"), ("dark time", self.dark_s, "0 or more")):
            if not np.isfinite(value) or value < 0 or (value == 0 and least == "above 0"):
                raise Infeasible(f"{name} of {value} s", f"give a finite time, {least} s")

    @property
    def duty(self) -> float:
        """Share of the time there is light."""
        return self.dwell_s / (self.dwell_s + self.dark_s)

    @property
    def cycle_s(self) -> float:
        return len(self.slots) * (self.dwell_s + self.dark_s)

    def phase_s(self, loads: NDArray[np.float64], bytes_per_s: float) -> float:
        """Time to carry bytes from row to column, in whole cycles, each pair over its own links alone."""
        links = self.links
        if (links[loads > 0] == 0).any():
            src, dst = map(int, np.argwhere((loads > 0) & (links == 0))[0])
            raise Infeasible(f"rank {src} never meets rank {dst}", "take a schedule in which every pair meets")
        needs = float((loads[loads > 0] / links[loads > 0]).max(initial=0.0)) / bytes_per_s
        return ceil(round(needs / self.dwell_s, 9)) * self.cycle_s

    @property
    def links(self) -> NDArray[np.int64]:
        """Links from row to column, those of all slots together."""
        return sum((slot.adjacency for slot in self.slots), np.zeros_like(self.slots[0].adjacency))

    def iteration_s(self, demand: Demand, lab: Lab) -> float:
        """Compute, then transfers, then reducing and gathering."""
        each = parts(demand)
        return demand.compute_s + self.phase_s(demand.mp, lab.port_bytes_per_s) + 2 * self.phase_s(each, lab.port_bytes_per_s)


def parts(demand: Demand) -> NDArray[np.float64]:
    """Bytes between each two ranks to reduce (and again to gather): of a buffer among k members, a k-th to each other."""
    matrix = np.zeros((demand.n, demand.n))
    for group in demand.groups:
        members = list(group.members)
        matrix[np.ix_(members, members)] += group.bytes / len(members)
    np.fill_diagonal(matrix, 0.0)
    return matrix


def fitted(demand: Demand, lab: Lab, dark_s: float, most_cycles: int = 64) -> Periodic:
    """The round robin whose dwell makes an iteration shortest: a phase takes 1, 2, ... whole cycles, with little light unused."""
    slots = round_robin_slots(lab)
    links = Periodic(slots, 1.0, dark_s).links
    needs = [float((loads / np.maximum(links, 1)).max()) / lab.port_bytes_per_s for loads in (demand.mp, parts(demand))]
    dwells = {need / cycles for need in needs if need for cycles in range(1, most_cycles + 1)}
    found = [Periodic(slots, dwell, dark_s) for dwell in sorted(dwells, reverse=True)]
    return min(found, key=lambda one: one.iteration_s(demand, lab), default=Periodic(slots, max(dark_s, 1e-3), dark_s))
