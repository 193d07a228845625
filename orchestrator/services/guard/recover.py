"""Recovery of a job: its restart from the newest checkpoint, and its move off a host, by `up` of a
rewritten plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import cast

from optics import (
    BadFile,
    HostName,
    Infeasible,
    Interlock,
    Locked,
    Missing,
    TestbedError,
    Unreachable,
)
from optics.plan import Plan
from orchestrator.change.expiry import settled
from orchestrator.change.interlock import Moves, tagged
from orchestrator.change.locking import holding, obeyed, own_scheduler
from orchestrator.change.report import UpReport
from orchestrator.change.run import ChangeRun
from orchestrator.deadline import deadline
from orchestrator.hosts import Hello
from orchestrator.hosts.launch import check_launch, resumable
from orchestrator.inventory.lab import Lab
from orchestrator.jobs.attachments import check_attachments
from orchestrator.jobs.jobs import Jobs
from orchestrator.jobs.record import FINISHED, hosts_of_job, launched
from orchestrator.jobs.report import JobStatus
from orchestrator.plan.avoid import avoiding
from orchestrator.plan.evict import left_out, plan_without_host, replaced
from orchestrator.plan.reader import read_plan
from orchestrator.session import Command, load_lab
from orchestrator.settings import Settings
from orchestrator.store.generations import generation_owners
from orchestrator.store.keys import key_of, lab_of, tenancy_of
from orchestrator.store.locks import who
from orchestrator.store.options import RunOptions, UpOptions
from orchestrator.store.ownership import taken_hosts
from orchestrator.store.records import CurrentPlan, JobRecord
from orchestrator.store.recoveries import Begun
from orchestrator.store.scope import reachable_scope
from orchestrator.store.store import Store
from orchestrator.store.tagouts import Tagout, Tagouts
from orchestrator.telemetry import environment
from orchestrator.telemetry.journal import Journal
from orchestrator.telemetry.progress import Silent
from orchestrator.telemetry.recorder import Recorder

Begin = Callable[[], AbstractContextManager[Begun]]
"""Called once the lab is locked, before anything has an effect. Raises: Locked - it must not be
done (any more).
"""


async def restart(
    jobs: Jobs, command: Command, record: JobRecord, why: str, begin: Begin
) -> JobStatus:
    """Stop what is left of a broken job and launch it again, from the newest checkpoint that there
    is; what it can do without and cannot have is left out. a running schedule goes on.

    Raises: Locked - another command holds the lab, or another job was launched; nothing is changed.
    As `Jobs.start`.
    """
    lab, store, settings = jobs.session.lab, jobs.store, command.settings
    job = launched(record, lab)
    current = store.current(jobs.tenancy)
    scheduler = own_scheduler(lab, settings, store)
    async with holding(
        lab, command, reachable_scope(lab, job.needed), "job restart", record.name, within=scheduler
    ) as lock:
        now = store.latest_job(jobs.tenancy)
        if now is None or now.id != record.id or now.state in FINISHED:
            raise Locked(
                f"job {record.name} was stopped or launched again meanwhile",
                hint="testbed job status",
            )
        with begin() as begun:
            await check_attachments(job, lab, now, again=True)
            run = store.new_run(
                "job restart",
                lab_of(jobs.tenancy),
                plan_name=current.plan_name if current else "",
                plan_sha=current.plan_sha if current else "",
                plan_text=current.plan_text if current else "",
                inventory=command.inventory,
                user=settings.user,
                owner=settings.owner,
                options=RunOptions(relaunches=record.id, why=why),
            )
            lock.bind(run)
            begun.by(run.id)
            with run, Journal(settings.run_dir(run.id), run.id, lab.name) as journal:
                environment.record_environment(settings.run_dir(run.id), lab, command.inventory)
                recorder = Recorder(Silent(), journal)
                async with deadline(command.timeout_s, "job restart"):
                    await obeyed(jobs.session, run, hosts_of_job(record, lab), scheduler)
                    with recorder.phase("job", f"stopping what is left of {record.name}"):
                        # its last iterations; none of them decides anything
                        with suppress(TestbedError):
                            await jobs.status(record)
                        await jobs.write_off((), why)
                    sample = settings.sample_hz > 0
                    status = await jobs.start(
                        run.id, job, recorder, resume=resumable(job), sample=sample, left_out=True
                    )
                phases = {phase.name: phase.seconds for phase in recorder.phases}
                run.finish(
                    "ok",
                    message=why,
                    summary={"iteration_ms": status.iteration_ms, "phases": phases},
                )
    return status


@settled
async def evict(
    command: Command,
    hosts: Mapping[HostName, HostName],
    *,
    why: str = "",
    lost: Collection[HostName] | None = None,
    begin: Begin | None = None,
) -> UpReport:
    """Move the plan that is up, and its job, off hosts: each to its spare, or (empty) to nobody.
    lost: as known; None: ask them.

    The job goes on from its newest checkpoint, without attachments that it does not need and that
    cannot be started; its status then says so. One that was stopped or has finished is not
    launched. Raises: Missing, Infeasible - as `plan.evict`. Interlock - a spare is tagged out, or
    carries another owner's plan. Unreachable - a spare does not answer. Nothing is changed then. As
    `up`.
    """
    lab, store, settings = load_lab(command.inventory), command.store, command.settings
    key = tenancy_of(lab, settings)
    current = store.current(key)
    if current is None:
        raise Missing(
            f"no plan is up on {lab.name}, so there is nothing to move",
            hint="testbed up --topology examples/ring-12.json",
        )
    plan, text = rewritten(current, lab, hosts, store)
    spares = [spare for spare in hosts.values() if spare]
    if tokens := [
        line
        for spare in spares
        for line in tagged_out(spare, lab, Tagouts(store, key_of(lab), who(settings)).listed())
    ]:
        raise Interlock(
            "\n".join(tokens),
            hint="another --spare; or once the work there is finished: testbed tagout remove",
        )
    apart = {*plan.job.aside} if plan.job is not None else set[HostName]()
    # a host that links end at must answer, whatever else it is for
    aside = apart - {*plan.hosts, *spares}
    silent = await silent_hosts(
        command, lab, settings, [*(hosts if lost is None else ()), *spares, *aside]
    )
    if dead := [spare for spare in spares if spare in silent]:
        tokens = [
            f"{spare} does not answer, so it cannot take a place: {silent[spare]}" for spare in dead
        ]
        raise Unreachable(
            "\n".join(tokens), hint="another --spare; testbed doctor says what is wrong there"
        )
    gone = sorted(set(hosts) & set(silent if lost is None else lost) | aside & set(silent))
    record = store.latest_job(key)
    moved = record is not None and not {
        *hosts_of_job(record, lab),
        *record.spec.wanted.aside,
    }.isdisjoint(hosts)
    options = RunOptions(
        UpOptions(
            launch_job=record is not None and record.state not in FINISHED,
            job="restart" if moved else "keep",
            avoid=plan.avoid.message,
        ),
        evict=hosts,
        lost=tuple(gone),
        why=why or "asked for",
        left_out=bool(apart),
        broken=why if begin is not None else "",
    )
    with ExitStack() as stack:
        begun: list[Begun] = []

        def still() -> None:
            if (now := store.current(key)) is None or (now.run, now.generation) != (
                current.run,
                current.generation,
            ):
                raise Locked(
                    "another plan came up while this command waited",
                    hint="first check: testbed status",
                )
            job = store.latest_job(key)
            if (job and (job.id, job.state)) != (record and (record.id, record.state)):
                raise Locked(
                    "the job was stopped, has ended or was launched meanwhile",
                    hint="testbed job status",
                )
            begun.append(
                stack.enter_context(
                    begin() if begin is not None else nullcontext(cast(Begun, None))
                )
            )

        report = await ChangeRun("up", lab, command, still).up(plan, text, options)
        if begin is not None:
            begun[0].by(report.run)
    return report


def rewritten(
    current: CurrentPlan, lab: Lab, hosts: Mapping[HostName, HostName], store: Store
) -> tuple[Plan, str]:
    """The plan that is up without these hosts, and its text. Raises: as `evict`; BadFile - the
    inventory changed since.
    """
    plan, text = read_plan(current.plan_text, current.plan_name, lab), current.plan_text
    if plan.schedule is not None:
        raise Infeasible(
            f"{', '.join(hosts)}: no host can be moved out of {plan.name} while its circuits move by a schedule",
            hint="testbed up with a plan of other hosts",
        )
    if taken := {host: spare for host, spare in hosts.items() if spare}:
        text = replaced(text, plan, lab, taken)
    for host in (host for host, spare in hosts.items() if not spare):
        text = plan_without_host(text, read_plan(text, current.plan_name, lab), lab, host)
    made = read_plan(text, current.plan_name, lab)
    if made.job is not None:
        check_launch(made.job, lab)
    record = store.get(current.run)
    return avoiding(made, record.avoid if record is not None else (), lab), text


def with_spares(
    text: str, plan: Plan, spares: Sequence[HostName], lab: Lab, store: Store, settings: Settings
) -> str:
    """The plan with these spares instead of its own. Raises: as `plan.evict.spared`; Interlock -
    one is tagged out.
    """
    made = left_out(text, spares, plan, lab)
    tags = Tagouts(store, key_of(lab), who(settings)).listed()
    if tokens := [line for spare in spares for line in tagged_out(spare, lab, tags)]:
        hint = "another host as --spares; or once the work there is finished: testbed tagout remove"
        raise Interlock("\n".join(f"--spares: {line}" for line in tokens), hint=hint)
    return made


def tagged_out(host: HostName, lab: Lab, tags: Iterable[Tagout]) -> list[str]:
    """The tag-outs at a host, its fibres or the device ports they end at, in words."""
    existing = reachable_scope(lab, [host])
    ports = frozenset(port for port in (*lab.fibres, *lab.segment_at) if port.host == host)
    return [f"{host}: {text}" for text in tagged(Moves(existing.ports, ports, (), ()), tags, lab)]


async def silent_hosts(
    command: Command,
    lab: Lab,
    settings: Settings,
    names: Collection[HostName],
    instead: str = "another --spare",
) -> dict[HostName, str]:
    """Which of these hosts do not answer, and why. Raises: Interlock - one that does carries
    another owner's plan. instead: in words, what may be named instead.
    """
    async with command.opened(lab, "job evict") as session:
        answers = await session.hosts.channels.connect(names)
    active = {name: answer.active for name, answer in answers.items() if isinstance(answer, Hello)}
    if lines := taken_hosts(
        sorted(active), active, generation_owners(command.store, key_of(lab)), {settings.owner}
    ):
        raise Interlock("\n".join(lines), hint=f"{instead}: a host carries one plan at a time")
    return {
        name: answer.line for name, answer in answers.items() if isinstance(answer, TestbedError)
    }


async def still_silent(command: Command, lab: Lab, names: Collection[HostName]) -> list[HostName]:
    """Which of these hosts do not answer; those that the inventory no longer contains are left
    out.
    """
    if not (asked := sorted(set(names) & set(lab.hosts))):
        return []
    async with command.opened(lab, "resume") as session:
        answers = await session.hosts.channels.connect(asked)
    return [name for name, answer in answers.items() if isinstance(answer, TestbedError)]


def usable(
    plan: Plan, lab: Lab, answering: Collection[HostName], tags: Iterable[Tagout]
) -> list[HostName]:
    """The plan's spares that answer, with an agent or without, and are not tagged out."""
    hanging = list(tags)
    try:
        return [
            name for name in plan.spares if name in answering and not tagged_out(name, lab, hanging)
        ]
    except BadFile:
        return []
