"""What a driver adds to its device's own switching time: `apply` of 1, 24 and 320 cross-connects, and reading 320 back, per family.

    python benchmarks/driver_overhead.py [FAMILY...]
The devices are the emulated ones, in a process of their own, 320x320 where the family has such a size, all with the same
switching time for one circuit and for many. What is added is the time of `apply` less that switching time. It may be

- 20 ms where the device takes a set in one command (some, a few: its longest line), whatever the number;
- 20 ms and one round trip per command where a command names one circuit (`ONE_BY_ONE`): the time from one question to the next of
  those that follow each other at once, divided by the commands that were sent together;
- in both cases the reading of the map before the change and after it where the map is a long answer or many (`LONG_MAP`), and
  reading itself may take 100 ms where the device answers at line speed, of a DiCon a round trip per input.

Robots move one fibre at a time in minutes: nothing to measure. The figure is the worst ratio of what is taken to what may be.
Where it may, the benchmark runs at real-time priority, so that what else a shared machine does is not measured.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import undisturbed, verdict
from conformance.lab import Lab, devices_lab, families, name_of
from drivers.api import CircuitSwitch
from drivers.link.tap import listening
from drivers.registry import built_in_drivers, open_device
from optics import Change, CrossConnect, Identity, Port, Setting, Slot, SpectralRoute

COUNTS, RUNS = (1, 24, 320), int(os.environ.get("BENCH_RUNS", "5"))
SETTLE_S, ADD_S, READ_S = 0.05, 0.020, 0.100
SIZE = "320x320"
ONE_BY_ONE = {
    "calient-tl1": (2, "ENT-CRS and ACT-CRS name one connection each (Quali's captures)"),
    "dicon-scpi": (1, "X1 CH names one input (autosweep)"),
    "polatis-restconf": (1, "PUT of pair=N makes one; PUT of the whole map would replace everybody's, so it takes an option"),
    "polatis-tl1": (1, "ENT-PATCH names one patch (Quali's templates)"),
    "sonic-ocs": (1, "config ocs cross-connect add names one (sonic-mgmt)"),
}
"""Families whose command names one circuit: how many commands a circuit takes, and which."""
LONG_MAP = {
    "calient-rest": "crossconnects/?id=list tells halves, states and losses of every connection: 82 kB",
    "dicon-scpi": "X1 CH n? tells of one input: 320 questions",
    "glimmerglass-tl1": "rtrv-crs-fiber has 18 fields in each of 640 rows: 148 kB",
    "lumentum-netconf": "a connection is a tree of settings and channel powers: 56 kB for 90",
    "polatis-netconf": "XML: 18 kB, which both sides take apart into 960 elements",
    "waveshaper-http": "a profile has a row for every GHz, whatever it lets through: 115 kB",
}
"""Families whose map takes long to ask for, with the reason."""
IN_BULK = {"polatis-restconf": {"bulk_from": "2"}}
"""Options that let a family of `ONE_BY_ONE` take a set in one command: measured besides."""
NO_SIZE = {"waveshaper-http", "finisar-serial", "lumentum-netconf"}
LINE_SPEED: dict[str, dict[str, object]] = {
    "calient-tl1": {"row_delay_s": 0.0},
    "glimmerglass-tl1": {"row_delay_s": 0.0},
    "sonic-ocs": {"apply_s": 0.0},
}
"""What makes an emulator answer and begin as fast as its line: otherwise rows of the first two come at the pace of a real one, and
a SONiC's daemon takes its time from the configuration to the hardware."""


@dataclass
class Ear:
    """Notes when questions were sent on a link, and how many at a time (TL1: a `;` ends each)."""

    asked: list[tuple[float, int]] = field(default_factory=list)

    def __call__(self, direction: str, data: bytes) -> None:
        if direction == ">":
            self.asked.append((time.perf_counter(), max(1, data.count(b";"))))

    @property
    def trip_s(self) -> float:
        """The mean time (s) from one question to the next, 0 if there were not two; what is ten times the usual was a wait."""
        times = [(later - at) / count for (at, count), (later, _) in pairwise(self.asked)]
        return statistics.fmean(t for t in times if t <= 10 * statistics.median(times)) if times else 0.0


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
    """One number of circuits: seconds in all, and exchanges."""

    circuits: int
    took_s: float
    exchanges: int

    @property
    def added_s(self) -> float:
        return self.took_s - SETTLE_S


