"""What a driver adds to its device's own switching time: `apply` of 1, 24 and 320 cross-connects,
and reading 320 back, per family.

    python benchmarks/driver_overhead.py [FAMILY...] The devices are the emulated ones, in a process
of their own, 320x320 where the family has such a size, all with the same switching time for one
circuit and for many. What is added is the time of `apply` less that switching time. Limits are
counted in round trips measured in the same run, so that a slow machine or a slow hour is not taken
for a slow driver. Added may be

- 400 bare round trips (a line to a program that answers it, over the same loopback) where the
  device takes a set in one command (some, a few: its longest line), whatever the number;
- the same, and per command one round trip of the device's own and two bare ones, where a command
  names one circuit (`ONE_BY_ONE`); the device's own is what it took to answer a command in this
  change, divided by the commands that were sent together;
- 400 for each circuit where modules turn one after the other (`ROUNDS`), each with a switching time
  of its own;
- in all cases the reading of the map before the change and after it where the map is a long answer
  or many (`LONG_MAP`), as measured between the changes; and reading itself may take 2000 bare round
  trips where the device answers at line speed.

Robots move one fibre at a time in minutes, a Thorlabs OSW has two states and neither is dark:
nothing to measure. The figure is the worst ratio of what is taken to what may be, each the median
over the runs. Where it may, the benchmark runs at real-time priority, so that what else a shared
machine does is not measured.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.harness import undisturbed, verdict
from conformance.lab import Lab, devices_lab, families, name_of
from drivers.api import CircuitSwitch
from drivers.link.recorder import listening
from drivers.registry import built_in_drivers, open_device
from optics import Change, CrossConnect, FrequencySlot, Identity, Port, Setting, SpectralRoute

COUNTS, RUNS = (1, 24, 320), int(os.environ.get("BENCH_RUNS", "5"))
SETTLE_S = 0.05
ADD_TRIPS, READ_TRIPS = 400, 2000
"""Bare round trips that a change may add, and that a reading may take: 20 and 100 ms where one
takes 0.05 ms.
"""
SIZE = "320x320"
ONE_BY_ONE = {
    "calient-tl1": (2, "ENT-CRS and ACT-CRS name one connection each (Quali's captures)"),
    "dicon-mxs": (1, "ROUT<n>:SCAN names one input (manual)"),
    "dicon-scpi": (1, "X1 CH names one input (autosweep)"),
    "polatis-restconf": (
        1,
        "PUT of pair=N makes one; PUT of the whole map would replace everybody's, so it takes an option",
    ),
    "polatis-tl1": (1, "ENT-PATCH names one patch (Quali's templates)"),
    "sonic-ocs": (1, "config ocs cross-connect add names one (sonic-mgmt)"),
}
"""Families whose command names one circuit: how many commands a circuit takes, and which."""
LONG_MAP = {
    "calient-rest": "crossconnects/?id=list reports halves, states and losses of every connection: 82 kB",
    "dicon-mxs": "ROUT<n>:SCAN? reports one input: 64 questions",
    "dicon-scpi": "X1 CH n? reports one input: 320 questions, sixteen at a time",
    "glimmerglass-tl1": "rtrv-crs-fiber has 18 fields in each of 640 rows: 148 kB",
    "lumentum-netconf": "a connection is a tree of settings and channel powers: 56 kB for 90",
    "openroadm-netconf": "a route is a connection on four interfaces, each a tree",
    "polatis-netconf": "XML: 18 kB, which both sides take apart into 960 elements",
    "waveshaper-http": "a profile has a row for every GHz, whatever it lets through: 115 kB",
}
"""Families whose map takes long to ask for, with the reason."""
IN_BULK = {"polatis-restconf": {"bulk_from": "2"}}
"""Options that let a family of `ONE_BY_ONE` take a set in one command: measured in addition."""
NO_SIZE = {"waveshaper-http", "finisar-serial", "lumentum-netconf", "openroadm-netconf"}
ROUNDS = {
    "exfo-scpi": "no source says what becomes of a command while a module turns, so none is sent",
    "santec-scpi": "the same",
}
"""Families whose modules turn one after the other, with the reason."""
NEVER_DARK = {"thorlabs-osw"}
SIZES = {"dicon-mxs": "64x64", "exfo-scpi": "8x12", "santec-scpi": "16x24"}
"""Families that come in no such size."""
LINE_SPEED: dict[str, dict[str, object]] = {
    "calient-tl1": {"row_delay_s": 0.0},
    "glimmerglass-tl1": {"row_delay_s": 0.0},
    "sonic-ocs": {"apply_s": 0.0},
}
"""What makes an emulator answer and begin as fast as its line: otherwise rows of the first two come
at the pace of a real one, and a SONiC's daemon takes its time from the configuration to the
hardware."""


@dataclass
class Ear:
    """Records the requests on a link: how many commands at a time (TL1: a `;` ends each), and how
    long the answer took.
    """

    # kind, commands, sent, received
    asked: list[tuple[bytes, int, float, float]] = field(default_factory=list)

    def __call__(self, direction: str, data: bytes) -> None:
        now = time.perf_counter()
        if direction == ">":
            self.asked.append(
                (re.sub(rb"[0-9]+", b"", data[:24]), max(1, data.count(b";")), now, now)
            )
        elif self.asked:
            self.asked[-1] = (*self.asked[-1][:3], now)

    @property
    def trip_s(self) -> float:
        """The mean time (s) of an answer per command, of the kind that was sent most often: in a
        large change, the setting.
        """
        kind, _ = Counter(kind for kind, *_ in self.asked).most_common(1)[0]
        spans = [
            (count, received - sent) for which, count, sent, received in self.asked if which == kind
        ]
        return sum(took for _, took in spans) / sum(count for count, _ in spans)


def settings(device: str, identity: Identity, traits: Any) -> Iterator[Setting]:
    """Settings that do not exclude each other, as many as the faceplate has."""
    if not traits.spectral and traits.directions:
        for a in identity.ingress:
            yield CrossConnect(
                Port(device, a),
                Port(device, next(b for b in identity.egress if traits.joins(a, b))),
            )
        return
    if not traits.spectral:
        leave = (
            identity.egress[1:] + identity.egress[:1]
            if identity.ingress == identity.egress
            else identity.egress
        )
        for a, b in zip(identity.ingress, leave, strict=False):
            yield CrossConnect(Port(device, a), Port(device, b))
        return
    common = max(
        identity.ingress, key=lambda label: sum(traits.joins(label, out) for out in identity.egress)
    )
    exits = [out for out in identity.egress if traits.joins(common, out)]
    for k in range(90):
        # 50 GHz slots on the 50 GHz grid from 191.45 THz on; neighbours leave by different ports
        yield SpectralRoute(
            Port(device, common),
            Port(device, exits[k % len(exits)]),
            FrequencySlot.flexgrid(8 * (k - 33), 4),
        )


async def change(
    device: CircuitSwitch, remove: frozenset[Setting], add: frozenset[Setting]
) -> float:
    """Apply a change and return its seconds. Raises: RuntimeError - not all of it was made."""
    began = time.perf_counter()
    outcome = await device.apply(Change(device.name, remove, add))
    took = time.perf_counter() - began
    if outcome.failed or not add <= outcome.observed:
        raise RuntimeError(
            f"{device.name}: {len(outcome.failed)} failed: {list(outcome.failed.values())[:2]}"
        )
    return took


_ECHO = """
import asyncio

