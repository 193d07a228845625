"""Rail-only fabrics (Wang and others, HOTI'24, arXiv 2307.12169): domains of high bandwidth, and a
rail for each place in them.

Hosts sit in domains of K that have much bandwidth among themselves. Hosts at the same place of all
domains form a rail; nothing joins rails but the domains: from (a, i) to (b, j) traffic goes within
a to j and then along rail j. Only the abstract was read; the equations below follow its structure.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.model.demand import Demand, Infeasible
from planner.model.shape import Lab, Ring, Shape


@dataclass(frozen=True)
class Rails:
    """n ranks in domains of `size`: rank r is at place r % size of domain r // size. Rates are per
    rank and direction.
    """

    n: int
    size: int
    hb_gbps: float
    rail_gbps: float

    def __post_init__(self) -> None:
        if self.size < 1 or self.n % self.size:
            near = min(
                (k for k in range(1, self.n + 1) if self.n % k == 0),
                key=lambda k: (abs(k - self.size), k),
            )
            raise Infeasible(
                f"domains of {self.size} do not divide {self.n} ranks", f"take domains of {near}"
            )
        if min(self.hb_gbps, self.rail_gbps) <= 0:
            raise Infeasible("a rate of 0 Gb/s carries nothing", "give rates above 0 Gb/s")

    @property
    def domains(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            tuple(range(first, first + self.size)) for first in range(0, self.n, self.size)
        )

    @property
    def rails(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(range(place, self.n, self.size)) for place in range(self.size))

    def path(self, src: int, dst: int) -> tuple[int, ...]:
        """Within the domain first, then along the destination's rail; two stages at most."""
        step = src // self.size * self.size + dst % self.size
        return tuple(dict.fromkeys((src, step, dst)))

    def iteration_s(self, demand: Demand) -> float:
        """Compute (the demand's, its pipeline's bubble included), then transfers (within domains,
        then along rails), then sums.

        A group within a domain sums there, one along a rail on the rail; others do both:
        reduce-scatter and all-gather in domains, and each rail a part, the stages passing data on
        while it comes. All groups sum at once.
        """
        hb, rail = self.hb_gbps * 1e9 / 8, self.rail_gbps * 1e9 / 8
        inner, outer = [0.0] * self.n, [0.0] * self.n
        for src in range(self.n):
            for dst in range(self.n):
                size = float(demand.mp[src, dst])
                if not size:
                    continue
                step = src // self.size * self.size + dst % self.size
                inner[src] += size if step != src else 0.0
                outer[step] += size if step != dst else 0.0
        transfers = max(inner) / hb + max(outer) / rail
        sums_hb, sums_rail = [0.0] * self.n, [0.0] * self.n
        for group in demand.groups:
            members = set(group.members)
            inside = max(len(members & set(domain)) for domain in self.domains)
            across = sum(1 for domain in self.domains if members & set(domain))
            for rank in members:
                sums_hb[rank] += 2 * (inside - 1) / inside * group.bytes
                sums_rail[rank] += 2 * (across - 1) / across * group.bytes / inside
        return demand.compute_s + transfers + max(max(sums_hb) / hb, max(sums_rail) / rail)


def template(lab: Lab, size: int) -> Shape:
    """Domains and rails from a lab's optical links: half of the ports for each, rings, or parallel
    links between two.

    All links have one rate, so domains are no faster than rails here; it shows sparse traffic and
    its paths, not the ratio of rates. Raises: Infeasible - domains do not divide the hosts, or too
    few ports.
    """
    rails = Rails(lab.n, size, 1.0, 1.0)
    rings: list[Ring] = []
    half = lab.degree // 2
    for name, parts in (("domain", rails.domains), ("rail", rails.rails)):
        ports = 2 if lab.duplex and len(parts[0]) > 2 else 1
        count = half // ports if len(parts[0]) > 1 else 0
        if len(parts[0]) > 1 and not count:
            raise Infeasible(
                f"{lab.degree} ports do not make domains of {size} and rails of {lab.n // size}: a ring takes {ports} of each host",
                f"take domains of {2 if name == 'domain' else lab.n // 2}, or {2 * ports} ports",
            )
        for number, members in enumerate(parts):
            rings += [Ring(f"{name}-{number}", members, 1) for _ in range(count)]
    return Shape(lab.n, lab.degree, lab.duplex, tuple(rings))
