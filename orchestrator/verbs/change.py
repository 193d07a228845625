"""The verbs: observe, diff, plan, journal, act, observe again. The only module that asks devices and hosts to change.

The order of every change (promise S3): stage routes, drain, break, make, light, link, commit, verify. Nothing slow happens between
break and commit: hosts are armed before the light moves and commit on carrier without being asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from optics import Infeasible, Interlock, Locked, Missing
from optics.plain import counted
from optics.plan import Job, Plan
from orchestrator.change.expiry import confirm, confirmations, settled, watch
from orchestrator.change.goal import as_saved
from orchestrator.change.interlock import Interlocks, rerouted
from orchestrator.change.report import DownReport, PrewireReport, UpReport
from orchestrator.change.run import ChangeRun, before_run, chosen
from orchestrator.fabric.next_hops import joined
from orchestrator.inventory.lab import Lab
from orchestrator.jobs.keep import apart, ended, foretold, together
from orchestrator.jobs.record import affected as affected_jobs
from orchestrator.jobs.report import ALIVE, JobStatus
from orchestrator.plan.attached import check_placed
from orchestrator.plan.avoid import avoiding
from orchestrator.plan.reader import read_plan
from orchestrator.plan.relabel import relabelled
from orchestrator.plan.report import PlanReport, RelabelReport
from orchestrator.plan.target import circuit_rows, dark_time_scale, diff, expected_dark_ms, fingerprint, target
from orchestrator.services.guard.recover import evict, still_silent, with_spares
from orchestrator.services.schedule.making import up_slots
from orchestrator.services.schedule.process import at_rest
from orchestrator.session import Command, PlanText, check_ports, load_lab, load_plan
from orchestrator.settings import Settings
from orchestrator.store.keys import key_of, slice_of
from orchestrator.store.locks import who
from orchestrator.store.options import PLAIN, RunOptions, UpOptions
from orchestrator.store.ownership import adopted, explained, refuse_shared
from orchestrator.store.records import RunRecord
from orchestrator.store.runs import latest_begun, latest_change
from orchestrator.store.store import Store
from orchestrator.store.tagouts import Tagouts
from orchestrator.store.verbs import verb_of
from orchestrator.telemetry.recorder import Recorder
from orchestrator.verbs import job as job_verbs
from orchestrator.verbs.devices import devices, devices_power
from orchestrator.verbs.diagnose import job_diagnose
from orchestrator.verbs.job import job_env, job_logs, job_status
from orchestrator.verbs.stall import stall, stall_curves
from orchestrator.verbs.status import status, verify

__all__ = [
    "confirm",
    "devices",
    "devices_power",
    "down",
    "evict",
    "job_diagnose",
    "job_env",
    "job_launch",
    "job_logs",
    "job_pause",
    "job_restore",
    "job_resume",
    "job_status",
    "job_stop",
    "plan",
    "prewire",
    "restore",
    "resume",
    "rollback",
    "stall",
    "stall_curves",
    "status",
    "up",
    "verify",
    "watch",
]

job_launch, job_stop = settled(job_verbs.job_launch), settled(job_verbs.job_stop)
job_restore = settled(job_verbs.job_restore)
job_pause, job_resume = settled(job_verbs.job_pause), settled(job_verbs.job_resume)


async def plan(
    command: Command,
    plan_path: Path | PlanText,
    options: UpOptions = PLAIN,
) -> PlanReport:
    """The diff between the plan and the lab; writes nothing. Raises: BadFile, Infeasible, Interlock, Unreachable, TimedOut."""
    lab = load_lab(command.inventory)
    wanted, text = load_plan(plan_path, lab)
    whole, wanted = wanted, wanted.slot(0) if wanted.schedule is not None else avoiding(wanted, options.avoid, lab)
    labels: RelabelReport | None = None
    store = command.store
    key = slice_of(lab, command.settings)
    recorder = Recorder(command.progress)
    async with command.opened(lab, "plan") as session:
        with recorder.phase("observe") as phase:
            seen = await session.observe(hosts=False)
            phase.detail = counted(len(seen.settings), "device")
        owners = store.owners(key_of(lab))
        owned = store.owned(key) | adopted(options.adopt, seen.settings, store.owned(key), owners)
        if options.relabel:
            wanted, _, labels = relabelled(wanted, text, lab, seen.complete().settings, owned, _current_text(store, key))
        try:
            goal = target(wanted, lab, seen.settings, owned)
            check_placed(wanted, goal.links)
        except Interlock as error:
            raise explained(error, owners) from None
        except Infeasible:
            seen.complete()  # an unread device may be the cause
            raise
        refuse_shared(goal.change.kept, owned, owners)
        needed = {d for d, held in goal.wanted.items() if held} | {s.ingress.device for s in owned}
        silent = seen.needing(needed)
        await check_ports(session, goal.change.made)
        interlocks = Interlocks(lab, session.devices, Tagouts(store, key_of(lab), who(command.settings)))
        current = store.current(key)
        switched = rerouted(current.up.links if current else (), goal.links, lab)
        refused = await interlocks.why_not(goal.change.changes, seen.settings, switched)
    running = store.latest_job(key)
    usual = store.expected_seconds(command.inventory, "up")
    job_change, parting = foretold(running, whole, goal, usual, launch=options.launch_job, mode=options.job)
    refused += filter(None, [parting])
    return PlanReport(
        plan=wanted.name,
        lab=lab.name,
        diff=diff(goal.change, session.traits, lab, goal.early),
        circuits=circuit_rows(goal, lab),
        links=len(goal.links),
        hosts=len({p.host for link in goal.links for p in (link.a, link.b)}),
        routes=joined(goal.links, lab, wanted.routes),
        dark_ms_expected=expected_dark_ms(goal.late, session.traits),
        jobs_affected=affected_jobs(running, goal),
        job_change=job_change,
        notes=(*silent, *_slots_of(whole), *wanted.warnings, *(f"`up` would be refused: {why}" for why in refused)),
        fingerprint=fingerprint(wanted, seen.settings),
        dark_time_scale=dark_time_scale(goal.late, session.traits, lab),
        relabel=labels,
        segments=_segments(wanted, lab),
    )


def _slots_of(wanted: Plan) -> tuple[str, ...]:
    """A schedule in words."""
    schedule = wanted.schedule
    if schedule is None:
        return ()
    rest = f"{schedule.dwell_s:g} s each" if schedule.kind == "clock" else "each as long as a phase of the job"
    return (f"the first of {len(schedule.slots)} slots, {rest}; `up` makes every one, then turns them",)


def _segments(wanted: Plan, lab: Lab) -> tuple[str, ...]:
    return tuple(str(lab.segments[name]) for name in wanted.segments)


def _current_text(store: Store, key: str) -> str:
    current = store.current(key)
    return current.plan_text if current else ""


async def _by_labels(wanted: Plan, text: str, lab: Lab, command: Command) -> tuple[Plan, str, RelabelReport]:
    """The plan with its interchangeable hosts placed so that most light stays, as the lab is now."""
    store, key = command.store, slice_of(lab, command.settings)
    async with command.opened(lab, "relabel") as session:
        with Recorder(command.progress).phase("relabel") as phase:
            seen = (await session.observe(hosts=False)).complete()
            plan, text, report = relabelled(wanted, text, lab, seen.settings, store.owned(key), _current_text(store, key))
            phase.detail = f"{counted(len(report.labels), 'host')} relabelled, {report.moves} moves"
    return plan, text, report


async def up(command: Command, plan_path: Path | PlanText, options: UpOptions = PLAIN) -> UpReport:
    """Bring the plan up; idempotent.

    Raises: BadFile, Infeasible, Interlock, Locked, Unreachable - nothing was changed. RolledBack - it failed, everything is as
    before. HandsNeeded - it failed and the rollback is incomplete; the message lists what is left. Without `rollback` a failure
    is a ChangeFailed: the message lists what is done and what is not. Interrupted - the message gives the resulting state.
    """
    return await (_up if options.dry_run else settled(_up))(command, plan_path, options)


async def _up(command: Command, plan_path: Path | PlanText, options: UpOptions) -> UpReport:
    lab = load_lab(command.inventory)
    wanted, text = load_plan(plan_path, lab)
    if options.spares:
        plan_path = PlanText(with_spares(text, wanted, options.spares, lab, command.store, command.settings), wanted.name)
        wanted, text = load_plan(plan_path, lab)
    wanted = avoiding(wanted, options.avoid, lab)
    if options.dry_run:
        found = await plan(command, plan_path, options)
        as_saved(options.expected, found.fingerprint)
        return UpReport(
            run="",
            plan=wanted.name,
            lab=lab.name,
            nothing_to_do=found.nothing_to_do,
            dry_run=True,
            diff=found.diff,
            dark_ms_expected=found.dark_ms_expected,
            notes=found.notes,
            dark_time_scale=found.dark_time_scale,
            relabel=found.relabel,
            segments=found.segments,
            job_change=found.job_change,
        )
    if wanted.schedule is not None:
        await in_slots_too(command, lab, wanted, launch_job=options.launch_job)
        report = await up_slots(command, lab, wanted, text, RunOptions(options))
        if not report.nothing_to_do or not options.launch_job or wanted.job is None:
            return report
        status = await launched_again(command, wanted.job)
        if words := ended(status):
            return replace(report, notes=(*report.notes, *words))
        return replace(report, nothing_to_do=status is None, job=status)
    labels: RelabelReport | None = None
    if options.relabel:
        wanted, text, labels = await _by_labels(wanted, text, lab, command)
    report = await ChangeRun("up", lab, command).up(wanted, text, RunOptions(options))
    return replace(report, relabel=labels, segments=_segments(wanted, lab))


async def in_slots_too(command: Command, lab: Lab, wanted: Plan, *, launch_job: bool) -> None:
    """Check that the hosts of a job that goes on meet in some slot. Raises: Interlock - two of them never do."""
    record = command.store.latest_job(slice_of(lab, command.settings))
    if record is None or record.ended is not None or (launch_job and wanted.job is not None) or not apart(record, wanted):
        return
    if (await job_status(command)).state in ALIVE:
        together(record, wanted)


async def launched_again(command: Command, job: Job) -> JobStatus | None:
    """Launch the job of slots that turn if it failed, was stopped, or was never launched; None if it runs. One that has finished is
    left so, and returned."""
    with suppress(Missing):
        status = await job_status(command)
        if status.name == job.name and status.state not in ("failed", "stopped"):
            return status if status.state == "finished" else None
    return await job_verbs.job_launch(command, anew=False)


@settled
async def prewire(command: Command, plan_path: Path | PlanText, *, relabel: bool = False) -> PrewireReport:
    """Have slow devices make, in the dark, what `up` of this plan will need from them; idempotent.

    Raises: as `up` before anything is changed; ChangeFailed - what was lit still is, and what was made will be used.
    """
    lab = load_lab(command.inventory)
    wanted, text = load_plan(plan_path, lab)
    labels: RelabelReport | None = None
    if relabel:
        wanted, text, labels = await _by_labels(wanted, text, lab, command)
    change = ChangeRun("prewire", lab, command)
    return replace(await change.prewire(wanted, text), relabel=labels)


async def down(command: Command) -> DownReport:
    """Stop the job, take down the owner's circuits, restore the hosts; foreign circuits stay. Raises: as `up`."""
    return await ChangeRun("down", load_lab(command.inventory), command).down()


