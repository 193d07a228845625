"""`up` of a plan with a schedule: every slot is made once and climbs the ladder, then the first one, then its slots turn."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from optics import Infeasible, Interrupted, RolledBack, TestbedError
from optics.plain import counted
from optics.plan import Plan
from orchestrator.engine.change.run import ChangeRun, before_run
from orchestrator.engine.schedule.goals import naming
from orchestrator.engine.schedule.process import TURNER, TurnState
from orchestrator.inventory.lab import Lab
from orchestrator.results import UpReport
from orchestrator.session import Command
from orchestrator.store.keys import slice_of


async def up_slots(command: Command, lab: Lab, plan: Plan, text: str, options: Mapping[str, object]) -> UpReport:
    """Make every slot of `plan` and turn them. options: as `ChangeRun.up`.

    If a slot cannot be made, the state before the first is restored. One that is up already is not made again; it turns on.
    Raises: as `ChangeRun.up`; Infeasible - an option that needs a fabric that stays as it is.
    """
    assert plan.schedule is not None
    for option, words in (("confirm_s", "--confirm-within"), ("avoid", "--avoid"), ("relabel", "--relabel")):
        if options.get(option):
            raise Infeasible(f"{words} cannot be used with a plan whose circuits move by a schedule", hint="leave it out")
    key = slice_of(lab, command.settings)
    current, there = command.store.current(key), TURNER.running(command.settings, key)
    known = current is not None and current.plan_sha == plan.sha256
    if known and there is not None:
        return UpReport("", plan.name, lab.name, nothing_to_do=True, notes=(f"its slots turn: {there}",))
    slots = len(plan.schedule.slots)
    made: list[UpReport] = []
    for slot in [0] if known else [*range(1, slots), 0]:
        command.progress.note(f"slot {slot} of {slots}")
        try:
            with naming(slot):
                made.append(await ChangeRun("up", lab, command).up(plan.slot(slot), text, {**options, "launch_job": False}))
        except (TestbedError, asyncio.CancelledError) as error:
            if not made or not options["rollback"]:
                raise
            words = str(error) if str(error).startswith(f"slot {slot}: ") else f"slot {slot}: {error}"
            await _undo(command, lab, made, words, error)
    command.store.resolve([report.run for report in made[:-1]], made[-1].run)  # a rollback goes back to before the first
    job = bool(options["launch_job"]) and plan.job is not None
    state = await start(command, lab, made[-1].run, job=job)
    return _together(made, slots, state)


async def _undo(command: Command, lab: Lab, made: list[UpReport], why: str, error: BaseException) -> None:
    """Go back to before the first slot. Raises: RolledBack, Interrupted - it is done; as `ChangeRun.back` where it cannot be."""
    before = before_run(command.store, made[0].run)
    if before is not None:
        command.progress.note(f"{why}; going back")
        await ChangeRun("rollback", lab, command).back(before, {}, made[0].run)
    kind = Interrupted if isinstance(error, asyncio.CancelledError) else RolledBack
    raise kind(f"{why}\nrolled back: everything is as it was before the first slot") from error


async def start(command: Command, lab: Lab, run: str, *, job: bool) -> TurnState:
    """Start the turner in the background, and wait until slots turn. Raises: as `Kind.start`."""
    settings, words = command.settings, ["--job"] if job else []
    return await asyncio.to_thread(TURNER.start, settings, slice_of(lab, settings), settings.run_dir(run) / "turn.jsonl", words)


def _together(made: list[UpReport], slots: int, state: TurnState) -> UpReport:
    last = made[-1]
    pairs = (sum(report.pairs_ok or 0 for report in made), sum(report.pairs_total or 0 for report in made))
    notes = (f"{counted(len(made), 'slot')} of {slots} made and verified, {pairs[0]}/{pairs[1]} pairs", *last.notes)
    return replace(last, nothing_to_do=False, writes=sum(r.writes for r in made), notes=(*notes, f"its slots turn: {state}"))
