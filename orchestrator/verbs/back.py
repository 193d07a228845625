"""The verbs that go on from what earlier runs left: `resume` finishes one, `rollback` and `restore`
go back.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from optics import Interlock, Locked, Missing
from orchestrator.change.expiry import confirmations, settled
from orchestrator.change.report import DownReport, PrewireReport, UpReport
from orchestrator.change.run import ChangeRun, before_run, chosen
from orchestrator.inventory.lab import Lab
from orchestrator.plan.avoid import avoiding
from orchestrator.plan.reader import read_plan
from orchestrator.services.guard.recover import still_silent
from orchestrator.services.schedule.making import up_slots
from orchestrator.services.schedule.process import at_rest
from orchestrator.session import Command, load_lab
from orchestrator.settings import Settings
from orchestrator.store.keys import key_of, tenancy_of
from orchestrator.store.options import RunOptions
from orchestrator.store.records import RunRecord
from orchestrator.store.runs import latest_begun, latest_change
from orchestrator.store.store import Store
from orchestrator.store.verbs import verb_of


@settled
async def resume(command: Command, run: str) -> UpReport | DownReport | PrewireReport:
    """Resume an unfinished run: the same plan and options again, from the present state. A
    measurement is rolled back instead.

    Raises: as the verb it resumes.

    Missing - there is no such run, or it left nothing to resume. Interlock - it belongs to another
    owner.
    """
    lab, store, settings = load_lab(command.inventory), command.store, command.settings
    record = _half_done(store, lab, settings, run)
    # What was known of hosts and job when it began may be true no longer: a host is back, the job
    # was launched on the new hosts.
    options = replace(record.options, resumes=record.id, broken="")
    job = store.latest_job(tenancy_of(lab, settings))
    # it has been restarted
    if job is not None and job.run == record.id and options.asked.job == "restart":
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
            return await change.prewire(
                read_plan(record.plan_text, record.plan_name, lab), record.plan_text, options
            )
        case "down":
            return await change.down(options)
        case "rollback":
            if (before := before_run(store, lab, options.of)) is not None:
                return _slots_text(await change.back(before, options), command, lab)
        case "restore":
            return _slots_text(await change.restore(options), command, lab)
        case "schedule":
            raise Missing(
                f"run {record.id} changed slots; it is not resumed, another goes on",
                hint="testbed service start schedule",
            )
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
            hint=f"testbed run show {record.id} gives the reason; then repeat the whole command",
        )
    if record.status == "ok" or record.resolved_by not in ("", record.id):
        how = f"run {record.resolved_by} resolved it" if record.resolved_by else "it finished"
        raise Missing(f"run {record.id} left nothing unfinished: {how}", hint="testbed status")
    return record


async def rollback(command: Command, run: str | None) -> UpReport | DownReport:
    """Restore exactly the state before `run`; None or `last`: before the owner's latest change.
    Raises: as `up`.

    Of a run that died before it changed anything, which may be the latest, nothing is restored, and
    it is done with.

    Missing - there is no such run, or it changed nothing. Interlock - it belongs to another owner.
    """
    lab, store, settings = load_lab(command.inventory), command.store, command.settings
    # the last that changed something, not one that was refused
    run = None if run == "last" else run
    waiting = confirmations(command).pending() if run is None else None
    run = waiting.undo if waiting is not None else run
    if run is None and (dead := _died_early(store, lab, settings)):
        return await _done_with(command, lab, dead)
    record = (
        chosen(store, lab, settings, run)
        if run is not None
        else latest_change(store, key_of(lab), settings.owner)
    )
    if run is None and (lost := record.options.unconfirmed):
        raise Interlock(
            f"the latest change, run {lost}, was rolled back by run {record.id} already: it was not confirmed in time",
            hint=f"to bring it up again all the same: testbed rollback {record.id}",
        )
    before = before_run(store, lab, record.id)
    if before is None and record.unfinished:
        return await _done_with(command, lab, [record])
    if before is None:
        raise Missing(
            f"run {record.id} ({record.verb}) changed nothing that could be rolled back",
            hint="testbed run list",
        )
    undone = record.options.of if (record.verb, record.status) == ("rollback", "ok") else ""
    if undone and before == before_run(store, lab, undone):
        raise Missing(
            f"run {record.id} rolled back run {undone}, which was unfinished: no state worth going back to",
            hint=_earlier(store, lab, settings, undone) or "testbed run list",
        )

    def still() -> None:
        if (
            run is None
            and (now := latest_change(store, key_of(lab), settings.owner)).id != record.id
        ):
            raise Locked(
                f"run {now.id} ({now.verb} {now.plan_name}) changed the lab meanwhile; nothing was rolled back",
                hint=f"to roll it back: testbed rollback {now.id}",
            )

    change = ChangeRun("rollback", lab, command, still)
    return _slots_text(await change.back(before, RunOptions(of=record.id)), command, lab)


def _died_early(store: Store, lab: Lab, settings: Settings) -> list[RunRecord]:
    """The owner's runs that died before they changed anything, newest first; none if another is
    unfinished, or came later.
    """
    unfinished = [
        record
        for record in store.unfinished(key_of(lab), settings.owner)
        if record.verb != "schedule"
    ]
    if any(record.begun for record in unfinished):
        return []
    with suppress(Missing):
        last = latest_change(store, key_of(lab), settings.owner)
        return [record for record in unfinished if record.token > last.token]
    return unfinished


async def _done_with(command: Command, lab: Lab, dead: Sequence[RunRecord]) -> DownReport:
    """Record that these are done with; say what would undo the change before them."""
    text = ", ".join(f"run {record.id} ({record.what})" for record in dead)
    earlier = (
        _earlier(command.store, lab, command.settings, dead[-1].id) or "no change was made before"
    )
    note = f"{text}: died before anything was changed, so there is nothing to undo; {earlier}"
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
    """Restore the plan that is up exactly as the store has it, after devices or hosts lost it.
    Raises: as `up`.
    """
    lab = load_lab(command.inventory)
    return _slots_text(await ChangeRun("restore", lab, command).restore(), command, lab)


R = TypeVar("R", bound=UpReport | DownReport)


def _slots_text(report: R, command: Command, lab: Lab) -> R:
    """Note that the slots of what is up again do not change."""
    text = at_rest(command.store.current(tenancy_of(lab, command.settings)), lab)
    return replace(report, notes=(*report.notes, f"its slots {text}")) if text else report
