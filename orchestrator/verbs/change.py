"""The verbs, which are all called from here: observe, diff, plan, journal, act, observe again.

The order of every change (promise S3): stage routes, drain, break, make, light, link, commit,
verify. Nothing slow happens between break and commit: hosts are armed before the light moves and
commit on carrier without being asked.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optics import Missing
from optics.plain import counted
from optics.plan import Job, Plan
from orchestrator.change.claims import target_beside
from orchestrator.change.expiry import confirm, settled, watch
from orchestrator.change.goal import as_saved
from orchestrator.change.interlock import Interlocks, rerouted
from orchestrator.change.report import DownReport, PrewireReport, UpReport
from orchestrator.change.run import ChangeRun
from orchestrator.fabric.next_hops import joined
from orchestrator.inventory.lab import Lab
from orchestrator.jobs.keep import apart, ended, foretold, together
from orchestrator.jobs.record import affected as affected_jobs
from orchestrator.jobs.report import ALIVE, JobStatus
from orchestrator.plan.avoid import avoiding
from orchestrator.plan.relabel import relabelled
from orchestrator.plan.report import PlanReport, RelabelReport
from orchestrator.plan.target import (
    circuit_rows,
    dark_time_scale,
    diff,
    expected_dark_ms,
    fingerprint,
)
from orchestrator.session import Command, PlanText, check_ports, load_lab, load_plan
from orchestrator.store.keys import key_of, tenancy_of
from orchestrator.store.locks import who
from orchestrator.store.options import PLAIN, RunOptions, UpOptions
from orchestrator.store.ownership import adopted
from orchestrator.store.store import Store
from orchestrator.store.tagouts import Tagouts
from orchestrator.telemetry.recorder import Recorder
from orchestrator.verbs import job as job_verbs
from orchestrator.verbs.job import job_env, job_logs, job_status

if TYPE_CHECKING:
    from orchestrator.services.guard.recover import evict
    from orchestrator.verbs.back import restore, resume, rollback
    from orchestrator.verbs.devices import devices, devices_power, devices_trace
    from orchestrator.verbs.diagnose import job_diagnose
    from orchestrator.verbs.join import job_join
    from orchestrator.verbs.stall import stall, stall_curves
    from orchestrator.verbs.status import status, verify

__all__ = [
    "confirm",
    "devices",
    "devices_power",
    "devices_trace",
    "down",
    "evict",
    "job_diagnose",
    "job_env",
    "job_join",
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

_ELSEWHERE = {
    "orchestrator.services.guard.recover": ("evict",),
    "orchestrator.verbs.back": ("restore", "resume", "rollback"),
    "orchestrator.verbs.devices": ("devices", "devices_power", "devices_trace"),
    "orchestrator.verbs.diagnose": ("job_diagnose",),
    "orchestrator.verbs.join": ("job_join",),
    "orchestrator.verbs.stall": ("stall", "stall_curves"),
    "orchestrator.verbs.status": ("status", "verify"),
}


def __getattr__(name: str) -> Any:
    """A verb of another module, which is imported when it is asked for: `up` need not wait for
    it.
    """
    for module, names in _ELSEWHERE.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


job_launch, job_stop = settled(job_verbs.job_launch), settled(job_verbs.job_stop)
job_restore = settled(job_verbs.job_restore)
job_pause, job_resume = settled(job_verbs.job_pause), settled(job_verbs.job_resume)


async def plan(
    command: Command,
    plan_path: Path | PlanText,
    options: UpOptions = PLAIN,
) -> PlanReport:
    """The diff between the plan and the lab; writes nothing. Raises: BadFile, Infeasible,
    Interlock, Unreachable, TimedOut.
    """
    lab = load_lab(command.inventory)
    wanted, text = load_plan(plan_path, lab)
    whole, wanted = (
        wanted,
        wanted.slot(0) if wanted.schedule is not None else avoiding(wanted, options.avoid, lab),
    )
    labels: RelabelReport | None = None
    store = command.store
    key = tenancy_of(lab, command.settings)
    recorder = Recorder(command.progress)
    async with command.opened(lab, "plan") as session:
        with recorder.phase("observe") as phase:
            seen = await session.observe(hosts=False)
            phase.detail = counted(len(seen.settings), "device")
        owners = store.owners(key_of(lab))
        owned = store.owned(key) | adopted(options.adopt, seen.settings, store.owned(key), owners)
        if options.relabel:
            wanted, _, labels = relabelled(
                wanted, text, lab, seen.complete().settings, owned, _current_text(store, key)
            )
        goal = target_beside(owners, wanted, lab, seen, owned)
        needed = {d for d, held in goal.wanted.items() if held} | {s.ingress.device for s in owned}
        silent = seen.needing(needed)
        await check_ports(session, goal.change.made)
        interlocks = Interlocks(
            lab, session.devices, Tagouts(store, key_of(lab), who(command.settings))
        )
        current = store.current(key)
        switched = rerouted(current.up.links if current else (), goal.links, lab)
        refused = await interlocks.why_not(goal.change.changes, seen.settings, switched)
    running = store.latest_job(key)
    usual = store.expected_seconds(command.inventory, "up")
    job_change, parting = foretold(
        running, whole, goal, usual, launch=options.launch_job, mode=options.job
    )
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
        notes=(
            *silent,
            *_slots_of(whole),
            *wanted.warnings,
            *(f"`up` would be refused: {why}" for why in refused),
        ),
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
    rest = (
        f"{schedule.dwell_s:g} s each"
        if schedule.kind == "clock"
        else "each as long as a phase of the job"
    )
    return (
        f"the first of {len(schedule.slots)} slots, {rest}; `up` makes every one, then changes them",
    )


def _segments(wanted: Plan, lab: Lab) -> tuple[str, ...]:
    return tuple(str(lab.segments[name]) for name in wanted.segments)


def _current_text(store: Store, key: str) -> str:
    current = store.current(key)
    return current.plan_text if current else ""


async def _by_labels(
    wanted: Plan, text: str, lab: Lab, command: Command
) -> tuple[Plan, str, RelabelReport]:
    """The plan with its interchangeable hosts placed so that most light stays, as the lab is
    now.
    """
    store, key = command.store, tenancy_of(lab, command.settings)
    async with command.opened(lab, "relabel") as session:
        with Recorder(command.progress).phase("relabel") as phase:
            seen = (await session.observe(hosts=False)).complete()
            plan, text, report = relabelled(
                wanted, text, lab, seen.settings, store.owned(key), _current_text(store, key)
            )
            phase.detail = f"{counted(len(report.labels), 'host')} relabelled, {report.moves} moves"
    return plan, text, report


async def up(command: Command, plan_path: Path | PlanText, options: UpOptions = PLAIN) -> UpReport:
    """Bring the plan up; idempotent.

    Raises: BadFile, Infeasible, Interlock, Locked, Unreachable - nothing was changed. RolledBack -
    it failed, everything is as before. HandsNeeded - it failed and the rollback is incomplete; the
    message lists what is left. Without `rollback` a failure is a ChangeFailed: the message lists
    what is done and what is not. Interrupted - the message gives the resulting state.
    """
    return await (_up if options.dry_run else settled(_up))(command, plan_path, options)


async def _up(command: Command, plan_path: Path | PlanText, options: UpOptions) -> UpReport:
    lab = load_lab(command.inventory)
    wanted, text = load_plan(plan_path, lab)
    if options.spares:
        from orchestrator.services.guard.recover import with_spares

        plan_path = PlanText(
            with_spares(text, wanted, options.spares, lab, command.store, command.settings),
            wanted.name,
        )
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
        from orchestrator.services.schedule.making import up_slots

        await in_slots_too(command, lab, wanted, launch_job=options.launch_job)
        report = await up_slots(command, lab, wanted, text, RunOptions(options))
        if not report.nothing_to_do or not options.launch_job or wanted.job is None:
            return report
        status = await launched_again(command, wanted.job)
        if tokens := ended(status):
            return replace(report, notes=(*report.notes, *tokens))
        return replace(report, nothing_to_do=status is None, job=status)
    labels: RelabelReport | None = None
    if options.relabel:
        wanted, text, labels = await _by_labels(wanted, text, lab, command)
    report = await ChangeRun("up", lab, command).up(wanted, text, RunOptions(options))
    return replace(report, relabel=labels, segments=_segments(wanted, lab))


async def in_slots_too(command: Command, lab: Lab, wanted: Plan, *, launch_job: bool) -> None:
    """Check that the hosts of a job that goes on meet in some slot. Raises: Interlock - two of them
    never do.
    """
    record = command.store.latest_job(tenancy_of(lab, command.settings))
    if (
        record is None
        or record.ended is not None
        or (launch_job and wanted.job is not None)
        or not apart(record, wanted)
    ):
        return
    if (await job_status(command)).state in ALIVE:
        together(record, wanted)


async def launched_again(command: Command, job: Job) -> JobStatus | None:
    """Launch the job of slots that change if it failed, was stopped, or was never launched; None if
    it runs. One that has finished is left so, and returned."""
    with suppress(Missing):
        status = await job_status(command)
        if status.name == job.name and status.state not in ("failed", "stopped"):
            return status if status.state == "finished" else None
    return await job_verbs.job_launch(command, again=False)


@settled
async def prewire(
    command: Command, plan_path: Path | PlanText, *, relabel: bool = False
) -> PrewireReport:
    """Have slow devices make, in the dark, what `up` of this plan will need from them; idempotent.

    Raises: as `up` before anything is changed; ChangeFailed - what was lit still is, and what was
    made will be used.
    """
    lab = load_lab(command.inventory)
    wanted, text = load_plan(plan_path, lab)
    labels: RelabelReport | None = None
    if relabel:
        wanted, text, labels = await _by_labels(wanted, text, lab, command)
    change = ChangeRun("prewire", lab, command)
    return replace(await change.prewire(wanted, text), relabel=labels)


async def down(command: Command) -> DownReport:
    """Stop the job, take down the owner's circuits, restore the hosts; foreign circuits stay.
    Raises: as `up`.
    """
    return await ChangeRun("down", load_lab(command.inventory), command).down()
