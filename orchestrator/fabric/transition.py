"""From what the devices hold to what a plan wants: the fewest changes, and no port reused before it is free. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from optics import Change, Db, DeviceName, HostPort, Infeasible, Interlock, Port, Setting, clash
from optics.plain import natural
from orchestrator.fabric.lightpath import LightMap, among, loss_db, route
from orchestrator.inventory.lab import Lab

Held: TypeAlias = Mapping[DeviceName, frozenset[Setting]]
"""What each device holds, or should."""


@dataclass(frozen=True, slots=True)
class Transition:
    """What happens to each device, and what does not.

    changes: only devices that change. kept: wanted and already there, `borrowed` those of them that are not ours and therefore
    stay when we leave. removed, made: what changes. foreign: neither ours nor wanted, never touched.
    """

    changes: Mapping[DeviceName, Change]
    kept: Held
    borrowed: Held
    removed: Held
    made: Held
    foreign: Held

    def __bool__(self) -> bool:
        return bool(self.changes)

    def after(self, observed: Held) -> Held:
        """What the devices hold once every change is made."""
        return {d: (observed.get(d, frozenset()) - self.removed[d]) | self.made[d] for d in self.kept}


def transition(observed: Held, wanted: Held, owned: Held) -> Transition:
    """The smallest change from `observed` to `wanted`. `owned` is what we put up ourselves; nothing else is ever removed.

    Each device's change removes before it adds (`Change`), so every port is free when it is reused. A wanted spectral route that
    is there with another attenuation is kept as it is: how much light is let through is no part of the map.
    Raises: Interlock - a foreign setting is in the way of one the plan wants; all such are named.
    Infeasible - two settings of `wanted` exclude each other, or a device was not observed.
    """
    unseen = sorted(device for device in wanted if wanted[device] and device not in observed)
    if unseen:
        raise Infeasible(f"the plan needs {', '.join(unseen)}, which was not read")
    devices = sorted(set(observed) | set(wanted))
    per: dict[str, dict[DeviceName, frozenset[Setting]]] = {n: {} for n in ("kept", "borrowed", "removed", "made", "foreign")}
    conflicts: list[str] = []
    none: frozenset[Setting] = frozenset()
    for device in devices:
        seen = observed.get(device, none)
        there = {route(setting): setting for setting in seen}
        goal = frozenset(there.get(route(setting), setting) for setting in wanted.get(device, none))
        ours = among(seen, owned.get(device, none))
        _side_by_side(goal)
        foreign = seen - ours - goal
        users = _users(foreign)
        for setting in sorted(goal - seen, key=str):
            for port, other in _in_the_way(setting, users):
                conflicts.append(f"{setting} needs {port}, which {other} uses")
        per["kept"][device] = seen & goal
        per["borrowed"][device] = (seen & goal) - ours
        per["removed"][device] = (seen & ours) - goal
        per["made"][device] = goal - seen
        per["foreign"][device] = foreign
    if conflicts:
        raise Interlock(
            "circuits that this program did not make are in the way: " + "; ".join(dict.fromkeys(conflicts)),
            hint="remove them where they were made, or plan around their ports",
        )
    changes = {
        device: Change(device, per["removed"][device], per["made"][device])
        for device in devices
        if per["removed"][device] or per["made"][device]
    }
    return Transition(changes, per["kept"], per["borrowed"], per["removed"], per["made"], per["foreign"])


Users: TypeAlias = Mapping[tuple[str, Port], list[Setting]]


def _users(held: frozenset[Setting]) -> Users:
    """Which settings use each side of each port."""
    users: dict[tuple[str, Port], list[Setting]] = {}
    for setting in sorted(held, key=str):
        for side in (("in", setting.ingress), ("out", setting.egress)):
            users.setdefault(side, []).append(setting)
    return users


def _in_the_way(setting: Setting, users: Users) -> list[tuple[Port, Setting]]:
    sides = (("in", setting.ingress), ("out", setting.egress))
    return [(side[1], other) for side in sides for other in users.get(side, ()) if clash(setting, other) is not None]


def _side_by_side(held: frozenset[Setting]) -> None:
    """Raises: Infeasible - two settings exclude each other."""
    users = _users(held)
    for sharing in users.values():
        for one in sharing if len(sharing) > 1 else ():
            for port, other in _in_the_way(one, users):
                raise Infeasible(f"{one} and {other} both use {port}")


Action = Literal["keep", "break", "make", "foreign"]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of `testbed plan`: what happens to a setting, and which host ports it joins where the inventory knows them.

    loss_db: expected, end to end, of a circuit that is this one setting; None for one of several.
    """

    device: DeviceName
    action: Action
    setting: Setting
    transmitter: HostPort | None
    receiver: HostPort | None
    loss_db: Db | None


@dataclass(frozen=True, slots=True)
class DeviceDiff:
    """All rows of one device, in the order keep, break, make, foreign."""

    device: DeviceName
    rows: tuple[Row, ...]

    def count(self, action: Action) -> int:
        return sum(row.action == action for row in self.rows)


def describe(change: Transition, lab: Lab) -> tuple[DeviceDiff, ...]:
    """The transition port by port, for people; devices without any setting are included with no rows."""
    groups: list[tuple[Action, Held]] = [
        ("keep", change.kept),
        ("break", change.removed),
        ("make", change.made),
        ("foreign", change.foreign),
    ]
    before = LightMap({d: change.kept[d] | change.removed[d] | change.foreign[d] for d in change.kept}, lab).ends()
    after = LightMap({d: change.kept[d] | change.made[d] | change.foreign[d] for d in change.kept}, lab).ends()
    diffs = []
    for device in sorted(change.kept):
        rows = [
            _row(device, action, setting, (before if action == "break" else after)[setting], lab)
            for action, held in groups
            for setting in sorted(held[device], key=_faceplate)
        ]
        diffs.append(DeviceDiff(device, tuple(rows)))
    return tuple(diffs)


def _faceplate(setting: Setting) -> tuple[object, ...]:
    """Order of the ports on the device: 2 before 10."""
    return natural(setting.ingress.label), natural(setting.egress.label), str(setting)


def _row(
    device: DeviceName, action: Action, setting: Setting, ends: tuple[frozenset[HostPort], frozenset[HostPort]], lab: Lab
) -> Row:
    """`ends`: whose light it carries, and to whom; behind a coupler a cross-connect has several and the row names none."""
    transmitter, receiver = (next(iter(ports)) if len(ports) == 1 else None for ports in ends)
    loss = None
    if transmitter is not None and receiver is not None:
        whole = (setting.ingress, setting.egress) == (lab.fibres[transmitter].enters, lab.fibres[receiver].leaves)
        loss = loss_db(transmitter, receiver, (setting,), lab) if whole else None
    return Row(device, action, setting, transmitter, receiver, loss)


def per_device(settings: Iterable[Setting]) -> Held:
    """Sort settings by their device."""
    found: dict[DeviceName, set[Setting]] = defaultdict(set)
    for setting in settings:
        found[setting.ingress.device].add(setting)
    return {device: frozenset(held) for device, held in found.items()}
