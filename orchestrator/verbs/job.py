"""`testbed job launch`, `status`, `logs`, `env`, `pause`, `resume` and `stop`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from optics import HostName, Locked, Missing, Refused, TestbedError, Unreachable
from optics.plain import counted
from optics.plan import Job, TransitionPolicy
from optics.ranks import host_of_rank, hosts_of
from orchestrator.change.locking import holding, obeyed, own_scheduler
from orchestrator.hosts.by_hand import ByHand, by_hand
from orchestrator.hosts.failures import one_error
from orchestrator.inventory.lab import Lab
from orchestrator.jobs import attachments
from orchestrator.jobs.attempt import GO_TAKES, HOLD_TAKES, MOST_S, Attempt
from orchestrator.jobs.jobs import Jobs
from orchestrator.jobs.record import FINISHED, hosts_of_job, ranks_of
from orchestrator.jobs.report import ALIVE, JobLogs, JobStatus
from orchestrator.plan.reader import read_plan
from orchestrator.session import Command, Session, load_lab
from orchestrator.store.generations import next_generation
from orchestrator.store.job_spec import Pause
from orchestrator.store.keys import lab_of, tenancy_of
from orchestrator.store.records import CurrentPlan, JobRecord
from orchestrator.store.scope import reachable_scope
from orchestrator.telemetry import environment
from orchestrator.telemetry.journal import Journal
from orchestrator.telemetry.recorder import Recorder

WAIT_POLL_S = 0.5
"""How often (s) a job is asked that is waited for."""


@asynccontextmanager
async def _opened(command: Command, verb: str) -> AsyncIterator[Jobs]:
    lab = load_lab(command.inventory)
    async with command.opened(lab, verb) as session:
        yield Jobs(
            session, command.store, tenancy_of(lab, command.settings), command.settings.runs_dir
        )


async def _connect(session: Session, names: Collection[HostName]) -> None:
    """Connect to these hosts. Raises: Unreachable - names every one that does not answer."""
    answers = await session.hosts.channels.connect(names)
    if silent := {h: e for h, e in answers.items() if isinstance(e, TestbedError)}:
        raise one_error(silent)


def _latest(jobs: Jobs) -> JobRecord:
    record = jobs.store.latest_job(jobs.tenancy)
    if record is None:
        raise Missing(
            "no job was ever launched on this lab", hint="testbed up with a plan that has a job"
        )
    return record


async def job_status(command: Command) -> JobStatus:
    """The latest job as its ranks report it now; fetches the iterations completed so far."""
    async with _opened(command, "job status") as jobs:
        record = _latest(jobs)
        await _connect(jobs.session, hosts_of_job(record, jobs.session.lab))
        return await jobs.status(record)


async def job_wait(command: Command, *, iterations: int | None) -> JobStatus:
    """Wait until the latest job has ended, or has completed this many iterations. Raises: TimedOut
    - not within `timeout_s`.
    """
    async with _opened(command, "job wait") as jobs:
        record = _latest(jobs)
        await _connect(jobs.session, hosts_of_job(record, jobs.session.lab))
        with Recorder(command.progress).phase("job") as phase:
            while True:  # until the deadline of the verb
                status = await jobs.status(record)
                phase.detail = f"{status.state}, {counted(status.iterations, 'iteration')}"
                if status.state not in ALIVE or (
                    iterations is not None and status.iterations >= iterations
                ):
                    return status
                text = status.state if iterations else phase.detail
                command.progress.update("job", status.iterations, iterations or 0, text)
                await asyncio.sleep(WAIT_POLL_S)


async def job_logs(
    command: Command, *, lines: int, host: str | None, rank: int | None = None
) -> JobLogs:
    """The last `lines` lines each rank wrote; `host`, `rank`: only of these. Raises: Missing - no
    job, or no such rank.
    """
    async with _opened(command, "job logs") as jobs:
        record = _latest(jobs)
        name, ranks = record.spec.on_hosts, ranks_of(record, jobs.session.lab)
        numbered = list(enumerate(record.spec.wanted.ranks))
        chosen = [
            (i, r)
            for i, r in numbered
            if r in ranks and host in (None, r, host_of_rank(r)) and rank in (None, i)
        ]
        if not chosen:
            what = (
                f"no rank {rank}"
                if host is None
                else f"no rank on {host}"
                if rank is None
                else f"no rank {rank} on {host}"
            )
            raise Missing(
                f"job {record.name} has {what}",
                hint=f"its ranks: {', '.join(f'{i} {r}' for i, r in numbered)}",
            )
        await _connect(jobs.session, hosts_of(r for _, r in chosen))
        tails = await asyncio.gather(
            *(jobs.session.hosts.jobs.tail(name, r, "log", -200 * lines) for _, r in chosen)
        )
    found = {
        f"rank {i} ({r})": tuple(t.text.splitlines()[-lines:])
        for (i, r), t in zip(chosen, tails, strict=True)
    }
    return JobLogs(record.name, found)


async def job_env(command: Command) -> ByHand:
    """The ranks of the job of the plan that is up, for users who launch them by themselves; no host
    is asked.

    Raises: Missing - no plan is up, or it has no job.
    """
    lab = load_lab(command.inventory)
    return by_hand(_planned(command, tenancy_of(lab, command.settings), lab)[1], lab)


def _planned(command: Command, key: str, lab: Lab) -> tuple[CurrentPlan, Job]:
    """The plan that is up, and its job. Raises: Missing - there is none."""
    current = command.store.current(key)
    if current is None:
        raise Missing(
            "no plan is up on this lab", hint="testbed up --topology examples/ring-12.json"
        )
    job = read_plan(current.plan_text, current.plan_name, lab).job
    if job is None:
        raise Missing(
            f"{current.plan_name} has no job",
            hint="add one to the plan; see docs/reference/plan.schema.json",
        )
    return current, job


async def job_launch(command: Command, *, again: bool = True) -> JobStatus:
    """Launch the job of the plan that is up, again if it ran before; a running schedule goes on.
    again: without its checkpoints; else as `up` does (`Jobs.ensure`).

    Raises: Missing - no plan is up, or it has no job.
    """
    return await _launch(command, "job launch", again=again)


async def job_restore(command: Command) -> JobStatus:
    """Launch the job that ended last again, from the newest checkpoint of what followed it.

    Raises: Missing - that has none, or it is not the job of the plan that is up. Refused - it runs.
    """
    return await _launch(command, "job restore", restore=True)


async def _restorable(jobs: Jobs, job: Job) -> None:
    """Raises: as `job_restore`."""
    record, hint = (
        _latest(jobs),
        "from the checkpoints of its ranks, where they have some: testbed up; from its beginning: testbed job launch",
    )
    found = attachments.followers(job, record, hint)
    status = await jobs.status(record)
    if status.state in ALIVE:
        raise Refused(
            f"job {record.name} is {status.state}, so there is nothing to restore",
            hint="testbed job stop, then restore",
        )
    attachments.willing(
        found,
        lambda kind, value: kind.restorable(value, record, status.attached.get(kind.key, ()), hint),
    )


async def _launch(
    command: Command, verb: str, *, again: bool = True, restore: bool = False
) -> JobStatus:
    store, settings = command.store, command.settings
    async with _opened(command, verb) as jobs:
        session, key = jobs.session, jobs.tenancy
        current, job = _planned(command, key, session.lab)
        await _connect(session, job.needed)
        latest = store.latest_job(key)
        ends = (
            set(hosts_of_job(latest, session.lab))
            if latest is not None and latest.ended is None
            else set[HostName]()
        )
        # where the job before this one is to be stopped
        await session.hosts.channels.connect(ends.difference(job.needed))
        hosts, scheduler = (
            sorted(ends.union(job.needed)),
            own_scheduler(session.lab, settings, store),
        )
        async with holding(
            session.lab, command, reachable_scope(session.lab, hosts), verb, within=scheduler
        ) as lock:
            if store.current(key) != current:
                raise Locked(
                    "another plan came up while this command waited",
                    hint="first check: testbed status",
                )
            if (now := store.latest_job(key)) is not None and (
                latest is None or now.id != latest.id
            ):
                raise Locked(
                    "another job was launched while this command waited",
                    hint="look first: testbed job status",
                )
            if restore:
                await _restorable(jobs, job)
            run = store.new_run(
                verb,
                lab_of(key),
                plan_name=current.plan_name,
                plan_sha=current.plan_sha,
                plan_text=current.plan_text,
                inventory=command.inventory,
                user=settings.user,
                owner=settings.owner,
            )
            lock.bind(run)
            await obeyed(session, run, hosts, scheduler)
            run_dir = settings.run_dir(run.id)
            with run, Journal(run_dir, run.id, session.lab.name) as journal:
                environment.record_environment(run_dir, session.lab, command.inventory)
                recorder, sample, record = (
                    Recorder(command.progress, journal),
                    settings.sample_hz > 0,
                    store.latest_job(key),
                )
                await attachments.check_attachments(job, session.lab, record, again=again)
                if again and record is not None and record.ended is None:
                    await jobs.stop(record, "launched again")
                if again:
                    status = await jobs.start(
                        run.id, job, recorder, resume=restore, sample=sample, restore=restore
                    )
                else:
                    found = await jobs.ensure(
                        run.id, job, recorder, changed=False, launch=True, sample=sample
                    )
                    assert found is not None
                    status = found
                run.finish("ok", summary={"iteration_ms": status.iteration_ms})
                return status


async def job_stop(command: Command) -> JobStatus:
    """Stop the job at an iteration boundary and report how far it got; of a failed one, the ranks
    that still run. No guard launches it again."""
    async with _opened(command, "job stop") as jobs:
        session = jobs.session
        record = _latest(jobs)
        await session.hosts.channels.connect(hosts_of_job(record, session.lab))
        # stop the ranks on the hosts that answer; `stop` names the others
        with suppress(Unreachable):
            status = await jobs.status(record)
            if status.state in FINISHED and not await jobs.left(record):
                return status
        hosts = hosts_of_job(record, session.lab)
        scheduler = own_scheduler(session.lab, command.settings, command.store)
        async with holding(
            session.lab, command, reachable_scope(session.lab, hosts), "job stop", within=scheduler
        ):
            if _latest(jobs).id != record.id:
                raise Locked(
                    "another job was launched while this command waited",
                    hint="again: testbed job stop",
                )
            # by itself; but not all of its ranks, or a guard may launch it again
            if (ended := _latest(jobs)).ended is not None:
                await jobs.stop_left(ended)
                if ended.state not in FINISHED:
                    why = f"stopped by the operator after it had failed: {ended.detail}"
                    jobs.store.set_job(ended.id, "stopped", why, ended=True)
                return await jobs.status(_latest(jobs))
            return await jobs.stop(record, "stopped by the operator")


async def job_pause(command: Command, *, for_s: float) -> JobStatus:
    """Pause the job at the end of an iteration, until `job_resume` or for `for_s` (s) at most;
    a running schedule goes on.

    Raises: Refused - it does not run, is paused already, not all ranks take part, or no iteration
    ends in time: it goes on then.
    """
    async with _opened(command, "job pause") as jobs:
        session, store, settings = jobs.session, command.store, command.settings
        record = _latest(jobs)
        hosts = hosts_of_job(record, session.lab)
        if for_s > MOST_S:
            raise Refused(
                f"job {record.name}: {for_s:g} s would be a hold longer than its lease: hosts pause a job for {MOST_S:g} s at most",
                hint="testbed job pause --for 1h; testbed job stop ends it with a checkpoint",
            )
        await _connect(session, hosts)
        scheduler = own_scheduler(session.lab, settings, store)
        async with holding(
            session.lab, command, reachable_scope(session.lab, hosts), "job pause", within=scheduler
        ) as lock:
            record, status = await _going(jobs, record)
            if status.state == "paused":
                raise Refused(f"job {record.name} is paused already, {status.detail}")
            run = store.new_run(
                "job pause",
                lab_of(jobs.tenancy),
                inventory=command.inventory,
                user=settings.user,
                owner=settings.owner,
            )
            lock.bind(run)
            with run, Journal(settings.run_dir(run.id), run.id, session.lab.name) as journal:
                await obeyed(session, run, hosts, scheduler)
                move = next_generation(store, lab_of(jobs.tenancy), settings.owner, run.id)
                token = run.token if scheduler is None else scheduler.token
                await _pause(jobs, record, move, token, for_s, Recorder(command.progress, journal))
                run.finish("ok")
        return await jobs.status(_latest(jobs))


async def _pause(
    jobs: Jobs, record: JobRecord, move: int, token: int, for_s: float, recorder: Recorder
) -> None:
    boundary_s = _boundary_s(jobs)
    attempt = Attempt(jobs.session.hosts, record, move, boundary_s)
    try:
        with recorder.phase("prepare") as phase:
            await attempt.prepare({}, for_s + (HOLD_TAKES + GO_TAKES) * boundary_s)
            phase.detail = f"{len(attempt.states)} ranks ready to pause"
        until = Pause(move, token, time.time() + for_s + HOLD_TAKES * boundary_s)  # should this die
        jobs.store.set_job_spec(record.id, replace(record.spec, pause=until))
        with recorder.phase("hold") as phase:
            phase.detail = f"paused after iteration {await attempt.hold(for_s)}"
    except BaseException:
        await attempt.drop()
        jobs.store.set_job_spec(record.id, replace(record.spec, pause=None))
        raise
    jobs.store.set_job_spec(
        record.id, replace(record.spec, pause=Pause(move, token, time.time() + for_s))
    )
    jobs.store.set_job(record.id, "paused")


async def job_resume(command: Command) -> JobStatus:
    """Have a paused job go on. Raises: Refused - it is not paused, or a rank does not go on."""
    async with _opened(command, "job resume") as jobs:
        session = jobs.session
        record = _latest(jobs)
        hosts = hosts_of_job(record, session.lab)
        await _connect(session, hosts)
        scheduler = own_scheduler(session.lab, command.settings, command.store)
        async with holding(
            session.lab,
            command,
            reachable_scope(session.lab, hosts),
            "job resume",
            within=scheduler,
        ):
            record, status = await _going(jobs, record)
            pause = record.pause
            if status.state != "paused" or pause is None:
                over = "; its pause is over" if pause is not None else ""
                raise Refused(
                    f"job {record.name} is not paused: it is {status.state}{over}",
                    hint="testbed job status",
                )
            session.hosts.channels.token = pause.token  # a newer run would have ended the pause
            attempt = Attempt(session.hosts, record, pause.move, _boundary_s(jobs))
            with Recorder(command.progress).phase("rings") as phase:
                phase.detail = f"goes on after iteration {await attempt.go_on()}"
            jobs.store.set_job_spec(record.id, replace(record.spec, pause=None))
            jobs.store.set_job(record.id, "running")
        return await jobs.status(_latest(jobs))


async def _going(jobs: Jobs, record: JobRecord) -> tuple[JobRecord, JobStatus]:
    """The record of a job as it is now that its hosts are locked, for it may have changed rings
    meanwhile, and its status.

    Raises: Refused - the job does not run; Locked - it is another one by now.
    """
    now = _latest(jobs)
    if now.id != record.id:
        raise Locked(
            "another job was launched while this command waited",
            hint="look first: testbed job status",
        )
    status = await jobs.status(now)
    if status.state not in ALIVE:
        raise Refused(
            f"job {now.name} does not run: it is {status.state}", hint="testbed job launch"
        )
    return now, status


def _boundary_s(jobs: Jobs) -> float:
    """How long an iteration may take, by the plan that is up."""
    current = jobs.store.current(jobs.tenancy)
    with suppress(TestbedError):  # the inventory changed since
        if current is not None:
            return read_plan(
                current.plan_text, current.plan_name, jobs.session.lab
            ).transition.boundary_s
    return TransitionPolicy().boundary_s
