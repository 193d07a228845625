"""What `circuits.py` proposes for the regions of a plan, as links between host ports, and which
links traffic then uses. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

import numpy as np

from extensions.adapt.circuits import all_to_all_s, proposed
from extensions.adapt.plan import Region
from extensions.adapt.traffic import Bytes
from extensions.adapt.trial import Circuit, Circuits, Fabric
from optics import DeviceName, HostName, HostPort, Infeasible, Link
from optics.plan import WantedLink
from orchestrator.inventory.lab import Lab
from planner.model.demand import Infeasible as NoAnswer


@dataclass(frozen=True, slots=True)
class Proposal:
    """Circuits for a region. now_s, then_s: of the forecast's all-to-all over those of now and over
    these; `links`: these.
    """

    region: Region
    now_s: float
    then_s: float
    links: tuple[Link, ...]

    @property
    def gain(self) -> float:
        return self.now_s / self.then_s if self.then_s else 1.0


def proposal(region: Region, lab: Lab, traffic: Bytes, links: Collection[Link]) -> Proposal:
    """Circuits for the traffic, those among `links` being there. A pair gets one at most, as a
    connection uses no second one.

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
    # all have both
    ends = [(w.a, w.b) for w in found if isinstance(w.a, HostPort) and isinstance(w.b, HostPort)]
    return Proposal(region, before, after, tuple(Link(a, b) for a, b in ends))


def fabric(
    region: Region, lab: Lab, circuit_mbps: float, packet_mbps: float | None = None
) -> Fabric:
    """The region for the planner: rank i is `region.hosts[i]`, plane p is `planes(region, lab)[p]`;
    a pair uses one path.

    circuit_mbps, packet_mbps: what a port carries of the bytes of programs, per direction (Mb/s);
    else the segment's rate.
    """
    names = planes(region, lab)
    room = tuple(
        tuple(len(_ports(region, lab, host, plane)) for plane in names) for host in region.hosts
    )
    packets = packet_mbps if packet_mbps is not None else lab.segments[region.fallback].link_mbps
    return Fabric(room, circuit_mbps * 1e6 / 8, packets * 1e6 / 8, split=False)


def planes(region: Region, lab: Lab) -> tuple[DeviceName, ...]:
    """The devices that the region's ports are at: a circuit joins two ports of one of them."""
    return tuple(dict.fromkeys(lab.fibres[port].device for port in region.ports))


def _ports(region: Region, lab: Lab, host: HostName, plane: DeviceName) -> list[HostPort]:
    return [port for port in region.ports if port.host == host and lab.fibres[port].device == plane]


def circuits_of(region: Region, lab: Lab, links: Iterable[WantedLink | Link]) -> Circuits:
    """Those of the links that are circuits of the region, for `extensions.adapt.circuits`."""
    rank = {host: number for number, host in enumerate(region.hosts)}
    plane = {name: number for number, name in enumerate(planes(region, lab))}
    found = []
    for link in links:
        if (
            isinstance(link.a, HostPort)
            and isinstance(link.b, HostPort)
            and {link.a, link.b} <= {*region.ports}
        ):
            a, b = sorted((rank[link.a.host], rank[link.b.host]))
            found.append((a, b, plane[lab.fibres[link.a].device]))
    return tuple(sorted(found))


def links_of(
    region: Region, lab: Lab, circuits: Circuits, now: Iterable[WantedLink | Link] = ()
) -> tuple[WantedLink, ...]:
    """Links for these circuits. A circuit that one of `now` is already stays at its ports."""
    names = planes(region, lab)
    held: dict[Circuit, list[WantedLink]] = {}
    for link in now:
        for circuit in circuits_of(region, lab, (link,)):
            held.setdefault(circuit, []).append(WantedLink(link.a, link.b, link.kind))
    kept = {at: held[circuit].pop(0) for at, circuit in enumerate(circuits) if held.get(circuit)}
    used = {end for link in kept.values() for end in (link.a, link.b)}
    found = []
    for at, (a, b, plane) in enumerate(circuits):
        if at not in kept:
            hosts = region.hosts[a], region.hosts[b]
            ends = [
                next(port for port in _ports(region, lab, host, names[plane]) if port not in used)
                for host in hosts
            ]
            used |= {*ends}
            kept[at] = WantedLink(ends[0], ends[1])
        found.append(kept[at])
    return tuple(found)


def without(region: Region, ports: Collection[HostPort]) -> Region:
    """The region without these ports."""
    return (
        replace(region, ports=tuple(port for port in region.ports if port not in ports))
        if ports
        else region
    )


def single(circuits: Circuits) -> Circuits:
    """These without parallel ones."""
    return tuple({circuit[:2]: circuit for circuit in circuits}.values())


def split(
    links: Collection[Link], regions: Collection[Region]
) -> tuple[tuple[Link, ...], tuple[Link, ...]]:
    """The regions' circuits among these links, and the others."""
    ports = {port for region in regions for port in region.ports}
    own = tuple(link for link in links if link.a in ports and link.b in ports)
    return own, tuple(link for link in links if link not in own)


def used(links: Collection[Link], lab: Lab, regions: Collection[Region]) -> tuple[Link, ...]:
    """These links without those of a region's packet switch between hosts that a circuit of the
    region joins: it takes all of their traffic, whatever lane it is on."""
    own, rest = split(links, regions)
    joined = {frozenset((link.a.host, link.b.host)) for link in own}
    fallbacks = {region.fallback for region in regions}

    def covered(link: Link) -> bool:
        at = lab.segment_at.get(link.a) if lab.electrical(link) else None
        return (
            at is not None
            and at.name in fallbacks
            and frozenset((link.a.host, link.b.host)) in joined
        )

    return (*own, *(link for link in rest if not covered(link)))
