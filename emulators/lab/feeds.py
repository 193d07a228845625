"""The light that arrives at each ingress of each device: from the hosts' fibres and, over trunks,
from other devices.

So power meters behind a device show the light that it passes, and light too weak to pass it is
missing further on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from emulators.devices.server import DeviceServer
from emulators.fabric.fibre_plant import FibrePlant, HostPort, Plug
from emulators.inventory.config import Fibre, LabConfig, Trunk
from emulators.optics.light import Beam, coupler_loss_db

LASER_DBM = 0.0  # power that a host's transmitter puts into its fibre


class Feeds:
    """Keeps the inputs of `servers` true while fibres are cut and transmitters fall silent, both as
    `fibre_plant` knows them.
    """

    def __init__(
        self, config: LabConfig, servers: Mapping[str, DeviceServer], fibre_plant: FibrePlant
    ) -> None:
        self._servers, self._fibre_plant = servers, fibre_plant
        self._fibres = config.fibres
        self._entering = self._plugged()
        self._leaving: dict[str, list[Trunk]] = {}
        for trunk in config.trunks:
            self._leaving.setdefault(trunk.source[0], []).append(trunk)

    def start(self) -> None:
        """Set the inputs before the devices start; the trunks are dark until their devices report
        light.
        """
        for plug in self._entering:
            self._servers[plug[0]].plant.set_beams(plug[1], self._arriving(plug))
        for device, trunks in self._leaving.items():
            self._servers[device].on_light = self._onward
            for trunk in trunks:
                self._servers[trunk.target[0]].plant.set_beams(trunk.target[1], ())

    def refresh(self, cable: Fibre | Trunk) -> None:
        """Update the light that arrives through `cable`."""
        if isinstance(cable, Trunk):
            self._feed(cable, asyncio.get_running_loop().time())
            return
        self._emit(self._plug(cable))

    def moved(self) -> None:
        """Check where the fibres are plugged in now, and update the light that arrives there."""
        before, self._entering = self._entering, self._plugged()
        for plug in sorted({*before, *self._entering}):
            if before.get(plug) != self._entering.get(plug):
                self._emit(plug)

    def _plug(self, fibre: Fibre) -> Plug:
        strand = self._fibre_plant.strands[fibre.name]
        return (strand.device, strand.enters)

    def _plugged(self) -> dict[Plug, list[Fibre]]:
        found: dict[Plug, list[Fibre]] = {}
        for fibre in self._fibres:
            found.setdefault(self._plug(fibre), []).append(fibre)
        return found

    def _emit(self, plug: Plug) -> None:
        server = self._servers[plug[0]]
        server.plant.set_beams(plug[1], self._arriving(plug))
        server.changed()

    def _arriving(self, plug: Plug) -> tuple[Beam, ...]:
        """Return the light of the fibres at `plug`; several are joined by a passive coupler."""
        fibres = self._entering.get(plug, [])
        if not fibres:
            return ()
        coupler_db = coupler_loss_db(len(fibres))
        return tuple(
            Beam(LASER_DBM - fibre.loss_db - coupler_db, *(fibre.slot or ()))
            for fibre in fibres
            if fibre.name not in self._fibre_plant.cut
            and HostPort(fibre.host, fibre.port) not in self._fibre_plant.silent
        )

    def _onward(self, device: str, now: float) -> None:
        for trunk in self._leaving[device]:
            self._feed(trunk, now)

    def _feed(self, trunk: Trunk, now: float) -> None:
        (device, egress), (other, ingress) = trunk.source, trunk.target
        beams: tuple[Beam, ...] = ()
        if trunk.name not in self._fibre_plant.cut:
            beams = tuple(
                beam.weaker(trunk.loss_db)
                for beam in self._servers[device].plant.leaving(egress, now)
            )
        server = self._servers[other]
        version = server.plant.version
        server.plant.set_beams(ingress, beams)
        if server.plant.version != version:
            server.changed()
