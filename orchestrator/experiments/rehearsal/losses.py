"""Light that the lab loses and its inventory does not know of, by the lab's own meters: the twin is
made to lose it as well.

That is what passes through devices lose, and fibres that lead into them. Trunks, fibres behind the
last device, and passes of a wavelength-selective switch, of which several share a meter, stay as
the inventory has them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping

from drivers.api import CircuitSwitch, PowerMeter
from optics import CrossConnect, Db, Dbm, DeviceName, Port, Setting
from optics.values import sort_key
from orchestrator.experiments.rehearsal.reading import LabReading, entering
from orchestrator.experiments.rehearsal.twin import Twin
from orchestrator.fabric.lightpath import Held
from orchestrator.inventory.lab import Lab
from orchestrator.plan.target import Target
from orchestrator.session import Session
from orchestrator.store.records import LightPoint
from orchestrator.verify.losses import pass_window_db
from orchestrator.verify.power import LOS_DBM, REPEATABILITY_DB

Side = tuple[Port, str]
"""A port, and "in" or "out"."""


async def copy_losses(
    session: Session, twin: Twin, read: LabReading, goal: Target, history: Iterable[LightPoint]
) -> tuple[str, ...]:
    """Weaken the twin's light where the lab's is weaker; return in words which passes of the lab
    lose more than they should.

    session: of the twin. history: what the lab's circuits lost, oldest first: paths of the plan
    that are not there now may have been. Raises: as `PowerMeter.power`.
    """
    lab, devices = session.lab, session.devices
    power = await _power(devices, read.power)
    for port in sorted(lab.transmitters):
        here, existing = (found.get(entering(port, lab), LOS_DBM) for found in (read.power, power))
        if min(here, existing) > LOS_DBM and abs(existing - here) > REPEATABILITY_DB:
            twin.ask("power", device=port.device, port=port.label, weaker_db=existing - here)
    held = {device: settings for device, settings in read.settings.items() if device in devices}
    measured, own = losses(held, read.power, lab), losses(held, power, lab)
    kept = _all(goal.change.kept)
    passes = {
        s: max(0.0, loss - own[s]) if s in kept or _strange(s, loss, lab) else 0.0
        for s, loss in measured.items()
        if s in own
    }
    latest = {point.path: point.loss_db for point in history}
    for setting in _all(goal.wanted) - _all(held):
        if (loss := latest.get(str(setting))) is not None and isinstance(setting, CrossConnect):
            measured[setting] = loss
            passes[setting] = (
                loss - lab.pass_loss_db(setting) if _strange(setting, loss, lab) else 0.0
            )
    for (port, which), db in sorted(at_ports(passes).items()):
        twin.ask(
            "faults.add",
            device=port.device,
            kind="extra-loss",
            port=f"{port.label}/{which}",
            db=round(db, 2),
        )
    return tuple(
        f"{setting} loses {measured[setting]:.1f} dB, {passes[setting]:.1f} more than its twin did; on the twin too"
        for setting in sorted(passes, key=sort_key)
        if _strange(setting, measured[setting], lab)
    )


def losses(held: Held, power: Mapping[Port, Dbm], lab: Lab) -> dict[Setting, Db]:
    """The loss of every cross-connect that is lit, between the meters of its device."""
    found: dict[Setting, Db] = {}
    for setting in _all(held):
        into, out = power.get(entering(setting.ingress, lab)), power.get(setting.egress)
        if (
            isinstance(setting, CrossConnect)
            and into is not None
            and out is not None
            and into >= LOS_DBM
        ):
            found[setting] = into - out
    return found


def at_ports(passes: Mapping[Setting, Db]) -> dict[Side, Db]:
    """Which port loses how much more, from how much more whole passes lose.

    A port loses at most what the best pass over it does; where that leaves both ends in doubt, it
    is the one where light enters.
    """
    most: dict[Side, Db] = {}
    for setting, db in passes.items():
        for side in _sides(setting):
            most[side] = min(db, most.get(side, db))
    found: dict[Side, Db] = {}
    for setting, db in sorted(passes.items(), key=lambda item: sort_key(item[0])):
        for side in _sides(setting):
            left = db - sum(found.get(other, 0.0) for other in _sides(setting))
            if (more := min(left, most[side] - found.get(side, 0.0))) > REPEATABILITY_DB:
                found[side] = found.get(side, 0.0) + more
    return found


def _sides(setting: Setting) -> tuple[Side, Side]:
    return (setting.ingress, "in"), (setting.egress, "out")


def _strange(setting: Setting, loss_db: Db, lab: Lab) -> bool:
    """Whether a pass loses more than the spread of good ones and the meters explain."""
    device = setting.ingress.device
    return loss_db - lab.insertion_loss_db(device) > pass_window_db(lab, device)


def _all(held: Held) -> frozenset[Setting]:
    return frozenset[Setting]().union(*held.values())


async def _power(
    devices: Mapping[DeviceName, CircuitSwitch], ports: Iterable[Port]
) -> dict[Port, Dbm]:
    """What the meters at these ports read."""
    asked: dict[DeviceName, set[Port]] = defaultdict(set)
    for port in ports:
        asked[port.device].add(port)
    meters = {
        name: device
        for name, device in devices.items()
        if isinstance(device, PowerMeter) and name in asked
    }
    answers = await asyncio.gather(*(device.power(asked[name]) for name, device in meters.items()))
    return {port: dbm for answer in answers for port, dbm in answer.items()}
