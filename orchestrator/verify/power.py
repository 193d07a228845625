"""Power along circuits: read from every device with meters, per circuit, judged, and recorded in
the store and the journal.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from drivers.api import CircuitSwitch, PowerMeter
from optics import Circuit, Db, Dbm, DeviceName, Port, Setting, SpectralRoute
from orchestrator.fabric.lightpath import Held, without_attenuation
from orchestrator.inventory.lab import Lab
from orchestrator.store.light import add_light
from orchestrator.store.records import LightPoint
from orchestrator.store.store import Store
from orchestrator.telemetry.journal import Journal

LOS_DBM = -30.0
"""Below this a port counts as dark (also the LOS threshold of the emulated plant; transceivers
state their own).
"""
REPEATABILITY_DB = 0.1
"""A connection made again may lose this much more or less (+- dB): Polatis data sheet as quoted by
the TCD testbed notes.
"""


@dataclass(frozen=True, slots=True)
class MeterPoint:
    """One side of one port on a circuit's path, at a device with meters. power None: too weak to
    measure.

    alone: no other measured circuit passes here, so the reading is this circuit's own.
    """

    side: str
    port: Port
    power: Dbm | None
    alone: bool

    @property
    def lit(self) -> bool:
        return self.power is not None and self.power >= LOS_DBM


@dataclass(frozen=True, slots=True)
class Reading:
    """Meter readings along one circuit. `path`: its settings as the devices hold them, attenuation
    included.
    """

    circuit: Circuit
    path: tuple[Setting, ...]
    points: tuple[MeterPoint, ...]
    expected_db: Db
    """Loss (dB) between the first ingress and the last egress: passes, trunks and deliberate
    attenuation.
    """
    meter_db: Db
    missing: tuple[Setting, ...] = ()
    """Settings of the circuit that the devices do not hold."""

    def _own(self, at: int, side: str, port: Port) -> Dbm | None:
        point = self.points[at] if self.points else None
        return (
            point.power
            if point is not None and (point.side, point.port) == (side, port) and point.alone
            else None
        )

    @property
    def in_dbm(self) -> Dbm | None:
        """Power where the light enters its first device, None if no meter reads it alone."""
        return self._own(0, "in", self.path[0].ingress)

    @property
    def out_dbm(self) -> Dbm | None:
        """Power where the light leaves its last device."""
        return self._own(-1, "out", self.path[-1].egress)

    @property
    def measured(self) -> bool:
        """Whether a meter reads the light as it leaves the last device."""
        return bool(self.points) and (self.points[-1].side, self.points[-1].port) == (
            "out",
            self.path[-1].egress,
        )

    @property
    def loss_db(self) -> Db | None:
        """Measured loss (dB) between the two, attenuation included; None unless both ends have
        light and a meter.
        """
        into, out = self.in_dbm, self.out_dbm
        return None if into is None or out is None else round(into - out, 2)

    @property
    def attenuation_db(self) -> Db:
        return round(sum(x.attenuation_db for x in self.path if isinstance(x, SpectralRoute)), 1)

    @property
    def path_text(self) -> str:
        """The path without attenuation: makes measurements of two runs comparable."""
        return " ".join(
            str(replace(x, attenuation_db=0.0) if isinstance(x, SpectralRoute) else x)
            for x in self.path
        )

    def where_lost(self, lab: Lab) -> str:
        """Where the light is lost, as far as the meters show; empty if it is not."""
        if not self.points or (self.measured and self.points[-1].lit):
            return ""
        dark = next((at for at, point in enumerate(self.points) if not point.lit), None)
        if dark is None:
            return ""
        here = self.points[dark]
        before = self.points[dark - 1] if dark else None
        if here.side == "out" and before is not None and before.port.device == here.port.device:
            enters = f"light enters {before.port} ({before.power:.1f} dBm) but does not leave {here.port}"
            absent = any(setting.ingress == before.port for setting in self.missing)
            return f"{enters}: {here.port.device} {'does not hold that' if absent else 'or its output'}"
        trunk = (
            next((t for t in lab.trunks if t.end == here.port), None) if here.side == "in" else None
        )
        if trunk is None:
            sender = self.circuit.transmitter
            return f"no light arrives at {here.port}: the transmitter of {sender}, or fibre {lab.fibres[sender].name}"
        if before is not None and before.port == trunk.start:
            return f"light leaves {before.port} ({before.power:.1f} dBm) but does not arrive at {here.port}: trunk {trunk.name}"
        return f"no light arrives at {here.port}: trunk {trunk.name}, or {trunk.start.device} before it, which has no meter"


async def measure(
    devices: Mapping[DeviceName, CircuitSwitch],
    lab: Lab,
    circuits: Iterable[Circuit],
    held: Held | None = None,
    *,
    silent: Collection[str] = (),
) -> tuple[Reading, ...]:
    """Ask every device on these circuits for power, all at once. `held`: what the devices hold, for
    the attenuation set there.

    silent: devices not to be asked because they do not answer; they count as devices without
    meters.

    Raises: as `PowerMeter.power`.
    """
    circuits = tuple(circuits)
    existing = {
        without_attenuation(setting): setting
        for settings in (held or {}).values()
        for setting in settings
    }
    wanted: dict[DeviceName, set[Port]] = {}
    for circuit in circuits:
        for setting in circuit.path:
            device = setting.ingress.device
            ports = wanted.setdefault(device, set())
            ports |= {setting.ingress, setting.egress}
            if device in lab.duplex:
                ports.add(_entering(setting.ingress, lab))

    async def ask(name: DeviceName, ports: set[Port]) -> tuple[DeviceName, Mapping[Port, Dbm]]:
        device = devices[name]
        return name, (
            await device.power(ports)
            if isinstance(device, PowerMeter) and name not in silent
            else {}
        )

    power = dict(await asyncio.gather(*(ask(name, ports) for name, ports in wanted.items())))
    users = Counter(
        side for circuit in circuits for setting in circuit.path for side in _sides(setting)
    )
    readings = []
    for circuit in circuits:
        path = tuple(
            existing.get(without_attenuation(setting), setting) for setting in circuit.path
        )
        points, meters = [], [0.0]
        for setting in path:
            device = setting.ingress.device
            if not (found := power[device]):
                continue  # the model has no meters
            meters.append(lab.traits_of(device).meter_db)
            points.append(
                MeterPoint(
                    "in",
                    setting.ingress,
                    found.get(_entering(setting.ingress, lab)),
                    users[_sides(setting)[0]] == 1,
                )
            )
            points.append(
                MeterPoint(
                    "out", setting.egress, found.get(setting.egress), users[_sides(setting)[1]] == 1
                )
            )
        missing = (
            ()
            if held is None
            else tuple(
                s
                for s in path
                if s.ingress.device in held and without_attenuation(s) not in existing
            )
        )
        readings.append(
            Reading(circuit, path, tuple(points), _expected(path, lab), max(meters), missing)
        )
    return tuple(readings)


def _entering(port: Port, lab: Lab) -> Port:
    """The entering side of an ingress port, where it is one side of a duplex port
    (`PowerMeter.power`).
    """
    return Port(port.device, f"{port.label}:in") if port.device in lab.duplex else port


def _sides(setting: Setting) -> tuple[tuple[str, Port], tuple[str, Port]]:
    return ("in", setting.ingress), ("out", setting.egress)


def _expected(path: tuple[Setting, ...], lab: Lab) -> Db:
    loss = sum(lab.pass_loss_db(x) for x in path)
    loss += sum(x.attenuation_db for x in path if isinstance(x, SpectralRoute))
    loss += sum(lab.onward[x.egress].loss_db for x in path[:-1] if x.egress in lab.onward)
    return round(loss, 2)


def keep(
    readings: Iterable[Reading],
    store: Store,
    lab: str,
    run: str = "",
    journal: Journal | None = None,
) -> None:
    """Record the readings: one row per circuit in the store, one `optical` point per port in the
    journal.
    """
    found = [r for r in readings if r.points]
    now = time.time()
    if found:
        add_light(store, lab, run, (point_of(r, now) for r in found))
    if journal is not None:
        record_light(found, journal)


def record_light(readings: Iterable[Reading], journal: Journal) -> int:
    """Write one `optical` point per port that was read; return how many."""
    ports = _by_port(readings)
    for port, fields in sorted(ports.items()):
        journal.point(
            "optical",
            {"device": port.device, "port": port.label},
            {"rx_dbm": fields.get("in"), "tx_dbm": fields.get("out")},
        )
    return len(ports)


def point_of(reading: Reading, at: float) -> LightPoint:
    """The reading as the store keeps it; deliberate attenuation is not a loss."""
    loss = reading.loss_db
    net = None if loss is None else round(loss - reading.attenuation_db, 2)
    return LightPoint(
        str(reading.circuit), reading.path_text, at, reading.in_dbm, reading.out_dbm, net
    )


def _by_port(readings: Iterable[Reading]) -> Mapping[Port, Mapping[str, Dbm]]:
    found: dict[Port, dict[str, Dbm]] = {}
    for point in (point for r in readings for point in r.points):
        if point.power is not None:
            found.setdefault(point.port, {})[point.side] = point.power
    return found


@dataclass(frozen=True, slots=True)
class LossDrift:
    """How one circuit's loss changed since it was first measured, over the same path (dB).

    repeatability_db: change that reconnection may cause. meter_db: the meters' specified accuracy,
    +-; a constant bias cancels between two readings, so a smaller change is worth checking, and a
    larger one is certain.
    """

    circuit: str
    path: str
    points: tuple[LightPoint, ...]
    repeatability_db: Db
    meter_db: Db

    @property
    def change_db(self) -> Db:
        return round((self.points[-1].loss_db or 0.0) - (self.points[0].loss_db or 0.0), 2)

    @property
    def beyond(self) -> bool:
        return abs(self.change_db) > self.repeatability_db

    @property
    def certain(self) -> bool:
        return abs(self.change_db) > self.repeatability_db + 2 * self.meter_db


def drifts(points: Iterable[LightPoint], lab: Lab) -> Iterator[LossDrift]:
    """Group measurements by circuit and path, oldest first."""
    groups: dict[tuple[str, str], list[LightPoint]] = {}
    for point in points:
        if point.loss_db is not None:
            groups.setdefault((point.circuit, point.path), []).append(point)
    for (circuit, path), group in sorted(groups.items()):
        devices = [name for word in path.split() if (name := word.partition(":")[0]) in lab.devices]
        meter = max((lab.traits_of(name).meter_db for name in devices), default=0.0)
        yield LossDrift(
            circuit, path, tuple(group), round(REPEATABILITY_DB * max(len(devices), 1), 2), meter
        )
