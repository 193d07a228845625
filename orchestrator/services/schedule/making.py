"""`up` of a plan with a schedule: every slot is made once and climbs the ladder, then the first
one, then its slots change.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from optics import Infeasible, Interrupted, Refused, RolledBack, TestbedError
from optics.plain import counted
from optics.plan import Plan
from orchestrator.change.report import UpReport
from orchestrator.change.run import ChangeRun, before_run
from orchestrator.fabric.up_state import SlotsMade
from orchestrator.inventory.lab import Lab
from orchestrator.jobs.attachments import check_attachments
from orchestrator.plan.stored import pending_slots
from orchestrator.services.schedule.goals import naming
from orchestrator.services.schedule.process import (
    NOT_LAUNCHED,
    SCHEDULER,
    ScheduleOptions,
    ScheduleState,
)
from orchestrator.services.schedule.verb import scheduled
from orchestrator.session import Command, load_lab
from orchestrator.store.keys import key_of, tenancy_of
from orchestrator.store.options import RunOptions
from orchestrator.store.store import Store

LOOK_S = 0.1


async def up_slots(
    command: Command, lab: Lab, plan: Plan, text: str, options: RunOptions
) -> UpReport:
    """Make every slot of `plan` and change them.

    If a slot cannot be made, the state before the first is restored. Of a plan that is up, those
    are made that were not, and the first one; if its slots change, they go on. Raises: as
    `ChangeRun.up`; Infeasible - an option that needs a fabric that stays as it is.
    """
    assert plan.schedule is not None
    asked = options.asked
    unfit = {
        "--confirm-within": asked.confirm_s,
        "--avoid": asked.avoid,
        "--relabel": asked.relabel,
        "--job": asked.job,
    }
    for message, given in unfit.items():
        if given:
            raise Infeasible(
                f"{message} cannot be used with a plan whose circuits move by a schedule",
                hint="leave it out",
            )
    key = tenancy_of(lab, command.settings)
    current, place = command.store.current(key), SCHEDULER.running(command.settings, key)
    known = current is not None and current.plan_sha == plan.sha256
    if known and place is not None:
        return UpReport(
            "", plan.name, lab.name, nothing_to_do=True, notes=(f"its slots change: {place}",)
        )
    slots = len(plan.schedule.slots)
    await check_attachments(
        plan.job if asked.launch_job else None, lab, command.store.latest_job(key)
    )
    missing = pending_slots(
        plan.schedule, current.up.slots if known and current is not None else None
    )
    done = set(range(slots)) - set(missing)
    earlier = (
        _of_it(command.store, lab, current.run) if known and missing and current is not None else []
    )
    made: list[UpReport] = []
    for slot in [*(slot for slot in missing if slot), 0]:
        command.progress.note(f"slot {slot} of {slots}")
        done.add(slot)
        this = replace(asked, expected="" if made else asked.expected)
        chosen = replace(options, up=this, slots=SlotsMade(slot, tuple(sorted(done))))
        try:
            with naming(slot):
                change = ChangeRun("up", lab, command)
                made.append(await change.up(plan.slot(slot), text, chosen))
            earlier.append(made[-1].run)
            command.store.resolve(earlier, made[-1].run)  # a rollback goes back to before the first
        except (TestbedError, asyncio.CancelledError) as error:
            if not made or not asked.rollback:
                raise
            message = (
                str(error) if str(error).startswith(f"slot {slot}: ") else f"slot {slot}: {error}"
            )
            await _undo(command, lab, made, message, error)
    state = await start(command, lab, made[-1].run, job=asked.launch_job and plan.job is not None)
    return _together(made, slots, state)


def _of_it(store: Store, lab: Lab, run: str) -> list[str]:
    """The runs that made slots of the plan that is up; `run`, the last, may have been killed before
    it resolved the others.
    """
    last, found = store.get(run), list[str]()
    for record in store.history(key_of(lab), 0):
        if (
            last is None
            or record.id > run
            or not record.begun
            or record.verb == "schedule"
            or record.owner != last.owner
        ):
            continue
        if (record.verb, record.plan_sha) != (last.verb, last.plan_sha):
            break
        found.append(record.id)
    return found


async def _undo(
    command: Command, lab: Lab, made: list[UpReport], why: str, error: BaseException
) -> None:
    """Go back to before the first slot. Raises: RolledBack, Interrupted - it is done; as
    `ChangeRun.back` where it cannot be.
    """
    before = before_run(command.store, lab, made[-1].run)  # of all that it completed
    if before is not None:
        command.progress.note(f"{why}; going back")
        await ChangeRun("rollback", lab, command).back(before, RunOptions(of=made[-1].run))
    kind = Interrupted if isinstance(error, asyncio.CancelledError) else RolledBack
    raise kind(f"{why}\nrolled back: everything is as it was before the first slot") from error


async def begin_schedule(command: Command, options: ScheduleOptions) -> ScheduleState:
    """Change the slots of the plan that is up, in the background.

    Raises: as `scheduled`, `Kind.start`; Refused - they change already, so that this would not
    launch it; as `check_attachments`.
    """
    lab = load_lab(command.inventory)
    existing = SCHEDULER.running(command.settings, tenancy_of(lab, command.settings))
    if options.job and existing is not None:
        raise Refused(
            f"the slots{existing.of} change already; nothing was launched",
            hint="testbed job launch",
        )
    current, plan, _ = scheduled(command, lab)
    if options.job:
        await check_attachments(
            plan.job, lab, command.store.latest_job(tenancy_of(lab, command.settings))
        )
    return await start(command, lab, current.run, job=options.job, log=options.log)


async def start(command: Command, lab: Lab, run: str, *, job: bool, log: str = "") -> ScheduleState:
    """Start the service in the background, and wait until slots change and the job that it is to
    launch has begun, or has not.

    Raises: as `Kind.start`; Refused - slots change, and the job was not launched; Interrupted - it
    was not waited for.
    """
    settings, tenancy = command.settings, tenancy_of(lab, command.settings)
    at = Path(log) if log else settings.run_dir(run) / "schedule.jsonl"
    state = await SCHEDULER.started(settings, tenancy, at, ScheduleOptions(job=job))
    if not job:
        return state
    command.progress.phase("launch", f"by the schedule service of {state.plan}, {state.where}")
    while not state.job:
        if not state.alive:
            why = f": {state.error}" if state.error else ""
            hint = f"see {state.log}; to change the slots and launch it: testbed up"
            raise Refused(
                f"the schedule service of {state.plan} ended before its job was launched{why}",
                hint=hint,
            )
        try:
            await asyncio.sleep(LOOK_S)
        except asyncio.CancelledError:
            text = f"interrupted: the slots of {state.plan} go on; the launch of its job was not waited for"
            raise Interrupted(text, hint="testbed status") from None
        state = SCHEDULER.read(SCHEDULER.path(settings, tenancy)) or state
    command.progress.done("launch", state.job)
    if state.job.startswith(NOT_LAUNCHED):
        hint = "testbed job diagnose; to launch it: testbed job launch"
        raise Refused(f"the slots of {state.plan} change; its job is {state.job}", hint=hint)
    return state


def _together(made: list[UpReport], slots: int, state: ScheduleState) -> UpReport:
    last = made[-1]
    # of a slot whose links do not join all hosts none is asked for
    pairs = (
        sum(report.pairs_ok or 0 for report in made),
        sum(report.pairs_total or 0 for report in made),
    )
    unasked = sum(report.pairs_unasked for report in made)
    asked = (
        f", {pairs[0]}/{pairs[1]} pairs{f' ({unasked} others not asked)' if unasked else ''}"
        if pairs[1]
        else ""
    )
    notes = (f"{counted(len(made), 'slot')} of {slots} made and verified{asked}", *last.notes)
    job = (f"job {state.job}",) if state.job else ()
    notes += (f"its slots change: {state}", *job)
    return replace(last, nothing_to_do=False, writes=sum(r.writes for r in made), notes=notes)
