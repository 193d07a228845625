"""Follows a packet through the hosts' rules: an oracle for `rules`, written from what kernels, NICs
and light do.

It shares nothing with the code that computes the rules: it knows interfaces, addresses, MACs and
links, looks routes up by longest prefix, finds the receiver by the frame's MAC, and lets the RDMA
function of a split NIC port consume what is addressed to it. Light leads from one port to one
other; a packet switch brings a frame to the port that has its MAC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from optics import HostName, HostPort, Link, LinkKind, NotVerified
from orchestrator.fabric.rules import (
    Macs,
    Neighbour,
    RdmaNeighbour,
    RdmaRoute,
    Route,
    Rule,
    Rules,
    TransitFilter,
)
from orchestrator.inventory.hosts import Host
from orchestrator.inventory.lab import Lab

TIME_TO_LIVE = 64  # the kernel's default; a packet that needs more hops is in a loop


class Lost(NotVerified):
    """The packet did not arrive; `trail` says where it had been, the message why it ended."""

    code = "E-LOST"

    def __init__(self, trail: tuple[HostName, ...], why: str) -> None:
        super().__init__(f"{' -> '.join(trail)}: {why}")
        self.trail = trail


@dataclass(frozen=True, slots=True)
class _Frame:
    """What leaves a host: by which port, for which MAC."""

    port: HostPort
    mac: str


def walk(
    rules: Mapping[HostName, Rules],
    lab: Lab,
    macs: Mapping[HostPort, Macs],
    links: Iterable[Link],
    source: HostName,
    target: HostName,
    lane: int = 0,
    *,
    tagged: bool = False,
) -> tuple[HostName, ...]:
    """The hosts a packet of `lane` visits from `source` to `target`, both included.

    tagged: on npar-rdma hosts, an RDMA packet with a priority tag (802.1Q) instead of a plain one.
    Raises: Lost - it does not arrive.
    """
    host = lab.hosts[target]
    if host.forwarding == "kernel":
        return walk_to(rules, lab, macs, links, source, host.lane_address(lane), tagged=tagged)
    address = rdma_address(rules.get(source, ()), host, lane)
    if address is None:
        raise Lost((source,), f"no route to any port of {target}")
    return walk_to(rules, lab, macs, links, source, address, tagged=tagged)


def rdma_address(rules: Iterable[Rule], target: Host, lane: int) -> str | None:
    """The address of `target` that a host with these rules uses on `lane`: of the ports it has
    routes to, the lane-th in turn.
    """
    owned = {target.port_address(number): number for number in target.ports}
    found = (rule.destination for rule in rules if isinstance(rule, RdmaRoute))
    reached = sorted(
        {
            owned[a]: a for destination in found if (a := str(IPv4Network(destination)[0])) in owned
        }.items()
    )
    return reached[lane % len(reached)][1] if reached else None


def walk_to(
    rules: Mapping[HostName, Rules],
    lab: Lab,
    macs: Mapping[HostPort, Macs],
    links: Iterable[Link],
    source: HostName,
    address: str,
    *,
    tagged: bool = False,
) -> tuple[HostName, ...]:
    """As `walk`, to one address."""
    light: dict[HostPort, list[HostPort]] = {}
    for sender, receiver in (path for link in links for path in _paths(link)):
        light.setdefault(sender, []).append(receiver)
    destination = IPv4Address(address)
    trail = [source]
    frame = _send(rules.get(source, frozenset()), lab.hosts[source], destination, trail)
    for _ in range(TIME_TO_LIVE):
        if frame.port not in light:
            raise Lost(tuple(trail), f"no light leaves {frame.port}")
        reached = light[frame.port]
        theirs = [port for port in reached if frame.mac in (macs[port].mac, macs[port].eth)]
        if len(reached) > 1 and len(theirs) != 1:
            raise Lost(
                tuple(trail), f"{len(theirs)} ports beyond {frame.port} have the MAC {frame.mac}"
            )
        arrival = theirs[0] if theirs else reached[0]
        here = lab.hosts[arrival.host]
        trail.append(here.name)
        ours = macs[arrival]
        if here.forwarding == "npar-rdma":
            if frame.mac == ours.mac:  # consumed by the NIC, whatever the address
                if address != here.port_address(arrival.number):
                    raise Lost(
                        tuple(trail),
                        f"the RDMA function at {arrival} consumes a packet for {address}",
                    )
                return tuple(trail)
            if frame.mac != ours.eth:
                raise Lost(tuple(trail), f"{arrival} ignores a frame for {frame.mac}")
            frame = _redirect(
                rules.get(here.name, frozenset()), here, arrival, destination, tagged, trail
            )
            continue
        if frame.mac != ours.mac:
            raise Lost(tuple(trail), f"{arrival} ignores a frame for {frame.mac}")
        local = [here.lane_address(lane) for lane in range(here.lanes)] + [
            here.port_address(number) for number in here.ports
        ]
        if address in local:
            return tuple(trail)
        frame = _send(rules.get(here.name, frozenset()), here, destination, trail)
    raise Lost(tuple(trail), f"still on the way after {TIME_TO_LIVE} hops")


def _paths(link: Link) -> list[tuple[HostPort, HostPort]]:
    return (
        [(link.a, link.b), (link.b, link.a)] if link.kind is LinkKind.DUPLEX else [(link.a, link.b)]
    )


def _send(
    ours: Iterable[Rule], here: Host, destination: IPv4Address, trail: list[HostName]
) -> _Frame:
    """Route lookup and neighbour lookup of one kernel."""
    best: Route | RdmaRoute | None = None
    length = -1
    for rule in ours:
        if isinstance(rule, Route | RdmaRoute):
            network = IPv4Network(rule.destination)
            if destination in network and network.prefixlen >= length:
                if network.prefixlen == length and rule != best:
                    raise Lost(tuple(trail), f"two routes to {destination}: {best} and {rule}")
                best, length = rule, network.prefixlen
    if best is None:
        raise Lost(tuple(trail), f"no route to {destination}")
    next_address = best.via if isinstance(best, Route) else str(destination)
    found = {
        rule.mac
        for rule in ours
        if isinstance(rule, Neighbour | RdmaNeighbour)
        and rule.address == next_address
        and rule.interface == best.interface
    }
    if len(found) != 1:
        raise Lost(tuple(trail), f"{len(found)} neighbours for {next_address} on {best.interface}")
    return _Frame(_port(here, best.interface, trail), found.pop())


def _redirect(
    ours: Iterable[Rule],
    here: Host,
    arrival: HostPort,
    destination: IPv4Address,
    tagged: bool,
    trail: list[HostName],
) -> _Frame:
    """The tc ingress filters of the second function: the kernel does not route there, an unmatched
    packet ends.
    """
    interface = here.ports[arrival.number].eth
    protocol = "802.1Q" if tagged else "ip"
    matches = [
        rule
        for rule in ours
        if isinstance(rule, TransitFilter)
        and rule.interface == interface
        and rule.protocol == protocol
        and destination in IPv4Network(rule.destination)
    ]
    if len(matches) != 1:
        raise Lost(
            tuple(trail), f"{len(matches)} filters for {destination} ({protocol}) on {interface}"
        )
    return _Frame(_port(here, matches[0].out_interface, trail), matches[0].mac)


def _port(here: Host, interface: str, trail: list[HostName]) -> HostPort:
    for port in here.ports.values():
        if interface in (port.interface, port.eth):
            return HostPort(here.name, port.number)
    raise Lost(tuple(trail), f"no interface {interface}")