@dataclass(frozen=True, slots=True)
class Family:
    """What was measured of one: changes, seconds from question to question, seconds of reading, settings that were read."""

    driver: str
    bulk: bool
    changes: list[Figure]
    trip_s: float
    read_s: float
    held: int

    def may_add_s(self, circuits: int) -> float:
        each_s = 0.0 if self.bulk else circuits * ONE_BY_ONE[self.driver][0] * self.trip_s
        return ADD_S + each_s + (2 * self.read_s if self.driver in LONG_MAP else 0.0)

    @property
    def may_read_s(self) -> float:
        return max(READ_S, self.held * self.trip_s if self.driver == "dicon-scpi" else 0.0)


async def measure(driver: str, lab: Lab, options: dict[str, str]) -> Family:
    """Time a family's changes and its reading."""
    config = lab.devices[name_of(driver)]
    config = replace(config, traits={**config.traits, "settle_s": SETTLE_S}, options={**config.options, **options})
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
            times, trips = [], []
            for run in range(RUNS + 1):  # the first opens connections and fills caches
                ear = Ear()
                with listening(config.name, ear):
                    took = await change(device, nothing, some)
                if run:
                    times.append(took)
                    trips.append(ear.trip_s)
                await change(device, some, nothing)
            trip_s = statistics.median(trips)  # of the largest number: there most questions follow each other at once
            figures.append(Figure(count, statistics.median(times), len(ear.asked)))
        await change(device, nothing, frozenset(every[: counts[-1]]))
        reads = []
        for _ in range(RUNS):
            began = time.perf_counter()
            found = await device.read()
            reads.append(time.perf_counter() - began)
        if len(found) != counts[-1]:
            raise RuntimeError(f"{config.name}: {len(found)} circuits read, {counts[-1]} made")
        bulk = driver not in ONE_BY_ONE or bool(options)
        return Family(driver, bulk, figures, trip_s, statistics.median(reads), len(found))
    finally:
        await device.close()


def main() -> int:
    known = families()
    asked = sys.argv[1:] or [driver for driver in built_in_drivers() if driver in known]
    undisturbed()
    worst = worst_read = 0.0
    more: dict[str, object] = {}
    broken = []
    for driver in asked:
        if known[driver]["time_scale"] != 1:
            print(f"{driver:<18} a robot: moves one fibre at a time, in minutes", flush=True)
            continue
        size: dict[str, object] = {} if driver in NO_SIZE else {"size": SIZE}
        for options in ({}, IN_BULK[driver]) if driver in IN_BULK else ({},):
            name = f"{driver} (bulk)" if options else driver
            with devices_lab([driver], emulated={driver: size | LINE_SPEED.get(driver, {})}) as lab:
                try:
                    found = asyncio.run(measure(driver, lab, options))
                except Exception as error:
                    print(f"{name:<23} {type(error).__name__}: {str(error)[:300]}", flush=True)
                    broken.append(name)
                    continue
            for f in found.changes:
                may_s = found.may_add_s(f.circuits)
                worst = max(worst, f.added_s / may_s)
                parts = f"added {f.added_s * 1e3:6.1f} ms of {may_s * 1e3:6.1f}, ratio {f.added_s / may_s:5.2f}"
                print(
                    f"{name:<23} {f.circuits:4d} circuits {f.took_s * 1e3:7.1f} ms, {parts}   {f.exchanges} exchanges", flush=True
                )
            worst_read = max(worst_read, found.read_s / found.may_read_s)
            reading = f"read {found.held} in {found.read_s * 1e3:.1f} ms of {found.may_read_s * 1e3:.0f}"
            print(f"{name:<23} {reading}, {found.trip_s * 1e3:.2f} ms from question to question", flush=True)
            more[name] = [round(f.added_s * 1e3, 1) for f in found.changes] + [round(found.read_s * 1e3, 1)]
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
