"""Electrical segments: host ports cabled to packet switches. The program configures nothing there
but their functions. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

from optics import HostName, HostPort, Link
from optics.plain import did_you_mean, summary
from orchestrator.inventory.edges import SegmentEdge
from orchestrator.inventory.positions import Path, Problems


@dataclass(frozen=True, slots=True)
class Rack:
    """Hosts at one leaf switch. Their traffic with other racks shares `uplink_mbps` (Mb/s), per
    direction.
    """

    hosts: tuple[HostName, ...]
    uplink_mbps: float


@dataclass(frozen=True, slots=True)
class SegmentQueue:
    """What waits in a segment's switches: at most `kb` (1024 bytes) before each port and uplink.

    share: what waits before an uplink goes first in, first out, or in a queue of `kb` for each job
    that gets an equal share.
    """

    kb: int
    share: Literal["fifo", "job"] = "fifo"


def cable_of(segment: str, host: HostName) -> str:
    """The name of the cable between a host and a segment."""
    return f"{segment}-{host}"


@dataclass(frozen=True, slots=True)
class Segment:
    """One port of each of some hosts; every port reaches every other. link_mbps: of a port, per
    direction (Mb/s).

    racks: leaf switches, if traffic is limited by more than the ports; every host is then in one of
    them. functions: what the switches do with packets, by name, and how much of it; address:
    HOST:PORT of their control, empty without functions. queue: None if the inventory does not say.
    partitions: the same ports as partitions of hosts have them.
    """

    name: str
    ports: Mapping[HostName, HostPort]
    link_mbps: float
    racks: tuple[Rack, ...] = ()
    functions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    address: str = ""
    queue: SegmentQueue | None = None
    partitions: Mapping[HostName, HostPort] = field(default_factory=dict)

    def port(self, host: HostName) -> HostPort | None:
        """The port of a host, or partition of one, at these switches."""
        return self.ports.get(host) or self.partitions.get(host)

    def links(self, hosts: Collection[HostName]) -> tuple[Link, ...]:
        """A duplex link for each pair of these hosts: to routing a segment is a full mesh whose
        links share their ports.
        """
        ports = [port for host, port in {**self.ports, **self.partitions}.items() if host in hosts]
        return tuple(Link(a, b) for a, b in combinations(ports, 2))

    @property
    def cables(self) -> Mapping[str, HostPort]:
        """The host port of each cable to these switches; a cable is named after segment and
        host.
        """
        return {cable_of(self.name, host): port for host, port in self.ports.items()}

    @property
    def switches(self) -> Mapping[str, tuple[HostPort, ...]]:
        """The host ports at each of its switches: of `rack 1 of plane1` and so on, of the segment
        itself where it has no racks.
        """
        racks = {
            f"rack {number} of {self.name}": rack.hosts for number, rack in enumerate(self.racks, 1)
        }
        return {
            name: tuple(self.ports[host] for host in hosts)
            for name, hosts in (racks or {self.name: tuple(self.ports)}).items()
        }

    def rack(self, host: HostName) -> int:
        """The number of the host's rack; 0 where there are none."""
        return next(
            (
                number
                for number, rack in enumerate(self.racks)
                if host.partition("/")[0] in rack.hosts
            ),
            0,
        )

    def limits(self, a: HostName, b: HostName) -> Iterator[tuple[str, float]]:
        """The limits of traffic from `a` to `b`: the two ports and the uplinks between racks, by
        name with their rates (Mb/s).
        """
        yield f"{self.port(a)} out", self.link_mbps
        if self.racks and (directions := (self.rack(a), self.rack(b)))[0] != directions[1]:
            for number, direction in zip(directions, ("up", "down"), strict=True):
                yield f"{self.name} rack {number + 1} {direction}", self.racks[number].uplink_mbps
        yield f"{self.port(b)} in", self.link_mbps

    def alone_mbps(self, a: HostName, b: HostName) -> float:
        """The rate at which `a` can send to `b` while no other host sends (Mb/s)."""
        return min(mbps for _, mbps in self.limits(a, b))

    @property
    def full(self) -> bool:
        """Whether every rack's uplinks carry all that its hosts can send."""
        return all(
            rack.uplink_mbps >= len(rack.hosts) * self.link_mbps * (1 - 1e-6) for rack in self.racks
        )

    def __str__(self) -> str:
        racks = f", {len(self.racks)} racks" if self.racks else ""
        return f"{self.name} ({len(self.ports)} ports of {self.link_mbps:g} Mb/s{racks})"


