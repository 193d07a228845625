"""The shadow of a job: begun before its ranks, what it followed brought home, and its end."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from extensions.shadow.hosts import ShadowHosts, tapped
from extensions.shadow.plan import PlannedShadow, Shadow
from optics import HostName, Missing, TestbedError
from optics.plan import Job
from orchestrator.hosts.api import Tail
from orchestrator.inventory.lab import Lab
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
from orchestrator.jobs.iterations import LATEST
from orchestrator.jobs.rank_records import sound
from orchestrator.session import Session
from orchestrator.store.records import JobRecord
from orchestrator.telemetry.journal import Journal

NEEDED = ("iter", "equal", "t_wall_ns")
FIELDS = ("iter", "equal", "fetched", "missing", "lost", "lag_ms", "checkpoint")


class ShadowOfJob(Attachment[Shadow]):
    """A job may do without, where its host does not answer: a guard that restarts one says so."""

    key = PlannedShadow.key
    noun = "shadow"
    restores = True

    async def begin(self, value: Shadow, given: Given, launch: Launch) -> Given:
        """Start it. Ranks that resume begin from its state or their own, whichever is newer."""
        newer = launch.resume and same_training(self.key, launch.job, launch.latest)
        restore = "only" if launch.restore else "newest" if newer else ""
        started = ShadowHosts(launch.session.hosts.channels).start
        why = await started(
            launch.job,
            launch.run,
            restore=restore,  # type: ignore[arg-type]
            left_out=launch.left_out,
            notify=launch.reports,
        )
        return {"missing": why} if why else given

    async def status(self, value: Shadow, given: Given, look: Inspection) -> Sequence[Figures]:
        """What it judged is fetched first. lost: packets that the taps had no room for."""
        session, record = look.session, look.record
        host, lab = value.host, session.lab
        if why := given.get("missing"):
            again = f"once {host} answers, for one again: testbed job stop, then testbed up"
            missing = f"launched without its shadow on {host}: {why}; {again}"
            return [{"host": host, "state": "absent", "checkpoint": 0, "missing": missing}]
        if host not in lab.hosts:
            return ()
        places = {"host": host, "taps": " ".join(tapped_hosts(record.spec.wanted, lab))}
        look.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        local = look.run_dir / f"{record.spec.on_hosts}.shadow.jsonl"
        local.touch(mode=0o600)
        state = await self._fetch(host, places, local, look)
        records = sound(local.read_bytes().splitlines(), NEEDED)
        lags = [float(each["lag_ms"]) for each in records[-LATEST:] if "lag_ms" in each]
        figures: dict[str, int | float | str] = {
            **places,
            "state": state,
            "iterations": len(records),
            "equal": sum(int(each["equal"]) for each in records),
            "fetched": sum(int(each.get("fetched", 0)) for each in records),
            "checkpoint": int(records[-1].get("checkpoint", 0)) if records else 0,
            "lost": int(records[-1].get("lost", 0)) if records else 0,
        }
        return [figures | ({"lag_ms": round(statistics.median(lags), 3)} if lags else {})]

    async def _fetch(self, host: HostName, places: Figures, local: Path, look: Inspection) -> str:
        """Append the records that are new to a file of this machine and to the journal; the state
        of the shadow.
        """
        session, record = look.session, look.record

        def take(lines: list[bytes], ahead_ns: int) -> None:
            with Journal(look.run_dir, record.run, session.lab.name) as journal:
                for found in sound(lines, NEEDED):
                    values = {key: found.get(key) for key in FIELDS}
                    at_ns = int(found["t_wall_ns"]) - ahead_ns - journal.anchor_ns
                    journal.point("shadow", {"job": record.name}, {**values, **places}, at_ns)

        state = "silent"

        async def records(offset: int) -> Tail:
            nonlocal state
            piece = await ShadowHosts(session.hosts.channels).records(
                record.spec.on_hosts, host, offset
            )
            state = piece.state
            return piece

        with suppress(TestbedError):
            await reach_host(session, host)
            await follow.collect_lines(session, host, local, records, take)
        return state

    async def stop(self, value: Shadow, given: Given, session: Session, record: JobRecord) -> None:
        """It writes its checkpoint. A silent host is left alone."""
        if value.host in session.lab.hosts:
            with suppress(TestbedError):
                await reach_host(session, value.host)
                await ShadowHosts(session.hosts.channels).end(record.spec.on_hosts, value.host)

    def followed(self, value: Shadow, job: Job, record: JobRecord, hint: str) -> None:
        if not same_training(self.key, job, record):
            text = f"was another training than the plan's, or had no shadow on {value.host}"
            raise Missing(f"{record.name} ran last, and {text}", hint=hint)

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
