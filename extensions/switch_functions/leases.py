"""Renews what packet switches gave a job: `python -m extensions.switch_functions.leases`, the
leases as JSON on its standard input.

It ends when the switch no longer knows them: they were given back, or it restarted. Also when no
packet of the job has come for IDLE_S: a job that ended by itself, and that nobody has asked about
since; when none came at all within BEGIN_S: whoever launched it was killed; and when the switch was
silent for a lease's time.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterable

from drivers.functions import FunctionSwitch
from optics import Missing, TestbedError
from optics.leases import Lease

LEASE_S, RENEW_S = 60.0, 15.0
IDLE_S = 4500.0
"""A paused job sends nothing, for attempt.MOST_S at most."""
BEGIN_S = 600.0
"""In which ranks start and end their first computing."""
MOST_BYTES = 1 << 20


async def renew(
    lease: Lease,
    *,
    every_s: float = RENEW_S,
    lease_s: float = LEASE_S,
    idle_s: float = IDLE_S,
    begin_s: float = BEGIN_S,
) -> str:
    """Renew one lease until it is over; return why."""
    switch = FunctionSwitch(lease.segment, lease.control)
    heard_s = moved_s = time.monotonic()
    packets = -1
    try:
        while True:
            now = time.monotonic()
            try:
                await switch.renew(lease.allocation, lease.token, lease_s)
                heard_s = now
                for each in await switch.counters():
                    if (
                        each.get("allocation") == lease.allocation
                        and each.get("packets_in") != packets
                    ):
                        packets, moved_s = each.get("packets_in", 0), now
            except Missing:
                return "given back"
            except TestbedError:
                if now - heard_s > lease_s:
                    return "silent"
            if now - moved_s > (idle_s if packets > 0 else begin_s):
                return "idle"
            await asyncio.sleep(every_s)
    finally:
        await switch.close()


async def renew_all(leases: Iterable[Lease]) -> None:
    await asyncio.gather(*map(renew, leases))


if __name__ == "__main__":
    asyncio.run(
        renew_all(Lease(**lease) for lease in json.loads(sys.stdin.buffer.read(MOST_BYTES)))
    )
