"""Designs on a ring of wavelength-selective switches: which ring an inventory describes, and links
on it that share no light. Pure.

A ring is read from cables alone: the light of a host's port goes from device to device over trunks,
each time over the only one that it can reach, and meets the other hosts in turn. Ports that send
one way round and those that send the other way are distinguished by whom they meet first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from optics import FrequencySlot, HostName, HostPort, Infeasible, Port
from optics.plain import counted
from optics.plan import Plan
from orchestrator.inventory.lab import Lab
from orchestrator.plan.ports import assign_ports
from planner.model.demand import Demand
from planner.model.shape import Ring, Shape
from planner.topology.methods import Found, Wanted
from planner.topology.topofinder import BASE
from planner.topology.wavelengths import Linked, Span, cuts, first_fit, linked, placed

METHOD = "ring-wavelengths"
WEIGHTS = (1.0, 4.0, 0.0)
"""How much a byte between two ranks counts beside one of a ring when links are added; the fastest
design is taken.
"""
Socket: TypeAlias = tuple[HostName, FrequencySlot, int]
"""Host, wavelength, and 1 for the port that sends clockwise, -1 for the one that sends the other
way.
"""


@dataclass(frozen=True)
class FibreRing:
    """Hosts in the order in which a ring of fibres passes them, and the port of each for every
    wavelength and direction.

    slots: the wavelengths that every host can send both ways, in the order of frequency.
    """

    hosts: tuple[HostName, ...]
    slots: tuple[FrequencySlot, ...]
    ports: Mapping[Socket, HostPort]

    def light(self, a: HostPort, b: HostPort) -> Iterator[tuple[int, Span]]:
        """The wavelength and the stretches of each direction of a link between two ports, if they
        are of this ring.
        """
        sockets = {port: socket for socket, port in self.ports.items()}
        for sends, receives in ((a, b), (b, a)):
            host, slot, path = sockets.get(sends, ("", None, 0))
            if slot in self.slots and receives.host in self.hosts:
                ends = [self.hosts.index(host), self.hosts.index(receives.host)][::path]
                yield self.slots.index(slot), Span(ends[0], (ends[1] - ends[0]) % len(self.hosts))


def fibre_ring(lab: Lab) -> FibreRing:
    """The ring of a lab. Raises: Infeasible - its cables are not one."""
    hint = (
        "python -m emulators.generate --ring --driver lumentum-netconf makes a lab with such a ring"
    )
    met = {
        port: tuple(_met(port, lab))
        for port, fibre in lab.fibres.items()
        if fibre.slot and _spectral(port, lab)
    }
    met = {port: hosts for port, hosts in met.items() if hosts}
    if not met:
        raise Infeasible(
            "no light of this lab goes on from host to host over wavelength-selective switches",
            hint=hint,
        )
    first = min(met)
    order = (first.host, *(host for host in met[first] if host != first.host))
    place = {host: number for number, host in enumerate(order)}
    ports: dict[Socket, HostPort] = {}
    for port, hosts in met.items():
        seen = [host for host in hosts if host != port.host]
        start = place.get(port.host, 0)
        onward = [order[(start + step) % len(order)] for step in range(1, len(order))]
        directions = {1: onward, -1: onward[::-1]}
        path = next(
            (path for path, wanted in directions.items() if port.host in place and seen == wanted),
            None,
        )
        if path is None or len(order) < 3:
            raise Infeasible(
                f"the cables are no ring of three hosts or more: light of {port} meets {', '.join(seen)}",
                hint=hint,
            )
        slot = lab.fibres[port].slot
        assert slot is not None
        if (other := ports.setdefault((port.host, slot, path), port)) != port:
            raise Infeasible(
                f"{other} and {port} send the same wavelength the same way round",
                hint="give each a slot of its own",
            )
    common = [
        {slot for host, slot, path in ports if (host, path) == (one, step)}
        for one in order
        for step in (1, -1)
    ]
    if not (slots := tuple(sorted(set.intersection(*common)))):
        raise Infeasible(
            "the cables are no ring: there is no wavelength that every host sends both ways round",
            hint=hint,
        )
    return FibreRing(order, slots, ports)


def _spectral(port: HostPort, lab: Lab) -> bool:
    return lab.traits_of(lab.fibres[port].device).spectral


def _met(port: HostPort, lab: Lab) -> list[HostName]:
    """The hosts that light of a port can be dropped at, in order. Raises: Infeasible - it could go
    on in two ways.
    """
    at = lab.fibres[port].enters
    hosts: list[HostName] = []
    passed: set[Port] = set()
    while at not in passed:
        passed.add(at)
        traits = lab.traits_of(at.device)
        here = {
            r.host
            for p, r in lab.receivers.items()
            if p.device == at.device and traits.joins(at.label, p.label)
        }
        on = [t for t in lab.leaving.get(at.device, ()) if traits.joins(at.label, t.start.label)]
        if len(here) > 1 or len(on) > 1:
            what = (
                f"{len(here)} hosts" if len(here) > 1 else f"trunks {', '.join(t.name for t in on)}"
            )
            raise Infeasible(
                f"the cables are no ring: light of {port} can go to {what} at {at.device}",
                hint="one host a node",
            )
        hosts += here
        if not on:
            return []
        at = on[0].end
    return hosts


def held_by(plans: Mapping[str, Plan], lab: Lab) -> tuple[tuple[HostPort, HostPort], ...]:
    """The ends of all links of these plans. Raises: Infeasible - one of them has no ports on this
    lab.
    """
    return tuple(
        (link.a, link.b) for plan in plans.values() for link in assign_ports(plan.links, lab)
    )


def find_wavelengths(
    demand: Demand, lab: Lab, hosts: Sequence[HostName], wanted: Wanted
) -> list[Found]:
    """Placements and links for a demand, `hosts` those of its ranks if they are named, else any
    order of them.

    Raises: Infeasible - the lab has no ring, or too few wavelengths; or ports or simplex links are
    wanted.
    """
    ring = fibre_ring(lab)
    have = len(ring.slots)
    if wanted.simplex or wanted.ports is not None:
        text = "simplex links" if wanted.simplex else f"{wanted.ports} ports a host"
        raise Infeasible(
            f"a ring of wavelengths has duplex links, two ports for each wavelength, not {text}",
            hint="--wavelengths 2",
        )
    count = wanted.wavelengths or have
    if count > have:
        raise Infeasible(
            f"{count} wavelengths are wanted, the ring has {have} that all hosts send",
            hint=f"--wavelengths {have}",
        )
    if absent := [host for host in hosts if host not in ring.hosts]:
        raise Infeasible(
            f"{absent[0]} is not on the ring of {', '.join(ring.hosts)}",
            hint="--hosts names hosts of the ring",
        )
    n = len(ring.hosts)
    used = [0] * have
    for a, b in wanted.held:
        for slot, span in ring.light(a, b):
            used[slot] |= span.mask(n)
    emptiest = sorted(sorted(range(have), key=lambda slot: used[slot].bit_count())[:count])
    ring = replace(ring, slots=tuple(ring.slots[slot] for slot in emptiest))
    taken = [used[slot] for slot in emptiest]
    nodes = tuple(ring.hosts.index(host) for host in hosts)
    at = nodes if wanted.hosts else placed(demand, tuple(sorted(nodes)), n, wanted.seed)
    each = [one for transfers in WEIGHTS for one in linked(demand, at, n, taken, BASE, transfers)]
    if not each:
        text = f"no ring through {', '.join(hosts)} was found on {counted(count, 'wavelength')} beside the plans that stay"
        raise Infeasible(
            text,
            hint=f"--wavelengths {have}"
            if count < have
            else "fewer or other hosts, or plans of fewer links",
        )
    return [_answer(demand, one, at, ring, hosts) for one in dict.fromkeys(each)]


def _answer(
    demand: Demand, one: Linked, at: Sequence[int], ring: FibreRing, hosts: Sequence[HostName]
) -> Found:
    n, count = len(ring.hosts), len(ring.slots)
    shape = Shape(
        demand.n,
        2 * count,
        True,
        tuple(Ring(group, order) for group, order in one.rings),
        one.matched,
    )
    ports = []
    for (a, b), span, colour in zip(shape.cables.tolist(), one.spans, one.colours, strict=True):
        path = 1 if span.start == at[a] else -1
        slot = ring.slots[colour]
        ports.append(
            (ring.ports[ring.hosts[at[a]], slot, path], ring.ports[ring.hosts[at[b]], slot, -path])
        )
    load = cuts(one.spans, n)
    naive = first_fit([(at[a], at[b]) for a, b in shape.cables.tolist()], n)
    used = len(set(one.colours))
    why = (
        f"{counted(len(one.spans), 'link')} on a ring of {n} nodes: {counted(used, 'wavelength')} of {count}; the largest cut is "
        f"{max(load)}, the smallest {min(load)}; first fit takes {naive.count}",
        f"ranks along the fibre: {' '.join(str(list(at).index(node)) if node in at else '-' for node in range(n))}",
    )
    name = f"{METHOD}, {counted(len(one.rings), 'ring')} and {counted(len(one.matched), 'pair')}"
    order = tuple(list(hosts).index(ring.hosts[node]) for node in at)
    return Found(shape, name, why, order=order, ports=tuple(ports))