@settled
async def resume(command: Command, run: str) -> UpReport | DownReport | PrewireReport:
    """Resume an unfinished run: the same plan and options again, from the present state. A measurement is rolled back instead.

    Raises: as the verb it resumes.

    Missing - there is no such run, or it left nothing to resume. Interlock - it belongs to another owner.
    """
    lab, store, settings = load_lab(command.inventory), command.store, command.settings
    record = _half_done(store, lab, settings, run)
    # What was known of hosts and job when it began may be true no longer: a host is back, the job was launched on the new hosts.
    options = replace(record.options, resumes=record.id, broken="")
    job = store.latest_job(slice_of(lab, settings))
    if job is not None and job.run == record.id and options.asked.job == "restart":  # it has been restarted
        options = replace(options, up=replace(options.asked, job=None))
    options = replace(options, lost=tuple(await still_silent(command, lab, options.lost)))
    still = partial(_half_done, store, lab, settings, record.id)
    change = ChangeRun(record.verb, lab, command, still)
    match record.verb:
        case "up":
            read = read_plan(record.plan_text, record.plan_name, lab)
            if read.schedule is not None:
                still()
                return await up_slots(command, lab, read, record.plan_text, options)
            return await change.up(avoiding(read, record.avoid, lab), record.plan_text, options)
        case "prewire":
            return await change.prewire(read_plan(record.plan_text, record.plan_name, lab), record.plan_text, options)
        case "down":
            return await change.down(options)
        case "rollback":
            if (before := before_run(store, lab, options.of)) is not None:
                return _slots_said(await change.back(before, options), command, lab)
        case "restore":
            return _slots_said(await change.restore(options), command, lab)
        case "turn":
            raise Missing(f"run {record.id} turned slots; it is not resumed, another goes on", hint="testbed turn")
    if verb_of(record.verb).undone:
        return await rollback(command, record.id)
    raise Missing(f"run {record.id} ({record.verb}) cannot be resumed", hint="testbed status")


