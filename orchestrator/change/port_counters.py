"""Port counters that the hosts sample themselves: written to the journal, and watched until a link
is quiet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress

from optics import Circuit, HostPort, TestbedError
from optics.values import setting_id
from orchestrator.hosts import SAMPLE, ClockReading, HostEvent, Hosts, counter_samples
from orchestrator.telemetry.journal import Journal

USUAL_HZ = 10.0
"""Ten samples a second show a dip of one dark interval and cost a host 0.1 % of a core; a thousand
are for close inspection.
"""
CLOCKS_S = 0.1
"""How much longer (s) a change may take to read the hosts' clocks: a millisecond per host, after
the change.
"""
QUIET_S, QUIET_BYTES = 0.004, 3000
"""A port is quiet when it moved fewer bytes than this within this time (s): less than one in a
hundred of a 250 Mb/s link, so that neighbour discovery does not count as traffic."""
PATIENCE_S = 0.25
"""Draining ends after this long (s) whatever still flows: the light moves anyway."""


class Counters:
    """Writes what hosts sample: every sample of every port, and once a second the rate over each
    circuit.
    """

    def __init__(self, journal: Journal, circuits: Iterable[Circuit] = ()) -> None:
        self._journal = journal
        self.circuits = tuple(circuits)
        self.latest: dict[HostPort, tuple[int, ...]] = {}
        self.rows = self.missed = 0
        self._second: dict[HostPort, tuple[int, ...]] = {}
        self._reported_ns = journal.now_ns()

    def add(self, event: HostEvent) -> None:
        """Take a batch. Raises: Garbled - it cannot be decoded."""
        for port, rows in counter_samples(event).items():
            if rows:
                self._journal.samples(
                    "port",
                    {"host": port.host, "port": f"p{port.number}", "layer": "nic"},
                    SAMPLE,
                    rows,
                )
                self.latest[port] = rows[-1]
                self._second.setdefault(port, rows[0])
                self.rows += len(rows)
        self.missed += int(event.values.get("missed", 0))
        now = self._journal.now_ns()
        if now - self._reported_ns >= 1_000_000_000:
            self._reported_ns = now
            self.rates()

    def rates(self) -> None:
        """Write the rate over each circuit since the last call."""
        for circuit in self.circuits:
            here = self.latest.get(circuit.receiver)
            for setting in circuit.path if here is not None else ():
                self._journal.point(
                    "circuit",
                    {"ocs": setting.ingress.device, "id": setting_id(setting)},
                    {
                        "circuit": str(circuit),
                        "source": circuit.transmitter.host,
                        "target": circuit.receiver.host,
                        "state": "up"
                        if here is not None and here[SAMPLE.index("oper")]
                        else "dark",
                        "mainstat": self._mbps(circuit.transmitter),
                        "loss_db": circuit.loss_db,
                    },
                )
        self._second = dict(self.latest)

    def _mbps(self, port: HostPort) -> float | None:
        """What a port has sent since the last call (Mb/s), None if two samples are missing."""
        before, now = self._second.get(port), self.latest.get(port)
        if before is None or now is None or now[-1] <= before[-1]:
            return None
        sent = now[SAMPLE.index("tx_bytes")] - before[SAMPLE.index("tx_bytes")]
        return sent * 8e3 / (now[-1] - before[-1])


@asynccontextmanager
async def sampled_ports(
    hosts: Hosts, journal: Journal | None, hz: float = USUAL_HZ, circuits: Iterable[Circuit] = ()
) -> AsyncIterator[None]:
    """While the body runs, hosts sample their ports `hz` times a second (0: not at all) and their
    samples go to the journal.

    Hosts do not send samples while they wait for carrier, so that sampling takes no time from the
    hosts that end the darkness. A host that cannot sample fails in the change itself; sampling does
    not report the error twice.
    """
    if journal is None or hz <= 0:
        yield
        return
    counters = Counters(journal, circuits)
    queue = hosts.channels.subscribe()
    task = asyncio.create_task(_take(queue, counters))
    try:
        with suppress(TestbedError):
            await hosts.measure.stream_counters(1 / hz)
        try:
            yield
        except BaseException:
            hosts.measure.leave_counters()
            raise
        with suppress(TestbedError):
            await hosts.measure.stream_counters(None)  # the replies arrive after the last samples
            record_clocks(journal, await hosts.measure.clocks(within_s=CLOCKS_S))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        hosts.channels.unsubscribe(queue)
        while not queue.empty():
            _heard(queue.get_nowait(), counters)
        counters.rates()


async def _take(queue: asyncio.Queue[HostEvent], counters: Counters) -> None:
    while True:
        _heard(await queue.get(), counters)


def _heard(event: HostEvent, counters: Counters) -> None:
    if event.kind == "counters":
        with suppress(TestbedError):  # an unreadable batch leaves a gap in the curve
            counters.add(event)


def record_gpus(journal: Journal, event: HostEvent) -> int:
    """Write a host's GPU readings, one `gpu` point each; return how many."""
    for gpu in event.values["gpus"]:
        journal.point(
            "gpu",
            {"host": event.host, "gpu": str(gpu["gpu"])},
            {
                "util": gpu.get("util"),
                "power_w": gpu.get("power_w"),
                "mem_bytes": gpu.get("mem_bytes"),
                "nvlink_tx_bytes": gpu.get("nvlink_tx_bytes"),
                "nvlink_rx_bytes": gpu.get("nvlink_rx_bytes"),
                "pcie_bytes_per_s": gpu.get("pcie_bytes_per_s"),
            },
            event.at_ns,
        )
    return len(event.values["gpus"])


def record_clocks(journal: Journal, clocks: Mapping[str, ClockReading]) -> None:
    """Write one `clock` point per host."""
    for host, clock in clocks.items():
        fields = {"offset_ns": clock.offset_ns, "round_trip_ns": clock.round_trip_ns}
        journal.point("clock", {"host": host}, fields)


async def quiet(hosts: Hosts, ports: Collection[HostPort], patience_s: float = PATIENCE_S) -> float:
    """Wait until what was queued for these ports has arrived; return the seconds it took, at most
    `patience_s`.

    Receivers are watched: a sender's counter says nothing about the queue behind it.
    """
    begin = time.monotonic()
    names = sorted({p.host for p in ports})
    before = await hosts.measure.counters(names)
    while time.monotonic() - begin < patience_s:
        await asyncio.sleep(QUIET_S)
        now = await hosts.measure.counters(names)
        if all(
            now[p].rx_bytes - before[p].rx_bytes < QUIET_BYTES
            for p in ports
            if p in now and p in before
        ):
            break
        before = now
    return time.monotonic() - begin
