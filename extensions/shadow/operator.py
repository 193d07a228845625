"""The shadow of a job: begun before its ranks, what it followed brought home, and its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from extensions.shadow.figures import judged
from extensions.shadow.hosts import begin_shadow, tapped
from extensions.shadow.plan import PlannedShadow, Shadow
from optics import HostName, Missing, TestbedError
from optics.plan import Job
from optics.ranks import RankName
from orchestrator.hosts.aside import Aside
from orchestrator.inventory.lab import Lab
from orchestrator.jobs.attachments import Figures, Inspection, Launch
from orchestrator.jobs.keeper import CheckpointKeeper, Restore
from orchestrator.store.records import JobRecord


class ShadowOfJob(CheckpointKeeper[Shadow]):
    """When it ends it writes its checkpoint, and its taps end."""

    key = PlannedShadow.key
    noun = "shadow"
    needed = ("iter", "equal", "t_wall_ns")
    fields = ("iter", "equal", "fetched", "missing", "lost", "lag_ms", "checkpoint")

    async def begun(
        self, process: Aside, value: Shadow, launch: Launch, restore: Restore
    ) -> Mapping[RankName, str]:
        """Start it, then its taps. Rank 0 is told, and where they begin from what it gets, all."""
        job = launch.job
        met = await begin_shadow(process, job, launch.run, restore, launch.reports)
        return dict.fromkeys(job.ranks if restore else job.ranks[:1], met)

    async def give_up(self, process: Aside, job: Job) -> None:
        await super().give_up(process, job)
        with suppress(TestbedError):
            taps = {at: {"name": process.name} for at in tapped(job, process.channels.lab)}
            await process.channels.ask(taps, "tap.stop")

    def places(self, value: Shadow, look: Inspection) -> Figures:
        hosts = tapped_hosts(look.record.spec.wanted, look.session.lab)
        return {"host": value.host, "taps": " ".join(hosts)}

    def figures(
        self, value: Shadow, records: Sequence[Mapping[str, Any]], look: Inspection, now_ns: int
    ) -> Figures:
        return judged(records)

    def restorable(
        self, value: Shadow, record: JobRecord, found: Sequence[Figures], hint: str
    ) -> None:
        figures = found[0] if found else {}
        if "missing" in figures:
            raise Missing(f"{record.name} was {figures['missing']}", hint=hint)
        if not figures.get("checkpoint"):
            raise Missing(
                f"the shadow of {record.name} on {value.host} had no iteration equal to the job's",
                hint=hint,
            )
        if figures["state"] == "killed":
            text = f"was killed, and wrote nothing: its checkpoint of iteration {figures['checkpoint']} is lost"
            raise Missing(f"the shadow of {record.name} on {value.host} {text}", hint=hint)


def tapped_hosts(job: Job, lab: Lab) -> tuple[HostName, ...]:
    """The hosts whose received packets are copied to the job's shadow, as far as this inventory
    still has the job's.
    """
    return tuple(sorted(tapped(job, lab))) if set(job.hosts) <= lab.hosts.keys() else ()


ATTACHMENT = ShadowOfJob()
