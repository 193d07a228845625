"""The routing rules of each host, so that traffic follows the plan's links. Pure: links, inventory
and MACs in, rules out.

`kernel` hosts forward by ordinary routes with permanent neighbours. `npar-rdma` hosts follow the
recipe of the TopoOpt testbed (hipersys-team/TopoOpt, testbed set-up): each NIC port has two
functions. Frames to the MAC of the first are consumed as RDMA by the NIC, frames to the MAC of the
second reach the kernel; a frame for a relay is addressed to the second, and `tc` filters forward
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from optics import HostName, HostPort, Infeasible, Link
from optics.plan import FixedRoute, Ring
from orchestrator.fabric.next_hops import (
    Hop,
    NextHops,
    drained,
    graph,
    held,
    hops,
    landings,
    lanes_of,
    next_hops,
)
from orchestrator.inventory.lab import Lab

__all__ = [
    "Macs",
    "Neighbour",
    "RdmaNeighbour",
    "RdmaRoute",
    "Route",
    "Rule",
    "Rules",
    "TransitFilter",
    "drain_rules",
    "hops",
    "rules",
]


@dataclass(frozen=True, slots=True)
class Macs:
    """The MAC addresses of one port, read from the host: of `interface`, and on npar-rdma hosts of
    the second function `eth`.
    """

    mac: str
    eth: str | None = None


@dataclass(frozen=True, slots=True, order=True)
class Route:
    """Kernel mode: `destination` (a /32) through the neighbour `via` on `interface`, with `source`
    as own address.
    """

    destination: str
    via: str
    interface: str
    source: str
    lane: int

    def command(self) -> str:
        return f"ip route replace {self.destination} via {self.via} dev {self.interface} src {self.source} onlink"


@dataclass(frozen=True, slots=True, order=True)
class Neighbour:
    """A permanent neighbour: frames for `address` on `interface` go to `mac` without ARP, which
    gets no answer over a dark link.
    """

    address: str
    mac: str
    interface: str

    def command(self) -> str:
        return (
            f"ip neigh replace {self.address} lladdr {self.mac} dev {self.interface} nud permanent"
        )


@dataclass(frozen=True, slots=True, order=True)
class RdmaRoute:
    """npar-rdma: own traffic to `destination` (a /32, the port where the last hop lands) leaves by
    RDMA function `interface`.
    """

    destination: str
    interface: str
    source: str

    def command(self) -> str:
        return f"ip route replace {self.destination} dev {self.interface} src {self.source}"


@dataclass(frozen=True, slots=True, order=True)
class RdmaNeighbour:
    """npar-rdma: the MAC for own traffic to `address`: the RDMA function's if the next hop is the
    destination, else the other's.
    """

    address: str
    mac: str
    interface: str

    def command(self) -> str:
        return (
            f"ip neigh replace {self.address} lladdr {self.mac} dev {self.interface} nud permanent"
        )


@dataclass(frozen=True, slots=True, order=True)
class TransitFilter:
    """npar-rdma: a packet for the host block `destination` (a /24) that arrives on `interface`
    leaves by `out_interface` for `mac`.

    protocol: `ip`, or `802.1Q` for RDMA traffic with a priority tag.
    """

    interface: str
    destination: str
    mac: str
    out_interface: str
    protocol: Literal["ip", "802.1Q"]

    def command(self) -> str:
        tag = "vlan_ethtype ip " if self.protocol == "802.1Q" else ""
        return (
            f"tc filter add dev {self.interface} prio 0 protocol {self.protocol} parent ffff: flower skip_hw "
            f"{tag}dst_ip {self.destination} action pedit ex munge eth dst set {self.mac} pipe "
            f"action mirred egress redirect dev {self.out_interface}"
        )


Rule: TypeAlias = Route | Neighbour | RdmaRoute | RdmaNeighbour | TransitFilter
Rules: TypeAlias = frozenset[Rule]


def rules(
    links: Iterable[Link],
    lab: Lab,
    macs: Mapping[HostPort, Macs],
    fixed_routes: Iterable[FixedRoute] = (),
    rings: Sequence[Ring] = (),
) -> Mapping[HostName, Rules]:
    """The rules of every host that has a link; hosts without one are absent and must hold none.

    Raises: Infeasible - a MAC is missing, or a fixed route steps where there is no link.
    """
    links = tuple(links)
    return _written(links, next_hops(links, lanes_of(lab, links), fixed_routes, rings), lab, macs)


def drain_rules(
    old_links: Iterable[Link],
    kept_links: Iterable[Link],
    lab: Lab,
    macs: Mapping[HostPort, Macs],
    fixed_routes: Iterable[FixedRoute] = (),
    rings: Sequence[Ring] = (),
    *,
    hold: bool = False,
) -> Mapping[HostName, Rules]:
    """The rules while the other old links are dark: surviving paths only; a pair without one keeps
    its old next hop.

    `fixed_routes` and `rings` are those of the old plan; a fixed route over a link that goes dark
    is left out meanwhile. hold: a pair without a surviving path has no route, so that TCP keeps its
    packets in its sockets; hosts that forward in the NIC keep the old hop even so, as no route
    holds RDMA. Raises: as `rules`.
    """
    old_links = tuple(old_links)
    old, kept = _before_and_meanwhile(old_links, kept_links, lab, fixed_routes, rings)
    kernel = frozenset(name for name, host in lab.hosts.items() if host.forwarding == "kernel")
    return _written(old_links, held(old, kept, kernel) if hold else drained(old, kept), lab, macs)


def _before_and_meanwhile(
    old_links: Sequence[Link],
    kept_links: Iterable[Link],
    lab: Lab,
    fixed_routes: Iterable[FixedRoute],
    rings: Sequence[Ring],
) -> tuple[NextHops, NextHops]:
    """The next hops of the old plan, and those over the links that stay lit."""
    kept_links, fixed_routes, lanes = (
        tuple(kept_links),
        tuple(fixed_routes),
        lanes_of(lab, old_links),
    )
    steps = {
        (hop.out.host, hop.into.host) for leaving in graph(kept_links).values() for hop in leaving
    }
    surviving = [
        route for route in fixed_routes if all(step in steps for step in pairwise(route.path))
    ]
    old = next_hops(old_links, lanes, fixed_routes, rings)
    kept = next_hops(kept_links, lanes, surviving, rings)
    return old, kept


def _written(
    links: Sequence[Link], chosen: NextHops, lab: Lab, macs: Mapping[HostPort, Macs]
) -> Mapping[HostName, Rules]:
    members = list(graph(links))
    found: dict[HostName, set[Rule]] = {host: set() for host in members}
    kernel = {host for host in members if lab.hosts[host].forwarding == "kernel"}
    address = {
        (host, lane): lab.hosts[host].lane_address(lane)
        for host in kernel
        for lane in range(lab.hosts[host].lanes)
    }
    over: dict[Hop, Neighbour] = {}  # there are far fewer hops than routes
    for (host, target, lane), hop in chosen.items():
        if host in kernel:
            nearest = over.get(hop) or over.setdefault(hop, _neighbour(hop, lab, macs))
            to = f"{address[target, lane]}/32"
            found[host].add(
                Route(to, nearest.address, nearest.interface, address[host, lane], lane)
            )
    for hop, nearest in over.items():
        found[hop.out.host].add(nearest)
    if len(kernel) < len(members):
        _npar(chosen, lab, macs, found)
    return {host: frozenset(held) for host, held in found.items()}


def _mac(macs: Mapping[HostPort, Macs], port: HostPort, *, eth: bool = False) -> str:
    known = macs.get(port)
    mac = known and (known.eth if eth else known.mac)
    if not mac:
        raise Infeasible(
            f"the MAC address of {port}{' (second function)' if eth else ''} is not known; it is read from the host"
        )
    return mac


def _neighbour(hop: Hop, lab: Lab, macs: Mapping[HostPort, Macs]) -> Neighbour:
    interface = lab.hosts[hop.out.host].ports[hop.out.number].interface
    return Neighbour(
        lab.hosts[hop.into.host].port_address(hop.into.number), _mac(macs, hop.into), interface
    )


# --- npar-rdma
# ------------------------------------------------------------------------------------------------------------------


def _npar(
    chosen: NextHops, lab: Lab, macs: Mapping[HostPort, Macs], found: Mapping[HostName, set[Rule]]
) -> None:
    """Routes to each port at which a path ends, and the filters of every relay on it."""
    for host, target in sorted({(host, target) for host, target, _ in chosen}):
        for port, path in landings(chosen, lab, host, target).items():
            first, address = path[0], lab.hosts[target].port_address(port)
            interface = lab.hosts[host].ports[first.out.number].interface
            found[host] |= {
                RdmaRoute(
                    f"{address}/32", interface, lab.hosts[host].port_address(first.out.number)
                ),
                RdmaNeighbour(address, _mac(macs, first.into, eth=len(path) > 1), interface),
            }
            for hop, onward in pairwise(path):
                found[hop.into.host] |= _filters(hop.into, target, onward, lab, macs)


def _filters(
    arrival: HostPort, target: HostName, onward: Hop, lab: Lab, macs: Mapping[HostPort, Macs]
) -> set[Rule]:
    relay, host = lab.hosts[arrival.host], lab.hosts[target]
    arriving = relay.ports[arrival.number].eth
    if arriving is None:
        raise Infeasible(f"{arrival} has no second function (`eth`), so it cannot relay")
    block = f"{host.port_prefix}.{host.host_id}.0/24"
    mac = _mac(macs, onward.into, eth=onward.into.host != target)
    out = relay.ports[onward.out.number].interface
    return {TransitFilter(arriving, block, mac, out, protocol) for protocol in ("ip", "802.1Q")}
