"""`testbed job launch`, `status`, `logs` and `stop`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress

from optics import HostName, Locked, Missing, TestbedError, Unreachable
from orchestrator.engine.change.job_record import facts, ranks_of
from orchestrator.engine.change.jobs import Jobs
from orchestrator.engine.change.locking import holding
from orchestrator.hosts.failures import one_error
from orchestrator.plan.reader import read_plan
from orchestrator.results import JobLogs, JobStatus
from orchestrator.session import Command, Session, load_lab
from orchestrator.store.keys import lab_of, slice_of
from orchestrator.store.records import JobRecord
from orchestrator.store.scope import reach
from orchestrator.telemetry import environment
from orchestrator.telemetry.journal import Journal
from orchestrator.telemetry.recorder import Recorder


@asynccontextmanager
async def _opened(command: Command, verb: str) -> AsyncIterator[Jobs]:
    lab = load_lab(command.inventory)
    async with command.opened(lab, verb) as session:
        yield Jobs(session, command.store, slice_of(lab, command.settings), command.settings.runs_dir)


async def _connect(session: Session, names: Collection[HostName]) -> None:
    """Connect to these hosts. Raises: Unreachable - names every one that does not answer."""
    answers = await session.hosts.connect(names)
    if silent := {h: e for h, e in answers.items() if isinstance(e, TestbedError)}:
        raise one_error(silent)


def _latest(jobs: Jobs) -> JobRecord:
    record = jobs.store.latest_job(jobs.slice)
    if record is None:
        raise Missing("no job was ever launched on this lab", hint="testbed up with a plan that has a job")
    return record


async def job_status(command: Command) -> JobStatus:
    """The latest job as its ranks report it now; fetches the iterations completed so far."""
    async with _opened(command, "job status") as jobs:
        record = _latest(jobs)
        await _connect(jobs.session, ranks_of(record, jobs.session.lab))
        return await jobs.status(record)


async def job_logs(command: Command, *, lines: int, host: str | None) -> JobLogs:
    """The last `lines` lines each rank wrote. Raises: Missing - no job, or no rank on `host`."""
    async with _opened(command, "job logs") as jobs:
        record = _latest(jobs)
        name, ranks = facts(record)[0], ranks_of(record, jobs.session.lab)
        chosen = [(i, h) for i, h in enumerate(ranks) if host in (None, h)]
        if not chosen:
            raise Missing(f"job {record.name} has no rank on {host}", hint=f"its hosts: {', '.join(ranks)}")
        await _connect(jobs.session, [h for _, h in chosen])
        tails = await asyncio.gather(*(jobs.session.hosts.tail(name, h, "log", -200 * lines) for _, h in chosen))
    found = {f"rank {i} ({h})": tuple(t.text.splitlines()[-lines:]) for (i, h), t in zip(chosen, tails, strict=True)}
    return JobLogs(record.name, found)


async def job_launch(command: Command) -> JobStatus:
    """Launch the job of the plan that is up, again if it ran before. Raises: Missing - no plan is up, or it has no job."""
    store, settings = command.store, command.settings
    async with _opened(command, "job launch") as jobs:
        session, key = jobs.session, jobs.slice
        current = store.current(key)
        if current is None:
            raise Missing("no plan is up on this lab", hint="testbed up --topology examples/ring-12.json")
        job = read_plan(current.plan_text, current.plan_name, session.lab).job
        if job is None:
            raise Missing(f"{current.plan_name} has no job", hint="add one to the plan; see docs/reference/plan.schema.json")
        await _connect(session, job.ranks)
        async with holding(session.lab, command, reach(session.lab, job.ranks), "job launch") as lock:
            if store.current(key) != current:
                raise Locked("another plan came up while this command waited", hint="first check: testbed status")
            run = store.new_run(
                "job launch",
                lab_of(key),
                plan_name=current.plan_name,
                plan_sha=current.plan_sha,
                plan_text=current.plan_text,
                inventory=command.inventory,
                user=settings.user,
                owner=settings.owner,
            )
            lock.bind(run)
            await session.hosts.fence(run.token, job.ranks)
            run_dir = settings.run_dir(run.id)
            with run, Journal(run_dir, run.id, session.lab.name) as journal:
                environment.note(run_dir, session.lab, command.inventory)
                record = store.latest_job(key)
                if record is not None and record.ended is None:
                    await jobs.stop(record, "launched again")
                status = await jobs.start(
                    run.id,
                    job,
                    Recorder(command.progress, journal),
                    resume=False,
                    sample=settings.sample_hz > 0,
                )
                run.finish("ok", summary={"iteration_ms": status.iteration_ms})
                return status


async def job_stop(command: Command) -> JobStatus:
    """Stop the job at an iteration boundary and report how far it got."""
    async with _opened(command, "job stop") as jobs:
        session = jobs.session
        record = _latest(jobs)
        await session.hosts.connect(ranks_of(record, session.lab))
        with suppress(Unreachable):  # stop the ranks on the hosts that answer; `stop` names the others
            status = await jobs.status(record)
            if status.state not in ("starting", "running"):
                return status
        ranks = ranks_of(record, session.lab)
        async with holding(session.lab, command, reach(session.lab, ranks), "job stop"):
            if _latest(jobs).id != record.id:
                raise Locked("another job was launched while this command waited", hint="again: testbed job stop")
            return await jobs.stop(record, "stopped by the operator")
