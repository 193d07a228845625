"""A plan applied to the observed state of a lab: chosen ports, circuits, and the change to make.
Pure.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil

from optics import (
    Change,
    Circuit,
    DeviceName,
    HostName,
    Infeasible,
    Link,
    LinkKind,
    Setting,
    Traits,
)
from optics.plan import Plan
from optics.values import short, sort_key
from orchestrator.fabric import circuits as light
from orchestrator.fabric.lightpath import (
    Held,
    LightMap,
    among,
    loss_db,
    routes,
    without_attenuation,
)
from orchestrator.fabric.lookahead import ahead, spare
from orchestrator.fabric.move_order import in_order, per_device_dark, remaining_transition
from orchestrator.fabric.transition import Transition, per_device, transition
from orchestrator.inventory.lab import Lab
from orchestrator.plan.avoid import choose_ports, lab_without_trunks
from orchestrator.plan.report import CircuitRow, DeviceDiff

SLOW_S = 5.0
"""A change that takes devices longer than this (s) is a robot's: milliseconds do not matter, and
the deadline is extended.
"""


@dataclass(frozen=True, slots=True)
class Target:
    """The result of a plan. old_links: owned links that are lit now between known host ports, and
    the plan's segments, which always carry traffic; kept_links: those that stay.

    early: the part of `change` that slow devices can do before anything goes dark, unseen by hosts
    (`lookahead.ahead`); late: the rest of it.
    """

    links: tuple[Link, ...]
    circuits: tuple[Circuit, ...]
    wanted: Held
    change: Transition
    old_links: tuple[Link, ...]
    early: Mapping[DeviceName, Change] = field(default_factory=dict)

    @property
    def kept_links(self) -> tuple[Link, ...]:
        still = {normal(link) for link in self.links}
        return tuple(link for link in self.old_links if normal(link) in still)

    @property
    def broken_links(self) -> tuple[Link, ...]:
        kept = set(self.kept_links)
        return tuple(link for link in self.old_links if link not in kept)

    @property
    def moving(self) -> bool:
        return bool(self.change)

    @property
    def late(self) -> Transition:
        return remaining_transition(self.change, self.early)

    def sparing(self, lost: Collection[HostName]) -> Target:
        """The same without the links of hosts that do not answer: nothing is drained from them, nor
        counted there.
        """
        left = tuple(
            link for link in self.old_links if link.a.host not in lost and link.b.host not in lost
        )
        return replace(self, old_links=left) if lost else self

    def rising(self, already: Collection[Setting] = ()) -> Mapping[HostName, tuple[int, ...]]:
        """Port numbers of each host that get new light: what its commit waits for. Hosts that get
        none are absent.

        already: settings made since the observation; their ports have light already.
        """
        ports: dict[HostName, set[int]] = defaultdict(set)
        existing = routes(already)
        for circuit in self.circuits:
            if any(
                x in self.change.made[x.ingress.device] and without_attenuation(x) not in existing
                for x in circuit.path
            ):
                ports[circuit.receiver.host].add(circuit.receiver.number)
        return {host: tuple(sorted(numbers)) for host, numbers in sorted(ports.items())}


def normal(link: Link) -> Link:
    """The same link with its ends in order, so that `a--b` equals `b--a`; a simplex link keeps its
    direction.
    """
    return (
        link
        if link.kind is LinkKind.SIMPLEX or link.a <= link.b
        else Link(link.b, link.a, link.kind)
    )


def target(plan: Plan, lab: Lab, observed: Held, owned: Iterable[Setting]) -> Target:
    """The least disruptive change to `plan`.

    Raises: Infeasible - the lab cannot carry the plan, or a circuit would exceed the allowed loss.
    Interlock - foreign circuits are in the way.
    """
    own = per_device(owned)
    # Foreign links are neither kept for bare hosts nor removed: their ports are taken.
    held_own = {d: among(held, own.get(d, ())) for d, held in observed.items()}
    links = choose_ports(
        plan.links,
        lab,
        light.live_links(held_own, lab),
        light.foreign_ports(observed, own, lab),
        plan.avoid,
    )
    circuits = light.circuits(
        links,
        lab_without_trunks(lab, plan.avoid),
        observed,
        {d: held - held_own[d] for d, held in observed.items()},
    )
    if dim := light.over_budget(circuits, plan.acceptance.max_loss_db):
        text = "; ".join(f"{circuit} would lose {circuit.loss_db:.1f} dB" for circuit in dim[:5])
        raise Infeasible(
            f"{len(dim)} circuits exceed acceptance.max_loss_db {plan.acceptance.max_loss_db:g}: {text}",
            hint="use other ports, clean the fibres, or raise acceptance.max_loss_db in the plan",
        )
    wanted = light.settings(circuits)
    unplugged = spare(observed, wanted, own, lab)
    change = transition(
        observed,
        {d: held | unplugged.get(d, frozenset()) for d, held in {**unplugged, **wanted}.items()},
        own,
    )
    early = ahead(change, observed, lab)
    change = in_order(change, early, observed, lab)
    old = light.live_links({d: held - change.foreign[d] for d, held in observed.items()}, lab)
    old += tuple(link for link in links if lab.electrical(link))
    return Target(links, circuits, wanted, change, old, early)


def diff(
    change: Transition,
    traits: Mapping[DeviceName, Traits],
    lab: Lab,
    early: Mapping[DeviceName, Change] | None = None,
) -> tuple[DeviceDiff, ...]:
    """The change for a report, device by device. Expected dark time (ms): how long the device needs
    for its moves.

    early: the part that is done ahead, before any light depends on it.
    """
    early = early or {}
    change = remaining_transition(change, early)
    observed = {d: change.kept[d] | change.removed[d] | change.foreign[d] for d in change.kept}
    dark = per_device_dark(change, observed, lab)
    return tuple(
        DeviceDiff(
            device,
            kept=_shorts(change.kept[device]),
            removed=_shorts(change.removed[device]),
            made=_shorts(change.made[device]),
            foreign=_shorts(change.foreign[device]),
            dark_ms_expected=switching_s(asked, traits[device]) * 1e3
            if (asked := change.changes.get(device))
            else None,
            time_scale=lab.time_scale(device),
            dark_port_s_expected=dark.get(device),
            ahead_s_expected=switching_s(before, traits[device])
            if (before := early.get(device))
            else None,
        )
        for device in sorted(change.kept)
    )


def _shorts(held: Iterable[Setting]) -> tuple[str, ...]:
    return tuple(map(short, sorted(held, key=sort_key)))


def switching_s(change: Change, traits: Traits) -> float:
    """How long (s, of this lab) the device needs for `change` by its data sheet: its settling time
    for each command.

    A robot makes one move at a time; a mirror switch moves all mirrors together.
    """
    moves = len(change.remove) + len(change.add)
    return traits.settle_s * (ceil(moves / traits.at_once) if traits.at_once else 1)


def slowest_device(
    change: Transition, traits: Mapping[DeviceName, Traits]
) -> tuple[DeviceName, float] | None:
    """The device that needs longest, and how long (s), None if nothing moves."""
    needs = (
        (switching_s(asked, traits[device]), device) for device, asked in change.changes.items()
    )
    return next(((device, seconds) for seconds, device in sorted(needs, reverse=True)), None)


def expected_dark_ms(change: Transition, traits: Mapping[DeviceName, Traits]) -> float | None:
    """How long (ms) the slowest device needs, None if nothing goes dark."""
    found = slowest_device(change, traits)
    return found[1] * 1e3 if found else None


def dark_time_scale(change: Transition, traits: Mapping[DeviceName, Traits], lab: Lab) -> float:
    """The time scale of the device that determines the expected dark time; 1 for hardware."""
    found = slowest_device(change, traits)
    return lab.time_scale(found[0]) if found else 1.0


def circuit_rows(goal: Target, lab: Lab) -> tuple[CircuitRow, ...]:
    """Every circuit that is kept, broken, made or foreign, for a report; a rerouted one is both
    broken and made.
    """
    change = goal.change
    before = {d: change.kept[d] | change.removed[d] | change.foreign[d] for d in change.kept}
    after = {d: change.kept[d] | change.made[d] | change.foreign[d] for d in change.kept}
    foreign = frozenset[Setting]().union(*change.foreign.values())
    was, will = (
        {(t.transmitter, t.receiver, t.path) for t in LightMap(held, lab).traces()}
        for held in (before, after)
    )
    rows = []
    for state, paths in (("keep", was & will), ("break", was - will), ("make", will - was)):
        for transmitter, receiver, path in paths:
            if receiver is not None:
                shown = "foreign" if state == "keep" and foreign.intersection(path) else state
                loss = loss_db(transmitter, receiver, path, lab)
                rows.append(
                    CircuitRow(f"{transmitter}->{receiver}", tuple(map(str, path)), loss, shown)
                )
    order = ("keep", "break", "make", "foreign")
    return tuple(sorted(rows, key=lambda row: (row.path, order.index(row.state))))


def fingerprint(plan: Plan, observed: Held) -> str:
    """A short name for this plan on this state of the devices; another state gives another name."""
    held = (s for device in sorted(observed) for s in sorted(observed[device], key=sort_key))
    text = " ".join((plan.sha256, *plan.avoid.message)) + "".join(f"\n{s}" for s in held)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
