"""The part of a change that moves traffic and light: stage routes, drain, arm the hosts, switch,
and wait for their commits.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from optics import (
    Change,
    DeviceName,
    HostName,
    HostPort,
    Infeasible,
    Outcome,
    TestbedError,
    TimedOut,
)
from optics.plain import counted, scaled_text
from optics.plan import FixedRoute, Plan
from orchestrator.change.apply import switch
from orchestrator.change.context import Context
from orchestrator.change.dark import Hold, routes_meanwhile, worthwhile
from orchestrator.change.impact import Impact
from orchestrator.change.port_counters import quiet
from orchestrator.change.ring_change import RingChange
from orchestrator.change.timeline import Timeline
from orchestrator.deadline import SLACK
from orchestrator.fabric.circuits import receivers
from orchestrator.fabric.rules import Macs, Route, Rules, drain_rules, rules
from orchestrator.hosts import Committed, Hello
from orchestrator.plan.reader import read_plan
from orchestrator.plan.target import SLOW_S, Target, dark_time_scale, slowest_device
from orchestrator.session import Observation
from orchestrator.store.records import CurrentPlan
from orchestrator.verify.ladder import check_light, check_link


def counts_of(changes: Mapping[DeviceName, Change]) -> str:
    """How many settings are removed and added on each device: `ocs1 -12 +12  ocs2 -0 +3`."""
    return "  ".join(f"{d} -{len(c.remove)} +{len(c.add)}" for d, c in changes.items())


class Move:
    """Traffic and light of one change to `plan`; `current` is the plan that was up before.

    touched: whether anything was changed. asked: hosts that were asked to change. generation: the
    number of the plan's routes. drain, drained: routes to drain onto, and their number. hold: of
    pairs without another path. rerouted: as `Context.rerouted`. switching_s: expected of slow
    devices.
    """

    def __init__(self, context: Context, plan: Plan, current: CurrentPlan | None) -> None:
        self.context, self.plan, self.current = context, plan, current
        self.lab, self.hosts = context.session.lab, context.session.hosts
        self.touched = False
        self.asked: set[HostName] = set()
        self.switching_s = 0.0
        self.wired: Mapping[DeviceName, Outcome] = {}
        self.generation = 0
        self.drained: int | None = None
        self.drain: Mapping[HostName, Rules] = {}
        self.hold: Hold | None = None
        self.rerouted: frozenset[HostPort] = frozenset()

    def prepare(self, goal: Target, seen: Observation, macs: Mapping[HostPort, Macs]) -> None:
        """Extend the deadline and number the routes. Raises: TimedOut - the operator allowed less
        than devices need.
        """
        self.switching_s = self._make_time(goal)
        self.drain = self._drain_rules(goal, seen, macs)
        # In the order of use: hosts discard what was staged before the generation they run.
        self.drained = self.context.next_generation() if self.drain else None
        self.hold = self._hold(goal, seen, macs)
        self.generation = self.context.next_generation()

    def _make_time(self, goal: Target) -> float:
        """Seconds of darkness by the slowest device; the deadline is extended for all it does.

        Raises: TimedOut - the operator allowed less.
        """
        found = slowest_device(goal.change, self.context.session.traits)
        if found is None or found[1] <= SLOW_S:
            return 0.0
        device, seconds = found
        change = goal.change.changes[device]
        self.context.need(
            seconds, f"{device} ({counted(len(change.remove) + len(change.add), 'move')})"
        )
        late = slowest_device(goal.late, self.context.session.traits)
        return late[1] if late is not None and late[1] > SLOW_S else 0.0

    async def wire_ahead(self, goal: Target) -> None:
        """What slow devices can do while every circuit still carries its light. Raises:
        ChangeFailed.
        """
        if not goal.early:
            return
        self.touched = True
        with self.context.recorder.phase("prewire") as phase:
            self.wired = await switch(
                self.context, replace(goal.change, changes=goal.early), "prewire"
            )
            phase.detail = counts_of(goal.early) + ", in the dark"

    async def stage(self, wanted: Mapping[HostName, Rules]) -> None:
        """Fill tables that no rule selects yet by Ansible: the new generation, and one to drain
        onto if some links stay lit.
        """
        context = self.context
        generations: dict[int, Mapping[HostName, Rules]] = {self.generation: wanted}
        if self.drained is not None:
            generations[self.drained] = self.drain
        if self.hold is not None:
            generations[self.hold.generation] = self.hold.routes
        hosts = sorted(set(wanted) | set(self.drain))
        count = sum(isinstance(r, Route) for rules in wanted.values() for r in rules)
        with context.recorder.phase(
            "stage", f"{counted(count, 'route')} on {counted(len(hosts), 'host')}, through Ansible"
        ) as phase:
            step = context.run.step(
                "host",
                "all",
                "stage",
                {"generations": sorted(generations)},
                {"clear": sorted(generations)},
            )
            with step:
                staged = await self.hosts.routes.stage(generations)
                step.result({"hosts": sorted(staged)})
            held = sum(
                found[self.generation].routes
                for found in staged.values()
                if self.generation in found
            )
            as_prefixes = f" as {held} prefixes" if held < count else ""
            also = " and a generation to drain onto" if self.drain else ""
            phase.detail = (
                f"{counted(count, 'route')}{as_prefixes}{also} on {counted(len(hosts), 'host')}"
            )

    def _drain_rules(
        self, goal: Target, seen: Observation, macs: Mapping[HostPort, Macs]
    ) -> Mapping[HostName, Rules]:
        """Routes for the dark interval; empty if draining would change nothing or was not asked
        for.
        """
        kept = goal.kept_links
        follows = {host for host, hello in seen.hellos.items() if hello.active is not None}
        if (
            not self.plan.transition.drain
            or not kept
            or len(kept) == len(goal.old_links)
            or not follows
        ):
            return {}
        routes, rings = self._old_routing()
        try:
            before = rules(goal.old_links, self.lab, macs, routes, rings)
            drain = drain_rules(goal.old_links, kept, self.lab, macs, routes, rings)
        except Infeasible:  # the old plan's fixed routes do not fit what is lit now
            before, drain = (
                rules(goal.old_links, self.lab, macs),
                drain_rules(goal.old_links, kept, self.lab, macs),
            )
        return (
            {}
            if drain == before
            else {host: rules for host, rules in drain.items() if host in follows}
        )

    def _hold(self, goal: Target, seen: Observation, macs: Mapping[HostPort, Macs]) -> Hold | None:
        """The hold of the hosts that stay in the plan and lose their path to another one; None if
        none does, or by the policy.
        """
        found = slowest_device(goal.late, self.context.session.traits)
        if found is None or not worthwhile(self.plan.transition, found[1]):
            return None
        staying = {port.host for link in goal.links for port in (link.a, link.b)}
        follows = {
            host
            for host, hello in seen.hellos.items()
            if hello.active is not None and host in staying
        }
        meanwhile = routes_meanwhile(
            goal.old_links, goal.kept_links, self.lab, macs, *self._old_routing()
        )
        routes = {host: held for host, held in meanwhile.items() if host in follows}
        return Hold(self.context.next_generation(), routes, found[1]) if routes else None

    def _old_routing(self) -> tuple[tuple[FixedRoute, ...], tuple[tuple[HostName, ...], ...]]:
        if self.current is None:
            return (), ()
        try:
            old = read_plan(self.current.plan_text, self.current.plan_name, self.lab)
        except TestbedError:  # the inventory changed since
            return (), ()
        return old.routes, old.rings

    async def switch(
        self,
        goal: Target,
        wanted: Mapping[HostName, Rules],
        aftermath: Impact,
        ring_change: RingChange,
    ) -> Timeline:
        """Arm, drain or hold, break and make on all devices at once, wait for carriers and commits,
        change the job over.
        """
        context, recorder, hosts = self.context, self.context.recorder, self.hosts
        policy, patience = self.plan.transition, self.plan.acceptance.link_up_timeout_s
        times, generation = Timeline(), self.generation
        await context.allowed({}, {}, self.rerouted)  # no device checks these before hosts commit
        recorder.reconfig_id = f"{context.run.id}/1"
        self.touched = True
        self.asked.update(wanted, self.drain)
        ring_change.begin()
        what = {"generation": generation}
        if not goal.late:
            with recorder.phase("routes") as phase, context.run.step("host", "all", "commit", what):
                times.committed = dict(
                    await hosts.routes.commit(generation, wanted, policy.revert_after_s)
                )
                phase.detail = f"committed on {counted(len(times.committed), 'host')}"
            await ring_change.change_over()
            return times
        # A device that an earlier run left settling may have finished while routes were staged: no
        # new carrier event would come.
        now = (await context.session.observe(hosts=False)).held
        rising = goal.rising(now)
        # before the light moves: a host may commit before it is asked
        events = hosts.channels.subscribe()
        with recorder.phase("arm") as phase, context.run.step("host", "all", "arm", what):
            # The first host may commit long before a robot has made its last move, or before a
            # driver gives up on its device.
            revert_s = policy.revert_after_s + self.longest_s(goal)
            cross = aftermath.neighbours(
                rising, goal.links, self.lab, self.plan.routes, self.plan.rings
            )
            await hosts.routes.arm(
                generation,
                rising,
                revert_after_s=revert_s,
                deadline_s=context.timeout_s,
                cross=cross,
            )
            # from here on every millisecond counts, first of a detour and then of darkness
            gc.collect()
            each = "1 host commits" if len(rising) == 1 else f"{len(rising)} hosts commit"
            phase.detail = f"{each} generation {generation} when the light arrives"
        await self._routes_while_dark(goal)
        await ring_change.hold(self.longest_s(goal))
        await aftermath.before(goal.broken_links)
        with recorder.phase("switch") as phase:
            held = self.hold
            before = (
                partial(held.begin, hosts, receivers(goal.broken_links))
                if held is not None
                else None
            )
            with (
                context.run.step("host", "all", "hold", {"generation": held.generation})
                if held is not None
                else nullcontext()
            ):
                times.outcomes = await switch(context, goal.late, before=before)
            aftermath.moved(
                goal.late.changes, {x.egress for circuit in goal.circuits for x in circuit.path}
            )
            phase.detail = counts_of(goal.late.changes)
            if held is not None:
                held.record(recorder)
            if self.switching_s:
                slow = dark_time_scale(goal.late, context.session.traits, self.lab)
                phase.detail += f"   {scaled_text(self.switching_s, slow)} expected"
        with recorder.phase("link") as phase:
            answers = await hosts.routes.wait_committed(generation, rising, patience, events)
            late = [str(a) for a in answers.values() if isinstance(a, TestbedError)]
            if late:
                raise TimedOut(
                    "\n".join([*late, *await self._dark(goal)]),
                    hint="testbed verify measures the light again",
                )
            times.committed = {h: a for h, a in answers.items() if isinstance(a, Committed)}
            phase.detail = f"{counted(sum(map(len, rising.values())), 'port')} up, {counted(len(rising), 'host')} committed"
        if others := [h for h in wanted if h not in rising]:
            with recorder.phase("routes") as phase, context.run.step("host", "all", "commit", what):
                times.committed |= await hosts.routes.commit(
                    generation, others, policy.revert_after_s
                )
                phase.detail = f"committed on {counted(len(others), 'more host')}"
        await ring_change.change_over()
        return times

    def longest_s(self, goal: Target) -> float:
        """How long (s) it takes at the longest from the first command to a device until there is
        light.
        """
        waiting_s = SLACK * self.switching_s + self.context.session.patience_s(goal.late.changes)
        return self.plan.acceptance.link_up_timeout_s + waiting_s

    async def _routes_while_dark(self, goal: Target) -> None:
        """Commit the generation for the dark time: traffic moves to the links that stay lit."""
        if self.drained is None:
            return
        context, hosts, ended = self.context, self.hosts, goal.broken_links
        what = {"generation": self.drained}
        with (
            context.recorder.phase("drain") as phase,
            context.run.step("host", "all", "drain", what),
        ):
            await hosts.routes.commit(
                self.drained, sorted(self.drain), self.plan.transition.revert_after_s
            )
            # Confirm while the queues drain: once the light moves, the previous routes are worse
            # than these.
            waited, _ = await asyncio.gather(
                quiet(hosts, receivers(ended)),
                hosts.routes.confirm(self.drained, sorted(self.drain)),
            )
            phase.detail = (
                f"traffic off {counted(len(ended), 'link')}; quiet after {waited * 1e3:.0f} ms"
            )

    async def _dark(self, goal: Target) -> list[str]:
        """Which ports got no light, and where it was lost, as far as the switches' meters show."""
        hellos = {
            h: a for h, a in (await self.hosts.channels.connect()).items() if isinstance(a, Hello)
        }
        _, _, ports = await check_link(hellos, goal.links)
        _, _, lost = await check_light(self.context.session, goal.circuits)
        return [*ports, *lost]

    async def confirm(self, wanted: Collection[HostName], leaving: list[HostName]) -> None:
        """Hosts keep their routes for good; those that are `leaving` the plan drop the owner's."""
        run, routes = self.context.run, self.hosts.routes
        with run.step("host", "all", "confirm", {"generation": self.generation}):
            await routes.confirm(self.generation, wanted)
        if leaving:
            self.asked.update(leaving)
            with run.step("host", "all", "clear", {"hosts": leaving}):
                await routes.clear(leaving, self.context.own_generations())

    async def retreat(self) -> str:
        """Bring all hosts that answer to one generation; return in words which one, and which hosts
        did not answer.

        If no host was confirmed, they revert. If one was, the change had been verified, and the
        others follow.
        """
        # the others may be armed by another owner
        answers = await self.hosts.channels.connect(sorted(self.asked))
        hellos = {h: a for h, a in answers.items() if isinstance(a, Hello)}
        trouble = [a.line for a in answers.values() if not isinstance(a, Hello)]
        own = {self.generation, self.drained, self.hold and self.hold.generation} - {None}
        counting = [
            h for h, hello in hellos.items() if hello.active in own and hello.pending_s is not None
        ]
        drained = self.drained is not None and any(
            hello.pending_to == self.drained
            or (hello.active == self.drained and hello.pending_s is None)
            for hello in hellos.values()
        )
        text = (
            "on the routes over the circuits that stayed"
            if drained
            else "back on the routes they had"
        )
        try:
            if any(
                hello.active == self.generation and hello.pending_s is None
                for hello in hellos.values()
            ):
                text = "on the new routes"
                await self.hosts.routes.confirm(self.generation, counting)
            else:
                await self.hosts.routes.disarm(hellos)
                # One that was armed may have committed since it answered.
                again = await self.hosts.channels.connect(hellos)
                late = {
                    h
                    for h, a in again.items()
                    if isinstance(a, Hello) and a.active == self.generation
                }
                if back := sorted({*counting, *late}):
                    await self.hosts.routes.revert(back)
        except TestbedError as error:
            trouble.append(error.line)
        if trouble:
            wait = self.plan.transition.revert_after_s
            text += f"; not all answer ({'; '.join(trouble[:3])}): what they did not confirm they take back within {wait:g} s"
        return text
