"""The storage of a job: its receiver is begun before the ranks, and told which they are."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from extensions.storage.plan import PlannedStorage, Storage
from optics import Missing, TimedOut
from optics.ranks import RankName
from orchestrator.hosts.aside import BEGUN_S, Aside
from orchestrator.hosts.launch import identity, job_name, rank_numbers
from orchestrator.jobs.attachments import Figures, Inspection, Launch, restoring
from orchestrator.jobs.keeper import CheckpointKeeper, Restore

LOOK_S = 0.05
READY = re.compile(r"^storage: listens on port (\d+), newest checkpoint (\d+)$", re.MULTILINE)


class StorageOfJob(CheckpointKeeper[Storage]):
    """Its receiver says where it listens and what it has, and the ranks are told where."""

    key = PlannedStorage.key
    noun = "storage"
    suffix = ".storage"
    needed = ("rank", "iter", "bytes", "send_ms", "unsent", "t_wall_ns")
    fields = ("rank", "iter", "bytes", "send_ms", "unsent")

    async def begun(
        self, process: Aside, value: Storage, launch: Launch, restore: Restore
    ) -> Mapping[RankName, str]:
        """Start the receiver and wait until it listens. Raises: Missing - ranks are to begin from
        it alone, and it has nothing.
        """
        job, host = launch.job, process.channels.lab.hosts[value.host]
        numbers = rank_numbers(job)
        known = {
            "address": host.lane_address(0) if value.over == "optical" else host.mgmt_address,
            "port": 0,
            "key": secrets.token_hex(32),
            "restore": restore,
            "mbps": value.mbps / len(job.ranks),
            "lane": value.over == "optical",
        }
        checkpoints = job_name(f"storage-{job.name}", identity(job))
        env = {self.variable: json.dumps({**known, "ranks": numbers})}
        await process.start("extensions.storage.rank", env, checkpoints)
        until_s = time.monotonic() + BEGUN_S
        while not (found := READY.search((await process.tail("log", 0, BEGUN_S)).text)):
            await process.check_living()
            if time.monotonic() > until_s:
                raise TimedOut(f"{value.host}: the storage of job {job.name} does not listen")
            await asyncio.sleep(LOOK_S)
        if restore == "only" and found[2] == "0" and len(restoring(job)) == 1:
            text = f"the storage of job {job.name} on {value.host} has no checkpoint"
            hint = "from those of its ranks, where they have some: testbed up"
            raise Missing(text, hint=hint)
        known["port"] = int(found[1])
        return {
            rank: json.dumps({**known, "number": number})
            for rank, number in zip(job.ranks, numbers, strict=True)
        }

    def places(self, value: Storage, look: Inspection) -> Figures:
        return {"host": value.host, "over": value.over}

    def figures(
        self,
        value: Storage,
        records: Sequence[Mapping[str, Any]],
        look: Inspection,
        now_ns: int,
    ) -> Figures:
        """mbps: of the ranks' latest checkpoints together; age_s: since the latest of them."""
        latest = {each["rank"]: each for each in records}.values()
        newest = max((each["iter"] for each in latest), default=0)
        at_ns = max((each["t_wall_ns"] for each in latest), default=0)
        speeds = (each["bytes"] * 8e-3 / max(each["send_ms"], 1e-3) for each in latest)
        found = {
            "checkpoint": newest,
            "ranks": len({each["rank"] for each in records if each["iter"] == newest}),
            "of": len(look.record.spec.wanted.ranks),
            "mbps": round(sum(speeds), 3),
            "unsent": sum(each["unsent"] for each in latest),
        }
        age_s = round(max(0.0, 1e-9 * (now_ns - at_ns)), 3)
        return found | ({"age_s": age_s} if now_ns and at_ns else {})


ATTACHMENT = StorageOfJob()
