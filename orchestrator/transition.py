"""From what the devices hold to what a plan wants: the fewest changes, and no port reused before it is free. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from optics import Change, Db, DeviceName, HostPort, Infeasible, Interlock, Port, Setting
from orchestrator.circuits import link_of
from orchestrator.filepos import natural
from orchestrator.lab import Lab

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

    Each device's change removes before it adds (`Change`), so every port is free when it is reused.
    Raises: Interlock - a foreign setting uses a port the plan wants; all such ports are named.
    Infeasible - `wanted` uses a port twice, or a device that was not observed.
    """
    unseen = sorted(device for device in wanted if wanted[device] and device not in observed)
    if unseen:
        raise Infeasible(f"the plan needs {', '.join(unseen)}, which was not read")
    devices = sorted(set(observed) | set(wanted))
    per: dict[str, dict[DeviceName, frozenset[Setting]]] = {n: {} for n in ("kept", "borrowed", "removed", "made", "foreign")}
    conflicts: list[str] = []
    none: frozenset[Setting] = frozenset()
    for device in devices:
        seen, goal, ours = observed.get(device, none), wanted.get(device, none), owned.get(device, none)
        _users(goal)
        foreign = seen - ours - goal
        users = _users(foreign)
        for setting in sorted(goal - seen):
            for port in (("in", setting.ingress), ("out", setting.egress)):
                if port in users:
                    conflicts.append(f"{setting} needs {port[1]}, which {users[port]} uses")
        per["kept"][device] = seen & goal
        per["borrowed"][device] = (seen & goal) - ours
        per["removed"][device] = (seen & ours) - goal
        per["made"][device] = goal - seen
        per["foreign"][device] = foreign
    if conflicts:
        raise Interlock(
            "circuits that this program did not make are in the way: " + "; ".join(conflicts),
            hint="remove them where they were made, or plan around their ports",
        )
    changes = {
        device: Change(device, per["removed"][device], per["made"][device])
        for device in devices
        if per["removed"][device] or per["made"][device]
    }
    return Transition(changes, per["kept"], per["borrowed"], per["removed"], per["made"], per["foreign"])


def _users(held: frozenset[Setting]) -> dict[tuple[str, Port], Setting]:
    """Which setting uses each side of each port. Raises: Infeasible - two use one."""
    users: dict[tuple[str, Port], Setting] = {}
    for setting in sorted(held):
        for side in (("in", setting.ingress), ("out", setting.egress)):
            if side in users:
                raise Infeasible(f"{setting} and {users[side]} both use {side[1]}")
            users[side] = setting
    return users


Action = Literal["keep", "break", "make", "foreign"]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of `testbed plan`: what happens to a setting, and which host ports it joins where the inventory knows them."""

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
    diffs = []
    for device in sorted(change.kept):
        groups: list[tuple[Action, Held]] = [
            ("keep", change.kept),
            ("break", change.removed),
            ("make", change.made),
            ("foreign", change.foreign),
        ]
        rows = [_row(device, action, setting, lab) for action, held in groups for setting in sorted(held[device], key=_faceplate)]
        diffs.append(DeviceDiff(device, tuple(rows)))
    return tuple(diffs)


def _faceplate(setting: Setting) -> tuple[object, ...]:
    """Order of the ports on the device: 2 before 10."""
    return natural(setting.ingress.label), natural(setting.egress.label)


def _row(device: DeviceName, action: Action, setting: Setting, lab: Lab) -> Row:
    transmitter, receiver = link_of(setting, lab)
    loss = None
    if transmitter is not None and receiver is not None:
        loss = round(lab.fibres[transmitter].loss_db + lab.insertion_loss_db(device) + lab.fibres[receiver].loss_db, 4)
    return Row(device, action, setting, transmitter, receiver, loss)
