"""What a rehearsal needs to know of a lab, read from its devices and hosts; nothing is written to
either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from drivers.api import PortControl, PortHolders, PowerMeter
from optics import Dbm, DeviceName, HostName, Identity, Port, PortState, TestbedError
from optics.values import short
from orchestrator.fabric.lightpath import Held
from orchestrator.hosts import Hello
from orchestrator.inventory.lab import Lab
from orchestrator.session import Session
from orchestrator.verify.power import LOS_DBM


@dataclass(frozen=True, slots=True)
class LabReading:
    """One lab as it answered. A device or host that did not answer and is not needed is absent from
    all of it.

    power: what the meters of cabled ports read (dBm), by port; the side of a duplex port where
    light enters as in `entering`. states: ports that are shut or failed. dark: labels of ports into
    which no light comes, by the device's own meters. holders: entries that hold ports without being
    settings, in words. notes: what could not be read.
    """

    identities: Mapping[DeviceName, Identity]
    settings: Held
    hellos: Mapping[HostName, Hello]
    states: Mapping[Port, PortState] = field(default_factory=dict)
    dark: frozenset[Port] = frozenset()
    holders: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    power: Mapping[Port, Dbm] = field(default_factory=dict)


async def read_running_lab(
    session: Session, needed: Collection[str], *, hosts: bool = True
) -> LabReading:
    """Read identity, settings, port states and power of every device and, unless `hosts` is false,
    greet every host.

    needed: devices and hosts that the change involves. Raises: Unreachable and the like - one of
    them does not answer.
    """
    seen = await session.observe(hosts=hosts)
    notes = seen.needing(needed)
    found = _Devices(session, frozenset(needed))
    await asyncio.gather(*(found.read(name) for name in seen.settings))
    settings = {name: held for name, held in seen.settings.items() if name in found.identities}
    return LabReading(
        found.identities,
        settings,
        seen.hellos,
        found.states,
        frozenset(found.dark),
        tuple(found.holders),
        (*notes, *found.notes),
        found.power,
    )


class _Devices:
    """What devices say beyond their settings."""

    def __init__(self, session: Session, needed: frozenset[str]) -> None:
        self.session, self.needed = session, needed
        self.identities: dict[DeviceName, Identity] = {}
        self.states: dict[Port, PortState] = {}
        self.dark: set[Port] = set()
        self.power: dict[Port, Dbm] = {}
        self.holders: list[str] = []
        self.notes: list[str] = []

    async def read(self, name: DeviceName) -> None:
        """Read one device. Raises: as its driver, if it is needed and does not say which ports it
        has.
        """
        device, lab = self.session.devices[name], self.session.lab
        try:
            self.identities[name] = await device.identify()
        except TestbedError as error:
            if name in self.needed:
                raise
            self.notes.append(f"{name} does not answer and is not needed: {error.line}")
            return
        ports = sorted(port for port in lab.cabled if port.device == name)
        if isinstance(device, PortHolders):
            self.holders += [
                f"{name}: {short(setting)} ({text})" for setting, text in device.holders().items()
            ]
        try:
            if isinstance(device, PortControl):
                states = await device.port_states(ports)
                self.states |= {
                    port: state for port, state in states.items() if state is not PortState.ENABLED
                }
            if isinstance(device, PowerMeter):
                sides = {entering(port, lab): port for port in ports}
                self.power |= (power := await device.power({*sides, *ports}))
                self.dark |= {
                    p
                    for side, p in sides.items()
                    if p in lab.transmitters and power.get(side, 0.0) < LOS_DBM
                }
        except TestbedError as error:
            self.notes.append(f"{name}: its port states and power were not read: {error.line}")


def entering(port: Port, lab: Lab) -> Port:
    """The side where light enters, as `PowerMeter.power` names it."""
    return Port(port.device, f"{port.label}:in") if port.device in lab.duplex else port
