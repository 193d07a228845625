"""What a plan means on this lab, now: ports chosen, circuits, the change, the rules. Pure; computed from an observation."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from drivers.api import CircuitSwitch
from optics import Circuit, DeviceName, HostName, HostPort, Infeasible, Link, LinkKind, Setting
from orchestrator import circuits as light
from orchestrator.lab import Lab
from orchestrator.plan import Plan
from orchestrator.reports import CircuitRow, DeviceDiff
from orchestrator.transition import Held, Transition, describe, transition


@dataclass(frozen=True, slots=True)
class Target:
    """Where a plan leads. old_links: what is lit now between known host ports, others' light aside; kept_links: those that stay."""

    links: tuple[Link, ...]
    circuits: tuple[Circuit, ...]
    wanted: Held
    change: Transition
    old_links: tuple[Link, ...]

    @property
    def kept_links(self) -> tuple[Link, ...]:
        still = {normal(link) for link in self.links}
        return tuple(link for link in self.old_links if normal(link) in still)

    @property
    def moving(self) -> bool:
        return bool(self.change)

    def rising(self, already: Collection[Setting] = ()) -> Mapping[HostName, tuple[int, ...]]:
        """Port numbers of each host that get new light: what its commit waits for. Hosts that get none are absent.

        already: settings the devices came to hold since they were observed; their light will not come anew.
        """
        ports: dict[HostName, set[int]] = defaultdict(set)
        for circuit in self.circuits:
            if any(x in self.change.made[x.ingress.device] and x not in already for x in circuit.path):
                ports[circuit.receiver.host].add(circuit.receiver.number)
        return {host: tuple(sorted(numbers)) for host, numbers in sorted(ports.items())}


def normal(link: Link) -> Link:
    """The same link with its ends in order, so that `a--b` equals `b--a`; a simplex link keeps its direction."""
    return link if link.kind is LinkKind.SIMPLEX or link.a <= link.b else Link(link.b, link.a, link.kind)


def target(plan: Plan, lab: Lab, observed: Mapping[DeviceName, frozenset[Setting]], owned: Iterable[Setting]) -> Target:
    """Work out the least disruptive way to `plan`.

    Raises: Infeasible - the lab cannot carry the plan, or a circuit would lose more light than allowed. Interlock - circuits
    that are not ours are in the way.
    """
    ours = per_device(owned)
    # Links of others are neither kept for bare hosts nor given up: their ports are taken.
    ours_lit = light.live_links({d: held & ours.get(d, frozenset()) for d, held in observed.items()}, lab)
    links = light.assign_ports(plan.links, lab, ours_lit, light.foreign_ports(observed, ours, lab))
    ways = light.circuits(links, lab)
    if dim := light.over_budget(ways, plan.acceptance.max_loss_db):
        words = "; ".join(f"{way} would lose {way.loss_db:.1f} dB" for way in dim[:5])
        raise Infeasible(
            f"{len(dim)} circuits exceed acceptance.max_loss_db {plan.acceptance.max_loss_db:g}: {words}",
            hint="use other ports, clean the fibres, or raise acceptance.max_loss_db in the plan",
        )
    wanted = light.settings(ways)
    change = transition(observed, wanted, ours)
    old = light.live_links({d: held - change.foreign[d] for d, held in observed.items()}, lab)
    return Target(links, ways, wanted, change, old)


def link_data(link: Link) -> dict[str, str | int]:
    """A link as the store keeps it."""
    return {
        "a": link.a.host,
        "a_port": link.a.number,
        "b": link.b.host,
        "b_port": link.b.number,
        "kind": link.kind.value,
    }


def stored_links(stored: object) -> tuple[Link, ...]:
    """The links of a current plan as the store kept them; empty if it kept none."""
    listed = stored.get("links") if isinstance(stored, dict) else None
    return tuple(
        Link(HostPort(x["a"], x["a_port"]), HostPort(x["b"], x["b_port"]), LinkKind(x["kind"]))
        for x in listed or ()
        if isinstance(x, dict)
    )


def per_device(settings: Iterable[Setting]) -> Held:
    """Sort settings by their device."""
    found: dict[DeviceName, set[Setting]] = defaultdict(set)
    for setting in settings:
        found[setting.ingress.device].add(setting)
    return {device: frozenset(held) for device, held in found.items()}


def short(setting: Setting) -> str:
    """A setting without its device: `4->17`."""
    return f"{setting.ingress.label}->{setting.egress.label}"


def diff(change: Transition, devices: Mapping[DeviceName, CircuitSwitch]) -> tuple[DeviceDiff, ...]:
    """The change for a report, device by device. Expected dark time is the device's settling time (ms) where light moves."""
    return tuple(
        DeviceDiff(
            device,
            kept=tuple(short(s) for s in sorted(change.kept[device])),
            removed=tuple(short(s) for s in sorted(change.removed[device])),
            made=tuple(short(s) for s in sorted(change.made[device])),
            foreign=tuple(short(s) for s in sorted(change.foreign[device])),
            dark_ms_expected=devices[device].traits.settle_s * 1e3 if device in change.changes else None,
        )
        for device in sorted(change.kept)
    )


def expected_dark_ms(change: Transition, devices: Mapping[DeviceName, CircuitSwitch]) -> float | None:
    """The longest settling time (ms) among the devices that change, None if nothing goes dark."""
    return max((devices[device].traits.settle_s * 1e3 for device in change.changes), default=None)


def circuit_rows(goal: Target, lab: Lab) -> tuple[CircuitRow, ...]:
    """Every light path that is kept, broken, made or somebody else's, for a report."""
    return tuple(
        CircuitRow(f"{row.transmitter}->{row.receiver}", (str(row.setting),), row.loss_db, row.action)
        for device in describe(goal.change, lab)
        for row in device.rows
        if row.loss_db is not None
    )


def fingerprint(plan: Plan, observed: Mapping[DeviceName, frozenset[Setting]]) -> str:
    """A short name for this plan on this state of the devices; another state gives another name."""
    text = plan.sha256 + "".join(f"\n{s}" for device in sorted(observed) for s in sorted(observed[device]))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
