"""What a driver adds to its device's own switching time: `apply` of 1, 24 and 320 cross-connects, and reading 320 back, per family.

    python benchmarks/driver_overhead.py [FAMILY...]
The devices are the emulated ones, in a process of their own, 320x320 where the family has such a size, all with the same
switching time for one circuit and for many. What is added is the time of `apply` less that switching time. Families whose
devices take a set in one command may add 20 ms; for the others each circuit costs a question, so they may add, besides,
circuits x the round trip measured on the same connection (one circuit made, the time between its command and the answer).
Robots move one fibre at a time in minutes: nothing to measure. The figure is the worst ratio of what is added to what may be.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import verdict
from conformance.lab import Lab, devices_lab, families, name_of
from drivers.api import CircuitSwitch
from drivers.link.tap import listening
from drivers.registry import built_in_drivers, open_device
from optics import Change, CrossConnect, Identity, Port, Setting, Slot, SpectralRoute

COUNTS, RUNS = (1, 24, 320), int(os.environ.get("BENCH_RUNS", "5"))
SETTLE_S, ADD_S, READ_S = 0.05, 0.020, 0.100
SIZE = "320x320"
ONE_BY_ONE = {
    "calient-tl1": "ENT-CRS and ACT-CRS name one connection each",
    "dicon-scpi": "X1 CH names one input",
    "sonic-ocs": "config ocs cross-connect add names one",
}
"""Families whose command names one circuit, with the command (devices.md for the sources)."""
NO_SIZE = {"waveshaper-http", "finisar-serial", "lumentum-netconf"}
LINE_SPEED = {"calient-tl1": {"row_delay_s": 0.0}}
"""What makes an emulator answer as fast as its line: a Calient's rows otherwise come at the pace of a real one."""


@dataclass
class Ear:
    """Counts the exchanges on a link and takes the time from each question to the last byte of its answer."""

    took_s: list[float] = field(default_factory=list)
    asked_s: float = 0.0
    heard_s: float = 0.0

    def __call__(self, direction: str, data: bytes) -> None:
        now = time.perf_counter()
        if direction == ">":
            self.end()
            self.asked_s, self.heard_s = now, 0.0
        elif self.asked_s:
            self.heard_s = now

    def end(self) -> None:
        """Close the exchange under way."""
        if self.asked_s and self.heard_s:
            self.took_s.append(self.heard_s - self.asked_s)
        self.asked_s = 0.0


def settings(device: str, identity: Identity, traits: Any) -> Iterator[Setting]:
    """Settings that do not exclude each other, as many as the faceplate has."""
    if not traits.spectral:
        leave = identity.egress[1:] + identity.egress[:1] if identity.ingress == identity.egress else identity.egress
        for a, b in zip(identity.ingress, leave, strict=False):
            yield CrossConnect(Port(device, a), Port(device, b))
        return
    common = max(identity.ingress, key=lambda label: sum(traits.joins(label, out) for out in identity.egress))
    ways = [out for out in identity.egress if traits.joins(common, out)]
    for k in range(90):
        # 50 GHz slots on the 50 GHz grid from 191.45 THz on; neighbours leave by different ports
        yield SpectralRoute(Port(device, common), Port(device, ways[k % len(ways)]), Slot.flexgrid(8 * (k - 33), 4))


