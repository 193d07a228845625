"""The storage of a job: its receiver is begun before the ranks, what they sent is brought home, and
it is ended after them.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from extensions.storage.plan import PlannedStorage, Storage
from optics import Missing, TestbedError, TimedOut
from optics.plan import Job
from optics.ranks import host_of_rank
from orchestrator.hosts.api import Tail
from orchestrator.hosts.aside import BEGUN_S, Aside
from orchestrator.hosts.channels import Channels
from orchestrator.hosts.launch import MASTER_PORTS, identity, job_name, on_host
from orchestrator.jobs import follow
from orchestrator.jobs.attachments import (
    Attachment,
    Figures,
    Given,
    Inspection,
    Launch,
    reach_host,
    same_training,
)
from orchestrator.jobs.rank_records import sound
from orchestrator.jobs.record import ranks_of
from orchestrator.session import Session
from orchestrator.store.records import JobRecord
from orchestrator.telemetry.journal import Journal

PORT = 25400
"""Receivers listen on MASTER_PORTS ports from here on, one for each run."""
LOOK_S = 0.05
READY, RECORDS, VARIABLE = "storage: listens", "storage.jsonl", "TESTBED_OBSERVER_STORAGE"
NEEDED = ("iter", "kept", "send_ms", "t_wall_ns")
FIELDS = ("iter", "bytes", "send_ms", "kept", "limit_mbps")


class StorageOfJob(Attachment[Storage]):
    """A job may do without, where its host does not answer: a guard that restarts one says so."""

    key = PlannedStorage.key
    noun = "storage"
    restores = True

    async def begin(self, value: Storage, given: Given, launch: Launch) -> Given:
        """Start the receiver. Ranks that resume begin from its newest checkpoint or their own,
        whichever is newer. Ranks of which only some know of it would wait for each other, so each
        of their hosts has to answer.
        """
        job, channels = launch.job, launch.session.hosts.channels
        newer = launch.resume and same_training(self.key, job, launch.latest)
        restore = "only" if launch.restore else "newest" if newer else ""
        process = _process(channels, value, job, job_name(job.name, launch.run))
        try:
            known = await _begin(process, value, job, launch.run, restore)
        except TestbedError as error:
            if not launch.left_out:
                raise
            return {"missing": error.line}
        try:
            name = job_name(job.name, launch.run)
            env = {VARIABLE: json.dumps(known)}
            await channels.ask(
                {rank: {"name": on_host(name, rank), "env": env} for rank in job.ranks},
                "job.secret",
            )
        except BaseException:
            await _give_up(process)
            raise
        return given

    async def status(self, value: Storage, given: Given, look: Inspection) -> Sequence[Figures]:
        """What ranks sent is fetched first. mbps: of their latest checkpoints together."""
        session, record, host = look.session, look.record, value.host
        if why := given.get("missing"):
            again = f"once {host} answers, for one again: testbed job stop, then testbed up"
            missing = f"launched without its storage on {host}: {why}; {again}"
            return [{"host": host, "state": "absent", "checkpoint": 0, "missing": missing}]
        look.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        ranks = record.spec.wanted.ranks
        found = await asyncio.gather(*(self._fetch(value, n, look) for n in range(len(ranks))))
        state = "silent"
        if host in session.lab.hosts:
            with suppress(TestbedError):
                await reach_host(session, host)
                process = _process(
                    session.hosts.channels, value, record.spec.wanted, record.spec.on_hosts
                )
                state = (await process.tail("log", -1)).state
        kept = [[each for each in records if each["kept"]] for records in found]
        newest = max((int(each[-1]["iter"]) for each in kept if each), default=0)
        latest = [each[-1] for each in kept if each]
        return [
            {
                "host": host,
                "over": value.over,
                "state": state,
                "checkpoint": newest,
                "ranks": sum(any(each["iter"] == newest for each in one) for one in kept),
                "of": len(ranks),
                "mbps": round(sum(map(_mbps, latest)), 3),
                "limit_mbps": round(sum(each.get("limit_mbps", 0) for each in latest), 3),
                "unsent": sum(not each["kept"] for records in found for each in records),
            }
        ]

    async def _fetch(self, value: Storage, number: int, look: Inspection) -> list[dict[str, Any]]:
        """Append the records of a rank that are new to a file of this machine and to the journal;
        all of them.
        """
        session, record = look.session, look.record
        name, rank = record.spec.on_hosts, record.spec.wanted.ranks[number]
        local = look.run_dir / f"{name}.storage.{number}.jsonl"
        local.touch(mode=0o600)

        def take(lines: list[bytes], ahead_ns: int) -> None:
            with Journal(look.run_dir, record.run, session.lab.name) as journal:
                for found in sound(lines, NEEDED):
                    values = {key: found.get(key) for key in FIELDS}
                    values |= {"rank": number, "host": value.host}
                    at_ns = int(found["t_wall_ns"]) - ahead_ns - journal.anchor_ns
                    journal.point("storage", {"job": record.name}, values, at_ns)

        async def records(offset: int) -> Tail:
            return await session.hosts.jobs.tail(name, rank, RECORDS, offset)

        if rank in ranks_of(record, session.lab):
            with suppress(TestbedError):
                await follow.collect_lines(session, host_of_rank(rank), local, records, take)
        return sound(local.read_bytes().splitlines(), NEEDED)

    async def stop(self, value: Storage, given: Given, session: Session, record: JobRecord) -> None:
        """A silent host is left alone: its receiver ends a minute after the last rank."""
        if value.host in session.lab.hosts:
            with suppress(TestbedError):
                await reach_host(session, value.host)
                job, name = record.spec.wanted, record.spec.on_hosts
                await _process(session.hosts.channels, value, job, name).end()

    def followed(self, value: Storage, job: Job, record: JobRecord, hint: str) -> None:
        if not same_training(self.key, job, record):
            text = f"was another training than the plan's, or had no storage on {value.host}"
            raise Missing(f"{record.name} ran last, and {text}", hint=hint)

    def restorable(
        self, value: Storage, record: JobRecord, found: Sequence[Figures], hint: str
    ) -> None:
        figures = found[0] if found else {}
        if "missing" in figures:
            raise Missing(f"{record.name} was {figures['missing']}", hint=hint)
        if not figures.get("checkpoint"):
            text = f"the storage of {record.name} on {value.host} has no checkpoint of its last run"
            raise Missing(text, hint=hint)


def _process(channels: Channels, value: Storage, job: Job, name: str) -> Aside:
    """The receiver. name: the job's on hosts; a shadow may run under that on the same host."""
    return Aside(channels, value.host, f"{name[:92]}.storage", PlannedStorage.key, job.name)


