"""The verbs that read devices: identity, abilities, optical power, and how the measured losses
change over runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from drivers.api import Attenuator, CircuitSwitch, JobQueue, Persistence, PortControl, PowerMeter
from optics import Circuit, Dbm, DeviceName, Missing, Port, TestbedError
from optics.plain import counted, did_you_mean
from orchestrator.fabric.lightpath import Held, LightMap, loss_db, routes
from orchestrator.inventory.lab import Lab
from orchestrator.session import Command, Session, load_lab
from orchestrator.store.keys import key_of
from orchestrator.store.light import light_history
from orchestrator.store.store import Store
from orchestrator.verbs.report import DevicesReport, DeviceView
from orchestrator.verify.power import LOS_DBM, LossDrift, Reading, drifts, keep, measure
from orchestrator.verify.report import CircuitLight, LossChange, PowerReport
from orchestrator.verify.trace import TraceReport, traced

_ABILITIES: tuple[tuple[type, str], ...] = (
    (PowerMeter, "power meters"),
    (PortControl, "port control"),
    (Attenuator, "attenuators"),
    (Persistence, "boot mode"),
    (JobQueue, "job queue"),
)


async def devices(command: Command) -> DevicesReport:
    """Every device as it answers now; one that does not answer is reported with its error."""
    lab = load_lab(command.inventory)
    async with command.opened(lab, "devices") as session:
        return DevicesReport(
            lab.name,
            tuple(await asyncio.gather(*(_view(lab, n, d) for n, d in session.devices.items()))),
        )


async def _view(lab: Lab, name: DeviceName, device: CircuitSwitch) -> DeviceView:
    config = lab.devices[name]
    try:
        identity, held = await device.identify(), await device.read()
        ports = [Port(name, label) for label in identity.ingress + identity.egress]
        ports += [
            Port(name, f"{label}:in") for label in identity.ingress if label in set(identity.egress)
        ]
        power: Mapping[Port, Dbm] = (
            await device.power(ports) if isinstance(device, PowerMeter) else {}
        )
    except TestbedError as error:
        return DeviceView(
            name,
            config.driver,
            config.address,
            False,
            error=str(error),
            code=error.code,
            time_scale=config.time_scale,
        )
    lit = [dbm for dbm in power.values() if dbm >= LOS_DBM]
    return DeviceView(
        name,
        config.driver,
        config.address,
        True,
        identity=f"{identity.vendor} {identity.model} {identity.serial} {identity.firmware}",
        ingress=identity.ingress,
        egress=identity.egress,
        settings=len(held),
        abilities=abilities(device),
        settle_s=device.traits.settle_s,
        time_scale=config.time_scale,
        metered=len(power),
        lit=len(lit),
        min_dbm=min(lit, default=None),
        max_dbm=max(lit, default=None),
    )


def abilities(device: CircuitSwitch) -> tuple[str, ...]:
    """What the device supports in addition to circuits, in words."""
    found = ["routes by wavelength"] if device.traits.spectral else []
    return (*found, *(text for protocol, text in _ABILITIES if isinstance(device, protocol)))


async def devices_power(command: Command, *, device: str | None, history: bool) -> PowerReport:
    """Power along every circuit that a device holds or the current plan wants; every measurement is
    kept in the store.

    Raises: Missing - no such device. Unreachable - one does not answer.
    """
    lab = load_lab(command.inventory)
    if device is not None and device not in lab.devices:
        raise Missing(
            f"device {device} is not in the lab{did_you_mean(device, lab.devices)}",
            hint="testbed devices",
        )
    key = key_of(lab)
    async with command.opened(lab, "devices power") as session:
        command.progress.phase("observe")
        seen = (await session.observe(hosts=False)).complete()
        command.progress.done("observe", counted(len(seen.settings), "device"))
        readings = await _readings(session, command.store, key, seen.settings)
    keep(readings, command.store, key)
    shown = [
        r for r in readings if device is None or any(x.ingress.device == device for x in r.path)
    ]
    shown_paths = {r.path_text for r in shown}
    past = (
        [
            _change(d)
            for d in drifts(light_history(command.store, key), lab)
            if d.path in shown_paths
        ]
        if history
        else []
    )
    notes = ("no circuit is lit or planned",) if not shown else ()
    return PowerReport(lab.name, tuple(_shown(r, lab) for r in shown), tuple(past), notes)


async def devices_trace(command: Command, *, port: str) -> TraceReport:
    """The path of a host port's light, by what the devices hold and measure now.

    Raises: Missing - no fibre is at the port. Unreachable - a device does not answer.
    """
    lab = load_lab(command.inventory)
    start = next(
        (one for one in lab.fibres if port in (str(one), f"{one.host}:{one.number}")), None
    )
    if start is None:
        near = did_you_mean(port, map(str, lab.fibres))
        raise Missing(f"no fibre is at {port}{near}", hint="testbed devices cables lists them")
    async with command.opened(lab, "devices trace") as session:
        seen = (await session.observe(hosts=False)).complete()
        readings = await _readings(session, command.store, key_of(lab), seen.settings)
    lights = LightMap(seen.settings, lab)
    path = lights.follow(lab.fibres[start].enters, lab.fibres[start].slot)
    mine = (r for r in readings if r.circuit.transmitter == start)
    reading = next((r for r in mine if routes(r.path) == routes(path)), None)
    return traced(start, lights, reading, lab)


async def _readings(session: Session, store: Store, key: str, held: Held) -> tuple[Reading, ...]:
    lab = session.lab
    circuits = [
        circuit for current in store.currents(key).values() for circuit in current.up.circuits(lab)
    ]
    known = {(circuit.transmitter, circuit.receiver) for circuit in circuits}
    for trace in LightMap(held, lab).traces():
        if trace.receiver is not None and (trace.transmitter, trace.receiver) not in known:
            loss = loss_db(trace.transmitter, trace.receiver, trace.path, lab)
            circuits.append(Circuit(trace.transmitter, trace.receiver, trace.path, loss))
    return await measure(session.devices, lab, circuits, held)


def _shown(reading: Reading, lab: Lab) -> CircuitLight:
    loss, out = reading.loss_db, reading.out_dbm
    return CircuitLight(
        str(reading.circuit),
        tuple(map(str, reading.path)),
        reading.in_dbm,
        out,
        loss,
        reading.expected_db,
        None if loss is None else round(loss - reading.expected_db, 2),
        reading.attenuation_db,
        None if out is None else round(out - LOS_DBM, 2),
        reading.meter_db,
        reading.where_lost(lab),
    )


def _change(drift: LossDrift) -> LossChange:
    first, last = drift.points[0], drift.points[-1]
    # `drifts` keeps only measured points
    assert first.loss_db is not None and last.loss_db is not None
    return LossChange(
        drift.circuit,
        drift.path,
        first.at,
        last.at,
        len(drift.points),
        first.loss_db,
        last.loss_db,
        drift.change_db,
        drift.repeatability_db,
        drift.meter_db,
        drift.beyond,
        drift.certain,
        tuple((p.at, p.loss_db) for p in drift.points if p.loss_db is not None),
    )
