"""The ports by which a job's rings leave and enter their hosts, read off the next hops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from optics import HostName, Infeasible, Link
from optics.plan import FixedRoute, Job, ring_steps
from orchestrator.fabric.next_hops import Hop, lanes_of, next_hops
from orchestrator.inventory.lab import Lab


@dataclass(frozen=True, slots=True)
class RingPath:
    """One ring as light: the hop of each step, from `order[i]` to `order[i + 1]`, and the lane
    whose addresses it uses.
    """

    index: int
    lane: int
    order: tuple[HostName, ...]
    hops: tuple[Hop, ...]


def plan_rings(
    job: Job, links: Iterable[Link], lab: Lab, fixed: Iterable[FixedRoute] = ()
) -> tuple[RingPath, ...]:
    """Each ring of the job with the ports its steps leave and enter by, as `rules` will route them.

    Raises: Infeasible - a step has no link.
    """
    links = tuple(links)
    lanes = lanes_of(lab)
    chosen = next_hops(links, lanes, fixed, job.orders)
    paths = []
    for index, order in enumerate(job.orders):
        lane = index % lanes
        hops = []
        for host, follower in ring_steps(order):
            hop = chosen.get((host, follower, lane))
            if hop is None or hop.into.host != follower:
                raise Infeasible(
                    f"ring {index} steps from {host} to {follower}, but no link joins them"
                )
            hops.append(hop)
        paths.append(RingPath(index, lane, tuple(order), tuple(hops)))
    return tuple(paths)


def edge_disjoint(paths: Sequence[RingPath]) -> tuple[str, ...]:
    """Hops that more than one ring uses in the same direction, in words; empty when every ring has
    its links to itself.
    """
    users: dict[Hop, list[int]] = {}
    for path in paths:
        for hop in path.hops:
            users.setdefault(hop, []).append(path.index)
    return tuple(
        f"rings {', '.join(map(str, rings))} share {hop}"
        for hop, rings in sorted(users.items())
        if len(rings) > 1
    )