async def _begin(
    process: Aside, value: Storage, job: Job, run: str, restore: str
) -> Mapping[str, Any]:
    """Start the receiver and wait until it listens; return what a rank is to know of it. Raises:
    TestbedError - it cannot be started, or ended; none runs.
    """
    await process.reach()
    host, optical = process.channels.lab.hosts[value.host], value.over == "optical"
    known = {
        "address": host.lane_address(0) if optical else host.mgmt_address,
        "port": PORT + sum(run.encode()) % MASTER_PORTS,
        "key": secrets.token_hex(32),
        "restore": restore,
        "mbps": value.mbps / len(job.ranks),
        "lane": optical,
    }
    env = {VARIABLE: json.dumps(known), "TESTBED_STORAGE_RANKS": str(len(job.ranks))}
    try:
        checkpoints = job_name(f"storage-{job.name}", identity(job))
        await process.start("extensions.storage.rank", env, checkpoints)
        until_s = time.monotonic() + BEGUN_S
        while READY not in (await process.tail("log", 0, BEGUN_S)).text:
            await process.check_living()
            if time.monotonic() > until_s:
                raise TimedOut(f"{process.host}: the storage of job {job.name} does not listen")
            await asyncio.sleep(LOOK_S)
    except BaseException:
        await _give_up(process)
        raise
    return known


async def _give_up(process: Aside) -> None:
    with suppress(TestbedError):
        await process.end(1.0)


def _mbps(record: Mapping[str, float]) -> float:
    return record.get("bytes", 0) * 8e-3 / max(record["send_ms"], 1e-3)


ATTACHMENT = StorageOfJob()
