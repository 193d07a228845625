"""The running job's part of one change: its ranks take over other rings at the end of an iteration,
and may pause in the dark.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from optics import Infeasible, Locked, Refused, TestbedError
from optics.plan import Job, TransitionPolicy
from orchestrator.change.context import Context
from orchestrator.change.report import JobChange
from orchestrator.change.ring_change_cost import measured_standstill, record_ring_change_cost
from orchestrator.change.standstill import Standstill, pause_parts
from orchestrator.change.timeline import Figures
from orchestrator.hosts.launch import layout
from orchestrator.jobs.attempt import GO_TAKES, LOOK_S, MOST_S, Attempt
from orchestrator.jobs.decision import (
    JobDecision,
    Live,
    cut_off,
    decide_job,
    differing,
    instead,
    pauses,
)
from orchestrator.jobs.record import boundary
from orchestrator.plan.target import Target, expected_dark_ms
from orchestrator.store.generations import generation_owners
from orchestrator.store.job_spec import JobSpec
from orchestrator.store.lock_queue import clock
from orchestrator.store.records import JobRecord

LEASE_S = 86_400.0
"""The longest time (s) for which hosts keep what was prepared."""
EARLIER_S = 2.0
"""How long (s) ranks get to connect to their agent again, after it was replaced."""
DROP_TAKES = 2
"""So many iterations may end before all ranks report the end of a move that was dropped: they look
at the end of one.
"""


class RingChange:
    """What a change does with the job that runs: `choose`, then around the light `prepare`,
    `begin`, `hold` and `change_over`, then `finish`. A change that fails calls `give_up`.

    live, restart: as `decide_job`; with `prefer` and `never` nothing here fails a change, and what
    was not possible is a note and a restart. Raises, everywhere: Locked - a newer run holds a host;
    with `require` Refused, Unreachable, TimedOut - the ranks cannot take over their rings.
    """

    def __init__(
        self, context: Context, policy: TransitionPolicy, live: Live, *, restart: bool = False
    ) -> None:
        self.context, self.policy, self.live, self.restart = context, policy, live, restart
        self.hosts, self.lab = context.session.hosts, context.session.lab
        self.record: JobRecord | None = None
        self.job: Job | None = None
        self.decision = JobDecision("none")
        self.attempt: Attempt | None = None
        self.dropped: Attempt | None = None
        """An attempt that was dropped and whose end not all ranks have reported."""
        self.unknown = False
        """Whether an earlier move may have changed the rings: then the record's mark stays until
        the ranks follow this one.
        """
        self.dark = False
        """Whether light of the plan that is up is missing: the ranks may wait for it, so they are
        asked once it is there.
        """
        self.holding = False
        self.drained = False
        self.done = False
        """Whether the ranks use the rings wanted, or have gone on after a pause."""
        self.after = 0
        self.begun_ns = 0
        self.prepare_ms = 0.0
        self.trouble = ""
        self.notes: list[str] = []

    # --- before the light moves

    async def choose(
        self, record: JobRecord | None, job: Job | None, *, dark: bool = False
    ) -> None:
        """Decide what becomes of the running job `record` (None: none runs) if the plan wants `job`
        (None: none, or not now).

        dark: light of the plan that is up is missing.
        Raises: Infeasible - `require`, and a field differs that no running job can change.
        """
        self.record, self.job, self.dark = record, job, dark
        self.unknown = record is not None and record.spec.changing != 0
        if record is not None and record.state == "paused":
            self.notes.append(f"job {record.name} was paused; this change ended its pause")
        self.decision = decide_job(record, job, self.live, restart=self.restart)
        if record is not None and self.decision.changes:
            try:
                if self.policy.boundary_s > TransitionPolicy().boundary_s:
                    self.context.need(
                        GO_TAKES * self.policy.boundary_s, f"a ring change of {record.name}"
                    )
                if not dark:
                    await self._present(record)
            except Locked:
                raise
            except TestbedError as error:
                self._impossible(error)
        elif record is not None and self.decision.why:
            text = (
                f"job {record.name} cannot take over this plan while it runs: {self.decision.why}"
            )
            if self.live == "require":
                raise Infeasible(text, hint="; ".join(instead(self.context.options.joins)))
            self.notes.append(f"job {record.name} is restarted: {self.decision.why}")
        elif record is not None and self.decision.kind == "restart":
            why = "as --job restart asks" if self.restart else "the plan says live: never"
            self.notes.append(f"job {record.name} is restarted: {why}")

    async def _present(self, record: JobRecord) -> None:
        """Wait for ranks that connect again, and for the end of an earlier run's move, which this
        run's fence has dropped.
        """
        began, attempt = time.monotonic(), self._attempt(record, 0)
        while True:
            try:
                await attempt.present(self._asked)
                return
            except Refused:
                patience_s = DROP_TAKES * self.policy.boundary_s if attempt.busy else EARLIER_S
                if time.monotonic() > began + patience_s:
                    raise
            await asyncio.sleep(LOOK_S)

    def _asked(self, move: int) -> str:
        """Who asked for a move, and when; empty where this store does not know."""
        store = self.context.store
        found = generation_owners(store, self.context.key).get(move)
        run = store.get(found.run) if found is not None and found.run else None
        return (
            f", of run {run.id}: {run.verb}, {run.user} on {run.host} since {clock(run.started)}"
            if run is not None
            else ""
        )

    async def prepare(
        self, goal: Target, generation: int, *, drained: bool, longest_s: float
    ) -> None:
        """Have the ranks connect what they need while they go on; they use it when `generation` is
        active on all hosts.

        longest_s: until light and routes are there at the latest, from the pause on (s).
        """
        record, job = self.record, self.job
        dark_s = (expected_dark_ms(goal.late, self.context.session.traits) or 0.0) / 1e3
        if record is None or self.decision.kind not in ("rings", "keep") or self.dark:
            return
        apart = cut_off(record, goal, self.lab, drained=drained)
        self.holding = pauses(self.policy, dark_s, record.spec.backend == "nccl", apart)
        if self.holding and not record.spec.wanted.uses_rings:
            self.holding = False
            self.notes.append(
                f"job {record.name} cannot pause while circuits are dark: its program has no back-end testbed"
            )
        self.drained = drained
        if self.holding and longest_s > MOST_S:
            self._no_pause(
                Refused(
                    f"light may take {longest_s:.0f} s, and hosts pause a job for {MOST_S:g} s at most"
                )
            )
        if self.decision.kind == "keep" and not self.holding:
            return
        wanted = layout(job, self.lab) if self.decision.kind == "rings" and job is not None else {}
        lease_s = min(LEASE_S, self.context.timeout_s + self.policy.boundary_s)
        await self._prepare(self._attempt(record, generation), wanted, lease_s, generation)

    async def _prepare(
        self, attempt: Attempt, wanted: Mapping[str, Any], lease_s: float, generation: int | None
    ) -> None:
        with self.context.recorder.phase(
            "prepare", "the job's ranks connect their next rings" if wanted else ""
        ) as phase:
            began = time.monotonic()
            try:
                await attempt.prepare(wanted, lease_s, generation)
            except BaseException as error:
                await attempt.drop()
                if not isinstance(error, TestbedError) or isinstance(error, Locked):
                    raise
                phase.detail = f"not possible: {error.line}"
                self._impossible(error)
                return
            self.prepare_ms = (time.monotonic() - began) * 1e3
            self.attempt = attempt
            slowest = (
                f", the slowest in {max(attempt.took_ms.values()):.0f} ms"
                if attempt.took_ms and wanted
                else ""
            )
            phase.detail = f"{len(attempt.states)} ranks {'connected their next rings' if wanted else 'ready to pause'}{slowest}"

    def begin(self) -> None:
        """From now on the ranks may change over at any moment; should this run die, the next one
        will not rely on the record.
        """
        self.begun_ns = time.monotonic_ns()
        if self.attempt is not None and self.record is not None and self.decision.changes:
            self._record(replace(self.record.spec, changing=self.attempt.move))

    async def hold(self, longest_s: float) -> None:
        """Pause the job if this change is to. longest_s: until light and routes are there at the
        latest (s).
        """
        if self.attempt is None or not self.holding:
            return
        with self.context.recorder.phase("hold") as phase:
            try:
                phase.detail = f"paused after {boundary(self.attempt.record, await self.attempt.hold(longest_s))}"
            except Locked:
                raise
            except TestbedError as error:
                phase.detail = f"not possible: {error.line}"
                self.dropped, self.attempt = self.attempt, None
                await self.dropped.drop()
                self._no_pause(error)

    # --- once hosts have committed

    async def change_over(self) -> None:
        """Have the ranks change over, or go on; what keeps them from it is looked at by `finish`,
        once all is verified.
        """
        if self.attempt is not None:
            with self.context.recorder.phase("rings") as phase:
                phase.detail = await self._go_on(self.attempt)

    async def _go_on(self, attempt: Attempt) -> str:
        """Return in words what came of it; `done` and `trouble` say the same."""
        try:
            self.after = await attempt.go_on()
        except Locked:
            raise
        except TestbedError as error:
            self.trouble = str(error)
            if attempt.void:
                self._unmark()
            return f"not possible: {error.line}"
        self.done, self.trouble = True, ""
        after = boundary(attempt.record, self.after)
        if self.decision.changes:
            self._follow()
            return f"{len(attempt.states)} ranks use their next rings after {after}"
        return f"{len(attempt.states)} ranks go on after {after}"

    async def finish(self) -> None:
        """See that the job is as decided: a ring change that did not happen is tried once more,
        without light.

        Afterwards the record says which rings run, or the decision is `restart`. Raises: with
        `require` - the job keeps its rings.
        """
        record, job = self.record, self.job
        if self.decision.kind == "keep" and self.attempt is not None and not self.done:
            await self.attempt.drop()
            self.notes.append(f"its pause did not end as planned: {self.trouble}")
        if record is None or job is None:
            return
        if self.decision.kind == "keep" and differing(record.spec.wanted, job):
            self._follow()
        if self.decision.kind != "rings" or self.done:
            return
        if self.attempt is not None:
            await self.attempt.drop()
            self.dropped, self.attempt = self.attempt, None
        if await self.settle():
            return
        self.unknown = self.unknown or self.dropped is not None
        self.holding = False
        if self.dark:
            try:
                await self._present(record)
            except Locked:
                raise
            except TestbedError as error:
                self._impossible(error)
                return
        again = self._attempt(record, self.context.next_generation())
        await self._prepare(
            again,
            layout(job, self.lab),
            2 * GO_TAKES * self.policy.boundary_s + self.context.timeout_s,
            None,
        )
        if self.attempt is not None:
            self.begin()
            await self.change_over()
            if not self.done:
                await again.drop()
                self.dropped = again
                if not await self.settle():
                    self._impossible(Refused(self.trouble))

    async def settle(self) -> bool:
        """See how a dropped move ended, and record it; return whether the ranks had changed over
        all the same.

        Light and routes are as the ranks need them: they report the end of a move at the end of an
        iteration.
        """
        return await self._settle(DROP_TAKES * self.policy.boundary_s)

    async def _settle(self, within_s: float) -> bool:
        attempt = self.dropped
        if attempt is None:
            return False
        ended = await attempt.ended(within_s)
        if ended == "changed":
            self.attempt, self.done, self.after, self.trouble = attempt, True, attempt.after, ""
        if ended in ("changed", "decided"):
            if self.decision.changes:
                self._follow()
        elif ended == "void":
            self._unmark()
        else:
            return False
        self.dropped = None
        return self.done

    @property
    def left_as(self) -> str:
        """What became of the job, for the error of a change that stays up."""
        match self.decision.kind:
            case "none":
                return "its job does not run"
            case "keep":
                return "its job runs as before"
            case "restart":
                return "it is not known whether its job runs"
        if self.done:
            return "its job runs with its next rings"
        if self.record is not None and self.record.spec.changing:
            return "it is not known which rings its job uses"
        return "its job keeps its earlier rings"

    async def give_up(self) -> None:
        """The change failed: what was prepared is dropped, and a pause ends. A ring change that was
        decided is left as it is.

        One look at the ranks: those that paused have reported the end of the move. The others may
        wait for light; `settle`, once it is back, waits for them.
        """
        attempt, self.attempt = self.attempt, None
        if attempt is not None and not self.done:
            await attempt.drop()
            self.dropped = attempt
            await self._settle(0.0)

    # --- what it cost

    async def report(self, times_sent_ns: int, figures: Figures) -> JobChange | None:
        """What the move of the job cost it, by the iterations of rank 0; None where there was none.
        Written to the journal.
        """
        attempt, record = self.attempt, self.record
        if attempt is None or record is None or not self.begun_ns:
            return None
        paused, context = Standstill(), self.context
        if self.done:
            session, runs, journal = (
                context.session,
                context.run_dir.parent,
                context.recorder.journal,
            )
            since_ns = times_sent_ns or self.begun_ns
            paused, self.after = await measured_standstill(
                session, record, runs, journal, attempt.move, since_ns, self.after
            )
        parts = figures.dark_ms, figures.commit_ms
        stalls = [s.stall_ms for s in attempt.states.values() if s.stall_ms is not None]
        mode = "hold" if self.holding else "drain" if self.drained and times_sent_ns else "send"
        found = JobChange(
            move=attempt.move,
            mode=mode,
            after=self.after or None,
            paused_ms=paused.paused_ms,
            dark_ms=figures.dark_ms,
            commit_ms=figures.commit_ms,
            boundary_ms=None
            if paused.paused_ms is None
            else pause_parts(paused.paused_ms, *parts)["boundary"],
            before_ms=paused.before_ms,
            after_ms=paused.after_ms,
            worst_rank_ms=max(stalls, default=None),
            prepare_ms=self.prepare_ms,
            note=self.trouble,
        )
        record_ring_change_cost(
            context.recorder, found, attempt, done=self.done, begun_ns=self.begun_ns
        )
        return found

    # --- parts

    def _attempt(self, record: JobRecord, move: int) -> Attempt:
        return Attempt(self.hosts, record, move, self.policy.boundary_s)

    def _impossible(self, error: TestbedError) -> None:
        """The job does not change rings, or does not pause. Raises: with `require`, where it does
        not change rings.
        """
        record = self.record
        assert record is not None
        self.trouble = str(error)
        if not self.decision.changes:
            self.notes.append(f"job {record.name} does not pause: {error}")
            return
        if self.live == "require":
            hint = "; ".join(filter(None, (error.hint, instead(self.context.options.joins)[0])))
            raise type(error)(
                f"job {record.name} cannot take over its rings while it runs: {error}", hint=hint
            ) from error
        self.decision = JobDecision("restart", str(error))
        self.notes.append(
            f"job {record.name} is restarted, as it cannot take over its rings while it runs: {error}"
        )

    def _no_pause(self, error: TestbedError) -> None:
        """The job does not pause; it changes rings as it would without. Raises: with `require`,
        where it was to change rings.
        """
        assert self.record is not None
        if self.decision.kind == "rings" and self.live == "require":
            self._impossible(error)
        self.holding, self.trouble = False, str(error)
        self.notes.append(f"job {self.record.name} does not pause: {error}")

    def _unmark(self) -> None:
        """This run's moves had no effect; whether an earlier run's had is as unknown as before."""
        if self.record is not None and self.record.spec.changing and not self.unknown:
            self._record(replace(self.record.spec, changing=0))

    def _follow(self) -> None:
        """The record says what the ranks run now."""
        assert self.record is not None and self.job is not None
        self._record(replace(self.record.spec, changing=0, wanted=self.job))

    def _record(self, spec: JobSpec) -> None:
        assert self.record is not None
        self.record = replace(self.record, spec=spec)
        self.context.store.set_job_spec(self.record.id, spec)
