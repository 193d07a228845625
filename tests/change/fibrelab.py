"""Labs of wavelength-selective and of joined devices for the tests, and devices that hold what they
are told and know its light.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from drivers.api import Ready, at_once
from optics import (
    Change,
    CrossConnect,
    Dbm,
    FrequencySlot,
    Identity,
    Outcome,
    Port,
    Progress,
    Setting,
    SpectralRoute,
    Traits,
    clash,
)
from orchestrator.inventory.lab import Lab, read_lab

ROADM = Traits(
    settle_s=0.01,
    insertion_loss_db=4.0,
    spectral=True,
    directions=((r"41\d\d", "4201"), ("5101", r"52\d\d")),
    meter_db=0.5,
)
SELECT = Traits(settle_s=0.01, insertion_loss_db=5.0, spectral=True, directions=(("in", r"\d+"),))
SWITCH = Traits(settle_s=0.01)
WIDE = 8  # slots of the tests lie this many steps of 6.25 GHz apart, and are 4 x 12.5 GHz wide


def slot(number: int) -> FrequencySlot:
    return FrequencySlot.flexgrid(-280 + WIDE * number, 4)


def hosts_yml(count: int, ports: int = 1) -> str:
    lines = ["all:", "  hosts:"]
    for number in range(1, count + 1):
        named = ", ".join(f"{p}: {{interface: opt{p}}}" for p in range(1, ports + 1))
        lines.append(
            f"    gpu{number:02d}: {{testbed_host_id: {number}, testbed_ports: {{{named}}}}}"
        )
    return "\n".join(lines) + "\n"


def read(
    hosts: str, devices: Mapping[str, Traits], fibres: Iterable[str], trunks: Iterable[str] = ()
) -> Lab:
    entries = [
        f'  {name}: {{driver: polatis-scpi, address: "tcp://127.0.0.1:{5000 + i}"}}'
        for i, name in enumerate(devices)
    ]
    listed = {"fibres": list(fibres), "trunks": list(trunks)}
    lines = [
        line
        for key, texts in listed.items()
        for line in (f"{key}:", *(f"  - {{{t}}}" for t in texts), *([] if texts else ["  []"]))
    ]
    return read_lab(
        hosts, "\n".join(["lab: made", "devices:", *entries]) + "\n", "\n".join(lines) + "\n"
    ).with_traits(devices)


def roadm(hosts: int = 4, *, slots: Mapping[int, str] | None = None) -> Lab:
    """A ROADM-20: host k sends slot k into 41kk and hears 52kk; a trunk joins the multiplexer to
    the demultiplexer.
    """
    given = slots or {k: f", slot: {{n: {-280 + WIDE * k}, m: 4}}" for k in range(1, hosts + 1)}
    fibres = [
        f'name: f{k}, host: gpu{k:02d}, port: 1, device: wss1, enters: "41{k:02d}", leaves: "52{k:02d}"{given[k]}'
        for k in range(1, hosts + 1)
    ]
    trunk = 'name: t1, from: {device: wss1, port: "4201"}, to: {device: wss1, port: "5101"}, loss_db: 0.7'
    return read(hosts_yml(hosts), {"wss1": ROADM}, fibres, [trunk])


def select(hosts: int = 4) -> Lab:
    """Broadcast and select: a coupler joins all transmitters into "in"; host k hears egress k."""
    fibres = [
        f'name: f{k}, host: gpu{k:02d}, port: 1, device: wss1, enters: "in", leaves: "{k}", slot: {{n: {-280 + WIDE * k}, m: 4}}'
        for k in range(1, hosts + 1)
    ]
    return read(hosts_yml(hosts), {"wss1": SELECT}, fibres)


def joined(hosts: int = 4, trunks: int = 2, ports: int = 1) -> Lab:
    """Two switches with trunks both ways: odd hosts at west, even ones at east. Hosts enter at 1..
    and leave at 101..
    """
    fibres = [
        f'name: f{k}, host: gpu{k:02d}, port: 1, device: {"west" if k % 2 else "east"}, enters: "{k}", leaves: "{100 + k}"'
        for k in range(1, hosts + 1)
    ]
    between = []
    for t in range(1, trunks + 1):
        for name, a, b in (("we", "west", "east"), ("ew", "east", "west")):
            start, end = (
                f'{{device: {a}, port: "{900 + t}"}}',
                f'{{device: {b}, port: "{800 + t}"}}',
            )
            between.append(f"name: {name}{t}, from: {start}, to: {end}, loss_db: {0.5 + t / 10}")
    return read(hosts_yml(hosts, ports), {"west": SWITCH, "east": SWITCH}, fibres, between)


class FibrePlant:
    """What joins the fake devices of a lab: light from every transmitter, followed through what
    they hold.
    """

    def __init__(self, lab: Lab, launched_dbm: float = 0.0) -> None:
        self.lab, self.launched_dbm = lab, launched_dbm
        self.devices = {name: Device(name, lab.traits_of(name), self) for name in lab.devices}
        self.extra_db: dict[Port, float] = {}

    def at(self) -> dict[tuple[str, Port], Dbm]:
        """Total power at every side that light reaches, dBm."""
        found: dict[tuple[str, Port], float] = {}

        def add(side: str, port: Port, dbm: float) -> None:
            found[side, port] = found.get((side, port), 0.0) + 10 ** (dbm / 10)

        for fibre in self.lab.fibres.values():
            at: Port | None = fibre.enters
            dbm = self.launched_dbm - fibre.loss_db
            while at is not None:
                dbm -= self.extra_db.get(at, 0.0)
                add("in", at, dbm)
                held = self.devices[at.device].held
                setting = next(
                    (s for s in held if s.ingress == at and _through(s, fibre.slot)), None
                )
                if setting is None:
                    break
                dbm -= self.lab.insertion_loss_db(at.device)
                dbm -= setting.attenuation_db if isinstance(setting, SpectralRoute) else 0.0
                add("out", setting.egress, dbm)
                trunk = self.lab.onward.get(setting.egress)
                dbm -= trunk.loss_db if trunk else 0.0
                at = trunk.end if trunk else None
        return {key: 10 * math.log10(mw) for key, mw in found.items()}


def _through(setting: Setting, light: FrequencySlot | None) -> bool:
    return isinstance(setting, CrossConnect) or (light is not None and setting.slot.holds(light))


class Device:
    """A device that obeys, refuses what excludes what it holds, and measures."""

    def __init__(self, name: str, traits: Traits, light: FibrePlant) -> None:
        self.name, self.traits, self.light = name, traits, light
        self.held: frozenset[Setting] = frozenset()
        self.writes = 0
        self.max_attenuation_db = 15.0

    async def identify(self) -> Identity:
        return Identity("Acme", "X", "1", "1", (), ())

    async def read(self) -> frozenset[Setting]:
        await asyncio.sleep(0)
        return self.held

    async def apply(self, change: Change, ready: Ready = at_once) -> Outcome:
        await ready()
        self.writes += len(change.remove) + len(change.add)
        assert change.remove <= self.held, f"{self.name}: asked to remove what is not there"
        after = set(self.held - change.remove)
        failed = {}
        for setting in change.add:
            if other := next((s for s in after if clash(s, setting)), None):
                failed[setting] = f"excluded by {other}"
            elif (
                isinstance(setting, SpectralRoute)
                and setting.attenuation_db > self.max_attenuation_db
            ):
                failed[setting] = "attenuation out of range"
            else:
                after.add(setting)
        self.held = frozenset(after)
        return Outcome(
            self.name, self.held, 1, 1, 1, 1, len(change.remove) + len(change.add), failed
        )

    async def power(self, ports: Iterable[Port]) -> Mapping[Port, Dbm]:
        if not self.traits.meter_db:
            return {}
        light = self.light.at()
        found = {}
        for port in ports:
            for side in ("in", "out"):
                if (side, port) in light:
                    found[port] = round(light[side, port], 2)
        return found

    async def close(self) -> None:
        pass


class Robot(Device):
    """A panel whose arm makes one move after the other and says so."""

    on_progress: Callable[[Progress], None] = staticmethod(lambda progress: None)

    async def apply(self, change: Change, ready: Ready = at_once) -> Outcome:
        await ready()
        total = len(change.remove) + len(change.add)
        for done in range(1, total + 1):
            await asyncio.sleep(0.001)
            self.on_progress(
                Progress(
                    self.name, done, total, (total - done) * self.traits.settle_s, f"move {done}"
                )
            )
        return await super().apply(change)


def with_meters(traits: Traits, meter_db: float = 1.0) -> Traits:
    return replace(traits, meter_db=meter_db)
