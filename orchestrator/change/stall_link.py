"""Which link a stall curve is measured on: one that can go dark alone, within seconds, with traffic
that takes it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optics import (
    Change,
    Circuit,
    DeviceName,
    HostName,
    HostPort,
    Infeasible,
    Link,
    LinkKind,
    Setting,
    Traits,
)
from optics.plain import seconds_text
from orchestrator.fabric.detour import link_text
from orchestrator.fabric.lightpath import Held, among
from orchestrator.fabric.rules import Route, Rules, hops
from orchestrator.fabric.transition import per_device
from orchestrator.inventory.lab import Lab
from orchestrator.plan.target import SLOW_S, switching_s


@dataclass(frozen=True, slots=True)
class Subject:
    """The link that goes dark. held: the settings to break, by device; switching_s: what the
    slowest of these needs (s).
    """

    link: Link
    held: Held
    switching_s: float
    other_path: bool

    @property
    def ports(self) -> tuple[HostPort, HostPort]:
        return self.link.a, self.link.b

    @property
    def names(self) -> tuple[HostName, HostName]:
        return self.link.a.host, self.link.b.host


def choose(
    links: Sequence[Link],
    circuits: Sequence[Circuit],
    lab: Lab,
    traits: Mapping[DeviceName, Traits],
    observed: Held,
    routes: Mapping[HostName, Rules],
) -> Subject:
    """The first link that can be measured in all modes, else the first that can be measured at all.

    Raises: Infeasible - there is none; says why for each kind of link.
    """
    possible: list[Subject] = []
    unfit: dict[str, str] = {}
    for link in links:
        reason, held = "", dict[DeviceName, frozenset[Setting]]()
        if link.kind is not LinkKind.DUPLEX or lab.electrical(link):
            reason = "not a duplex link through optical switches"
        elif any(lab.hosts[port.host].forwarding != "kernel" for port in (link.a, link.b)):
            reason = "its hosts forward in the NIC, where no route holds or drains"
        elif not (_direct(link.a, link.b, lab, routes) and _direct(link.b, link.a, lab, routes)):
            reason = "traffic between its hosts takes another path"
        else:
            reason, held = _breakable(link, circuits, traits, observed)
        if reason:
            unfit.setdefault(reason, link_text(link))
            continue
        seconds = max(switching_s(Change(d, s), traits[d]) for d, s in held.items())
        joined = hops([other for other in links if other != link], lab)
        names = link.a.host, link.b.host
        subject = Subject(link, held, seconds, names in joined and names[::-1] in joined)
        if subject.other_path:
            return subject
        possible.append(subject)
    if not possible:
        lines = "\n".join(f"{link}: {reason}" for reason, link in unfit.items())
        raise Infeasible(
            f"no link of this plan can be measured; one example of each reason:\n{lines}"
        )
    return possible[0]


def _direct(port: HostPort, far: HostPort, lab: Lab, routes: Mapping[HostName, Rules]) -> bool:
    """Whether lane 0 from the host of `port` to that of `far` leaves by `port`."""
    interface, target = lab.interface(port), f"{lab.hosts[far.host].lane_address(0)}/32"
    return any(
        isinstance(r, Route) and (r.destination, r.interface) == (target, interface)
        for r in routes[port.host]
    )


def _breakable(
    link: Link, circuits: Sequence[Circuit], traits: Mapping[DeviceName, Traits], observed: Held
) -> tuple[str, dict[DeviceName, frozenset[Setting]]]:
    """A setting to break for each direction, on the device that is quickest; or the reason why
    there is none.
    """
    broken = []
    for circuit in circuits:
        if {circuit.transmitter, circuit.receiver} != {link.a, link.b}:
            continue
        path = [
            (switching_s(Change(x.ingress.device, frozenset((x,))), traits[x.ingress.device]), x)
            for x in circuit.path
        ]
        seconds, setting = min(path, key=lambda step: (step[0], step[1].ingress.device))
        if seconds > SLOW_S:
            return (
                f"{setting.ingress.device} is a robot: it would be dark for {seconds_text(2 * seconds)} or more",
                {},
            )
        broken.append(setting)
    if not broken:
        return "no circuit of it is known", {}
    found = {
        device: among(observed[device], wanted) for device, wanted in per_device(broken).items()
    }
    return "", found
