"""What the planner proposes for the regions of a plan, as links between host ports, and which links traffic then uses. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from optics import HostPort, Infeasible, Link
from optics.plan import Region
from orchestrator.inventory.lab import Lab
from orchestrator.plan.regions import circuits_of, fabric, links_of
from orchestrator.services.adapt.traffic import Bytes
from planner.model.demand import Infeasible as NoAnswer
from planner.operate.regional import Circuits, all_to_all_s, proposed


@dataclass(frozen=True, slots=True)
class Proposal:
    """Circuits for a region. now_s, then_s: of the forecast's all-to-all over those of now and over these; `links`: these."""

    region: Region
    now_s: float
    then_s: float
    links: tuple[Link, ...]

    @property
    def gain(self) -> float:
        return self.now_s / self.then_s if self.then_s else 1.0


def proposal(region: Region, lab: Lab, traffic: Bytes, links: Collection[Link]) -> Proposal:
    """Circuits for the traffic, those among `links` being there. A pair gets one at most, as a connection uses no second one.

    Raises: Infeasible - as the planner.
    """
    at = {host: number for number, host in enumerate(region.hosts)}
    wanted = np.zeros((len(at),) * 2)
    for (a, b), size in traffic.items():
        if a in at and b in at:
            wanted[at[a], at[b]] = size
    try:
        joins = fabric(region, lab, min(lab.hosts[host].link_mbps for host in region.hosts))
        now = single(circuits_of(region, lab, links))
        before = all_to_all_s(wanted, now, joins)
        chosen = single(proposed(wanted, joins, now).circuits)
        after = all_to_all_s(wanted, chosen, joins)
    except NoAnswer as error:
        raise Infeasible(f"region {region.name}: {error}") from error
    found = links_of(region, lab, chosen, links)
    ends = [(w.a, w.b) for w in found if isinstance(w.a, HostPort) and isinstance(w.b, HostPort)]  # all have both
    return Proposal(region, before, after, tuple(Link(a, b) for a, b in ends))


def without(region: Region, ports: Collection[HostPort]) -> Region:
    """The region without these ports."""
    return replace(region, ports=tuple(port for port in region.ports if port not in ports)) if ports else region


def single(circuits: Circuits) -> Circuits:
    """These without parallel ones."""
    return tuple({circuit[:2]: circuit for circuit in circuits}.values())


def split(links: Collection[Link], regions: Collection[Region]) -> tuple[tuple[Link, ...], tuple[Link, ...]]:
    """The regions' circuits among these links, and the others."""
    ports = {port for region in regions for port in region.ports}
    own = tuple(link for link in links if link.a in ports and link.b in ports)
    return own, tuple(link for link in links if link not in own)


def used(links: Collection[Link], lab: Lab, regions: Collection[Region]) -> tuple[Link, ...]:
    """These links without those of a region's packet switch between hosts that a circuit of the region joins: it takes all of their
    traffic, whatever lane it is on."""
    own, rest = split(links, regions)
    joined = {frozenset((link.a.host, link.b.host)) for link in own}
    fallbacks = {region.fallback for region in regions}

    def covered(link: Link) -> bool:
        at = lab.segment_at.get(link.a) if lab.electrical(link) else None
        return at is not None and at.name in fallbacks and frozenset((link.a.host, link.b.host)) in joined

    return (*own, *(link for link in rest if not covered(link)))
