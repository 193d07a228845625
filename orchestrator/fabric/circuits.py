"""Links, the circuits that carry them, the settings that make circuits; and back from settings to
links. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from optics import Circuit, HostPort, Link, LinkKind
from orchestrator.fabric.circuit_routing import circuit, route
from orchestrator.fabric.lightpath import Held, LightMap, among
from orchestrator.fabric.transition import per_device
from orchestrator.inventory.lab import Lab

__all__ = ["circuit", "circuits", "foreign_ports", "live_links", "over_budget", "settings"]


def circuits(
    links: Iterable[Link], lab: Lab, live: Held | None = None, foreign: Held | None = None
) -> tuple[Circuit, ...]:
    """The circuits of these links, two for a duplex link, none for an electrical one. live,
    foreign, Raises: as `circuit_routing.route`."""
    wanted: list[tuple[HostPort, HostPort]] = []
    for link in links:
        if lab.electrical(link):
            continue
        wanted.append((link.a, link.b))
        if link.kind is LinkKind.DUPLEX:
            wanted.append((link.b, link.a))
    return route(wanted, lab, live, foreign)


def settings(wanted: Iterable[Circuit]) -> Held:
    """What each device must hold for these circuits; devices that need nothing are absent."""
    return dict(
        sorted(per_device(setting for circuit in wanted for setting in circuit.path).items())
    )


def over_budget(wanted: Iterable[Circuit], max_loss_db: float) -> tuple[Circuit, ...]:
    """The circuits with an expected loss above `max_loss_db`."""
    return tuple(circuit for circuit in wanted if circuit.loss_db > max_loss_db)


def live_links(observed: Held, lab: Lab) -> tuple[Link, ...]:
    """The links that these settings make, over several devices too: both directions present is
    duplex, one is simplex.

    Settings at device ports where the inventory knows no fibre make no link and are left out; so
    does light that two transmitters bring to one receiver.
    """
    lit = {(t.transmitter, t.receiver) for t in LightMap(observed, lab).traces()}
    receivers_lit = Counter(receiver for _, receiver in lit)
    pairs = {(a, b) for a, b in lit if b is not None and a != b and receivers_lit[b] == 1}
    found = []
    for a, b in sorted(pairs):
        if (b, a) not in pairs:
            found.append(Link(a, b, LinkKind.SIMPLEX))
        elif a < b:
            found.append(Link(a, b, LinkKind.DUPLEX))
    return tuple(found)


def foreign_ports(observed: Held, owned: Held, lab: Lab) -> frozenset[HostPort]:
    """The host ports that foreign settings transmit from or receive at; the plan's links must not
    use them.
    """
    ends = LightMap(observed, lab).ends()
    found: set[HostPort] = set()
    for device, held in observed.items():
        for setting in frozenset(held) - among(held, owned.get(device, ())):
            for ports in ends[setting]:
                found |= ports
    return frozenset(found)


def receivers(links: Iterable[Link]) -> tuple[HostPort, ...]:
    """The host ports that receive light over these links, sorted."""
    return tuple(
        sorted(
            {
                p
                for link in links
                for p in ((link.a, link.b) if link.kind is LinkKind.DUPLEX else (link.b,))
            }
        )
    )