def _half_done(store: Store, lab: Lab, settings: Settings, run: str) -> RunRecord:
    """A run that can be resumed; `last`: the owner's latest that began to change something.

    Raises: as `chosen`; Missing - it is finished or resolved, or it never began.
    """
    if run == "last":
        run = latest_begun(store, key_of(lab), settings.owner).id
    record = chosen(store, lab, settings, run)
    if not record.may_have_begun:
        raise Missing(
            f"run {record.id} ended before it changed anything, so there is nothing to resume",
            hint=f"testbed show {record.id} gives the reason; then repeat the whole command",
        )
    if record.status == "ok" or record.resolved_by not in ("", record.id):
        how = f"run {record.resolved_by} resolved it" if record.resolved_by else "it finished"
        raise Missing(f"run {record.id} left nothing unfinished: {how}", hint="testbed status")
    return record


async def rollback(command: Command, run: str | None) -> UpReport | DownReport:
    """Restore exactly the state before `run`; None or `last`: before the owner's latest change. Raises: as `up`.

    Of a run that died before it changed anything, which may be the latest, nothing is restored, and it is done with.

    Missing - there is no such run, or it changed nothing. Interlock - it belongs to another owner.
    """
    lab, store, settings = load_lab(command.inventory), command.store, command.settings
    run = None if run == "last" else run  # the last that changed something, not one that was refused
    waiting = confirmations(command).pending() if run is None else None
    run = waiting.undo if waiting is not None else run
    if run is None and (dead := _died_early(store, lab, settings)):
        return await _done_with(command, lab, dead)
    record = chosen(store, lab, settings, run) if run is not None else latest_change(store, key_of(lab), settings.owner)
    if run is None and (lost := record.options.unconfirmed):
        raise Interlock(
            f"the latest change, run {lost}, was rolled back by run {record.id} already: it was not confirmed in time",
            hint=f"to bring it up again all the same: testbed rollback {record.id}",
        )
    before = before_run(store, lab, record.id)
    if before is None and record.unfinished:
        return await _done_with(command, lab, [record])
    if before is None:
        raise Missing(f"run {record.id} ({record.verb}) changed nothing that could be rolled back", hint="testbed history")
    undone = record.options.of if (record.verb, record.status) == ("rollback", "ok") else ""
    if undone and before == before_run(store, lab, undone):
        raise Missing(
            f"run {record.id} rolled back run {undone}, which was unfinished: no state worth going back to",
            hint=_earlier(store, lab, settings, undone) or "testbed history",
        )

    def still() -> None:
        if run is None and (now := latest_change(store, key_of(lab), settings.owner)).id != record.id:
            raise Locked(
                f"run {now.id} ({now.verb} {now.plan_name}) changed the lab meanwhile; nothing was rolled back",
                hint=f"to roll it back: testbed rollback {now.id}",
            )

    change = ChangeRun("rollback", lab, command, still)
    return _slots_said(await change.back(before, RunOptions(of=record.id)), command, lab)