async def change(device: CircuitSwitch, remove: frozenset[Setting], add: frozenset[Setting]) -> float:
    """Apply a change and return its seconds. Raises: RuntimeError - not all of it was made."""
    began = time.perf_counter()
    outcome = await device.apply(Change(device.name, remove, add))
    took = time.perf_counter() - began
    if outcome.failed or not add <= outcome.observed:
        raise RuntimeError(f"{device.name}: {len(outcome.failed)} failed: {list(outcome.failed.values())[:2]}")
    return took


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of circuits: seconds in all, added and allowed, exchanges, and seconds of a round trip."""

    circuits: int
    took_s: float
    may_s: float
    exchanges: int
    trip_s: float

    @property
    def added_s(self) -> float:
        return self.took_s - SETTLE_S


async def measure(driver: str, lab: Lab) -> tuple[list[Figure], float, int]:
    """Time a family's changes; return them, and the seconds of reading back and how many settings that were."""
    config = lab.devices[name_of(driver)]
    config = replace(config, traits={**config.traits, "settle_s": SETTLE_S})
    lab.truth(config.name).settle(SETTLE_S)
    device = open_device(config)
    figures = []
    try:
        identity = await device.identify()
        every = list(settings(config.name, identity, device.traits))
        counts = sorted({min(count, len(every)) for count in COUNTS})
        nothing: frozenset[Setting] = frozenset()
        trip_s = 0.0
        for count in counts:
            some = frozenset(every[:count])
            times = []
            for run in range(RUNS + 1):  # the first opens connections and fills caches
                ear = Ear()
                with listening(config.name, ear):
                    took = await change(device, nothing, some)
                ear.end()
                if run:
                    times.append(took)
                    trip_s = trip_s or statistics.median(ear.took_s)
                await change(device, some, nothing)
            may_s = ADD_S + (count * trip_s if driver in ONE_BY_ONE else 0.0)
            figures.append(Figure(count, statistics.median(times), may_s, len(ear.took_s), trip_s))
        await change(device, nothing, frozenset(every[: counts[-1]]))
        reads = []
        for _ in range(RUNS):
            began = time.perf_counter()
            found = await device.read()
            reads.append(time.perf_counter() - began)
        if len(found) != counts[-1]:
            raise RuntimeError(f"{config.name}: {len(found)} circuits read, {counts[-1]} made")
        return figures, statistics.median(reads), len(found)
    finally:
        await device.close()


def main() -> int:
    known = families()
    asked = sys.argv[1:] or [driver for driver in built_in_drivers() if driver in known]
    worst = worst_read = 0.0
    more: dict[str, object] = {}
    broken = []
    for driver in asked:
        if known[driver]["time_scale"] != 1:
            print(f"{driver:<18} a robot: moves one fibre at a time, in minutes", flush=True)
            continue
        size: dict[str, object] = {} if driver in NO_SIZE else {"size": SIZE}
        with devices_lab([driver], emulated={driver: size | LINE_SPEED.get(driver, {})}) as lab:
            try:
                figures, read_s, held = asyncio.run(measure(driver, lab))
            except Exception as error:
                print(f"{driver:<18} {type(error).__name__}: {str(error)[:300]}", flush=True)
                broken.append(driver)
                continue
        for f in figures:
            worst = max(worst, f.added_s / f.may_s)
            parts = f"added {f.added_s * 1e3:7.1f} ms of {f.may_s * 1e3:7.1f}, ratio {f.added_s / f.may_s:6.2f}"
            print(
                f"{driver:<18} {f.circuits:4d} circuits {f.took_s * 1e3:8.1f} ms, {parts}"
                f"   {f.exchanges} exchanges, round trip {f.trip_s * 1e3:.2f} ms",
                flush=True,
            )
        may_s = READ_S + (held * figures[0].trip_s if driver == "dicon-scpi" else 0.0)  # a question for each input
        worst_read = max(worst_read, read_s / may_s)
        print(f"{driver:<18} read {held} in {read_s * 1e3:6.1f} ms of {may_s * 1e3:.0f}", flush=True)
        more[driver] = [round(f.added_s * 1e3, 1) for f in figures] + [round(read_s * 1e3, 1)]
    return verdict(
        "driver_overhead",
        max(worst, worst_read),
        "x",
        1.0,
        "at most",
        also=not broken,
        worst_read=round(worst_read, 3),
        added_and_read_ms=more,
        broken=broken,
    )


if __name__ == "__main__":
    sys.exit(main())
