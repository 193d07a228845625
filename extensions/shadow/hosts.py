"""The shadow of a job on its host: started before the ranks, with taps that copy their traffic to
it; ended after them.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from extensions.shadow.plan import shadow_of
from optics import HostName, Refused
from optics.plan import Job
from orchestrator.hosts.aside import Aside
from orchestrator.hosts.launch import MASTER_PORTS, identity, job_name
from orchestrator.inventory.lab import Lab
from orchestrator.jobs.keeper import Restore
from planner.operate.taps import receivers

PORT = 27400
"""Shadows listen on MASTER_PORTS ports from here on, one for each run, so that a later one never
meets an earlier job's ranks.
"""
MEETS_S = 3600.0
"""A tap is there once the shadow answers it, which imports torch first, on a busy machine for
minutes: it is waited for as long as it lives, and the time of the command ends that before this
does."""
LOOK_S = 1.0
"""How often (s) it is asked whether the shadow still lives."""


async def begin_shadow(
    process: Aside, job: Job, run: str, restore: Restore, notify: Callable[[str], object]
) -> str:
    """Start the shadow, then the taps; return what a rank needs to meet it. notify: called with
    what is waited for. Raises: Refused - the shadow ended, or a tap could not begin.
    """
    channels = process.channels
    here, port = channels.lab.hosts[process.host], PORT + sum(run.encode()) % MASTER_PORTS
    address, key = here.mgmt_address, secrets.token_hex(32)
    met = json.dumps({"address": address, "port": port, "key": key, "restore": restore})
    env = {"TESTBED_OBSERVER_SHADOW": met} | (
        {"TESTBED_STORAGE_MBPS": f"{here.storage_mbps:g}"} if here.storage_mbps else {}
    )
    await process.start("extensions.shadow.rank", env, job_name(job.name, identity(job)))
    taps: dict[str, dict[str, Any]] = {}
    for at, ports in tapped(job, channels.lab).items():
        host = channels.lab.hosts[at]
        taps[at] = {
            "name": process.name,
            "ports": ports,
            "lanes": [host.lane_address(lane) for lane in range(host.lanes)],
            "shadow": address,
            "port": port,
            "key": key,
            "within_s": MEETS_S,
        }
    answers = await _tapping(process, taps, notify)
    if failed := {at: values["error"] for at, values in answers.items() if values["error"]}:
        await process.check_living()
        text = "; ".join(f"{at}: {error}" for at, error in failed.items())
        raise Refused(f"the tap of job {job.name} could not begin on {text}", hint="testbed doctor")
    return met


async def _tapping(
    process: Aside, taps: Mapping[HostName, Mapping[str, Any]], notify: Callable[[str], object]
) -> Mapping[HostName, Mapping[str, Any]]:
    """Have the taps begin, which they do when the shadow answers them; as long as that lives.
    Raises: Refused - it ended.
    """
    since = time.monotonic()
    begun = asyncio.ensure_future(process.channels.ask(taps, "tap", MEETS_S))
    try:
        while not (await asyncio.wait([begun], timeout=LOOK_S))[0]:
            await process.check_living()
            took_s = time.monotonic() - since
            notify(f"the shadow on {process.host} still starts, for {took_s:.0f} s")
        return begun.result()
    finally:
        begun.cancel()
        await asyncio.gather(begun, return_exceptions=True)


def tapped(job: Job, lab: Lab) -> dict[HostName, list[int]]:
    """The ports to tap, by host: those of the plan; by itself all ports of two hosts, those with
    the fewest first.

    All of a host's ports, because rings and routes change while the job runs, and a port without
    light costs nothing.
    """
    shadow = shadow_of(job)
    assert shadow is not None
    if (taps := shadow.taps) != "auto":
        found: dict[HostName, list[int]] = {}
        for port in sorted(taps):
            found.setdefault(port.host, []).append(port.number)
        return found
    orders = job.rings or (job.hosts,)
    preferred = sorted(
        job.hosts, key=lambda host: (len(lab.hosts[host].ports), job.hosts.index(host))
    )
    return {host: sorted(lab.hosts[host].ports) for host in receivers(orders, preferred)}