def _died_early(store: Store, lab: Lab, settings: Settings) -> list[RunRecord]:
    """The owner's runs that died before they changed anything, newest first; none if another is unfinished, or came later."""
    unfinished = [record for record in store.unfinished(key_of(lab), settings.owner) if record.verb != "turn"]
    if any(record.begun for record in unfinished):
        return []
    with suppress(Missing):
        last = latest_change(store, key_of(lab), settings.owner)
        return [record for record in unfinished if record.token > last.token]
    return unfinished


async def _done_with(command: Command, lab: Lab, dead: Sequence[RunRecord]) -> DownReport:
    """Record that these are done with; say what would undo the change before them."""
    words = ", ".join(f"run {record.id} ({record.what})" for record in dead)
    earlier = _earlier(command.store, lab, command.settings, dead[-1].id) or "no change was made before"
    note = f"{words}: died before anything was changed, so there is nothing to undo; {earlier}"
    return await ChangeRun("rollback", lab, command).nothing([record.id for record in dead], note)


def _earlier(store: Store, lab: Lab, settings: Settings, run: str) -> str:
    """How to undo the change before this run; empty if there is none."""
    try:
        record = latest_change(store, key_of(lab), settings.owner, before=run)
    except Missing:
        return ""
    return f"to undo the change before that ({record.what}): testbed rollback {record.id}"


@settled
async def restore(command: Command) -> UpReport:
    """Restore the plan that is up exactly as the store has it, after devices or hosts lost it. Raises: as `up`."""
    lab = load_lab(command.inventory)
    return _slots_said(await ChangeRun("restore", lab, command).restore(), command, lab)


R = TypeVar("R", bound=UpReport | DownReport)


def _slots_said(report: R, command: Command, lab: Lab) -> R:
    """Note that the slots of what is up again do not turn."""
    words = at_rest(command.store.current(slice_of(lab, command.settings)), lab)
    return replace(report, notes=(*report.notes, f"its slots {words}")) if words else report
