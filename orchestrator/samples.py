"""Port counters read from the hosts over the warm sessions: sampled into the journal, and watched until a link is quiet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager

from optics import HostPort, TestbedError
from orchestrator.hosts import HostSide, PortCounters
from orchestrator.telemetry.journal import Journal

PERIOD_S = 0.1
"""Ten samples a second: a dip of one dark interval shows, and a sweep of 12 hosts costs a few milliseconds."""
QUIET_S, QUIET_BYTES = 0.004, 3000
"""A port is quiet when it moved fewer bytes than this within this time (s): less than one in a hundred of a 250 Mb/s link, so that
neighbour discovery does not count as traffic."""
PATIENCE_S = 0.25
"""Draining goes on after this long (s) whatever still flows: the light moves anyway."""


@asynccontextmanager
async def sampled_ports(hosts: HostSide, journal: Journal | None) -> AsyncIterator[asyncio.Event]:
    """While the body runs, write a `port` point per fabric port and tenth of a second; not while the event it gets is clear.

    In the dark window nothing may take time from those who end it.
    """
    wanted = asyncio.Event()
    wanted.set()
    if journal is None:
        yield wanted
        return
    task = asyncio.create_task(_sample(hosts, journal, wanted))
    try:
        yield wanted
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _sample(hosts: HostSide, journal: Journal, wanted: asyncio.Event) -> None:
    while await wanted.wait():
        begin = time.monotonic()
        try:
            now = await hosts.counters()
        except TestbedError:
            return  # the change itself will meet the host that does not answer; samples are not worth a second error
        record(journal, now)
        await asyncio.sleep(max(0.0, begin + PERIOD_S - time.monotonic()))


def record(journal: Journal, counters: Mapping[HostPort, PortCounters]) -> None:
    """Write one sweep of `Hosts.counters()`."""
    for port, c in counters.items():
        journal.point(
            "port",
            {"host": port.host, "port": f"p{port.number}", "layer": "nic"},
            {
                "rx_bytes": c.rx_bytes,
                "tx_bytes": c.tx_bytes,
                "rx_pkts": c.rx_pkts,
                "tx_pkts": c.tx_pkts,
                "drops": c.drops,
                "oper": int(c.carrier),
            },
        )


async def quiet(hosts: HostSide, ports: Collection[HostPort]) -> float:
    """Wait until what was queued for these ports has arrived; return the seconds it took, at most `PATIENCE_S`.

    Receivers are watched: a sender's counter says nothing about the queue behind it.
    """
    begin = time.monotonic()
    names = sorted({p.host for p in ports})
    before = await hosts.counters(names)
    while time.monotonic() - begin < PATIENCE_S:
        await asyncio.sleep(QUIET_S)
        now = await hosts.counters(names)
        if all(now[p].rx_bytes - before[p].rx_bytes < QUIET_BYTES for p in ports if p in now and p in before):
            break
        before = now
    return time.monotonic() - begin
