"""Several jobs on one lab: disjoint hosts for each, a topology inside each, no link between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.demand import Demand, Infeasible
from planner.planes import most_links
from planner.shape import Lab
from planner.topofinder import Finding, find
from planner.totient import Rules


@dataclass(frozen=True, eq=False)
class Shard:
    """A job's hosts, in order of its ranks, and its topology, over ranks."""

    hosts: tuple[int, ...]
    finding: Finding


def place(
    demands: Sequence[Demand], lab: Lab, *, taken: Sequence[int] = (), rules: Rules = "paper", seed: int = 0
) -> tuple[Shard, ...]:
    """Hosts for each job, the lowest numbers that are free, and its topology.

    taken: hosts that other jobs have. Raises: Infeasible - too few hosts are free, or a job has no topology of its size.
    """
    for host in taken:
        if not 0 <= host < lab.n:
            raise Infeasible(f"host {host} is taken; there are {lab.n}", f"name hosts from 0 to {lab.n - 1}")
    free = [host for host in range(lab.n) if host not in set(taken)]
    wanted = sum(demand.n for demand in demands)
    if wanted > len(free):
        raise Infeasible(
            f"jobs of {' + '.join(str(demand.n) for demand in demands)} ranks on {len(free)} free hosts",
            f"leave out {wanted - len(free)} rank(s), or wait for as many hosts",
        )
    shards = []
    for demand in demands:
        hosts, free = tuple(free[: demand.n]), free[demand.n :]
        shards.append(Shard(hosts, find(demand, replace(lab, n=demand.n), rules=rules, seed=seed)))
    return tuple(shards)


def sizes(lab: Lab) -> tuple[int, ...]:
    """Numbers of hosts a shard can have if all its ports are to carry links."""
    return tuple(
        n for n in range(2, lab.n + 1) if not (lab.duplex and lab.planes) or most_links(n, lab.degree) * 2 >= n * lab.degree
    )
