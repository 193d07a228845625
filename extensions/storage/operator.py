"""The storage of a job: its receiver is begun before the ranks, and told which they are."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from extensions.storage.plan import PlannedStorage, Storage
from optics import Missing, TestbedError, TimedOut
from optics.plan import Job
from orchestrator.hosts.aside import BEGUN_S, Aside
from orchestrator.hosts.launch import identity, job_name, on_host
from orchestrator.jobs.attachments import Figures, Given, Inspection, Launch, restoring
from orchestrator.jobs.keeper import CheckpointKeeper

LOOK_S = 0.05
READY = re.compile(r"^storage: listens on port (\d+), newest checkpoint (\d+)$", re.MULTILINE)
VARIABLE = "TESTBED_OBSERVER_STORAGE"


class StorageOfJob(CheckpointKeeper[Storage]):
    """Ranks of which only some know of it would wait for each other, so each of their hosts has to
    answer.
    """

    key = PlannedStorage.key
    noun = "storage"
    suffix = ".storage"
    needed = ("rank", "iter", "bytes", "send_ms", "unsent", "t_wall_ns")
    fields = ("rank", "iter", "bytes", "send_ms", "unsent")

    async def begin(self, value: Storage, given: Given, launch: Launch) -> Given:
        """Start the receiver, then leave with the ranks' hosts where it listens and its key."""
        job, channels = launch.job, launch.session.hosts.channels
        name = job_name(job.name, launch.run)
        process = self.process(channels, value, job, name)
        try:
            told = await self._begun(process, value, launch)
        except TestbedError as error:
            if not launch.left_out:
                raise
            return {"missing": error.line}
        secret = {}
        for rank, number in zip(job.ranks, told.pop("ranks"), strict=True):
            env = {VARIABLE: json.dumps({**told, "number": number})}
            secret[rank] = {"name": on_host(name, rank), "env": env}
        try:
            await channels.ask(secret, "job.secret")
        except BaseException:
            await _give_up(process)
            raise
        return given

    async def _begun(self, process: Aside, value: Storage, launch: Launch) -> dict[str, Any]:
        """Start the receiver and wait until it listens; what ranks are to know. Raises:
        TestbedError - it cannot be started, or has nothing to restore; none runs.
        """
        await process.reach()
        job, host = launch.job, process.channels.lab.hosts[value.host]
        known = {
            "address": host.lane_address(0) if value.over == "optical" else host.mgmt_address,
            "port": 0,
            "key": secrets.token_hex(32),
            "restore": self.restore(launch),
            "mbps": value.mbps / len(job.ranks),
            "lane": value.over == "optical",
            "ranks": _numbers(job),
        }
        try:
            checkpoints = job_name(f"storage-{job.name}", identity(job))
            env = {VARIABLE: json.dumps(known)}
            await process.start("extensions.storage.rank", env, checkpoints)
            until_s = time.monotonic() + BEGUN_S
            while not (found := READY.search((await process.tail("log", 0, BEGUN_S)).text)):
                await process.check_living()
                if time.monotonic() > until_s:
                    raise TimedOut(f"{value.host}: the storage of job {job.name} does not listen")
                await asyncio.sleep(LOOK_S)
            if known["restore"] == "only" and found[2] == "0" and len(restoring(job)) == 1:
                text = f"the storage of job {job.name} on {value.host} has no checkpoint"
                hint = "from those of its ranks, where they have some: testbed up"
                raise Missing(text, hint=hint)
        except BaseException:
            await _give_up(process)
            raise
        return {**known, "port": int(found[1])}

    def places(self, value: Storage, look: Inspection) -> Figures:
        return {"host": value.host, "over": value.over}

    def figures(
        self, value: Storage, records: Sequence[Mapping[str, Any]], look: Inspection
    ) -> Figures:
        """mbps: of the ranks' latest checkpoints together; age_s: since the latest of them, by the
        clocks of its host and of this machine.
        """
        latest = {each["rank"]: each for each in records}.values()
        newest = max((each["iter"] for each in latest), default=0)
        at_ns = max((each["t_wall_ns"] for each in latest), default=time.time_ns())
        speeds = (each["bytes"] * 8e-3 / max(each["send_ms"], 1e-3) for each in latest)
        return {
            "checkpoint": newest,
            "ranks": len({each["rank"] for each in records if each["iter"] == newest}),
            "of": len(look.record.spec.wanted.ranks),
            "mbps": round(sum(speeds), 3),
            "unsent": sum(each["unsent"] for each in latest),
            "age_s": round(max(0.0, 1e-9 * (time.time_ns() - at_ns)), 3),
        }


def _numbers(job: Job) -> list[int]:
    """A number for each rank, which it keeps when others leave, and hands on to who takes its
    place: what it wrote is found by it.
    """
    first = {now: before for before, now in job.evicted.items() if now}
    return [zlib.crc32(first.get(rank, rank).encode()) for rank in job.ranks]


async def _give_up(process: Aside) -> None:
    with suppress(TestbedError):
        await process.end(1.0)


ATTACHMENT = StorageOfJob()