async def talk(reader, writer):
    while line := await reader.readline():
        writer.write(line)

async def serve():
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(serve())
"""


class Wire:
    """A line to a program that answers it: what a question costs on this machine at this time
    without any device or driver.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def trip_s(self, times: int = 20) -> float:
        """The median of `times` round trips (s)."""
        took = []
        for _ in range(times):
            began = time.perf_counter()
            self._socket.sendall(b"X1 CH 1?\n")
            while not self._socket.recv(64).endswith(b"\n"):
                pass
            took.append(time.perf_counter() - began)
        return statistics.median(took)

    def close(self) -> None:
        self._socket.close()


@contextmanager
def wire() -> Iterator[Wire]:
    """A bare wire and the program at its other end."""
    with subprocess.Popen(
        [sys.executable, "-c", _ECHO], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout
        found = Wire(int(program.stdout.readline()))
        try:
            yield found
        finally:
            found.close()
            program.kill()


@dataclass(frozen=True, slots=True)
class Run:
    """One change: seconds it took, of a reading right after it, of an answer to a command, of a
    bare round trip; exchanges.
    """

    took_s: float
    read_s: float
    trip_s: float
    bare_s: float
    exchanges: int


@dataclass(frozen=True, slots=True)
class Figure:
    """The runs of one number of circuits."""

    driver: str
    bulk: bool
    circuits: int
    runs: list[Run]

    @property
    def own_s(self) -> float:
        """The device's switching time (s) of the whole change."""
        return SETTLE_S * (self.circuits if self.driver in ROUNDS else 1)

    def may_add_s(self, run: Run) -> float:
        if self.driver in ROUNDS:
            return self.circuits * ADD_TRIPS * run.bare_s
        each_s = (
            0.0
            if self.bulk
            else self.circuits * ONE_BY_ONE[self.driver][0] * (run.trip_s + 2 * run.bare_s)
        )
        return (
            ADD_TRIPS * run.bare_s + each_s + (2 * run.read_s if self.driver in LONG_MAP else 0.0)
        )

    @property
    def ratio(self) -> float:
        return statistics.median(
            (run.took_s - self.own_s) / self.may_add_s(run) for run in self.runs
        )

    @property
    def read_ratio(self) -> float:
        return statistics.median(run.read_s / (READ_TRIPS * run.bare_s) for run in self.runs)

    def median_ms(self, number: str) -> float:
        return statistics.median(float(getattr(run, number)) for run in self.runs) * 1e3

    @property
    def added_ms(self) -> float:
        return self.median_ms("took_s") - self.own_s * 1e3


async def measure(driver: str, lab: Lab, options: dict[str, str], bare: Wire) -> list[Figure]:
    """Time a family's changes and its reading."""
    config = lab.devices[name_of(driver)]
    config = replace(
        config,
        traits={**config.traits, "settle_s": SETTLE_S},
        options={**config.options, **options},
    )
    lab.truth(config.name).settle(SETTLE_S)
    device = open_device(config)
    bulk = driver not in ONE_BY_ONE or bool(options)
    figures = []
    try:
        identity = await device.identify()
        every = list(settings(config.name, identity, device.traits))
        nothing: frozenset[Setting] = frozenset()
        for count in sorted({min(count, len(every)) for count in COUNTS}):
            some = frozenset(every[:count])
            runs = []
            for _ in range(RUNS + 1):  # the first opens connections and fills caches
                ear = Ear()
                before_s = bare.trip_s()
                with listening(config.name, ear):
                    took = await change(device, nothing, some)
                began = time.perf_counter()
                found = await device.read()
                read_s = time.perf_counter() - began
                if len(found) != count:
                    raise RuntimeError(f"{config.name}: {len(found)} circuits read, {count} made")
                runs.append(
                    Run(took, read_s, ear.trip_s, (before_s + bare.trip_s()) / 2, len(ear.asked))
                )
                await change(device, some, nothing)
                if driver in ROUNDS:
                    # a module is dark as soon as it begins to turn away
                    await asyncio.sleep(2 * SETTLE_S)
            figures.append(Figure(driver, bulk, count, runs[1:]))
    finally:
        await device.close()
    return figures


def main() -> int:
    known = families()
    asked = sys.argv[1:] or [driver for driver in built_in_drivers() if driver in known]
    undisturbed()
    worst = worst_read = 0.0
    more: dict[str, object] = {}
    bare_ms: list[float] = []
    broken = []
    with wire() as bare:
        for driver in asked:
            if known[driver]["time_scale"] != 1 or driver in NEVER_DARK:
                why = (
                    "two states, neither dark"
                    if driver in NEVER_DARK
                    else "a robot: moves one fibre at a time, in minutes"
                )
                print(f"{driver:<18} {why}", flush=True)
                continue
            size: dict[str, object] = {} if driver in NO_SIZE else {"size": SIZES.get(driver, SIZE)}
            for options in ({}, IN_BULK[driver]) if driver in IN_BULK else ({},):
                name = f"{driver} (bulk)" if options else driver
                with devices_lab(
                    [driver], emulated={driver: size | LINE_SPEED.get(driver, {})}
                ) as lab:
                    try:
                        figures = asyncio.run(measure(driver, lab, options, bare))
                    except Exception as error:
                        print(f"{name:<23} {type(error).__name__}: {str(error)[:300]}", flush=True)
                        broken.append(name)
                        continue
                for f in figures:
                    worst = max(worst, f.ratio)
                    bare_ms += [run.bare_s * 1e3 for run in f.runs]
                    parts = f"added {f.added_ms:6.1f} ms, {f.ratio:5.2f} of what may be"
                    trips = f"{f.median_ms('trip_s'):.2f} ms an answer, bare {f.median_ms('bare_s'):.3f} ms"
                    took = f"{f.median_ms('took_s'):7.1f} ms"
                    print(
                        f"{name:<23} {f.circuits:4d} circuits {took}, {parts}   {f.runs[-1].exchanges} exchanges, {trips}",
                        flush=True,
                    )
                last = figures[-1]
                worst_read = max(worst_read, last.read_ratio)
                reading = f"read {last.circuits} in {last.median_ms('read_s'):.1f} ms"
                print(f"{name:<23} {reading}, {last.read_ratio:.2f} of what may be", flush=True)
                more[name] = [round(f.added_ms, 1) for f in figures] + [
                    round(last.median_ms("read_s"), 1)
                ]
    return verdict(
        "driver_overhead",
        max(worst, worst_read),
        "x",
        1.0,
        "at most",
        also=not broken,
        worst_read=round(worst_read, 3),
        bare_trip_ms=round(statistics.median(bare_ms), 4) if bare_ms else None,
        added_and_read_ms=more,
        broken=broken,
    )


if __name__ == "__main__":
    sys.exit(main())
