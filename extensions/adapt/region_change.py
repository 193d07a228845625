"""One change of a region's circuits while its job runs: prepared while the job exchanges, done
while it computes.

Two generations of routes are staged over the open channels: the region's traffic on the packet
switch, and on the new circuits. Hosts are armed, the devices' steps are on disk, the drivers have
read their devices; then the job's next iteration is waited for. As soon as it computes, hosts
commit the first generation, for good; the light moves, and hosts commit the second one as their
carriers come. It is confirmed after probes. Whoever dies, hosts end with one of the two, confirmed.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace

from extensions.adapt.plan import Region
from extensions.adapt.region import used
from optics import (
    ChangeFailed,
    DeviceName,
    HostName,
    HostPort,
    Link,
    NotVerified,
    Outcome,
    TestbedError,
)
from optics.plan import Plan, WantedLink
from orchestrator.change.apply import apply_changes
from orchestrator.change.context import Context
from orchestrator.change.goal import rules_sha
from orchestrator.change.move import Move
from orchestrator.fabric.lightpath import Held
from orchestrator.fabric.rules import Macs, Rules, rules
from orchestrator.fabric.up_state import UpState
from orchestrator.hosts import Committed, Hello
from orchestrator.plan.target import Target, normal, target
from orchestrator.store.records import CurrentPlan

REVERT_S = 5.0
"""Hosts go back onto the packet switch this long (s) after they committed new circuits that nobody
confirmed.
"""
PROBE_S = 1.0
"""The far ends of new circuits answer within this time (s)."""
SETTLED = 4.0
"""A change waits for light at most so many times as long as the slowest device takes, and a
second.
"""


@dataclass(frozen=True, slots=True)
class RegionState:
    """What is up: what devices hold, the links that routes use, and the routes' generation."""

    held: Held
    links: tuple[Link, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class RegionChanged:
    """A change that was done. change_ms: from the first host's drain to the last commit. dark_ms:
    from the first command to the last carrier. begun_ns, done_ns: of the change, monotonic. moved:
    settings made and removed."""

    begun_ns: int
    done_ns: int
    change_ms: float
    dark_ms: float
    moved: int


class Abandoned(TestbedError):
    """Nothing was changed: the moment to begin did not come."""


class RegionChange:
    """One change from `state_now`, or from what is found afterwards: `state_now` is kept true.
    `links`: all wanted, the regions' too.

    Raises: Infeasible, Interlock - as `target`.
    """

    def __init__(
        self,
        context: Context,
        plan: Plan,
        current: CurrentPlan,
        state_now: RegionState,
        links: Collection[Link],
        regions: Collection[Region],
        macs: Mapping[HostPort, Macs],
    ) -> None:
        self.context, self.plan, self.current, self.state_now = context, plan, current, state_now
        self.lab, self.hosts, self.regions = context.session.lab, context.session.hosts, regions
        wanted = replace(plan, links=tuple(WantedLink(link.a, link.b, link.kind) for link in links))
        self.goal: Target = target(
            wanted, self.lab, state_now.held, context.store.owned(context.tenancy)
        )
        used_now = {normal(link) for link in state_now.links}
        self.kept = tuple(link for link in self.goal.kept_links if normal(link) in used_now)
        self.drain = self._rules(self.kept, macs)
        self.wanted = self._rules(self.goal.links, macs)
        self.rising = self.goal.rising()
        self.move = Move(context, plan, current)
        self.move.drained, self.move.generation = (
            context.next_generation(),
            context.next_generation(),
        )
        self.begun_ns = 0

    def _rules(
        self, links: Collection[Link], macs: Mapping[HostPort, Macs]
    ) -> Mapping[HostName, Rules]:
        steps = {frozenset((link.a.host, link.b.host)) for link in links}
        fixed = [
            r
            for r in self.plan.routes
            if all(frozenset(step) in steps for step in zip(r.path, r.path[1:], strict=False))
        ]
        return rules(used(links, self.lab, self.regions), self.lab, macs, fixed, self.plan.rings)

    @property
    def generation(self) -> int:
        return self.move.generation

    @property
    def drained(self) -> int:
        assert self.move.drained is not None
        return self.move.drained

    async def prepare(self) -> None:
        """Stage and arm. Raises: Unreachable, TimedOut, Refused - a host; it is to be taken back
        then.
        """
        self.move.asked.update(self.wanted)
        self.light_s = SETTLED * max(t.settle_s for t in self.context.session.traits.values()) + 1.0
        await self.hosts.routes.stage_warm({self.drained: self.drain, self.generation: self.wanted})

    async def carry_out(self, moment: Callable[[], Awaitable[None]]) -> RegionChanged:
        """Change once `moment` returns. Raises: Abandoned - nothing was changed; as devices and
        hosts; ChangeFailed - a device did not do all; NotVerified - it did, and a new circuit has no
        light or does not answer. After these `retreat` is to be called.
        """
        hosts = self.hosts
        events = hosts.channels.subscribe()
        try:
            await hosts.routes.arm(
                self.generation,
                self.rising,
                revert_after_s=REVERT_S + self.light_s,
                deadline_s=60.0,
            )
            self._record(self.drained, self.kept)

            async def begin() -> None:
                await moment()
                self.begun_ns = time.monotonic_ns()
                await hosts.routes.commit(self.drained, sorted(self.drain))

            outcomes = await self._switch(begin)
            observed = {device: outcome.observed for device, outcome in outcomes.items()}
            self.state_now = replace(self.state_now, held={**self.state_now.held, **observed})
            answers = await hosts.routes.wait_committed(
                self.generation, self.rising, self.light_s, events
            )
            late = [str(answer) for answer in answers.values() if not isinstance(answer, Committed)]
            if late:
                raise NotVerified("\n".join(late))
            committed = [answer for answer in answers.values() if isinstance(answer, Committed)]
        finally:
            hosts.channels.unsubscribe(events)
        if others := sorted(self.wanted.keys() - self.rising.keys()):
            committed += (await hosts.routes.commit(self.generation, others, REVERT_S)).values()
        done_ns = max(each.commit_ns for each in committed)
        await self._probe()
        await hosts.routes.confirm(self.generation, sorted(self.wanted))
        self._record(self.generation, self.goal.links)
        self.state_now = replace(self.state_now, links=self.goal.links, generation=self.generation)
        sent_ns = min((outcome.sent_ns for outcome in outcomes.values()), default=done_ns)
        link_ns = max((each.link_ns for each in committed if each.link_ns), default=sent_ns)
        moved = sum(
            len(change.add) + len(change.remove) for change in self.goal.change.changes.values()
        )
        return RegionChanged(
            self.begun_ns,
            done_ns,
            (done_ns - self.begun_ns) / 1e6,
            (link_ns - sent_ns) / 1e6,
            moved,
        )

    async def _switch(self, begin: Callable[[], Awaitable[None]]) -> Mapping[DeviceName, Outcome]:
        """Call `begin` once every device has been read, then move the light. Raises: as
        `carry_out`.
        """
        if not self.goal.moving:  # the light is there already, after a change that failed
            await begin()
            return {}
        applied = await apply_changes(self.context, self.goal.change.changes, "adapt", before=begin)
        if not self.begun_ns:
            raise Abandoned("\n".join(applied.problems) or "the devices were not asked")
        if applied.problems:
            raise ChangeFailed("\n".join(applied.problems))
        return applied.outcomes

    async def _probe(self) -> None:
        """The two hosts of every new circuit answer each other. Raises: NotVerified."""
        asked: dict[HostName, dict[str, int | None]] = {}
        kept = {normal(link) for link in self.kept}
        for link in self.goal.links:
            if normal(link) not in kept:
                for a, b in ((link.a.host, link.b.host), (link.b.host, link.a.host)):
                    asked.setdefault(a, {})[self.lab.hosts[b].lane_address(0)] = 1
        answers = await self.hosts.measure.probe(asked, timeout_s=PROBE_S)
        silent = [
            f"{host}->{address}"
            for host, found in answers.items()
            for address, probe in found.items()
            if not probe.ok
        ]
        if silent:
            raise NotVerified(
                f"{len(silent)} ways of new circuits do not answer: {', '.join(silent[:4])}"
            )

    async def retreat(self) -> str:
        """Bring all hosts that answer onto one generation; return in words which. Raises: Locked;
        as `session.observe`.
        """
        text = await self.move.retreat()
        await self.context.settled()
        seen = await self.context.session.observe(hosts=False)
        hellos = {
            h: a
            for h, a in (await self.hosts.channels.connect(sorted(self.wanted))).items()
            if isinstance(a, Hello)
        }
        # one that lost its routes says nothing of the others
        active = {hello.active for hello in hellos.values()} - {None}
        held = {**self.state_now.held, **seen.settings}
        self.context.disown_lost(held)
        if active == {self.generation}:
            self.state_now = RegionState(held, self.goal.links, self.generation)
        elif active == {self.state_now.generation}:
            self.state_now = replace(self.state_now, held=held)
        else:
            self.state_now = RegionState(held, self.kept, self.drained)
        self._record(self.state_now.generation, self.state_now.links)
        return text

    def _record(self, generation: int, links: Collection[Link]) -> None:
        """What is up from now on, for every other command. Raises: Locked - another run has taken
        the lab.
        """
        context, data = self.context, self.drain if generation == self.drained else self.wanted
        up = UpState.of(links, self.goal.circuits, rules_sha(data))
        known = replace(self.current, up=up, generation=generation)
        context.store.keep_current(context.tenancy, known, context.run.id)
