"""A world with wavelengths: beside the two switches a wavelength-selective switch, which
everybody's light enters at one port.

It is a Finisar module behind a terminal server: its serial protocol as it is, over plain TCP. A
coupler joins the light of hosts, each in a channel of its own next to the others'; a route takes
one channel to one host. Every change sends the map of all channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

from tests.sim import lab
from tests.sim.agents import SimHost
from tests.sim.devices import Circuit, SimDevice
from tests.sim.lab import DRIVERS, HOSTS, PATIENCE_S, PORTS, SETTLE_S, SILENCE_S, World

WSS, AT = "wss1", PORTS + 1
"""The device, and the port of every host that is wired to it."""
FIRST_N, CHANNEL_N = -280, 8
"""n of ITU-T G.694.1 of its first channel, and how much further the next one is: 50 GHz."""
FOREIGN_CHANNEL, FOREIGN_PORT = HOSTS + 1, "9"
"""Next to the hosts' own."""


def channel(number: int) -> tuple[int, int]:
    """The edges (MHz) of a channel that counts from 1."""
    centre_mhz = 193_100_000 + (FIRST_N + CHANNEL_N * (number - 1)) * 6_250
    return centre_mhz - 25_000, centre_mhz + 25_000


def with_wavelengths(inventory: Any) -> Any:
    """The function, which writes a port more for every host, and the device."""

    def write(folder: Path, ports: Any) -> None:
        inventory(folder, {name: number for name, number in ports.items() if name != WSS})
        hosts = folder / "hosts.yml"
        last = f"{PORTS}: {{interface: opt{PORTS}}}"
        hosts.write_text(hosts.read_text().replace(last, f"{last}, {AT}: {{interface: opt{AT}}}"))
        with (folder / "devices.yml").open("a") as file:
            timing = f'timeout_s: {SILENCE_S}, traits: {{settle_s: {SETTLE_S}}}, options: {{patience_s: "{PATIENCE_S}"}}'
            file.write(
                f'  {WSS}: {{driver: finisar-serial, address: "tcp://127.0.0.1:{ports[WSS]}", {timing}}}\n'
            )
        with (folder / "fibres.yml").open("a") as file:
            for host in range(1, HOSTS + 1):
                slot = f"{{n: {FIRST_N + CHANNEL_N * (host - 1)}, m: 4}}"
                where = f'host: gpu{host:02d}, port: {AT}, device: {WSS}, enters: "in", leaves: "{host}"'
                file.write(f"  - {{name: f{host}-{AT}, {where}, slot: {slot}}}\n")

    return write


class Wss(SimDevice):
    """The wavelength-selective switch."""

    @property
    def foreign(self) -> Circuit:
        return ("in", FOREIGN_PORT, *channel(FOREIGN_CHANNEL))

    def reported(self, settle_s: float, boot_s: float) -> Mapping[str, Any]:
        return {"settle_s": settle_s, "boot_s": boot_s, "size": "1x9"}

    def lines(self, text: str) -> list[str]:
        return text.split("\n")

    def make(self) -> None:
        self.server.dialect.preset(FOREIGN_CHANNEL, (FOREIGN_PORT, 0.0))

    def held(self) -> set[Circuit]:
        return {one.band for one in self.plant.bands()}

    def shown(self, now: float) -> list[frozenset[Circuit]]:
        # what is leaving is there still
        return [*super().shown(now), frozenset(self.plant.shown(now))]


class RoadmWorld(World):
    """See the module."""

    drivers: ClassVar = {**DRIVERS, WSS: "finisar-serial"}
    kinds: ClassVar = {"finisar-serial": Wss}

    def __init__(self, *argv: Any) -> None:
        super().__init__(*argv)
        self.senders: dict[str, str] = {}
        """Who is heard at a port that wavelengths lead to."""

    async def start(self, judges: Any) -> None:
        with patch.object(lab, "inventory", with_wavelengths(lab.inventory)):
            await super().start(judges)

    def sender(self, port: str) -> str:
        """Whose light reaches a port over a wavelength; empty if nobody's does."""
        leaves = self.cables[port].leaves
        comes = [slot for _, out, *slot in self.light[WSS] if out == leaves.label]
        for end, fibre in self.lab.fibres.items():
            if fibre.slot is not None and any(
                low <= fibre.slot.low_mhz and fibre.slot.high_mhz <= high for low, high in comes
            ):
                return end.host
        return ""

    def lit(self, port: str) -> bool:
        if self.cables[port].leaves.device != WSS:
            return super().lit(port)
        sender = self.sender(port)
        return bool(sender) and self.hosts[sender].power

    def _lights(self) -> None:
        super()._lights()
        for end, fibre in self.lab.fibres.items():
            if fibre.slot is None:
                continue
            was, sender = self.senders.get(str(end), ""), self.sender(str(end))
            self.senders[str(end)] = sender
            # one upload changes who is heard without a moment of darkness
            if was and sender and was != sender:
                self.loop.later(
                    self.rng.uniform(1e-4, 2e-3),
                    self._locks_again,
                    str(end),
                    self.hosts[end.host],
                    end.number,
                )

    def _locks_again(self, port: str, host: SimHost, number: int) -> None:
        """A receiver loses its lock on another's light before it has one again."""
        host.sees(number, False)
        host.sees(number, self.lit(port))

    def wanted(self, links: Any) -> dict[str, set[Circuit]]:
        far = [link for link in links if self.cables[link[0]].enters.device == WSS]
        found = super().wanted([link for link in links if link not in far])
        for a, b in far:
            for one, other in ((a, b), (b, a)):
                slot = self.cables[one].slot
                found[WSS].add(("in", self.cables[other].leaves.label, slot.low_mhz, slot.high_mhz))
        return found
