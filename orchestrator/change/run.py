"""One run that changes the lab, from the lock to the history: what all changing verbs have in
common.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from optics import (
    HandsNeeded,
    Interlock,
    Interrupted,
    Locked,
    Missing,
    Refused,
    RolledBack,
    StoreFailed,
)
from optics.plain import seconds_text
from optics.plan import Plan
from orchestrator.background.registry import stop_movers
from orchestrator.change.confirm import Confirming, keep_change
from orchestrator.change.context import Context
from orchestrator.change.down import Down
from orchestrator.change.interlock import Interlocks
from orchestrator.change.locking import holding, scope_of
from orchestrator.change.prewire import Prewire
from orchestrator.change.report import ConfirmReport, DownReport, PrewireReport, UpReport
from orchestrator.change.rest import rest_left
from orchestrator.change.restore import Restore, as_stored
from orchestrator.change.snapshot import Snapshot, before_of, whole
from orchestrator.change.stall import Stall
from orchestrator.change.up import Up
from orchestrator.deadline import deadline
from orchestrator.fabric.detour import link_text
from orchestrator.inventory.lab import Lab
from orchestrator.plan.target import SLOW_S
from orchestrator.processes import Daemon, spawn
from orchestrator.session import Command, open_session
from orchestrator.settings import Settings
from orchestrator.store.confirmations import Awaited, Confirmations
from orchestrator.store.fault import file_fault
from orchestrator.store.keys import key_of, tenancy_of
from orchestrator.store.locks import who
from orchestrator.store.options import NO_OPTIONS, RunOptions
from orchestrator.store.records import RunRecord
from orchestrator.store.runs import first_of, named, unanswered
from orchestrator.store.stalls import add_stalls
from orchestrator.store.store import Store
from orchestrator.store.tagouts import Tagouts
from orchestrator.store.verbs import MOVERS, verb_of
from orchestrator.telemetry import environment
from orchestrator.telemetry.journal import Journal
from orchestrator.telemetry.recorder import Recorder
from orchestrator.verify.report import StallReport


def chosen(store: Store, lab: Lab, settings: Settings, run: str) -> RunRecord:
    """A run of the owner's on this lab, by id, id ending or `last`. Raises: Missing, Interlock,
    Locked - it still runs.
    """
    record = named(store, run)
    if record.lab != key_of(lab):
        raise Missing(
            f"run {record.id} is of another lab, {record.inventory}",
            hint="add that lab: --inventory",
        )
    if record.owner != settings.owner:
        raise Interlock(
            f"run {record.id} is {record.owner}'s",
            hint=f"ask {record.owner}, or add: --as {record.owner}",
        )
    if record.status == "running":
        raise Locked(
            f"run {record.id} ({record.verb}) still runs: {record.user} on {record.host}, pid {record.pid}"
        )
    return record


def before_run(store: Store, lab: Lab, run: str) -> Snapshot | None:
    """The state to restore if `run` is rolled back, None: it changed nothing.

    A run may have completed others, or begun in what they left unfinished: with half of the light
    of a plan, of which nobody can say whether it works. Such a state is not worth restoring, so the
    one before the first of them counts.
    """
    record = store.get(run)
    if record is None or not record.begun:
        return None
    # of several slots only the first may have begun with half of another plan
    first = first_of(store, record, half=False)
    state = before_of(store.journalled(first.id)[0])
    return (
        state
        if whole(state, lab)
        else before_of(store.journalled(first_of(store, first, half=True).id)[0])
    )


@dataclass
class ChangeRun:
    """A verb about to change the lab."""

    verb: str
    lab: Lab
    command: Command
    still: Callable[[], object] = lambda: None
    """Called once the lock is held: raises if what the verb was based on changed while it waited
    for the lock.
    """

    @property
    def store(self) -> Store:
        return self.command.store

    @property
    def settings(self) -> Settings:
        return self.command.settings

    async def up(self, plan: Plan, text: str, options: RunOptions) -> UpReport:
        """Bring `plan` up."""
        async with self._running(plan.name, options, plan=plan, text=text) as context:
            waiting = self._confirming(options)
            report = await Up(context, plan, text, waiting).carry_out()
            if waiting is not None and waiting.made is not None:
                report = replace(report, confirm=waiting.made.report())
            elif waiting is not None:
                report = replace(
                    report,
                    notes=(*report.notes, "nothing was changed, so nothing waits to be confirmed"),
                )
            return self._finished(context, report, options.why)

    def _confirming(self, options: RunOptions) -> Confirming | None:
        within_s, first = options.asked.confirm_s, options.resumes
        if within_s is None:
            return None
        while (
            record := self.store.get(first) if first else None
        ) is not None and record.options.resumes:
            first = record.options.resumes
        undo = record.id if record is not None and record.begun else ""
        return Confirming(self.confirmations(), within_s, undo, partial(watch_over, self.settings))

    def confirmations(self) -> Confirmations:
        """The pending confirmation of the owner's part of the lab."""
        return Confirmations(self.store, tenancy_of(self.lab, self.settings), who(self.settings))

    async def confirm(self, found: Awaited) -> ConfirmReport:
        """Confirm a change. Raises: as `confirm.keep_change`."""
        async with self._running(found.plan, RunOptions(of=found.run)) as context:
            return await keep_change(context, self.confirmations(), found.run)

    async def stall(self, dark_s: Sequence[float]) -> StallReport:
        """Measure the stall curve of the plan that is up, and keep it. Raises: Missing - none is;
        as `Stall.carry_out`.
        """
        current = self.store.current(tenancy_of(self.lab, self.settings))
        async with self._running(
            current.plan_name if current else "", RunOptions(dark_s=tuple(dark_s))
        ) as context:
            if (current := self.store.current(context.tenancy)) is None:
                raise Missing(
                    f"no plan is up on {self.lab.name}, so there is no link to measure on",
                    hint="testbed up --topology examples/ring-12.json",
                )
            measuring = Stall(context, current, dark_s)
            subject = await measuring.carry_out()
            add_stalls(self.store, context.key, measuring.points)
            phases = tuple(context.recorder.phases)
            context.run.finish("ok", summary={"phases": {p.name: p.seconds for p in phases}})
            return StallReport(
                self.lab.name,
                current.plan_name,
                context.run.id,
                link_text(subject.link),
                tuple(sorted(subject.held)),
                tuple(measuring.points),
                phases=phases,
                notes=tuple(measuring.notes),
                journal=self._journal(context),
            )

    async def down(self, options: RunOptions = NO_OPTIONS) -> DownReport:
        """Take down the owner's circuits and routes."""
        current = self.store.current(tenancy_of(self.lab, self.settings))
        async with self._running(current.plan_name if current else "", options) as context:
            return self._left(context, await Down(context).carry_out())

    async def prewire(
        self, plan: Plan, text: str, options: RunOptions = NO_OPTIONS
    ) -> PrewireReport:
        """Have slow devices prepare `plan` in the dark."""
        async with self._running(plan.name, options, plan=plan, text=text) as context:
            report = replace(
                await Prewire(context, plan).carry_out(), journal=self._journal(context)
            )
            context.run.finish("ok", summary=summary(report))
            earlier = [
                run.id
                for run in self.store.unfinished(context.key, self.settings.owner)
                if run.verb == "prewire"
            ]
            self.store.resolve(earlier, context.run.id)
            return report

    async def back(self, to: Snapshot, options: RunOptions) -> UpReport | DownReport:
        """Restore the state before the run that `options.of` names."""
        async with self._running(
            to.current.plan_name if to.current else "", options, to=to
        ) as context:
            if to.current is None:
                return self._left(
                    context,
                    replace(await Down(context, to).carry_out(), verb="rollback", of=options.of),
                )
            report = await Restore(context, to).carry_out()
            return self._finished(context, replace(report, verb="rollback", of=options.of))

    async def restore(self, options: RunOptions = NO_OPTIONS) -> UpReport:
        """Restore the plan that is up, as the store has it. Raises: Missing - none is."""
        key = tenancy_of(self.lab, self.settings)
        current = self.store.current(key)
        if current is None:
            raise Missing(
                "no plan is up, so there is nothing to restore",
                hint="testbed up --topology examples/ring-12.json",
            )
        async with self._running(current.plan_name, options) as context:
            if (current := self.store.current(key)) is None:
                raise Missing(
                    "the plan was taken down meanwhile, so there is nothing to restore",
                    hint="testbed status",
                )
            report = await Restore(
                context, as_stored(self.store, key, current, self.lab)
            ).carry_out()
            return self._finished(context, replace(report, verb="restore", of=current.run, undo=""))

    async def nothing(self, dead: Sequence[str], note: str) -> DownReport:
        """Record that runs which died before they changed anything are done with."""
        async with self._running("", RunOptions(of=dead[0])) as context:
            left = {run.id for run in self.store.unfinished(context.key, context.owner)}
            context.run.finish("ok", message=note)
            self.store.resolve(left.intersection(dead), context.run.id)
            return DownReport(
                context.run.id,
                self.lab.name,
                nothing_to_do=True,
                notes=(note,),
                verb=self.verb,
                of=dead[0],
            )

    @asynccontextmanager
    async def lasting(self, plan: Plan, text: str, options: RunOptions) -> AsyncIterator[Context]:
        """What a service works with that changes light again and again; what earlier runs left
        unfinished is then done with.
        """
        async with self._running(plan.name, options, plan=plan, text=text) as context:
            yield context
            self._resolve(context)

    @asynccontextmanager
    async def _running(
        self,
        name: str,
        options: RunOptions,
        *,
        plan: Plan | None = None,
        text: str = "",
        to: Snapshot | None = None,
    ) -> AsyncIterator[Context]:
        """Take the lock, record the run, keep its journal, open the lab, enforce the deadline."""
        settings, lab, key = self.settings, self.lab, key_of(self.lab)
        if self.verb != "confirm":
            for message in await asyncio.to_thread(
                stop_movers, settings, tenancy_of(lab, settings), MOVERS
            ):
                self.command.progress.note(message)
        scope = partial(
            scope_of, lab, settings, self.store, plan=plan, to=to, adopt=options.asked.adopt
        )
        async with holding(lab, self.command, scope(), self.verb, name) as lock:
            self.still()
            lock.extend(scope())  # another run may have changed it meanwhile
            kept = self.confirmations()
            kept.may(self.verb, options)
            run = self.store.new_run(
                self.verb,
                key,
                plan_name=name,
                plan_sha=plan.sha256 if plan else "",
                plan_text=text,
                inventory=self.command.inventory,
                user=settings.user,
                owner=settings.owner,
                options=options,
            )
            lock.bind(run)
            run_dir = settings.run_dir(run.id)
            with (
                kept.ending(self.verb, run, options),
                run,
                Journal(run_dir, run.id, lab.name) as journal,
            ):
                environment.record_environment(run_dir, lab, self.command.inventory)
                if text:
                    keep_plan(run_dir / "plan.json", text)
                recorder = Recorder(self.command.progress, journal)
                firm = settings.origins.get("timeout", "default") != "default"
                try:
                    async with (
                        deadline(self.command.timeout_s, self.verb, firm=firm) as limit,
                        open_session(
                            lab, self.command.inventory, run_dir, settings.bounds
                        ) as session,
                    ):
                        session.hosts.channels.token = run.token
                        tags = Tagouts(self.store, key, who(settings))
                        context = Context(
                            session,
                            self.store,
                            run,
                            tenancy_of(lab, settings),
                            recorder,
                            run_dir,
                            self.command.timeout_s,
                            limit,
                            lock=lock,
                            interlocks=Interlocks(lab, session.devices, tags),
                            options=options,
                            who=who(settings),
                            sample_hz=settings.sample_hz,
                            verb=self.verb,
                        )
                        for device in await rest_left(context, settings):
                            self.command.progress.note(
                                f"{device} stopped: a killed schedule service had left it turning"
                            )
                        await self._let_settle(context)
                        yield context
                except StoreFailed as broken:
                    if run.unchanged or not self._begun(run.id):
                        raise
                    _, hint = self._interrupted(run.id, changed=True)
                    message = f"{broken}\nno step is taken that cannot be recorded, so it stopped where it was; manual repair is needed:"
                    room = f"make {self.store.path} writable again; testbed status then shows how far it got"
                    raise HandsNeeded(message, (room,), hint=hint) from broken
                except Refused as error:
                    if self._begun(run.id) and not run.unchanged:
                        raise
                    message = f"{error}\nnothing was changed: no light moved, and every host runs the routes it had"
                    raise RolledBack(message, hint=error.hint) from error
                except asyncio.CancelledError:
                    message, hint = self._interrupted(
                        run.id, changed=not run.unchanged and self._begun(run.id)
                    )
                    run.finish("interrupted", 130, message)
                    raise Interrupted(message, hint=hint) from None

    async def _let_settle(self, context: Context) -> None:
        """Wait for what runs before this one may have sent to devices just before they ended.
        Raises: as `Context.need`.
        """
        now = time.monotonic()
        sent = {
            device: now - ago
            for device, ago in unanswered(self.store, context.key).items()
            if device in self.lab.devices
        }
        # its ring changes are no steps
        if "schedule" in {run.verb for run in self.store.unfinished(context.key, context.owner)}:
            sent |= {
                s.ingress.device: now
                for s in self.store.owned(context.tenancy)
                if not self.lab.slow(s.ingress.device)
            }
        context.unanswered |= sent
        await context.hear()
        left = {device: left_s for device in sent if (left_s := context.left_s(device))}
        if left:
            text = f"what a run before may have sent to {', '.join(sorted(left))}"
            if (longest_s := max(left.values())) > SLOW_S:
                self.command.progress.note(f"waiting {seconds_text(longest_s)} for {text}")
            context.need(longest_s, text)
            await context.settled()

    def _begun(self, run: str) -> bool:
        record = self.store.get(run)
        return record is not None and record.begun

    def _interrupted(self, run: str, *, changed: bool) -> tuple[str, str]:
        if not changed:
            return "interrupted before anything was changed", ""
        hint = f"to go on: testbed resume {run}"
        # those started from an unfinished state: there is nothing to go back to
        if not verb_of(self.verb).back:
            hint += f"; to go back: testbed rollback {run}"
        return "interrupted half way; the journal has the steps that began", hint

    def _finished(self, context: Context, report: UpReport, why: str = "") -> UpReport:
        """Record that it is done, and with it the runs before it that were left unfinished. why:
        for the history.
        """
        report = replace(report, journal=self._journal(context))
        context.run.finish("ok", message=why, summary=summary(report))
        self._resolve(context)
        return report

    def _left(self, context: Context, report: DownReport) -> DownReport:
        report = replace(report, journal=self._journal(context))
        if report.left:
            context.run.finish("hands-needed", 7, "; ".join(report.left), summary(report))
        else:
            context.run.finish("ok", summary=summary(report))
            self._resolve(context)
        return report

    def _resolve(self, context: Context) -> None:
        runs = self.store.unfinished(context.key, self.settings.owner)
        self.store.resolve([run.id for run in runs], context.run.id)

    def _journal(self, context: Context) -> str:
        journal = context.recorder.journal
        return str(journal.directory) if journal is not None else ""


def keep_plan(path: Path, text: str) -> None:
    """Keep the plan's text in the run's folder. Raises: StoreFailed."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise file_fault(path, error) or StoreFailed(
            f"{path} cannot be written: {error.strerror}", hint="testbed doctor"
        ) from error


def watch_over(settings: Settings, run: str) -> int:
    """Start a process that rolls the run back if it is not confirmed in time; it outlives this one.
    Return its pid.
    """
    return Daemon.detach(
        spawn(settings, ["confirm", "--watch", run], settings.run_dir(run) / "confirm.log")
    ).pid


def summary(report: UpReport | DownReport | PrewireReport) -> dict[str, object]:
    """Small numbers for the history."""
    return {
        "made": report.made,
        "removed": report.removed,
        "writes": report.writes,
        "dark_ms": getattr(report, "dark_ms", None),
        "dark_ms_expected": getattr(report, "dark_ms_expected", None),
        "dark_time_scale": getattr(report, "dark_time_scale", 1.0),
        "phases": {p.name: p.seconds for p in report.phases},
    }
