"""One change of a lab, carried out: bringing a plan up. Every effect is journalled before it
happens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import replace

from optics import HostName, Interrupted, Link, Locked, NotVerified, StoreFailed, TestbedError
from optics.plain import counted
from optics.plan import Plan
from orchestrator.change.claims import reserved, seen_as_saved, take_over, target_beside
from orchestrator.change.confirm import Confirming, up_to_the_operator
from orchestrator.change.context import Context
from orchestrator.change.equalise import equalise_plan
from orchestrator.change.goal import followed, goal_hosts, is_incomplete, rules_sha, settings_word
from orchestrator.change.impact import Impact
from orchestrator.change.joining import Joining
from orchestrator.change.left_as_is import stopped, unrecorded
from orchestrator.change.move import Move
from orchestrator.change.observe import observe, unneeded
from orchestrator.change.port_counters import sampled_ports
from orchestrator.change.report import EqualiseReport, UpReport
from orchestrator.change.ring_change import RingChange
from orchestrator.change.rollback import Rollback
from orchestrator.change.snapshot import Snapshot
from orchestrator.change.timeline import Figures, Timeline, record_levels, record_timeline
from orchestrator.change.uplinks import uplinks_notified
from orchestrator.change.verdict import verdict
from orchestrator.fabric.lightpath import Held
from orchestrator.fabric.rules import rules
from orchestrator.fabric.up_state import UpState
from orchestrator.jobs import attachments
from orchestrator.jobs.decision import LIVE
from orchestrator.jobs.keep import as_asked, ended, together
from orchestrator.jobs.report import JobStatus
from orchestrator.jobs.resumption import resumption
from orchestrator.plan.target import Target, dark_time_scale, diff, expected_dark_ms
from orchestrator.session import Observation, check_ports
from orchestrator.store.records import JobRecord
from orchestrator.verify.forwarding import pairs_of
from orchestrator.verify.ladder import check_link, ladder
from orchestrator.verify.level import check_passed
from orchestrator.verify.power import keep
from orchestrator.verify.report import LevelResult

NO_FIGURES = Figures()
AFTER_S = 0.5
"""Ports are sampled for this long (s) after a job resumed: the report's throughput after a
change.
"""


class Up:
    """`up`: from the present state to the plan.

    confirming: leave it to be confirmed by the operator.
    """

    def __init__(
        self, context: Context, plan: Plan, text: str, confirming: Confirming | None = None
    ) -> None:
        self.context, self.plan, self.text, self.confirming = context, plan, text, confirming
        self.asked, self.slots = context.options.asked, context.options.slots
        self.lab, self.hosts = context.session.lab, context.session.hosts
        self.current = context.store.current(context.tenancy)
        self.before = Snapshot({})
        self.notes: list[str] = []
        self.taken_over = ""
        self.move = Move(context, plan, self.current)
        self.running: JobRecord | None = None
        live = LIVE.get(self.asked.job, plan.transition.live)
        self.ring_change: RingChange = Joining(
            context, plan.transition, live, restart=self.asked.job == "restart"
        )

    async def carry_out(self) -> UpReport:
        """Carry it out. Raises: as `orchestrator.verbs.change.up`."""
        context, recorder = self.context, self.context.recorder
        # Another plan is likely to need its routes staged.
        staging = self.current is None or self.current.plan_sha != self.plan.sha256
        seen = await observe(context, self.notes, staging=staging)
        with recorder.phase("plan") as phase:
            goal, seen = await reserved(context, seen, self._goal)
            self.notes += unneeded(context, self.plan, goal, self.current, seen)
            self.move.rerouted = context.rerouted(goal.links, seen.hellos)
            await context.allowed(goal.change.changes, seen.settings, self.move.rerouted)
            await context.jobs.write_off(context.options.lost, context.options.broken)
            self.running = await context.jobs.running()
            kept_job = self.asked.job == "keep" and self.running is not None
            launch_job = self.asked.launch_job and not kept_job
            # It may refuse: before the store names another owner.
            await self._choose(
                goal, launch=launch_job, dark=is_incomplete(self.current, self.lab, seen.settings)
            )
            adopted = take_over(context, self.plan, goal, seen)
            self.notes += [f"adopted {line}" for line in adopted]
            self.taken_over = "; ".join(adopted)
            macs = self.hosts.channels.macs()
            wanted = rules(goal.links, self.lab, macs, self.plan.routes, self.plan.rings)
            sha = rules_sha(wanted)
            kept, removed, made = (
                sum(map(len, h.values()))
                for h in (goal.change.kept, goal.change.removed, goal.change.made)
            )
            phase.detail = f"{counted(len(goal.links), 'link')}: {kept} {settings_word(goal)} kept, {removed} broken, {made} made"
        if not goal.moving and followed(
            self.current, context.own_generations(), seen.hellos, wanted, sha
        ):
            return await self._nothing_to_do(goal, seen, wanted, sha, launch_job=launch_job)
        self.move.prepare(goal, seen, macs)
        generation = self.move.generation
        self._begin(goal, seen, wanted)
        times = Timeline()
        try:
            await self.move.wire_ahead(goal)
            # From the staging on: traffic before the change is one half of the comparison.
            async with sampled_ports(
                self.hosts, recorder.journal, context.sample_hz, goal.circuits
            ):
                await self.move.stage(wanted)
                drained, longest_s = self.move.drained is not None, self.move.longest_s(goal)
                await self.ring_change.prepare(
                    goal, generation, drained=drained, longest_s=longest_s
                )
                async with Impact(self.hosts, context.session.devices) as aftermath:
                    times = await self.move.switch(goal, wanted, aftermath, self.ring_change)
                    await aftermath.settle()
                    levels = await self._verify(goal, times)
                    times.verified_ns = time.monotonic_ns()
                    times.power, times.crossed = aftermath.power, aftermath.crossed(generation)
                    times.lost_bytes = await aftermath.lost_bytes(goal.broken_links)
                    own = context.own_generations()
                    locked = [h for h in context.hosts() if h in seen.hellos]
                    leaving = [
                        h for h in locked if h not in wanted and seen.hellos[h].active in own
                    ]
                    if self.confirming is None:
                        await self.move.confirm(wanted, leaving)
                    else:  # those that leave keep their routes, too, until it is confirmed
                        await self.confirming.leave(
                            context, self.plan.name, self.before, generation, wanted, leaving
                        )
        except (Exception, asyncio.CancelledError) as error:
            await self.ring_change.give_up()
            if not self.move.touched:
                context.run.unchanged = True
                raise
            if self.confirming is not None:
                self.confirming.give_up()
            levels = await self._failed(goal, error)
        self._record_up(goal, sha)
        if times.verified_ns:
            self.context.disown_lost(self._now_held(goal, times))
        balance = await self._equalise(goal, self._now_held(goal, times))
        try:
            # Traffic after the change is the other half, if a job produces any.
            runs = self.running is not None or (self.plan.job is not None and launch_job)
            hz = context.sample_hz if runs else 0.0
            async with sampled_ports(self.hosts, recorder.journal, hz, goal.circuits):
                job = await self._job(launch=launch_job, changed=True)
                since_ns = times.sent_ns or times.crossed_ns
                times.resumed_ns, times.pause_ns = await resumption(
                    context.jobs, recorder, times.crossed_ns, since_ns, self.before.job
                )
                if times.resumed_ns and hz:
                    await asyncio.sleep(AFTER_S)
        except asyncio.CancelledError:
            text, hint = await up_to_the_operator(self.confirming, context)
            text = f"interrupted: {self.plan.name} {text}; its job was not waited for"
            context.run.finish("interrupted", 130, text)
            raise Interrupted(text, hint=hint) from None
        except TestbedError as error:
            text, hint = await up_to_the_operator(self.confirming, context)
            error.args = (
                f"{self.plan.name} {text}; {self.ring_change.left_as}\n{error}",
                *error.args[1:],
            )
            if self.confirming is not None:
                error.hint = f"{error.hint}; {hint}" if error.hint else hint
            raise
        figures = record_timeline(recorder, self.lab, goal, self.plan, times, context.verb)
        report = await self._report(goal, job, balance, times.sent_ns, figures)
        await up_to_the_operator(self.confirming, context)
        ok, total, unasked = pairs_of(levels)
        outcomes = (*self.move.wired.values(), *times.outcomes.values())
        return replace(
            report,
            writes=report.writes + sum(outcome.writes for outcome in outcomes),
            dark_ms_expected=expected_dark_ms(goal.late, context.session.traits),
            pairs_ok=ok,
            pairs_total=total,
            pairs_unasked=unasked,
            undo="testbed rollback",
            dark_time_scale=dark_time_scale(goal.late, context.session.traits, self.lab),
            pause_ms=times.pause_ns / 1e6 if times.pause_ns else None,
        )

    async def _report(
        self,
        goal: Target,
        job: JobStatus | None,
        balance: EqualiseReport | None,
        sent_ns: int = 0,
        figures: Figures = NO_FIGURES,
    ) -> UpReport:
        """What is reported of any change. balance: of the equalisation, whose writes are counted.
        sent_ns, figures: of light that moved.
        """
        recorder, changed = self.context.recorder, await self.ring_change.report(sent_ns, figures)
        return UpReport(
            run=self.context.run.id,
            plan=self.plan.name,
            lab=self.lab.name,
            phases=tuple(recorder.phases),
            parts=tuple(recorder.parts),
            diff=diff(goal.change, self.context.session.traits, self.lab, goal.early),
            writes=balance.writes if balance else 0,
            dark_ms=figures.dark_ms,
            link_ms=figures.link_ms,
            commit_ms=figures.commit_ms,
            job=job,
            notes=(
                *self.notes,
                *self.ring_change.notes,
                *self.plan.warnings,
                *(balance.notes if balance else ()),
            ),
            equalise=balance,
            ring_change=changed,
        )

    def _begin(self, goal: Target, seen: Observation, wanted: Collection[HostName]) -> None:
        """Journal the present state and the target; nothing was changed before."""
        self.before = self.context.snapshot(seen.settings, seen.hellos, self.current, self.running)
        self.context.begin(self.before, goal.wanted, self.move.generation, wanted)

    def _record_up(self, goal: Target, sha: str, run: str = "") -> None:
        """Record that the plan is up. run: that brought it up, if another. Raises: Locked - another
        run has taken the lab.
        """
        self.context.store.set_current(
            self.context.tenancy,
            run or self.context.run.id,
            plan_name=self.plan.name,
            plan_sha=self.plan.sha256,
            plan_text=self.text,
            up=UpState.of(goal.links, goal.circuits, sha, self.slots),
            generation=self.move.generation,
            by=self.context.run.id,
        )

    def _goal(self, seen: Observation) -> Target:
        """The target. Raises: as `seen_as_saved`, `target_beside`."""
        seen_as_saved(self.asked.expected, self.plan, self.lab, seen)
        context, store = self.context, self.context.store
        owned = store.owned(context.tenancy) | context.adopted(seen.settings)
        goal = target_beside(store.owners(context.key), self.plan, self.lab, seen, owned)
        return goal.sparing(frozenset(context.options.lost))

    async def _choose(self, goal: Target, *, launch: bool, dark: bool) -> None:
        """See that the devices have the ports, and decide what becomes of the running job.

        Raises: Interlock - it goes on, and the plan disconnects hosts of it; else as `check_ports`,
        `check_attachments`, `RingChange.choose` and `Jobs.make_ready`.
        """
        await check_ports(self.context.session, goal.change.made)
        self.notes += as_asked(self.running, self.plan, self.asked.job)
        await attachments.check_attachments(
            self.plan.job if launch else None,
            self.lab,
            self.context.store.latest_job(self.context.tenancy),
        )
        await self.ring_change.choose(self.running, self.plan.job if launch else None, dark=dark)
        if (
            self.running is not None
            and self.ring_change.decision.kind == "keep"
            and self.slots is None
        ):  # slots were looked at together
            together(self.running, self.plan, self.asked.job)
        if launch and self.plan.job is not None:
            await attachments.check_attachment_hosts(self.plan.job, self.context.session)
            if self.plan.job.program:
                await self.hosts.jobs.make_ready(self.plan.job)

    def _now_held(self, goal: Target, times: Timeline) -> Held:
        """What the devices hold after the change, by their own last reports."""
        observed = {d: goal.change.kept[d] | goal.change.foreign[d] for d in goal.change.kept}
        return observed | {
            d: outcome.observed for d, outcome in {**self.move.wired, **times.outcomes}.items()
        }

    async def _equalise(self, goal: Target, held: Held) -> EqualiseReport | None:
        return await equalise_plan(self.context, self.plan, goal, held)

    async def _nothing_to_do(
        self,
        goal: Target,
        seen: Observation,
        wanted: Collection[HostName],
        sha: str,
        *,
        launch_job: bool,
    ) -> UpReport:
        """Devices and hosts are as planned: check the carriers, launch the job if needed, write
        nothing to any device.
        """
        ok, _, evidence = await check_link(seen.hellos, self._lit(goal))
        if not ok:
            text = f"the devices hold {self.plan.name}, but not every port has light:"
            raise NotVerified(
                "\n".join((text, *evidence)), hint="testbed verify says which side is dark"
            )
        self.context.disown_lost(seen.settings)
        # another job, or only another text
        if self.current is not None and self.current.plan_sha != self.plan.sha256:
            self.move.generation = self.current.generation
            self._begin(goal, seen, wanted)
            try:  # the job goes first: one that cannot change rings leaves everything as it was
                await self.ring_change.finish()
            except TestbedError:
                record = self.ring_change.record
                self.context.run.unchanged = record is None or not record.spec.changing
                raise
            self._record_up(goal, sha)
        # it is like the slot before it
        elif self.current is not None and self.slots != self.current.up.slots:
            self.move.generation = self.current.generation
            self._record_up(goal, sha, self.current.run)
        balance = await self._equalise(goal, seen.settings)
        job = await self._job(launch=launch_job, changed=False)
        self.notes += (
            ended(job)
            if self.confirming is None
            else (*ended(job), "nothing was changed, nothing has to be confirmed")
        )
        report = await self._report(goal, job, balance)
        launched = job is not None and job.run == self.context.run.id
        changed = report.writes or report.ring_change is not None or launched
        return replace(report, nothing_to_do=not changed)

    def _lit(self, goal: Target) -> Collection[Link]:
        return goal.links

    async def _verify(self, goal: Target, times: Timeline) -> tuple[LevelResult, ...]:
        """Climb the ladder. Raises: NotVerified - with every failed rung's evidence."""
        context, recorder = self.context, self.context.recorder
        with recorder.phase("verify") as phase:
            hellos = await self.hosts.channels.greet(sorted(goal_hosts(goal)))
            # the other devices are read again
            fresh = {device: outcome.observed for device, outcome in times.outcomes.items()}
            job = context.store.latest_job(context.tenancy)
            busy = f"job {job.name} runs" if job is not None and job.ended is None else ""
            levels = await ladder(
                context.session,
                self.plan,
                goal.links,
                goal.circuits,
                fresh,
                hellos,
                keep=lambda readings: keep(
                    readings, context.store, context.key, context.run.id, recorder.journal
                ),
                power=False,
                busy=busy,
            )
            self.notes += record_levels(recorder, levels)
            check_passed(levels, 12, "testbed verify repeats the ladder")
            phase.detail = ", ".join(r.detail for r in levels if r.name != "map")
        return levels

    async def _job(self, *, launch: bool, changed: bool) -> JobStatus | None:
        """Bring the job in line with the plan: an unchanged one keeps running, another one replaces
        it.
        """
        context = self.context
        self.notes += await attachments.adjust(
            context.session,
            self.ring_change.decision,
            self.running,
            self.plan.job if launch else None,
        )
        await self.ring_change.finish()
        self.notes += await uplinks_notified(context.session, self.plan.job)
        return await context.jobs.ensure(
            context.run.id,
            self.plan.job,
            context.recorder,
            changed=changed,
            launch=launch and not context.options.joins,
            restart=self.ring_change.decision.kind == "restart" or self.asked.job == "restart",
            sample=context.sample_hz > 0,
            left_out=context.options.left_out,
        )

    async def _failed(self, goal: Target, error: BaseException) -> tuple[LevelResult, ...]:
        """Roll everything back that was changed. Raises: always - the error that describes the
        outcome.
        """
        context = self.context
        if isinstance(error, Locked):
            raise error
        if not self.asked.rollback:
            raise await stopped(context, self.move, goal, error) from error
        try:
            link_s = self.plan.acceptance.link_up_timeout_s
            undone = await Rollback(
                context, self.before, self.move.asked, link_s, self.ring_change
            ).carry_out()
        except StoreFailed as broken:
            raise await unrecorded(context, goal, error, broken) from error
        if self.taken_over:
            undone = replace(
                undone,
                evidence=f"{undone.evidence}; adopted circuits stay yours: {self.taken_over}",
            )
        raise verdict(
            context, error, undone, moved=bool(context.written) or not goal.moving
        ) from error
