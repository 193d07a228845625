"""What a run found before its first write, the change back to exactly that, and what an unfinished
run left. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from optics import (
    Change,
    CrossConnect,
    DeviceName,
    FrequencySlot,
    HostName,
    HostPort,
    Port,
    Setting,
    SpectralRoute,
    TestbedError,
)
from optics.plan import Job
from optics.values import short, sort_key
from orchestrator.extensions import job_of
from orchestrator.fabric.circuits import receivers, settings
from orchestrator.fabric.lightpath import Held, among, routes, without_attenuation
from orchestrator.fabric.transition import Transition, transition
from orchestrator.hosts import Hello
from orchestrator.inventory.lab import Lab
from orchestrator.results import Json, to_json
from orchestrator.store.records import CurrentPlan, JobRecord

NONE: frozenset[Setting] = frozenset()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state to go back to. owned, others: what each device that was read held, as it reported it,
    attenuation included.

    owned: also of devices that could not be read, as the store has it. others: circuits without an
    owner in this store (other owners may change theirs meanwhile). current: the plan that was up.
    generations: which routes each host ran, None for none; hosts that did not answer are absent.
    lit: ports of the plan that was up that had carrier. job: the number of the job that ran.
    wanted: that job, with the rings it had; None for its record's.
    """

    owned: Held
    others: Held = field(default_factory=dict)
    current: CurrentPlan | None = None
    generations: Mapping[HostName, int | None] = field(default_factory=dict)
    lit: tuple[HostPort, ...] = ()
    job: int | None = None
    wanted: Job | None = None

    def to_json(self) -> dict[str, Json]:
        """As the store keeps it."""
        return {
            "ours": held_data(self.owned),
            "others": held_data(self.others),
            "current": self.current.to_json() if self.current is not None else None,
            "generations": dict(self.generations),
            "lit": [[p.host, p.number] for p in self.lit],
            "job": self.job,
            "wanted": to_json(self.wanted),
        }


def before_of(data: Any) -> Snapshot:
    """Read what `Snapshot.to_json` wrote."""
    current = data["current"]
    return Snapshot(
        held_of(data["ours"]),
        held_of(data["others"]),
        None if current is None else CurrentPlan.of_json(current),
        data["generations"],
        tuple(HostPort(*x) for x in data["lit"]),
        data["job"],
        job_of(data["wanted"]) if data["wanted"] else None,
    )


def whole(state: Snapshot, lab: Lab) -> bool:
    """Whether the owner's circuits are exactly those of the plan that was up; none if none was."""
    if state.current is None:
        return not any(state.owned.values())
    try:
        wanted = settings(state.current.up.circuits(lab))
    except TestbedError:  # the inventory changed since
        return False
    return routes(s for held in state.owned.values() for s in held) == routes(
        s for held in wanted.values() for s in held
    )


def found(
    observed: Held,
    owned: Held,
    current: CurrentPlan | None,
    hellos: Mapping[HostName, Hello],
    job: JobRecord | None,
    lab: Lab,
    foreign: Collection[Setting] = (),
) -> Snapshot:
    """The observed state as a snapshot. foreign: other owners' circuits."""
    here = {d: among(held, owned.get(d, NONE)) for d, held in observed.items()}
    unread = _one_slot({d: held for d, held in owned.items() if d not in observed}, current, lab)
    ports = receivers(current.up.links) if current is not None else ()
    lit = tuple(
        p
        for p in ports
        if p.host in hellos
        and (at := hellos[p.host].ports.get(p.number)) is not None
        and at.carrier
    )
    others = {d: held - here[d] - among(held, foreign) for d, held in observed.items()}
    number, wanted = (job.id, job.spec.wanted) if job is not None else (None, None)
    return Snapshot(
        here | unread,
        others,
        current,
        {h: hello.active for h, hello in hellos.items()},
        lit,
        number,
        wanted,
    )


def _one_slot(
    owned: dict[DeviceName, frozenset[Setting]], current: CurrentPlan | None, lab: Lab
) -> dict[DeviceName, frozenset[Setting]]:
    """What devices hold of these circuits in the slot that is up: of a schedule that ran, the
    store has those of every slot.
    """
    if current is None or current.up.slots is None:
        return owned
    try:
        slot = settings(current.up.circuits(lab))
    except TestbedError:  # the inventory changed since
        return owned
    return {d: among(held, slot.get(d, NONE)) for d, held in owned.items()}


def hosts_of(target: Any) -> tuple[HostName, ...]:
    """The hosts that a run's target names."""
    return tuple(target["hosts"])


def held_data(held: Held) -> dict[str, Json]:
    """Settings as the store keeps them: [ingress, egress], and of spectral routes [..., low MHz,
    high MHz, dB].
    """
    return {
        d: [_setting_data(s) for s in sorted(settings, key=sort_key)]
        for d, settings in sorted(held.items())
    }


def held_of(data: Any) -> Held:
    """Read what `held_data` wrote."""
    return {
        device: frozenset(_setting_of(device, *row) for row in rows)
        for device, rows in data.items()
    }


def _setting_data(setting: Setting) -> list[Json]:
    ports: list[Json] = [setting.ingress.label, setting.egress.label]
    if isinstance(setting, CrossConnect):
        return ports
    return [*ports, setting.slot.low_mhz, setting.slot.high_mhz, setting.attenuation_db]


def _setting_of(device: DeviceName, ingress: str, egress: str, *spectral: Any) -> Setting:
    ports = Port(device, ingress), Port(device, egress)
    if not spectral:
        return CrossConnect(*ports)
    low, high, attenuation_db = spectral
    return SpectralRoute(*ports, FrequencySlot(low, high), attenuation_db)


def change_back(observed: Held, wanted: Held, owned: Held) -> Transition:
    """The smallest change to exactly `wanted`: as `transition`, and the owner's routes get back
    their attenuation.

    Raises: Interlock - another owner uses a port by now.
    """
    change = transition(observed, wanted, owned)
    kept, removed, made = dict(change.kept), dict(change.removed), dict(change.made)
    changes = dict(change.changes)
    for device, goal in wanted.items():
        existing = {
            without_attenuation(s): s
            for s in among(observed.get(device, NONE), owned.get(device, NONE))
        }
        other = {
            existing[without_attenuation(s)]: s
            for s in goal
            if without_attenuation(s) in existing and existing[without_attenuation(s)] != s
        }
        if other:
            kept[device] -= other.keys()
            removed[device] |= other.keys()
            made[device] |= frozenset(other.values())
            changes[device] = Change(device, removed[device], made[device])
    return replace(change, changes=changes, kept=kept, removed=removed, made=made)


def differences(
    observed: Held,
    before: Snapshot,
    devices: Collection[DeviceName],
    foreign: Collection[Setting] = (),
) -> list[str]:
    """What these devices do not hold as before, a line for each manual repair; circuits without an
    owner included.

    foreign: circuits of other owners, who may change them freely.
    """
    lines = []
    for device in sorted(devices):
        held = observed.get(device, NONE) - among(observed.get(device, NONE), foreign)
        was = before.owned.get(device, NONE) | before.others.get(device, NONE)
        owned = before.owned.get(device, NONE)
        lines += [
            f"{device}: {short(s)} was there and is not{'' if s in owned else '; it was not made by this program'}"
            for s in sorted(was - held, key=sort_key)
        ]
        lines += [
            f"{device}: {short(s)} is there and was not" for s in sorted(held - was, key=sort_key)
        ]
    return lines
