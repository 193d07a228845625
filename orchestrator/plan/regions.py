"""Reads the regions of a plan's job, whose circuits follow its traffic, and names the links of a choice of circuits. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from optics import DeviceName, HostName, HostPort, Link
from optics.plain import did_you_mean, summary
from optics.plan import Region, WantedLink
from optics.ranks import host_of_rank
from orchestrator.inventory.lab import Lab
from orchestrator.inventory.positions import Path
from orchestrator.inventory.segments import Segment
from orchestrator.plan.edges import JobEdge, RegionEdge
from orchestrator.plan.links import Links

if TYPE_CHECKING:
    from planner.operate.regional import Circuit, Circuits, Fabric


def read_regions(edge: JobEdge, links: Links, always: Sequence[WantedLink]) -> tuple[Region, ...]:
    """The regions of a job: each has a packet switch to fall back on, and ports that nothing else uses.

    always: the links of the plan; those at a region's ports are its first circuits.
    """
    found = []
    owner: dict[HostPort, int] = {}
    for index, region in enumerate(edge.regions):
        path: Path = ("job", "regions", index)
        problems = links.problems
        if region.name in (other.name for other in edge.regions[:index]):
            problems.add((*path, "name"), f"region {region.name} is already there")
        hosts = _hosts(region, edge, links, path)
        ports = []
        for at, text in enumerate(region.ports):
            place: Path = (*path, "ports", at)
            port = links.end(text, place)
            if not isinstance(port, HostPort):
                continue
            if port.host not in region.hosts:
                problems.add(place, f"{port.host} is not a host of region {region.name}")
            elif port in owner:
                other = edge.regions[owner[port]].name
                where = (
                    "named twice" if other == region.name else f"a port of region {other} too; a port follows one region's traffic"
                )
                problems.add(place, f"{port} is {where}")
            owner.setdefault(port, index)
            ports.append(port)
        _fallback(region, hosts, links, always, path)
        found.append(Region(region.name, tuple(hosts), tuple(ports), region.fallback))
    _circuits(found, owner, links, always)
    return tuple(found)


def _hosts(region: RegionEdge, edge: JobEdge, links: Links, path: Path) -> list[HostName]:
    known = []
    ranked = {host_of_rank(rank) for rank in edge.ranks}
    for at, host in enumerate(region.hosts):
        place: Path = (*path, "hosts", at)
        if not links.known_host(host, place):
            continue
        if host not in ranked:
            links.problems.add(place, f"{host} is not a host of the job, so it has no traffic to follow")
        elif host in region.hosts[:at]:
            links.problems.add(place, f"host {host} is named twice")
        known.append(host)
    return known


def _fallback(region: RegionEdge, hosts: Sequence[HostName], links: Links, always: Sequence[WantedLink], path: Path) -> None:
    """A segment of the plan that joins all hosts of the region: without one their traffic would stop while circuits move."""
    place: Path = (*path, "fallback")
    segment = links.lab.segments.get(region.fallback)
    used = {at.name for link in always if (at := _segment(link, links.lab))}
    if segment is None or region.fallback not in used:
        why = "not a segment of this plan" if segment else "not in the lab"
        listed = summary(sorted(used), "segment") if used else "it uses none; name one in segments"
        words = f"segment {region.fallback} is {why} ({listed}){did_you_mean(region.fallback, sorted(used))}"
        links.problems.add(place, f"{words}: traffic of region {region.name} needs it while circuits move")
        return
    joined = {host for link in always if _segment(link, links.lab) is segment for host in link.hosts}
    if lost := [host for host in hosts if host not in joined]:
        words = f"segment {segment.name} does not join {', '.join(lost[:4])} in this plan"
        links.problems.add(place, f"{words}: traffic of region {region.name} there would stop while circuits move")


def _circuits(regions: Sequence[Region], owner: Mapping[HostPort, int], links: Links, always: Sequence[WantedLink]) -> None:
    """A link of the plan at a region's port is a circuit of the region; and one that could take such a port names another."""
    inside = {host: region for region in regions for host in region.hosts}
    for link in always:
        if links.lab.electrical(link):
            continue
        path: Path = ("links", int(link.place.partition("[")[2].rstrip("]")))
        at = [owner.get(end) if isinstance(end, HostPort) else None for end in (link.a, link.b)]
        if at[0] != at[1]:
            region = regions[next(index for index in at if index is not None)]
            links.problems.add(path, f"one end is a port of region {region.name}, whose circuits stay inside it")
        for key, end in (("a", link.a), ("b", link.b)):
            if not isinstance(end, HostPort) and end in inside:
                words = f"name a port of {end}: some of its ports belong to region {inside[end].name}"
                links.problems.add((*path, key), words)


def _segment(link: WantedLink, lab: Lab) -> Segment | None:
    """The packet switch that carries the link, None if light does."""
    return lab.segment_at.get(link.a) if isinstance(link.a, HostPort) and lab.electrical(link) else None


def fabric(region: Region, lab: Lab, circuit_mbps: float, packet_mbps: float | None = None) -> Fabric:
    """The region for the planner: rank i is `region.hosts[i]`, plane p is `planes(region, lab)[p]`; a pair uses one path.

    circuit_mbps, packet_mbps: what a port carries of the bytes of programs, per direction (Mb/s); else the segment's rate.
    """
    from planner.operate.regional import Fabric  # here, as it loads numpy

    names = planes(region, lab)
    room = tuple(tuple(len(_ports(region, lab, host, plane)) for plane in names) for host in region.hosts)
    packets = packet_mbps if packet_mbps is not None else lab.segments[region.fallback].link_mbps
    return Fabric(room, circuit_mbps * 1e6 / 8, packets * 1e6 / 8, split=False)


def planes(region: Region, lab: Lab) -> tuple[DeviceName, ...]:
    """The devices that the region's ports are at: a circuit joins two ports of one of them."""
    return tuple(dict.fromkeys(lab.fibres[port].device for port in region.ports))


def _ports(region: Region, lab: Lab, host: HostName, plane: DeviceName) -> list[HostPort]:
    return [port for port in region.ports if port.host == host and lab.fibres[port].device == plane]


def circuits_of(region: Region, lab: Lab, links: Iterable[WantedLink | Link]) -> Circuits:
    """Those of the links that are circuits of the region, for `planner.operate.regional`."""
    rank = {host: number for number, host in enumerate(region.hosts)}
    plane = {name: number for number, name in enumerate(planes(region, lab))}
    found = []
    for link in links:
        if isinstance(link.a, HostPort) and isinstance(link.b, HostPort) and {link.a, link.b} <= {*region.ports}:
            a, b = sorted((rank[link.a.host], rank[link.b.host]))
            found.append((a, b, plane[lab.fibres[link.a].device]))
    return tuple(sorted(found))


def links_of(region: Region, lab: Lab, circuits: Circuits, now: Iterable[WantedLink | Link] = ()) -> tuple[WantedLink, ...]:
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
            ends = [next(port for port in _ports(region, lab, host, names[plane]) if port not in used) for host in hosts]
            used |= {*ends}
            kept[at] = WantedLink(ends[0], ends[1])
        found.append(kept[at])
    return tuple(found)
