"""`testbed service run adapt`: circuits of a job's regions follow its traffic, one change while it
computes, as often as it pays.

One run of the store from the first look to the last: it holds the lock, and every change is one row
of steps in it. `--stop` ends it after the change under way. Whatever ends it, hosts run confirmed
routes, and the store says which links they use.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import median

from drivers.api import at_once
from extensions.adapt.gates import Gates
from extensions.adapt.plan import Adapt, Region, regions_of
from extensions.adapt.record import Look, record_look
from extensions.adapt.region import Proposal, proposal, split, without
from extensions.adapt.region_change import Abandoned, RegionChange, RegionChanged, RegionState
from extensions.adapt.service import KIND, AdaptOptions, AdaptReport, AdaptState
from extensions.adapt.traffic import (
    LATEST,
    Bytes,
    Demand,
    Forecast,
    Pace,
    bytes_of,
    distance,
    pace,
)
from optics import HostName, HostPort, Link, Locked, Missing, NotVerified, TestbedError
from optics.plain import counted
from optics.plan import Plan
from optics.ranks import RankName, hosts_of
from orchestrator.background.kind import StateFile
from orchestrator.background.work import Notify, Retries, emit, ready, serving
from orchestrator.change.apply import finish
from orchestrator.change.context import Context
from orchestrator.change.run import ChangeRun
from orchestrator.change.timeline import record_levels
from orchestrator.fabric.circuits import circuits
from orchestrator.fabric.detour import dead_links, link_text
from orchestrator.jobs.record import ranks_of
from orchestrator.plan.reader import read_plan
from orchestrator.results import Json
from orchestrator.session import Command, load_lab
from orchestrator.store.keys import tenancy_of
from orchestrator.store.options import RunOptions
from orchestrator.store.records import CurrentPlan
from orchestrator.verify.ladder import ladder
from orchestrator.verify.level import check_passed

OVERHEAD_S = 0.03
"""What a change takes beyond the devices' switching time (s), before one was measured: two commits,
carriers.
"""
LADDER_EVERY = 10
"""After every so many changes the whole ladder is climbed; after the others only the new circuits
are probed.
"""
FAILURES = 3
"""So many changes or looks in a row may fail; then the adapter ends."""
ALIKE = 0.15
"""Traffic that differs by less than this (`distance`) is the same: two samples of 1600 tokens over
eight experts differ by 0.08.
"""
AGAIN_S = 1.0
"""Pause (s) after a failure: an agent that was killed is back within it."""


async def adapt(command: Command, *, notify: Notify, options: AdaptOptions) -> AdaptReport:
    """Adapt the regions of the plan that is up until its job ends, or until cancelled.

    Raises: Missing - no plan is up, it has nothing to adapt, or its job does not run. Locked - an
    adapter or another run has the lab. NotVerified - it failed several times in a row.
    """
    lab, settings = load_lab(command.inventory), command.settings
    key = tenancy_of(lab, settings)
    if (current := command.store.current(key)) is None:
        raise Missing(
            f"no plan is up on {lab.name}, so there is nothing to adapt",
            hint="testbed up --topology PLAN",
        )
    plan = read_plan(current.plan_text, current.plan_name, lab)
    wanted = regions_of(plan.job)
    if wanted.how is None:
        raise Missing(
            f"plan {plan.name} does not say what to adapt",
            hint='it needs job.regions, and: "adapt": {"every": 2}; extensions/adapt/README.md',
        )
    with serving(KIND.file(settings, key, KIND.own(settings, options))) as file:
        endless = replace(command, settings=replace(settings, timeout_s=math.inf))
        async with ChangeRun("adapt", lab, endless).lasting(
            plan, current.plan_text, RunOptions(plan_run=current.run)
        ) as context:
            adapter = Adapter(
                context, plan, wanted.how, current, wanted.regions, file, notify, options
            )
            try:
                await adapter.work()
            except asyncio.CancelledError:
                adapter.emit("ended", "stopped on request")
            report = adapter.report()
            summary = {**adapter.did(), **adapter.figures()}
            context.run.finish("ok", message=report.last, summary=summary)
            return report


@dataclass
class Adapter:
    """One running adapter. `changes`: those done."""

    context: Context
    plan: Plan
    how: Adapt
    current: CurrentPlan
    regions: tuple[Region, ...]
    file: StateFile[AdaptState]
    notify: Notify
    options: AdaptOptions
    changes: list[tuple[RegionChanged, float]] = field(default_factory=list)
    looks: int = 0
    skipped: int = 0
    failures: int = 0
    stopping: bool = False
    last: str = ""

    def __post_init__(self) -> None:
        self.session = self.context.session
        self.hosts, self.lab = self.session.hosts, self.session.lab
        self.journal = self.context.recorder.journal
        self.retries = Retries(AGAIN_S, AGAIN_S, FAILURES)
        self.forecast = Forecast(self.how.predict)
        self.gates = Gates(self.hosts.channels, "", ())
        self.members: tuple[HostName, ...] = ()
        self.state_now = RegionState({}, (), 0)
        self.known: tuple[Bytes, Look] | None = None
        """The latest traffic for which better circuits were looked for, and made or not found."""
        self.out: set[HostPort] = set()
        """Ports at circuits that were found without light: they get none any more."""

    def report(self) -> AdaptReport:
        """What the adapter did."""
        figures = {name: round(value, 1) for name, value in self.figures().items()}
        return AdaptReport(
            self.lab.name,
            self.plan.name,
            self.context.run.id,
            self.looks,
            len(self.changes),
            self.skipped,
            self.failures,
            round(time.monotonic() - self.gates.began, 1),
            last=self.last,
            journal=str(self.journal.directory) if self.journal is not None else "",
            **figures,
        )

    def figures(self) -> dict[str, float]:
        """Medians over the changes (ms); empty without one."""
        each = {
            "change_ms": [t.change_ms for t, _ in self.changes],
            "dark_ms": [t.dark_ms for t, _ in self.changes],
            "exposed_ms": [exposed_ms for _, exposed_ms in self.changes],
        }
        return {name: median(values) for name, values in each.items() if values}

    def did(self) -> dict[str, int]:
        """What was done, counted."""
        return {"changes": len(self.changes), "skipped": self.skipped, "failures": self.failures}

    def emit(self, event: str, text: str, **fields: Json) -> None:
        """Emit one event."""
        self.last = text
        emit(self.notify, event, text, **fields)
        run, did = self.context.run.id, self.did()
        self.file.now(state="adapting", plan=self.plan.name, run=run, last=text, **did)

    # --- the loop

    async def work(self) -> None:
        """Look and change circuits until the job has ended. Raises: as `adapt`."""
        await self._begin()
        ready()
        at = 0
        while not self.stopping and (
            not self.options.changes or len(self.changes) < self.options.changes
        ):
            try:
                await self._reconnect()
                found = await self.gates.decided(at, self._mend)
                if found is None:
                    name = self.plan.job.name if self.plan.job else ""
                    self.emit("ended", f"job {name} has ended")
                    return
                at = found[self.gates.ranks[0]].step // 2
                self.looks += 1
                await self._look(found, at)
                self.retries.worked()
            except (Locked, asyncio.CancelledError):
                raise
            except TestbedError as error:
                await self._failed(error)
            at += self.how.every

    async def _begin(self) -> None:
        """Read the lab, find the job, journal what there is."""
        context = self.context
        with context.recorder.phase("observe"):
            seen = await self.session.observe()
            wanted = {port.host for link in self.current.up.links for port in (link.a, link.b)}
            seen.needing({*wanted, *self.session.devices})
        await self.hosts.channels.fence(context.run.token, context.hosts())
        record = await context.jobs.running()
        if record is None:
            raise Missing(
                f"no job of {self.plan.name} runs, so there is no traffic to follow",
                hint="testbed job launch",
            )
        self.gates.job, self.gates.ranks = record.spec.on_hosts, ranks_of(record, self.lab)
        self.members = tuple(sorted(wanted | set(hosts_of(self.gates.ranks))))
        self.macs = self.hosts.channels.macs()
        before = context.snapshot(seen.settings, seen.hellos, self.current, record)
        context.begin(before, before.owned, self.current.generation, wanted)
        self.state_now = RegionState(seen.settings, self.current.up.links, self.current.generation)
        own, _ = split(self.state_now.links, self.regions)
        regions = ", ".join(region.name for region in self.regions)
        self.emit(
            "adapting",
            f"{self.plan.name}: {counted(len(own), 'circuit')} of {regions}, every {self.how.every} iterations",
        )

    async def _reconnect(self) -> None:
        """Raises: Unreachable and the like - a host of the job or of a circuit does not answer."""
        if lost := sorted(set(self.members) - set(self.hosts.channels.attached())):
            for answer in (await self.hosts.channels.connect(lost)).values():
                if isinstance(answer, TestbedError):
                    raise answer

    async def _mend(self) -> None:
        """Take circuits that have lost their light out of use: a job that waits for one would never
        reach its next gate.
        """
        if not (dark := await self._dark(self.state_now.links)):
            return
        self.known = None
        left = [link for link in self.state_now.links if link not in dark]
        change = RegionChange(
            self.context, self.plan, self.current, self.state_now, left, self.regions, self.macs
        )
        try:
            await finish(self._carry_out(change, at_once))
        finally:
            self.state_now = change.state_now
        self._mended(dark)

    async def _dark(self, links: Collection[Link]) -> frozenset[Link]:
        """The regions' circuits among `links` that have no light; their ports are `out` from then
        on. Raises: Unreachable, TimedOut - a host.
        """
        carriers = {
            HostPort(host, number): port.carrier
            for host, hello in (await self.hosts.channels.greet(self.members)).items()
            for number, port in hello.ports.items()
        }
        own, _ = split(links, self.regions)
        dark = dead_links(own, carriers)
        self.out |= {port for link in dark for port in (link.a, link.b)}
        return dark

    def _mended(self, dark: Collection[Link]) -> None:
        names = ", ".join(sorted(map(link_text, dark)))
        self.emit("mended", f"no light on {names}: its ports get no circuit any more")

    async def _look(self, found: Mapping[RankName, Demand], at: int) -> None:
        """Decide by the traffic of iteration `at`, and change circuits if it pays. Raises: as
        `RegionChange`.
        """
        ranks, times = self.gates.ranks, pace(found.values())
        traffic = bytes_of(found, ranks, at)
        if traffic is None or times is None:
            self._skip("unknown", "not every rank has said what it sends")
            return
        known = {n: bytes_of(found, ranks, n) for n in range(at - LATEST + 1, at)}
        before = {number: each for number, each in known.items() if each is not None}
        forecast = self.forecast.see(traffic, at, before)
        if self.known is not None and distance(self.known[0], forecast) < ALIKE:
            look = replace(self.known[1], iteration=at, traffic=traffic)
            self._skip("gain", "the traffic is as it was", look)
            return
        proposals = [
            proposal(without(region, self.out), self.lab, forecast, self.state_now.links)
            for region in self.regions
        ]
        worth = [p for p in proposals if p.gain >= self.how.gain]
        look = Look(at, traffic, max(proposals, key=lambda p: p.gain))
        if not worth:
            self.known = forecast, look
            self._skip("gain", f"other circuits would be {look.best.gain:.2f} times as fast", look)
            return
        exposed_s = times.exposed_s(self._change_s())
        if exposed_s > self.how.dark_share * times.iteration_s:
            text = f"a change of {self._change_s() * 1e3:.0f} ms would stop the job for {exposed_s * 1e3:.0f} ms"
            self._skip("dark", text, look)
            return
        if await self._change(self._links(worth), times, look):
            self.known = forecast, replace(look, best=replace(look.best, now_s=look.best.then_s))

    def _links(self, worth: list[Proposal]) -> list[Link]:
        """All links wanted: of regions that are worth it the proposed ones, else what there is."""
        _, rest = split(self.state_now.links, [p.region for p in worth])
        return [*rest, *(link for p in worth for link in p.links)]

    def _change_s(self) -> float:
        """How long a change is going to take (s): as the median of the latest, else as the slowest
        device promises.
        """
        if self.changes:
            return median(t.change_ms for t, _ in self.changes[-5:]) / 1e3
        return max(t.settle_s for t in self.session.traits.values()) + OVERHEAD_S

    async def _change(self, links: list[Link], times: Pace, look: Look) -> bool:
        """Turn to these links; return whether it was done. Raises: as `RegionChange`."""
        self.known, begun_ns = None, time.monotonic_ns()
        change = RegionChange(
            self.context, self.plan, self.current, self.state_now, links, self.regions, self.macs
        )
        planned_ms = (time.monotonic_ns() - begun_ns) / 1e6
        iteration = 0

        def fits(late_s: float) -> bool:
            most_s = self.how.dark_share * times.iteration_s
            return times.exposed_s(self._change_s(), late_s) <= most_s

        async def moment() -> None:
            nonlocal iteration
            iteration = await self.gates.moment(
                look.iteration + 1,
                fits,
                lambda: self.stopping,
                lambda: self._dark(self.state_now.links),
            )

        work = asyncio.ensure_future(self._carry_out(change, moment))
        # where nobody is left to ask for it
        work.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            changed = await asyncio.shield(work)
        except asyncio.CancelledError:
            # the change under way is ended, one that waits for its moment is given up
            self.stopping = True
            await asyncio.wait([work])
            raise
        except Abandoned as error:
            self._skip("late", str(error), look)
            return False
        finally:
            self.state_now = change.state_now
        exposed_ms = await self.gates.exposed_ms(changed.done_ns, iteration)
        self.changes.append((changed, exposed_ms))
        figures = {"planned_ms": planned_ms, "exposed_ms": exposed_ms}
        look = replace(look, iteration=iteration)
        record_look(self.journal, self.plan.name, "changed", "", look, changed, figures)
        text = f"iteration {iteration}: {changed.moved} settings, gain {look.best.gain:.2f}, {changed.change_ms:.0f} ms"
        figures |= {"change_ms": changed.change_ms, "dark_ms": changed.dark_ms}
        self.emit(
            "changed",
            text,
            iteration=iteration,
            gain=round(look.best.gain, 3),
            **{k: round(v, 1) for k, v in figures.items()},
        )
        if len(self.changes) % LADDER_EVERY == 0:
            await self._run_levels()
        return True

    async def _carry_out(
        self, change: RegionChange, moment: Callable[[], Awaitable[None]]
    ) -> RegionChanged:
        try:
            await change.prepare()
            return await change.carry_out(moment)
        except Locked:
            raise
        except TestbedError as error:
            text = await change.retreat()
            # the devices did as told: without this, the next change is over the same dark ports
            if isinstance(error, NotVerified):
                with suppress(TestbedError):  # of a host that does not answer: it hides nothing
                    if dark := await self._dark(change.goal.links):
                        self._mended(dark)
            raise type(error)(f"{error}\nhosts are {text}", hint=error.hint) from error

    async def _run_levels(self) -> None:
        """The whole ladder. Raises: NotVerified - with the evidence of the rungs that failed."""
        with self.context.recorder.phase("verify") as phase:
            seen = await self.session.observe()
            self.state_now = replace(self.state_now, held={**self.state_now.held, **seen.settings})
            links, held, busy = self.state_now.links, seen.settings, "the job runs"
            lit = circuits(links, self.lab, held)
            levels = await ladder(
                self.session, self.plan, links, lit, held, seen.hellos, power=False, busy=busy
            )
            record_levels(self.context.recorder, levels)
            check_passed(levels, 4)
            phase.detail = ", ".join(level.detail for level in levels)

    async def _failed(self, error: TestbedError) -> None:
        """Say it, and pause. Raises: NotVerified - it failed too often in a row."""
        self.failures += 1
        record_look(self.journal, self.plan.name, "failed", type(error).__name__)
        self.emit("failed", error.line)
        again = "testbed status; again: testbed service start adapt"
        await asyncio.sleep(self.retries.failed("change", error, again))

    def _skip(self, why: str, text: str, look: Look | None = None) -> None:
        self.skipped += 1
        record_look(self.journal, self.plan.name, "skipped", why, look)
        self.emit(
            "skipped", text, why=why, **({"iteration": look.iteration} if look is not None else {})
        )
