"""An attachment that keeps a job's checkpoints in a process on a host without ranks."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal

from optics import Missing, TestbedError
from optics.plan import Job
from optics.ranks import RankName
from orchestrator.hosts.api import Tail
from orchestrator.hosts.aside import Aside
from orchestrator.hosts.channels import Channels
from orchestrator.hosts.launch import job_name, on_host
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
from orchestrator.plan.keeper import K
from orchestrator.session import Session
from orchestrator.store.records import JobRecord
from orchestrator.telemetry.journal import Journal

Restore = Literal["", "only", "newest"]
"""What ranks begin from: their own checkpoints; the attachment's; whichever of both is newer
(workloads/transport/peers.py).
"""


class CheckpointKeeper(Attachment[K], ABC):
    """One kind. A job may do without, where its host does not answer: a guard that restarts one
    says so. Ranks of which only some know of it would wait for each other, so a host of theirs that
    does not answer ends the launch.
    """

    restores = True
    needed: ClassVar[Collection[str]]
    fields: ClassVar[Sequence[str]]
    """Of its records, what each has, and what goes to the journal as a measurement named `key`."""
    suffix: ClassVar[str] = ""
    """What its process is called after the job: two may be on one host."""

    @property
    def variable(self) -> str:
        """What its process, and each rank, is told by."""
        return f"TESTBED_OBSERVER_{self.key.upper()}"

    def process(self, channels: Channels, value: K, job: Job, name: str) -> Aside:
        """Its process. name: the job's on hosts, which have names of 100 characters at most."""
        return Aside(
            channels, value.host, name[: 100 - len(self.suffix)] + self.suffix, self.key, job.name
        )

    @abstractmethod
    async def begun(
        self, process: Aside, value: K, launch: Launch, restore: Restore
    ) -> Mapping[RankName, str]:
        """Start its process on a host that answers; what each rank is told of it, none of the
        others. restore: what ranks begin from. Raises: TestbedError - it cannot be.
        """

    async def give_up(self, process: Aside, job: Job) -> None:
        """End what is of no use: why it is none matters more than what its host says."""
        with suppress(TestbedError):
            await process.end(1.0)

    async def begin(self, value: K, given: Given, launch: Launch) -> Given:
        """Start its process, then leave with the ranks' hosts what those are to know: the key goes
        over the channels, and stands in no command line.
        """
        job, restore, channels = launch.job, self.restore(launch), launch.session.hosts.channels
        name = job_name(job.name, launch.run)
        process, told = self.process(channels, value, job, name), dict[RankName, str]()
        try:
            await process.reach()
            try:
                told |= await self.begun(process, value, launch, restore)
                secret = {
                    rank: {"name": on_host(name, rank), "env": {self.variable: text}}
                    for rank, text in told.items()
                }
                await channels.ask(secret, "job.secret")
            except BaseException:
                await self.give_up(process, job)
                raise
        except TestbedError as error:
            if told or not launch.left_out:
                raise
            return {"missing": error.line, "restore": restore}
        return given

    def restore(self, launch: Launch) -> Restore:
        """What ranks begin from: what was kept of an earlier launch of their training there. While
        one that began anew had to do without, that is another training's, which is asked for by
        name or not used.
        """
        latest = launch.latest
        if not launch.resume or latest is None or not same_training(self.key, launch.job, latest):
            return ""
        if launch.restore:
            return "only"
        given = latest.spec.given.get(self.key, {})
        return "newest" if given.get("restore", "newest") else ""

    def places(self, value: K, look: Inspection) -> Figures:
        """What is known of it without asking, in its figures and in each of its points."""
        return {"host": value.host}

    def figures(
        self, value: K, records: Sequence[Mapping[str, Any]], look: Inspection, now_ns: int
    ) -> Figures:
        """What its records come to; `checkpoint`: the newest iteration that can be begun from.
        now_ns: by the clock of its host, as their `t_wall_ns`; 0: not known.
        """
        return {}

    async def status(self, value: K, given: Given, look: Inspection) -> Sequence[Figures]:
        """What its process wrote is fetched first."""
        host, name = value.host, look.record.spec.on_hosts
        if why := given.get("missing"):
            again = f"once {host} answers, for one again: testbed job stop, then testbed up"
            missing = f"launched without its {self.noun} on {host}: {why}; {again}"
            return [{"host": host, "state": "absent", "checkpoint": 0, "missing": missing}]
        if host not in look.session.lab.hosts:
            return ()
        look.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        local, places = look.run_dir / f"{name}.{self.key}.jsonl", self.places(value, look)
        local.touch(mode=0o600)
        state, now_ns = await self._fetch(value, places, local, look)
        records = sound(local.read_bytes().splitlines(), self.needed)
        return [{**places, "state": state, **self.figures(value, records, look, now_ns)}]

    async def _fetch(
        self, value: K, places: Figures, local: Path, look: Inspection
    ) -> tuple[str, int]:
        """Append the records that are new to a file of this machine and to the journal; the state
        of the process, and the time by its host's clock (wall ns, 0: not known).
        """
        session, record, state, now_ns = look.session, look.record, "silent", 0
        spec = record.spec
        process = self.process(session.hosts.channels, value, spec.wanted, spec.on_hosts)

        def take(lines: list[bytes], ahead_ns: int) -> None:
            with Journal(look.run_dir, record.run, session.lab.name) as journal:
                for found in sound(lines, self.needed):
                    values = {key: found.get(key) for key in self.fields}
                    at_ns = int(found["t_wall_ns"]) - ahead_ns - journal.anchor_ns
                    journal.point(self.key, {"job": record.name}, {**values, **places}, at_ns)

        async def records(offset: int) -> Tail:
            nonlocal state
            piece = await process.tail(f"{self.key}.jsonl", offset)
            state = piece.state
            return piece

        with suppress(TestbedError):
            await reach_host(session, value.host)
            await follow.collect_lines(session, value.host, local, records, take)
            now_ns = time.time_ns() + (await follow.ahead_ns(session, [value.host]))[value.host]
        return state, now_ns

    async def stop(self, value: K, given: Given, session: Session, record: JobRecord) -> None:
        """It ends its process. A silent host is left alone."""
        if value.host in session.lab.hosts:
            with suppress(TestbedError):
                await reach_host(session, value.host)
                spec = record.spec
                channels = session.hosts.channels
                await self.process(channels, value, spec.wanted, spec.on_hosts).end()

    def followed(self, value: K, job: Job, record: JobRecord, hint: str) -> None:
        if not same_training(self.key, job, record):
            text = f"was another training than the plan's, or had no {self.noun} on {value.host}"
            raise Missing(f"{record.name} ran last, and {text}", hint=hint)
