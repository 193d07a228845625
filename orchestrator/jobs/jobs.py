"""The job of a plan: kept in line with the plan that is up, started, stopped and resumed."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from optics import HostName, NotVerified, Refused, TestbedError, Unreachable
from optics.plain import counted
from optics.plan import Job
from optics.ranks import RankName, host_of_rank
from orchestrator.hosts import Heartbeat, JobState
from orchestrator.hosts.launch import identity
from orchestrator.jobs import attachments
from orchestrator.jobs import heartbeats as job_heartbeats
from orchestrator.jobs import ports as job_ports
from orchestrator.jobs.attachments import Inspection, Launch
from orchestrator.jobs.attempt import Attempt
from orchestrator.jobs.first_iterations import (
    first_iterations,
    last_lines,
    started_text,
    starting_text,
)
from orchestrator.jobs.iterations import collect_iterations, iteration_figures, median_ms
from orchestrator.jobs.keep import is_same
from orchestrator.jobs.pauses import paused
from orchestrator.jobs.progress import unseen
from orchestrator.jobs.rank_records import Sound
from orchestrator.jobs.record import (
    hosts_of_job,
    launched,
    launching,
    new_hosts,
    ranks_of,
    spec_of,
    state_of,
    stopping,
    workload_name,
)
from orchestrator.jobs.report import ALIVE, JobStatus
from orchestrator.session import Session
from orchestrator.store.keys import lab_of
from orchestrator.store.records import JobRecord
from orchestrator.store.store import Store
from orchestrator.telemetry.recorder import Recorder

GRACE_S = 15.0
"""Time (s) a job gets after SIGTERM to finish its iteration and write its checkpoint."""
BROKEN_GRACE_S = 1.0
"""The same of a job that has lost a rank or hangs, whose others cannot finish an iteration."""


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs of one owner on one lab. tenancy: the owner's part of the lab. runs_dir: holds a
    directory for every run.
    """

    session: Session
    store: Store
    tenancy: str
    runs_dir: Path

    async def heartbeats(self, record: JobRecord) -> Sequence[Heartbeat]:
        """What every rank says of itself, of the hosts that answer; its iterations since the last
        time go into the journal.
        """
        name, ranks = record.spec.on_hosts, ranks_of(record, self.session.lab)
        return await job_heartbeats.collect_heartbeats(
            self.session, name, record.name, record.run, self.runs_dir / record.run, ranks
        )

    async def status(
        self,
        record: JobRecord,
        heartbeats: Sequence[Heartbeat] | None = None,
        asked: dict[object, Any] | None = None,
    ) -> JobStatus:
        """Ask every rank, fetch the new iterations, record an end in the store.

        heartbeats: what `heartbeats` returned a moment ago. asked: as `Inspection.asked`.
        """
        name, wanted, run_dir = record.spec.on_hosts, record.spec.wanted, self.runs_dir / record.run
        ranks, records = ranks_of(record, self.session.lab), Sound()
        states = await self._states(record)
        if ranks:
            records = await collect_iterations(self.session, name, record, run_dir)
            heartbeats = await self.heartbeats(record) if heartbeats is None else heartbeats
        state, detail = state_of(record, states, len(records) + records.bad)
        run = self.store.get(record.run)
        if run is not None and launching(record, run):
            since = time.strftime("%H:%M:%S", time.localtime(record.started))
            state, detail = "starting", f"launching since {since}, by run {run.id} ({run.verb})"
        # that run samples the ports itself until it ends
        if ranks and run is not None and run.ended is not None:
            await job_ports.fetch_samples(
                self.session, name, run.id, run_dir, ranks, run.ended, ended=state not in ALIVE
            )
        if state == "running" and record.pause is not None:
            state, detail = await paused(self.session, self.store, lab_of(self.tenancy), record)
        elif state == "running":
            detail = record.detail
        if not records and not detail and ranks:
            detail = await unseen(
                self.session, self.store, self.tenancy, self.runs_dir, record, state
            )
        look = Inspection(
            self.session,
            self.store,
            record,
            run_dir,
            state in ALIVE,
            {} if asked is None else asked,
        )
        lost = await attachments.tend(look) if record.ended is None else ()
        detail += "".join(f"; {text}" for text in lost) if state == "failed" else ""
        if record.ended is None and state in ("finished", "failed", "stopped"):
            await self._ended(record.id, state, detail)
        if state == "failed" and (left := sum(each.state == "running" for each in states.values())):
            detail += (
                f"; {counted(left, 'rank')} still run{'s' if left == 1 else ''}: testbed job stop"
            )
        return JobStatus(
            name=record.name,
            state=state,
            workload=workload_name(wanted),
            backend=record.spec.backend,
            ranks=len(wanted.ranks),
            hosts=len(wanted.hosts),
            busbw_expected_mbps=wanted.predicted.get("busbw_mbps"),
            iteration_expected_ms=wanted.predicted.get("iteration_ms"),
            time_scale=wanted.traffic.time_scale if wanted.traffic is not None else 1.0,
            exit_codes={
                i: s.code
                for i, rank in enumerate(wanted.ranks)
                if (s := states.get(rank)) and s.code is not None
            },
            detail=detail,
            run=record.run,
            started=record.started,
            late=job_heartbeats.late_text(heartbeats or (), median_ms(records))
            if state == "running"
            else (),
            attached=await attachments.attachment_figures(look),
            **iteration_figures(wanted, records),
        )

    async def _states(self, record: JobRecord) -> Mapping[RankName, JobState]:
        """How the ranks are, of hosts that the inventory still contains."""
        ranks = ranks_of(record, self.session.lab)
        return await self.session.hosts.jobs.states(record.spec.on_hosts, ranks)

    async def running(self) -> JobRecord | None:
        """The job that runs now, as its ranks report; one whose ranks cannot be asked counts as
        running.
        """
        record = self.store.latest_job(self.tenancy)
        if record is None or record.ended is not None:
            return None
        try:
            states = await self._states(record)
        except TestbedError:
            return record
        return record if any(s.state == "running" for s in states.values()) else None

    async def ensure(
        self,
        run: str,
        job: Job | None,
        recorder: Recorder,
        *,
        changed: bool,
        launch: bool,
        restart: bool = False,
        sample: bool = True,
        left_out: bool = False,
    ) -> JobStatus | None:
        """Bring the job in line with a plan that is up now. restart: it is launched again even if
        it is the same.

        No job in the plan: one that runs keeps running. The same job: it keeps running, and is
        launched again if it failed or was stopped, or if it finished and the lab was `changed`.
        Another job: the old one is stopped at an iteration boundary and the new one takes its
        place, from the old one's checkpoints if both are one training, by name and `identity`.

        Raises: as `start`; Unreachable - it is unknown whether the old job still runs.
        """
        record, old = self.store.latest_job(self.tenancy), None
        if record is not None and ranks_of(record, self.session.lab):
            try:
                old = await self.status(record)
            except Unreachable:
                if record.ended is None:
                    raise
                # An ended job need not answer: it may have run on hosts that this plan does not
                # touch.
        runs = old is not None and old.state in ALIVE
        if job is None or not launch:
            return old if runs else None
        same = record is not None and is_same(record, job)
        stays = not restart and (
            runs or (old is not None and old.state == "finished" and not changed)
        )
        if record is not None and old is not None and same and stays:
            return old
        if runs:
            assert record is not None
            after = f" after {old.iterations if old else 0} iterations"
            await self._stop(record, "replaced", recorder, after)
        ended = "" if record is None else record.state if old is None else old.state
        before = record.spec.wanted if record is not None and ended != "finished" else None
        resume = before is not None and (before.name, identity(before)) == (job.name, identity(job))
        return await self.start(run, job, recorder, resume=resume, sample=sample, left_out=left_out)

    async def resume_previous(
        self,
        run: str,
        number: int | None,
        wanted: Job | None,
        recorder: Recorder,
        *,
        sample: bool = True,
    ) -> JobStatus | None:
        """Resume the job that ran before (None: none did) from its checkpoint; stop another one
        that runs.

        wanted: the job with the rings that it had, None for those of its record; on other rings it
        is stopped, too. Raises: Missing - its launch data is lost; else as `start`.
        """
        latest = self.store.latest_job(self.tenancy)
        if latest is not None and latest.id != number and latest.ended is None:
            if await self.running():
                await self._stop(latest, "taken back", recorder)
            else:
                with suppress(TestbedError):
                    await self.status(latest)  # it gives back what it has
                await self.stop_left(self.store.job(latest.id))
        record = None if number is None else self.store.job(number)
        if record is None or record.state == "finished":
            return None
        if record.ended is None:
            status = await self.status(record)
            same = is_same(record, wanted or record.spec.wanted)
            if status.state == "finished" or (same and status.state in ALIVE):
                return status
            if status.state in ALIVE:
                await self._stop(record, "taken back", recorder)
        job = launched(record, self.session.lab, wanted)
        return await self.start(
            run, job, recorder, resume=True, sample=sample, left_out=True, before=record
        )

    async def start(
        self,
        run: str,
        job: Job,
        recorder: Recorder,
        *,
        resume: bool,
        sample: bool = True,
        restore: bool = False,
        left_out: bool = False,
        before: JobRecord | None = None,
    ) -> JobStatus:
        """Launch a job through Ansible and wait for its first iterations, or its early end.

        sample: hosts keep their ports' counters. restore, resume, left_out: as `Launch`. before:
        the job that it goes on from, if another one was the latest. Raises:
        NotVerified - it failed at once; the last line of each rank is quoted. Refused, Unreachable
        - it could not start. Locked - another run has taken the lab, and may have launched one.
        """
        what = job.program or job.workload
        latest = self.store.latest_job(self.tenancy)
        await self.stop_left(latest)
        latest = before or latest
        new = new_hosts(job, latest) if resume else []
        with recorder.phase(
            "launch", f"{what} on {len(job.hosts)} hosts, through Ansible"
        ) as phase:
            lab, reported = self.session.lab, partial(recorder.progress.update, "launch", 0, 1)
            launch = Launch(self.session, job, run, latest, resume, restore, left_out, reported)
            spec = dataclasses.replace(
                spec_of(job, lab, run), given=await attachments.reserve(job, lab, run)
            )
            number = self.store.add_job(self.tenancy, run, job.name, spec)
            try:
                spec = await attachments.begin_attachments(
                    launch, spec, partial(self.store.set_job_spec, number)
                )
                more: dict[str, Any] = {"fresh": new} if new else {}
                more |= {"extra": attachments.extra(job, spec, lab)} if job.attached else {}
                await self.session.hosts.jobs.launch(job, run, resume=resume, **more)
            except TestbedError as error:
                now = self.store.job(number)
                assert now is not None
                self.store.set_job_spec(number, dataclasses.replace(now.spec, unlaunched=True))
                await self._ended(number, "failed", str(error))
                await self.stop_left(self.store.job(number))
                raise
            self.store.set_job(number, "running")
            if sample:
                await job_ports.start_port_sampling(self.session, spec.on_hosts, job.ranks)
            phase.detail = "; ".join(
                (
                    f"{what}, {len(job.ranks)} ranks, {spec.backend}",
                    *attachments.missing_attachments(spec),
                )
            )
        record = self.store.job(number)  # whoever took the lock may have recorded another since
        assert record is not None
        starts = starting_text(len(job.ranks))
        with recorder.phase("job", starts) as phase:
            status = await first_iterations(partial(self.status, record), starts, recorder.progress)
            if status.state == "failed":
                states = await self._states(record)
                text = await last_lines(self.session.hosts, spec.on_hosts, states)
                await self.stop_left(self.store.job(number))
                raise NotVerified(
                    f"job {job.name} failed at its start: {status.detail}\n{text}",
                    hint="testbed job logs; to start it again, without its checkpoints: testbed job launch",
                )
            phase.detail = started_text(status)
        return status

    async def _stop(self, record: JobRecord, why: str, recorder: Recorder, after: str = "") -> None:
        with recorder.phase("job", f"stopping {record.name}") as phase:
            await self.stop(record, why)
            phase.detail = f"stopped {record.name}{after}"

    async def stop(self, record: JobRecord, why: str) -> JobStatus:
        """Stop a job and keep its iterations. Raises: Refused - a rank does not stop even when
        killed.
        """
        record = stopping(self.store, record, why)
        # ranks write their checkpoints at the end of an iteration
        if (pause := record.pause) is not None:
            await Attempt(self.session.hosts, record, pause.move, GRACE_S).drop()
        ranks = ranks_of(record, self.session.lab)
        await self._stop_ranks(record, GRACE_S, ranks, "testbed job stop again, or check the host")
        try:
            status = await self.status(record)
        # stopped through Ansible, or its hosts were started again: no agent there tells more
        except Unreachable:
            status = JobStatus(record.name, "stopped", run=record.run, started=record.started)
        await self._ended(record.id, "stopped", why)
        return dataclasses.replace(status, state="stopped", detail=why)

    async def write_off(self, lost: Collection[HostName], why: str = "") -> None:
        """End the latest job because it has ranks on hosts that do not answer, or because of `why`:
        the others wait in vain.

        They get no time for a checkpoint, which takes all ranks. Raises: Refused - a rank does not
        stop even when killed.
        """
        record = self.store.latest_job(self.tenancy)
        if record is None or not (why or set(lost) & set(hosts_of_job(record, self.session.lab))):
            return
        ranks = ranks_of(record, self.session.lab)
        near = [rank for rank in ranks if host_of_rank(rank) not in lost]
        await self._stop_ranks(record, BROKEN_GRACE_S, near, "check the host")
        if record.ended is None:
            text = why or f"{', '.join(sorted(lost))} did not answer"
            await self._ended(record.id, "failed", text)

    async def _stop_ranks(
        self, record: JobRecord, grace_s: float, ranks: Sequence[RankName], hint: str
    ) -> None:
        """Stop these ranks, and what the job has beside its ranks. Raises: Refused - one runs on."""
        name, jobs = record.spec.on_hosts, self.session.hosts.jobs
        states = await jobs.stop(name, grace_s, ranks) if ranks else {}
        if still := [rank for rank, s in states.items() if s.state == "running"]:
            raise Refused(f"job {record.name}: {', '.join(still)} did not stop", hint=hint)
        await attachments.stop_attachments(self.session, record)

    async def left(self, record: JobRecord) -> tuple[RankName, ...]:
        """The ranks of an ended job that run nevertheless, such as peers of a lost one that their
        program has not missed yet.

        Raises: Unreachable - a host of the job does not answer.
        """
        states = await self._states(record)
        return tuple(rank for rank, state in states.items() if state.state == "running")

    async def _ended(self, job: int, state: str, detail: str) -> None:
        """Record that a job has ended, and give back what it had."""
        self.store.set_job(job, state, detail, ended=True)
        if (record := self.store.job(job)) is not None:
            await attachments.release(record.spec.given)

    async def stop_left(self, record: JobRecord | None) -> None:
        """Stop what is `left` of an ended job, so that it holds no GPU and no port. A host that
        does not answer stays as it is.
        """
        if record is None or record.ended is None:
            return
        with suppress(TestbedError):
            if left := await self.left(record):
                await self.session.hosts.jobs.stop(record.spec.on_hosts, GRACE_S, left)
        await attachments.stop_attachments(self.session, record)

    async def stop_if_running(self, recorder: Recorder) -> str:
        """Stop the job if one runs; return its name, else "". Raises: Unreachable, Refused - not
        all of its ranks stopped.
        """
        record = self.store.latest_job(self.tenancy)
        if record is None or record.ended is not None:
            await self.stop_left(record)
            return ""
        with recorder.phase("job", f"stopping {record.name}") as phase:
            try:
                status = await self.status(record)
            # the ranks on the hosts that answer are stopped; then `stop` names the others
            except Unreachable:
                pass
            else:
                if status.state not in ALIVE:
                    # this look may be the first to see that a rank is lost
                    await self.stop_left(self.store.job(record.id))
                    phase.detail = f"{record.name} had {status.state}"
                    return ""
            status = await self.stop(record, "down")
            phase.detail = f"{record.name} stopped" + (
                f" after {status.iterations} iterations" if status.iterations else ""
            )
        return record.name