def read_segments(
    edges: Sequence[SegmentEdge],
    problems: Problems,
    ports: Mapping[HostName, Collection[int]],
    host_names: Collection[HostName] | None,
    taken: Mapping[object, str],
) -> dict[str, Segment]:
    """The segments of fibres.yml, everything wrong with them added to `problems`.

    ports: the port numbers of each valid host; host_names: all hosts, None if not known. taken:
    names and host ports that are already used, and by which entry.
    """
    found: dict[str, Segment] = {}
    plugged: dict[object, str] = dict(taken)
    for index, edge in enumerate(edges):
        path: Path = ("segments", index)
        place = f"segments[{index}]"
        if edge.name in plugged:
            problems.add(
                (*path, "name"), f"the name {edge.name} is already used by {plugged[edge.name]}"
            )
        plugged.setdefault(edge.name, place)
        members: dict[HostName, HostPort] = {}
        for at, text in enumerate(edge.ports):
            where: Path = (*path, "ports", at)
            host, _, number = text.rpartition(":p")
            port = HostPort(host, int(number))
            if host_names is not None and host not in host_names:
                hint = did_you_mean(host, host_names)
                problems.add(
                    where, f"host {host} is not in the lab ({summary(host_names, 'host')}){hint}"
                )
            elif host in ports and port.number not in ports[host]:
                problems.add(
                    where,
                    f"{host} has no port {number} (it has {', '.join(map(str, ports[host]))})",
                )
            elif host in members:
                problems.add(
                    where,
                    f"{host} is already at this segment, by {members[host]}; a segment takes one port per host",
                )
            elif port in plugged:
                problems.add(where, f"a cable at {port} is already defined by {plugged[port]}")
            elif (cable := cable_of(edge.name, host)) in plugged:
                problems.add(
                    where, f"the name of its cable, {cable}, is already used by {plugged[cable]}"
                )
            members.setdefault(host, port)
            plugged.setdefault(port, place)
            plugged.setdefault(cable_of(edge.name, host), place)
        _racks(edge, members, problems, path)
        racks = tuple(Rack(tuple(rack.hosts), rack.uplink_mbps) for rack in edge.racks)
        functions = edge.functions.model_dump(exclude_none=True) if edge.functions else {}
        if bool(functions) != bool(edge.address):
            message = (
                "they need address, HOST:PORT of their control"
                if functions
                else "of the control of functions: there are none"
            )
            problems.add((*path, "functions" if functions else "address"), message)
        if edge.address and (control := int(edge.address.rpartition(":")[2])) > 65_535:
            problems.add((*path, "address"), f"port {control}: wanted 1 to 65535")
        queue = SegmentQueue(edge.queue.kb, edge.queue.share) if edge.queue else None
        if queue and queue.share == "job" and not racks:
            message = "jobs share uplinks, and without racks there are none: add racks, or leave share out"
            problems.add((*path, "queue", "share"), message)
        found[edge.name] = Segment(
            edge.name, members, edge.link_mbps, racks, functions, edge.address or "", queue
        )
    return found


def _racks(
    edge: SegmentEdge, members: Mapping[HostName, HostPort], problems: Problems, path: Path
) -> None:
    """Each host of a segment with racks must be in exactly one of them."""
    seen: dict[HostName, int] = {}
    for index, rack in enumerate(edge.racks):
        for at, host in enumerate(rack.hosts):
            where: Path = (*path, "racks", index, "hosts", at)
            if host not in members:
                problems.add(
                    where, f"{host} has no port at segment {edge.name}{did_you_mean(host, members)}"
                )
            elif host in seen:
                problems.add(where, f"{host} is already in racks[{seen[host]}]")
            seen.setdefault(host, index)
    if edge.racks and (lost := [host for host in members if host not in seen]):
        problems.add(
            (*path, "racks"),
            f"{_few(lost)} in no rack; list every host of the segment, or leave racks out",
        )


def _few(hosts: Sequence[HostName]) -> str:
    text = ", ".join(hosts[:4]) + (", ..." if len(hosts) > 4 else "")
    return f"{text} {'is' if len(hosts) == 1 else 'are'}"
