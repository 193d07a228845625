"""The fewest changes from what the devices hold to what a plan wants; no port is reused before it
is free. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from optics import Change, DeviceName, Infeasible, Interlock, Port, Setting, clash
from orchestrator.fabric.lightpath import Held, among, without_attenuation


@dataclass(frozen=True, slots=True)
class Transition:
    """What changes on each device, and what stays.

    changes: only devices that change. kept: wanted and already there, owned or not. removed, made:
    what changes. foreign: neither owned nor wanted, never touched.
    """

    changes: Mapping[DeviceName, Change]
    kept: Held
    removed: Held
    made: Held
    foreign: Held

    def __bool__(self) -> bool:
        return bool(self.changes)

    def after(self, observed: Held) -> Held:
        """What the devices hold once every change is made."""
        return {
            d: (observed.get(d, frozenset()) - self.removed[d]) | self.made[d] for d in self.kept
        }


def transition(observed: Held, wanted: Held, owned: Held) -> Transition:
    """The smallest change from `observed` to `wanted`. Only settings in `owned` are ever removed.

    Each device's change removes before it adds (`Change`), so every port is free when it is reused.
    A wanted spectral route that exists with another attenuation is kept as it is: attenuation is
    not part of the map. Raises: Interlock - foreign settings block wanted ones; all are named.
    Infeasible - two settings of `wanted` exclude each other, or a device was not observed.
    """
    unseen = sorted(device for device in wanted if wanted[device] and device not in observed)
    if unseen:
        raise Infeasible(f"the plan needs {', '.join(unseen)}, whose state was not read")
    devices = sorted(set(observed) | set(wanted))
    per: dict[str, dict[DeviceName, frozenset[Setting]]] = {
        n: {} for n in ("kept", "removed", "made", "foreign")
    }
    conflicts: list[str] = []
    none: frozenset[Setting] = frozenset()
    for device in devices:
        seen = observed.get(device, none)
        existing = {without_attenuation(setting): setting for setting in seen}
        goal = frozenset(
            existing.get(without_attenuation(setting), setting)
            for setting in wanted.get(device, none)
        )
        mine = among(seen, owned.get(device, none))
        _check_compatible(goal)
        foreign = seen - mine - goal
        users = _users(foreign)
        for setting in sorted(goal - seen, key=str):
            for port, other in _blocking(setting, users):
                conflicts.append(f"{setting} needs {port}, which {other} uses")
        per["kept"][device] = seen & goal
        per["removed"][device] = (seen & mine) - goal
        per["made"][device] = goal - seen
        per["foreign"][device] = foreign
    if conflicts:
        raise Interlock(
            "circuits that this program did not make are in the way: "
            + "; ".join(dict.fromkeys(conflicts)),
            hint="remove them where they were made, or plan around their ports",
        )
    changes = {
        device: Change(device, per["removed"][device], per["made"][device])
        for device in devices
        if per["removed"][device] or per["made"][device]
    }
    return Transition(changes, per["kept"], per["removed"], per["made"], per["foreign"])


Users: TypeAlias = Mapping[tuple[str, Port], list[Setting]]


def _users(held: frozenset[Setting]) -> Users:
    """The settings that use each side of each port."""
    users: dict[tuple[str, Port], list[Setting]] = {}
    for setting in sorted(held, key=str):
        for side in (("in", setting.ingress), ("out", setting.egress)):
            users.setdefault(side, []).append(setting)
    return users


def _blocking(setting: Setting, users: Users) -> list[tuple[Port, Setting]]:
    sides = (("in", setting.ingress), ("out", setting.egress))
    return [
        (side[1], other)
        for side in sides
        for other in users.get(side, ())
        if clash(setting, other) is not None
    ]


def _check_compatible(held: frozenset[Setting]) -> None:
    """Raises: Infeasible - two settings exclude each other."""
    users = _users(held)
    for sharing in users.values():
        for one in sharing if len(sharing) > 1 else ():
            for port, other in _blocking(one, users):
                raise Infeasible(f"{one} and {other} both use {port}")


def per_device(settings: Iterable[Setting]) -> Held:
    """Group settings by device."""
    found: dict[DeviceName, set[Setting]] = defaultdict(set)
    for setting in settings:
        found[setting.ingress.device].add(setting)
    return {device: frozenset(held) for device, held in found.items()}
