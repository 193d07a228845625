"""Scores of a topology: times of collectives and of traffic between pairs, hops, resilience; with
the bounds on each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.model.demand import Demand, Group, Infeasible
from planner.model.shape import Lab, Shape, distances
from planner.predict.flow import fullest
from planner.predict.routing import even_loads

EXACT = 24
"""Ranks up to which completion times are the linear program's; beyond, those of an even division
over shortest paths.
"""


@dataclass(frozen=True)
class Score:
    """Times in s. `hops`: of an average byte between pairs, or of an average pair where there is
    none. `fails`: links that must fail before some rank is cut off; `worst_diameter`: after any one
    link has failed, None where that cuts one off."""

    allreduce_s: float
    mp_s: float
    hops: float
    diameter: int
    fails: int
    worst_diameter: int | None

    def better_than(self, other: Score) -> tuple[str, ...]:
        """The names of the figures that are better than those of `other`, beyond rounding."""
        better = [
            name
            for name in ("allreduce_s", "mp_s", "hops", "diameter")
            if _less(getattr(self, name), getattr(other, name))
        ]
        return (*better, *(("fails",) if self.fails > other.fails else ()))


def _less(a: float, b: float) -> bool:
    return a < b * (1 - 1e-6)


def directed_rings(shape: Shape, members: Collection[int]) -> tuple[tuple[int, ...], ...]:
    """The orders in which data of these ranks can go round at once: of rings of just these, and in
    duplex shapes their reverse (two ranks have but one)."""
    same = frozenset(members)
    orders = [
        ring.order
        for ring in shape.rings
        if len(ring.order) == len(same) > 1 and frozenset(ring.order) == same
    ]
    return tuple(
        path
        for order in orders
        for path in ((order, order[::-1]) if shape.duplex and len(order) > 2 else (order,))
    )


def ring_bytes(group: Group, rings: int = 1) -> float:
    """What each member sends on one of `rings` rings that share a group's buffer evenly: 2(k-1)/k
    of its part.
    """
    size = len(group.members)
    return 2 * (size - 1) / size * group.bytes / rings


def ring_steps(
    shape: Shape, groups: Iterable[Group]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bytes that all groups together pass from row to column: on rings of their own, and of groups
    that have none.

    Groups use all rings of their ranks, of other groups too, in both directions; groups without
    rings pass data on in the order of their members, half in each direction.
    """
    own, others = np.zeros((shape.n, shape.n)), np.zeros((shape.n, shape.n))
    for group in groups:
        rings = directed_rings(shape, group.members)
        orders = rings or (
            (group.members, group.members[::-1]) if len(group.members) > 2 else (group.members,)
        )
        for order in orders:
            ranks = np.array(order)
            (own if rings else others)[ranks, np.roll(ranks, -1)] += ring_bytes(group, len(orders))
    return own, others


def allreduce_loads(shape: Shape, groups: Iterable[Group]) -> NDArray[np.float64]:
    """Bytes between neighbours while all groups reduce at once; groups without rings go evenly over
    shortest paths.
    """
    own, others = ring_steps(shape, groups)
    return own + even_loads(shape, others) if others.any() else own


def drain_s(shape: Shape, loads: NDArray[np.float64], lab: Lab) -> float:
    """Time until the fullest link has carried its bytes."""
    return float((loads / np.maximum(shape.adjacency, 1)).max(initial=0.0)) / lab.port_bytes_per_s


def allreduce_s(shape: Shape, groups: Iterable[Group], lab: Lab) -> float:
    """Time of all groups' all-reduces at once: the fullest link, and 2(k-1) steps of the largest
    group.
    """
    groups = tuple(groups)
    steps = max((2 * (len(group.members) - 1) for group in groups), default=0)
    return drain_s(shape, allreduce_loads(shape, groups), lab) + steps * lab.alpha_s


