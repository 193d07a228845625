"""From links to light: circuits, the settings that make them, and the links that settings make. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from optics import Circuit, CrossConnect, DeviceName, HostPort, Infeasible, Link, LinkKind, Setting
from orchestrator.assign import assign_ports
from orchestrator.lab import Lab

__all__ = ["assign_ports", "circuit", "circuits", "foreign_ports", "link_of", "live_links", "over_budget", "settings"]


def circuit(transmitter: HostPort, receiver: HostPort, lab: Lab) -> Circuit:
    """The one-way light path between two ports of one device, and its expected loss.

    Raises: Infeasible - a port has no fibre, or the two are on different devices.
    """
    for port in (transmitter, receiver):
        if port not in lab.fibres:
            raise Infeasible(f"{transmitter}->{receiver}: no fibre is attached to {port}")
    sends, receives = lab.fibres[transmitter], lab.fibres[receiver]
    if sends.device != receives.device:
        where = f"{transmitter} is on {sends.device}, {receiver} is on {receives.device}"
        raise Infeasible(f"{transmitter}->{receiver}: no fibre path: {where}")
    loss = sends.loss_db + lab.insertion_loss_db(sends.device) + receives.loss_db
    return Circuit(transmitter, receiver, (CrossConnect(sends.enters, receives.leaves),), round(loss, 4))


def circuits(links: Iterable[Link], lab: Lab) -> tuple[Circuit, ...]:
    """The circuits of these links, a duplex link being two. Raises: Infeasible - as `circuit`."""
    found: list[Circuit] = []
    for link in links:
        found.append(circuit(link.a, link.b, lab))
        if link.kind is LinkKind.DUPLEX:
            found.append(circuit(link.b, link.a, lab))
    return tuple(found)


def settings(wanted: Iterable[Circuit]) -> Mapping[DeviceName, frozenset[Setting]]:
    """What each device must hold for these circuits; devices that need nothing are absent."""
    per_device: dict[DeviceName, set[Setting]] = {}
    for way in wanted:
        for cross_connect in way.path:
            per_device.setdefault(cross_connect.ingress.device, set()).add(cross_connect)
    return {device: frozenset(found) for device, found in sorted(per_device.items())}


def over_budget(wanted: Iterable[Circuit], max_loss_db: float) -> tuple[Circuit, ...]:
    """The circuits expected to lose more than `max_loss_db`."""
    return tuple(way for way in wanted if way.loss_db > max_loss_db)


def live_links(observed: Mapping[DeviceName, Iterable[Setting]], lab: Lab) -> tuple[Link, ...]:
    """The links that these settings make: both directions present is duplex, one is simplex.

    Settings at device ports where the inventory knows no fibre make no link and are left out.
    """
    ways = set()
    for held in observed.values():
        for setting in held:
            transmitter, receiver = lab.transmitters.get(setting.ingress), lab.receivers.get(setting.egress)
            if transmitter is not None and receiver is not None and transmitter != receiver:
                ways.add((transmitter, receiver))
    found = []
    for a, b in sorted(ways):
        if (b, a) not in ways:
            found.append(Link(a, b, LinkKind.SIMPLEX))
        elif a < b:
            found.append(Link(a, b, LinkKind.DUPLEX))
    return tuple(found)


def foreign_ports(
    observed: Mapping[DeviceName, Iterable[Setting]], owned: Mapping[DeviceName, Iterable[Setting]], lab: Lab
) -> frozenset[HostPort]:
    """The host ports that settings we do not own light up or listen to: not to be chosen for a link of ours."""
    found: set[HostPort | None] = set()
    for device, held in observed.items():
        for setting in frozenset(held) - frozenset(owned.get(device, ())):
            found |= set(link_of(setting, lab))
    return frozenset(port for port in found if port is not None)


def link_of(setting: Setting, lab: Lab) -> tuple[HostPort | None, HostPort | None]:
    """The host port whose light the setting carries and the one it carries it to; None where the inventory knows no fibre."""
    return lab.transmitters.get(setting.ingress), lab.receivers.get(setting.egress)
