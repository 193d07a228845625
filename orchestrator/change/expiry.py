"""Roll back changes that were not confirmed in time: by the watching process, or before the owner's
next command.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from optics import HandsNeeded, Interlock, Interrupted, Missing, TestbedError
from orchestrator.background.work import Retries
from orchestrator.change.report import ConfirmReport, DownReport, UpReport, WatchReport
from orchestrator.change.run import ChangeRun, before_run
from orchestrator.deadline import OUTER, endless
from orchestrator.session import Command, load_lab
from orchestrator.settings import Settings
from orchestrator.store.confirmations import Awaited, Confirmations, Settled
from orchestrator.store.keys import tenancy_of
from orchestrator.store.locks import who
from orchestrator.store.options import RunOptions
from orchestrator.store.runs import named
from orchestrator.store.store import Store

P = ParamSpec("P")
T = TypeVar("T")

WAIT_S = 60.0
"""How long (s) a command waits for another process that is rolling the change back."""
LOOK_S = 1.0
"""Interval (s) between checks whether it was confirmed: one row of the store."""
FIRST_RETRY_S, LAST_RETRY_S = 5.0, 300.0
"""A rollback that is not possible now (a device is silent) is retried at growing intervals (s)."""


def confirmations(command: Command) -> Confirmations:
    """The pending confirmation of the owner's part of the lab."""
    return Confirmations(
        command.store,
        tenancy_of(load_lab(command.inventory), command.settings),
        who(command.settings),
    )


def waits(store: Store) -> bool:
    """Whether anything in this store is waiting for confirmation: all that most commands ever need
    to know.
    """
    return bool(store.read("SELECT 1 FROM awaited WHERE state='pending' LIMIT 1"))


async def settle(command: Command, *, wait_s: float = WAIT_S) -> str:
    """Roll back what is overdue; return what was done in words, empty if nothing was. `timeout_s`
    bounds the rollback.

    Raises: as `rollback`; HandsNeeded - the rollback is incomplete, and is not retried.
    """
    store, settings = command.store, command.settings
    if not waits(store):
        return ""
    kept = confirmations(command)
    found = kept.pending()
    if found is None or found.left_s() > 0:
        return ""
    if (other := _taken_away(store, found, settings)) is not None:
        kept.close(found, "superseded", other)
        return ""
    text = f"run {found.run} ({found.plan}) was not confirmed in time"
    command.progress.note(f"{text}: going back to {found.back or 'no plan'}")
    if (outer := OUTER.get()) is not None and (end := outer.when()) is not None:
        outer.reschedule(end + command.timeout_s + wait_s)
    patient = replace(settings, wait_s=max(settings.wait_s, wait_s))
    lab = load_lab(command.inventory)
    change = ChangeRun("rollback", lab, replace(command, settings=patient))
    before = before_run(store, lab, found.undo)
    assert before is not None, "what waits to be confirmed has begun"
    try:
        report: UpReport | DownReport = await change.back(
            before, RunOptions(of=found.undo, unconfirmed=found.run)
        )
    except Settled:
        return ""
    except TestbedError as error:
        error.args = (f"{text}, and is not rolled back: {error}", *error.args[1:])
        raise
    if isinstance(report, DownReport) and report.left:
        hint = f"once it is repaired: testbed resume {report.run}"
        raise HandsNeeded(
            f"{text}; not everything could be rolled back; manual repair is needed:",
            report.left,
            hint=hint,
        )
    return f"{text}; run {report.run} went back to {found.back or 'no plan'}"


def _taken_away(store: Store, found: Awaited, settings: Settings) -> str | None:
    """The owner's `down` or `rollback` that began since and did not finish: it decides the outcome,
    not the deadline.
    """
    made = store.get(found.run)
    for record in store.history(made.lab if made is not None else None, 0):
        if made is None or record.token <= made.token:
            continue
        own = (
            record.owner == settings.owner and record.verb in ("down", "rollback") and record.begun
        )
        if own and record.status != "running" and not record.options.unconfirmed:
            return record.id
    return None


def settled(
    verb: Callable[Concatenate[Command, P], Awaitable[T]],
) -> Callable[Concatenate[Command, P], Coroutine[Any, Any, T]]:
    """Wrap a verb that changes the lab: roll back what is overdue first, and add it to the
    report.
    """

    @wraps(verb)
    async def after(command: Command, /, *parts: P.args, **options: P.kwargs) -> T:
        note = await settle(command)
        report = await verb(command, *parts, **options)
        return (
            cast(T, replace(cast(Any, report), notes=(note, *report.notes)))
            if note and hasattr(report, "notes")
            else report
        )

    return after


async def confirm(command: Command, run: str | None) -> ConfirmReport:
    """Confirm the pending change; None or `last`: the only one there is. An overdue one is rolled
    back first.

    Raises: Missing - none is pending. Interlock - it is too late. Unreachable, NotVerified - not
    all hosts run it; still pending.
    """
    note = await settle(command)
    run = None if run == "last" else run  # commands refused since then are runs, too
    lab = load_lab(command.inventory)
    kept = confirmations(command)
    record = named(command.store, run) if run is not None else None
    found = kept.get(record.id) if record is not None else kept.last()
    if found is None:
        what = (
            f"run {record.id} was not started with --confirm-within"
            if record is not None
            else "nothing waits to be confirmed"
        )
        raise Missing(what, hint="testbed up --topology examples/ring-12.json --confirm-within 5m")
    if found.state == "confirmed":
        return ConfirmReport(
            found.ended_by, found.run, found.plan, lab.name, len(found.hosts), already=True
        )
    if found.state != "pending":
        at = time.strftime("%H:%M:%S", time.localtime(found.ended))
        why = ", as it was not confirmed in time" if found.state == "reverted" else ""
        how = (
            "could not be rolled back completely"
            if found.state == "hands-needed"
            else "was rolled back"
        )
        text = note or f"run {found.run} ({found.plan}) {how} by run {found.ended_by} at {at}{why}"
        raise Interlock(text, hint="testbed status shows the present state")
    return await ChangeRun("confirm", lab, command).confirm(found)


async def watch(command: Command, run: str | None) -> WatchReport:
    """Wait until the change is confirmed, and roll it back when it is overdue; `timeout_s` bounds
    each try, not the wait.

    Raises: Missing - nothing is pending. HandsNeeded - the rollback is incomplete.
    """
    endless()
    kept = confirmations(command)
    record = command.store.get(run) if run is not None else None
    found = kept.pending() if run is None else kept.get(record.id) if record is not None else None
    if found is None:
        raise Missing("nothing waits to be confirmed", hint="testbed status")
    if not found.watched:
        kept.watch(found, os.getpid())  # the process that `up` started has ended
    tries, retries = 0, Retries(FIRST_RETRY_S, LAST_RETRY_S)
    while (now := kept.get(found.run)) is not None and now.state == "pending":
        if now.left_s() > now.within_s and (
            (made := command.store.get(now.run)) is None or made.status != "running"
        ):
            now = kept.count(now)  # its `up` was killed before it did
        if (left := now.left_s()) > 0:
            await asyncio.sleep(min(left, LOOK_S))
            continue
        tries += 1
        try:
            text = await settle(command, wait_s=2 * command.timeout_s)
            if text:
                command.progress.note(text)
        except (HandsNeeded, Interrupted):
            raise
        except TestbedError as error:
            retry_s = retries.failed()
            command.progress.note(f"{error}\nagain in {retry_s:g} s")
            await asyncio.sleep(retry_s)
    return WatchReport(found.run, now.state if now is not None else "", tries)