def mp_s(shape: Shape, mp: NDArray[np.float64], lab: Lab, *, exact: bool | None = None) -> float:
    """Time of the traffic between pairs; exact (the default up to EXACT ranks): divided optimally,
    else evenly.
    """
    if not mp.any():
        return 0.0
    if exact if exact is not None else shape.n <= EXACT:
        return fullest(shape, mp)[0] / lab.port_bytes_per_s
    return drain_s(shape, even_loads(shape, mp), lab)


def iteration_s(shape: Shape, demand: Demand, lab: Lab) -> float:
    """Compute, then traffic between pairs, then all-reduce, none of them overlapping: the
    analytical model.
    """
    return demand.compute_s + mp_s(shape, demand.mp, lab) + allreduce_s(shape, demand.groups, lab)


def score(shape: Shape, demand: Demand, lab: Lab, *, allreduce: float | None = None) -> Score:
    """All figures of a topology. allreduce: its time, where a schedule other than rings was found.
    Raises: Infeasible.
    """
    return Score(
        allreduce_s(shape, demand.groups, lab) if allreduce is None else allreduce,
        mp_s(shape, demand.mp, lab),
        shape.mean_hops(demand.mp if demand.mp.any() else None),
        shape.diameter,
        survives(shape),
        worst_diameter(shape),
    )


# resilience


def survives(shape: Shape) -> int:
    """Links, counted per direction, that must fail before a rank cannot reach another: the least
    cut (max-flow from rank 0).
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    graph = csr_array(shape.adjacency.astype(np.int32))
    backwards = csr_array(shape.adjacency.T.astype(np.int32))
    paths = (graph,) if shape.duplex else (graph, backwards)
    return min(
        int(maximum_flow(path, 0, other).flow_value)
        for path in paths
        for other in range(1, shape.n)
    )


def worst_diameter(shape: Shape) -> int | None:
    """The diameter after the failure of the link that matters most (a duplex link fails in both
    directions); None if that cuts a rank off."""
    worst = 0
    for cable in dict.fromkeys(
        tuple(sorted(pair)) if shape.duplex else tuple(pair) for pair in shape.cables.tolist()
    ):
        left = without(shape, (int(cable[0]), int(cable[1])))
        hops = distances(shape.n, left)
        if (hops < 0).any():
            return None
        worst = max(worst, int(hops.max()))
    return worst


def without(shape: Shape, cable: tuple[int, int]) -> NDArray[np.int64]:
    """The arcs of a shape that has lost one link between two ranks."""
    keep = np.ones(len(shape.arcs), dtype=bool)
    for src, dst in (cable, cable[::-1]) if shape.duplex else (cable,):
        found = np.flatnonzero(keep & (shape.arcs[:, 0] == src) & (shape.arcs[:, 1] == dst))
        if not len(found):
            raise Infeasible(
                f"no link from rank {src} to rank {dst}", "name a link of the topology"
            )
        keep[found[0]] = False
    return shape.arcs[keep]


# bounds


def allreduce_bound_s(n: int, size: float, lab: Lab) -> float:
    """No all-reduce of `size` bytes is faster, whatever the topology: 2(n-1)/n * M / (d * b)."""
    return 2 * (n - 1) / n * size / (lab.degree * lab.port_bytes_per_s)


def moore(n: int, degree: int, *, duplex: bool) -> tuple[int, float]:
    """Diameter and mean hops that no topology of n ranks and this degree can go below: layers as
    full as they can be.
    """
    if n < 2:
        raise Infeasible(f"{n} rank has no hops to make", "take 2 ranks or more")
    placed, layer, hops, total = 0, degree, 0, 0
    while placed < n - 1:
        if layer == 0:
            raise Infeasible(
                f"{n} ranks of degree {degree} cannot all be joined", "take degree 2 or more"
            )
        hops += 1
        here = min(layer, n - 1 - placed)
        placed += here
        total += here * hops
        layer *= degree - 1 if duplex else degree
    return hops, total / (n - 1)
