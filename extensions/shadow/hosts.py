"""The shadow of a job on its host: started before the ranks, with taps that copy their traffic to
it; ended after them.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from extensions.shadow.plan import Shadow, shadow_of
from optics import HostName, Refused, TestbedError
from optics.plan import Job
from orchestrator.hosts.aside import Aside
from orchestrator.hosts.channels import Channels
from orchestrator.hosts.launch import MASTER_PORTS, identity, job_name, on_host
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
Notify = Callable[[str], object]
"""Called with what is waited for."""


@dataclass(frozen=True, slots=True)
class ShadowHosts:
    """What is asked of the host of a shadow, and of the hosts whose ports are tapped."""

    channels: Channels

    async def start(
        self,
        job: Job,
        run: str,
        *,
        restore: Restore = "",
        left_out: bool = False,
        notify: Notify | None = None,
    ) -> str:
        """Start the shadow of a job, then the taps, and leave with rank 0's host what its rank is
        to know (with all, to restore).

        The key goes over the channels, and stands in no command line. left_out: where shadow or
        taps cannot be started, the job does without, and why is returned, in one line. Ranks of
        which some know of a shadow and some do not would wait for each other, so a host of theirs
        that does not answer raises always. notify: called when it is known that the shadow starts,
        while it does. Raises: Missing - the inventory has its host no more. Refused - the shadow
        ended, or a tap could not begin; both end.
        """
        name, shadow = job_name(job.name, run), _shadow(job)
        try:
            met = await self._begin(
                job, name, PORT + sum(run.encode()) % MASTER_PORTS, restore, notify
            )
        except TestbedError as error:
            if not left_out:
                raise
            return error.line
        try:
            secret = {
                rank: {"name": on_host(name, rank), "env": {"TESTBED_OBSERVER_SHADOW": met}}
                for rank in job.ranks
            }
            await self.channels.ask(
                secret if restore else {job.ranks[0]: secret[job.ranks[0]]}, "job.secret"
            )
        except BaseException:
            await self._give_up(name, shadow.host, tapped(job, self.channels.lab))
            raise
        return ""

    def _process(self, job: Job, name: str) -> Aside:
        return Aside(self.channels, _shadow(job).host, name, "shadow", job.name)

    async def _begin(
        self, job: Job, name: str, port: int, restore: Restore, notify: Notify | None
    ) -> str:
        """Start the shadow, then the taps; return what a rank needs to meet it. Raises: as
        `start`.
        """
        process, key = self._process(job, name), secrets.token_hex(32)
        await process.reach()
        here = self.channels.lab.hosts[process.host]
        address = here.mgmt_address
        met = json.dumps({"address": address, "port": port, "key": key, "restore": restore})
        env = {"TESTBED_OBSERVER_SHADOW": met} | (
            {"TESTBED_STORAGE_MBPS": f"{here.storage_mbps:g}"} if here.storage_mbps else {}
        )
        taps: dict[str, dict[str, Any]] = {}
        try:
            await process.start("extensions.shadow.rank", env, job_name(job.name, identity(job)))
            for at, ports in tapped(job, self.channels.lab).items():
                lanes = [
                    self.channels.lab.hosts[at].lane_address(lane)
                    for lane in range(self.channels.lab.hosts[at].lanes)
                ]
                taps[at] = {
                    "name": name,
                    "ports": ports,
                    "lanes": lanes,
                    "shadow": address,
                    "port": port,
                    "key": key,
                }
                taps[at]["within_s"] = MEETS_S
            answers = await self._tapping(job, name, taps, notify)
            if failed := {at: values["error"] for at, values in answers.items() if values["error"]}:
                await process.check_living()
                text = "; ".join(f"{at}: {error}" for at, error in failed.items())
                raise Refused(
                    f"the tap of job {job.name} could not begin on {text}", hint="testbed doctor"
                )
        except BaseException:
            await self._give_up(name, process.host, taps)
            raise
        return met

    async def _tapping(
        self, job: Job, name: str, taps: Mapping[HostName, Mapping[str, Any]], notify: Notify | None
    ) -> Mapping[HostName, Mapping[str, Any]]:
        """Have the taps begin, which they do when the shadow answers them; as long as that lives.
        Raises: Refused - it ended.
        """
        host, since = _shadow(job).host, time.monotonic()
        begun = asyncio.ensure_future(self.channels.ask(taps, "tap", MEETS_S))
        try:
            while not (await asyncio.wait([begun], timeout=LOOK_S))[0]:
                await self._process(job, name).check_living()
                if notify is not None:
                    notify(
                        f"the shadow on {host} still starts, for {time.monotonic() - since:.0f} s"
                    )
            return begun.result()
        finally:
            begun.cancel()
            await asyncio.gather(begun, return_exceptions=True)

    async def _give_up(self, name: str, host: HostName, taps: Collection[HostName]) -> None:
        """End a shadow that is of no use, and taps that wait for it; why it is none matters more
        than what its host says.
        """
        with suppress(TestbedError):
            await Aside(self.channels, host, name).end(1.0)
        with suppress(TestbedError):
            await self.channels.ask({at: {"name": name} for at in taps}, "tap.stop")


def _shadow(job: Job) -> Shadow:
    found = shadow_of(job)
    assert found is not None
    return found


def tapped(job: Job, lab: Lab) -> dict[HostName, list[int]]:
    """The ports to tap, by host: those of the plan; by itself all ports of two hosts, those with
    the fewest first.

    All of a host's ports, because rings and routes change while the job runs, and a port without
    light costs nothing.
    """
    if (taps := _shadow(job).taps) != "auto":
        found: dict[HostName, list[int]] = {}
        for port in sorted(taps):
            found.setdefault(port.host, []).append(port.number)
        return found
    orders = job.rings or (job.hosts,)
    preferred = sorted(
        job.hosts, key=lambda host: (len(lab.hosts[host].ports), job.hosts.index(host))
    )
    return {host: sorted(lab.hosts[host].ports) for host in receivers(orders, preferred)}
