"""`rollback` and `restore`: the engine of `up` with a recorded state as its target. Nothing is
chosen again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace

from optics import HandsNeeded, Link, Locked, TestbedError
from orchestrator.change.context import Context
from orchestrator.change.goal import goal_hosts
from orchestrator.change.job_back import resume_job
from orchestrator.change.report import EqualiseReport
from orchestrator.change.ring_change import RingChange
from orchestrator.change.rollback import Rollback
from orchestrator.change.snapshot import NONE, Snapshot, change_back
from orchestrator.change.up import Up
from orchestrator.fabric.circuits import live_links, receivers, settings
from orchestrator.fabric.lightpath import Held, without_attenuation
from orchestrator.fabric.lookahead import ahead
from orchestrator.fabric.move_order import in_order
from orchestrator.fabric.transition import per_device
from orchestrator.inventory.lab import Lab
from orchestrator.jobs.attachments import adjust, check_attachments
from orchestrator.jobs.record import launched
from orchestrator.jobs.report import JobStatus
from orchestrator.plan.stored import stored_plan
from orchestrator.plan.target import Target
from orchestrator.session import Observation
from orchestrator.store.records import CurrentPlan
from orchestrator.store.store import Store
from orchestrator.verify.report import LevelResult


def as_stored(store: Store, key: str, current: CurrentPlan, lab: Lab) -> Snapshot:
    """The plan that is up, exactly as in the store: its light paths, their attenuation, the job
    launched last.
    """
    wanted = settings(current.up.circuits(lab))
    exact = {without_attenuation(s): s for s in store.owned(key)}
    job = store.latest_job(key)
    held = {
        d: frozenset(exact.get(without_attenuation(s), s) for s in found)
        for d, found in wanted.items()
    }
    lit = receivers(current.up.links)
    if job is None or job.ended is not None:
        return Snapshot(held, current=current, lit=lit)
    return Snapshot(held, current=current, lit=lit, job=job.id, wanted=job.spec.wanted)


class Restore(Up):
    """Restore exactly `to`, which had a plan: its links, paths, settings and attenuation; its job
    resumes.

    What fails is read back and tried once more; what is left then needs manual repair.
    """

    def __init__(self, context: Context, to: Snapshot) -> None:
        current = to.current
        assert current is not None
        lab = context.session.lab
        plan = stored_plan(current.plan_text, current.plan_name, current.up.slots, lab)
        super().__init__(context, plan, current.plan_text)
        self.slots = current.up.slots
        self.ring_change = RingChange(
            context,
            self.plan.transition,
            "never" if self.plan.transition.live == "never" else "prefer",
        )
        self.to, self.up = to, current.up
        self.unfit = ""

    def _goal(self, seen: Observation) -> Target:
        wanted = {d: held for d, held in self.to.owned.items() if held}
        if any(device not in seen.settings for device in wanted):
            seen.complete()
        owned = per_device(self.context.store.owned(self.context.tenancy))
        change = change_back(seen.settings, wanted, owned)
        early = ahead(change, seen.settings, self.lab)
        change = in_order(change, early, seen.settings, self.lab)
        exact = {without_attenuation(s): s for held in wanted.values() for s in held}
        circuits = tuple(
            replace(c, path=tuple(exact.get(without_attenuation(s), s) for s in c.path))
            for c in self.up.circuits(self.lab)
        )
        lit = live_links(
            {d: held - change.foreign[d] for d, held in seen.settings.items()}, self.lab
        )
        return Target(self.up.links, circuits, wanted, change, lit, early)

    def _lit(self, goal: Target) -> Collection[Link]:
        """Those that had light: a device or a fibre may have lost some before."""
        return [link for link in goal.links if {*receivers([link])} <= {*self.to.lit}]

    async def _equalise(self, goal: Target, held: Held) -> EqualiseReport | None:
        return None  # the previous attenuation is part of what is restored

    async def _choose(self, goal: Target, *, launch: bool, dark: bool) -> None:
        """The job that ran gets the rings that it had, if it still runs; nothing that it cannot
        have stops a rollback.
        """
        store, record = (
            self.context.store,
            None if self.to.job is None else self.context.store.job(self.to.job),
        )
        if record is not None and record.state != "finished" and record.spec.wanted.attached:
            try:
                job = launched(record, self.lab, self.to.wanted)
                await check_attachments(job, self.lab, store.latest_job(self.context.tenancy))
            except TestbedError as error:
                self.unfit = error.line
        if self.running is not None and self.running.id == self.to.job:
            await self.ring_change.choose(
                self.running, launched(self.running, self.lab, self.to.wanted), dark=dark
            )

    async def _job(self, *, launch: bool, changed: bool) -> JobStatus | None:
        try:
            self.notes += await adjust(
                self.context.session, self.ring_change.decision, self.running, self.ring_change.job
            )
        except TestbedError as error:
            self.notes.append(f"its job goes on as it was given it: {error.line}")
        await self.ring_change.finish()
        return await resume_job(self.context, self.to, self.notes, self.unfit)

    async def _failed(self, goal: Target, error: BaseException) -> tuple[LevelResult, ...]:
        """Read back and try once more, as far as possible. Raises: HandsNeeded - with what is
        left.
        """
        context = self.context
        late = context.limit is not None and context.limit.passed
        if isinstance(error, Locked) or (isinstance(error, asyncio.CancelledError) and not late):
            raise error
        observed = self.before
        own, staying = context.own_generations(), goal_hosts(goal)
        leaving = {
            h for h, active in observed.generations.items() if h not in staying and active in own
        }
        generations = dict.fromkeys(staying, self.move.generation) | dict.fromkeys(leaving)
        current = (
            replace(self.to.current, generation=self.move.generation) if self.to.current else None
        )
        to = Snapshot(
            {d: self.to.owned.get(d, NONE) for d in observed.owned},
            observed.others,
            current,
            generations,
            self.to.lit,
            self.to.job,
            self.to.wanted,
        )
        again = Rollback(
            context,
            to,
            self.move.asked | leaving,
            self.plan.acceptance.link_up_timeout_s,
            self.ring_change,
        )
        undone = await again.carry_out()
        if undone.left:
            hint = f"once it is repaired: testbed resume {context.run.id}"
            raise HandsNeeded(
                f"{error}\nnot everything is back as it was; manual repair is needed:",
                undone.left,
                hint=hint,
            ) from error
        first = error.line if isinstance(error, TestbedError) else type(error).__name__
        if again.to.current is not None:
            # a host lost the routes: all run them under a new number
            self.move.generation = again.to.current.generation
        self.notes.append(f"at the second try ({first}): {undone.evidence}")
        return ()
