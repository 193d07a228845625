"""`testbed service run pacing` and `testbed job phases`: the iterations of jobs that share links,
shifted against each other.

The coordinator tells the agents when iterations begin, and tells them again before the lease ends;
ranks that are early wait, so they do not drift. Every ten iterations of the slowest job it looks
whether the jobs still run as they did. It takes no lock and holds no run: it moves no light, and
whatever becomes of it nobody waits longer than a period.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import fmean, median

from extensions.pacing.measure import (
    Seen,
    Tenant,
    connect,
    iterations,
    measured,
    none_runs,
    several,
    tenants,
)
from extensions.pacing.options import SAMPLED_S, TOGETHER, WINDOWS, CoordinateOptions
from extensions.pacing.report import JobPhases, PhasesReport, answer
from extensions.pacing.service import KIND, CoordinateState
from optics import Infeasible, Missing, TestbedError
from optics.errors import Usage
from orchestrator.background.kind import StateFile
from orchestrator.background.work import (
    Notify,
    Retries,
    ServiceNote,
    ServiceReport,
    emit,
    ready,
    serving,
)
from orchestrator.jobs.attachments import attachment
from orchestrator.plan.attached import planned_kind
from orchestrator.session import Command, Session, load_lab
from orchestrator.store.keys import key_of
from orchestrator.store.store import Store

LEASE_S = 20.0
"""Ranks are paced for so long (s) without word."""
RENEW_S = 5.0
EVERY = 10
"""Iterations of the slowest job from one look to the next: jobs drift by some 10 ms in twelve
iterations.
"""
LEAST_LOOK_S = 2.0
CHANGED = 0.1
"""A job whose iteration changed by this share of it is measured again."""
FAILURES = 3
CONTROL = "congestion"
"""The attachment whose windows move jobs apart by themselves, with one of its controls."""
AGAIN_S = 1.0
LONGER = (
    "; with longer periods: testbed service stop pacing, then testbed service start pacing --force"
)
AHEAD_NS = 50_000_000
"""The first iterations begin so long (ns) after the agents were notified."""


@dataclass(frozen=True, slots=True)
class CoordinateReport(ServiceReport):
    """What it did. corrections: shifts or periods worked out again; phases: the latest that was
    found.
    """

    lab: str
    by: str
    state: str
    corrections: int
    seconds: float
    phases: PhasesReport
    last: str = ""

    def text(self) -> str:
        return f"Paced the jobs of {self.lab}: {self.last}"


async def job_phases(
    command: Command, *, grid_ms: float = 1.0, seconds: float = SAMPLED_S
) -> PhasesReport:
    """The phases of all running jobs of the lab, and how they fit. Changes nothing. Raises: Missing
    - no job runs.
    """
    lab = load_lab(command.inventory)
    if not (found := tenants(command.store, lab)):
        raise none_runs(command.store, lab)
    paced = KIND.running(command.settings, key_of(lab)) is not None
    async with command.opened(lab, "job phases") as session:
        await connect(session, found)
        return answer(lab.name, await measured(session, found, seconds, paced=paced), grid_ms)


async def coordinate(
    command: Command, *, notify: Notify, options: CoordinateOptions
) -> CoordinateReport:
    """Shift the jobs of the lab until fewer than two run, or until cancelled; `together`: once.

    Raises: Missing - fewer than two jobs run. Infeasible - a period is not known, links and jobs
    form a loop, or a program does not take part. Locked - another one works. Usage - by windows
    nothing goes on.
    """
    lab, settings = load_lab(command.inventory), command.settings
    if options.by == WINDOWS:
        raise Usage(
            "service run pacing: --by mltcp needs no process",
            hint="testbed service start pacing --by mltcp",
        )
    several(tenants(command.store, lab))
    with serving(KIND.file(settings, key_of(lab), KIND.own(settings, options))) as file:
        endless = replace(command, settings=replace(settings, timeout_s=math.inf))
        async with endless.opened(lab, "pacing") as session:
            work = Coordinator(command, session, file, notify, options)
            try:
                await work.work()
            except asyncio.CancelledError:
                work.emit("ended", "stopped on request")
            finally:
                await work.release()
            return work.report()


async def begin(command: Command, options: CoordinateOptions) -> ServiceNote | None:
    """What is done once, and no process goes on with; None for shifts. Raises: as `coordinate`,
    `by_windows`.
    """
    if options.by == TOGETHER:
        report = await coordinate(command, notify=lambda _: None, options=options)
        return ServiceNote(report.last, report.to_json(), done=True)
    if options.by != WINDOWS:
        return None
    await asyncio.to_thread(KIND.stop, command.settings, key_of(load_lab(command.inventory)))
    given = await by_windows(command)
    text = f"{', '.join(given)}: congestion control mltcp, until the job ends"
    return ServiceNote(text, {"mltcp": [*given]}, "testbed service stop pacing", done=True)


async def released_after(command: Command, stopped: CoordinateState | None) -> ServiceNote:
    """As `released`, once it was stopped."""
    free = await released(command)
    return ServiceNote(
        f"{', '.join(free)} begin iterations when they like" if free else "", {"released": [*free]}
    )


async def by_windows(command: Command) -> list[str]:
    """Give the jobs that share links the congestion control `mltcp`, whose windows move them apart;
    the names of those jobs.

    It lasts until the job ends, or `released`. Raises: Missing - no two jobs share a link. Refused
    - a host cannot have it.
    """
    lab = load_lab(command.inventory)
    found = tenants(command.store, lab)
    several(found)
    users = Counter(limit for tenant in found for limit in tenant.use.over)
    sharing = [tenant for tenant in found if any(users[limit] > 1 for limit in tenant.use.over)]
    if not sharing:
        raise Missing("no two running jobs share a link", hint="testbed job phases")
    async with command.opened(lab, "pacing") as session:
        await connect(session, sharing)
        for tenant in sharing:
            await _control(session, command.store, tenant, WINDOWS)
    return [tenant.name for tenant in sharing]


async def released(command: Command) -> list[str]:
    """Have all running jobs begin their iterations when they like, with the congestion control that
    their plans want; the names of those that were notified."""
    lab = load_lab(command.inventory)
    notices = []
    found = tenants(command.store, lab)
    async with command.opened(lab, "pacing") as session:
        for tenant in found:
            with suppress(TestbedError):
                await connect(session, [tenant])
                await session.hosts.ring_changes.unpace(tenant.on_hosts, tenant.ranks)
                await _control(session, command.store, tenant)
                notices.append(tenant.name)
    return notices


async def _control(session: Session, store: Store, tenant: Tenant, control: str = "") -> None:
    """Give a job's connections this congestion control; empty: the one that its plan wants. Raises:
    as `Attachment.adjust`.
    """
    if (record := store.job(tenant.record)) is not None:
        wanted = (
            planned_kind(CONTROL).of({"control": control})
            if control
            else record.spec.wanted.attached.get(CONTROL)
        )
        await attachment(CONTROL).adjust(session, record, wanted)


@dataclass
class Coordinator:
    """A running coordinator. seen: what was measured of each job last; took: its iterations (ms) at
    the latest look.
    """

    command: Command
    session: Session
    file: StateFile[CoordinateState]
    notify: Notify
    options: CoordinateOptions
    seen: list[Seen] = field(default_factory=list)
    corrections: int = -1
    state: str = "starting"
    last: str = ""
    epoch_ns: int = 0
    took: dict[str, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began = time.monotonic()
        self.lab = self.session.lab
        self.by = f"{self.file.state.user}@{self.file.state.host}"
        self.phases = PhasesReport(self.lab.name, ())

    def report(self) -> CoordinateReport:
        """What it did."""
        took = round(time.monotonic() - self.began, 1)
        return CoordinateReport(
            self.lab.name,
            self.options.by,
            self.state,
            max(0, self.corrections),
            took,
            self.phases,
            self.last,
        )

    def emit(self, event: str, text: str, state: str = "") -> None:
        """Emit one event. state: what is so now, where that is not `state`."""
        self.last = text
        emit(self.notify, event, text, score=self.phases.score)
        plan, corrections = (
            ", ".join(one.tenant.name for one in self.seen),
            max(0, self.corrections),
        )
        reply = {"score": self.phases.score, "corrections": corrections, "last": text}
        self.file.now(state=state or self.state, plan=plan, by=self.options.by, **reply)

    async def work(self) -> None:
        """Measure, pace, look again. Raises: as `coordinate`; NotVerified - hosts failed several
        times in a row.
        """
        found = tenants(self.command.store, self.lab)
        await connect(self.session, found)
        if self.options.by == TOGETHER:
            self.seen = await measured(self.session, found, self.options.seconds)
            await self.together()
            return
        await self.renew_all(found)
        await self.renew()
        ready()
        retries, looked = Retries(AGAIN_S, AGAIN_S, FAILURES), time.monotonic()
        while True:
            try:
                await self.renew()
                await asyncio.sleep(min(RENEW_S, self.look_s()))
                if time.monotonic() - looked < self.look_s():
                    continue
                looked = time.monotonic()
                found = tenants(self.command.store, self.lab)
                if len(found) < 2:
                    self.emit("ended", "fewer than two jobs run")
                    return
                if why := await self.changed(found):
                    self.emit("changed", why, "measuring")  # for which ranks are let go
                    await connect(self.session, found)
                    await self.renew_all(found)
                elif self.longer():
                    self.settle()
                retries.worked()
            except (Infeasible, Missing):
                raise
            except TestbedError as error:
                self.emit("failed", error.line)
                await asyncio.sleep(retries.failed("look", error, "testbed doctor"))
                with suppress(TestbedError):
                    await connect(self.session, tenants(self.command.store, self.lab))

    def look_s(self) -> float:
        """Time (s) from one look to the next."""
        slowest = max((job.paced_ms or job.now_ms for job in self.phases.jobs), default=0.0)
        return max(LEAST_LOOK_S, EVERY * slowest / 1e3)

    async def renew_all(self, found: Sequence[Tenant]) -> None:
        """Measure the jobs and work out their shifts. Raises: Infeasible - that cannot be done;
        what to do is in the hint.
        """
        if self.state == "pacing":
            await self.release()  # what is between two iterations is theirs again
        self.seen = await measured(self.session, found, self.options.seconds)
        self.settle()

    def settle(self) -> None:
        """Work out the shifts of what was seen. Raises: as `renew_all`."""
        self.took.clear()
        epoch_ns = self.beginning_ns()
        self.phases = answer(
            self.lab.name, self.seen, self.options.grid_ms, force=self.options.force
        )
        if self.phases.refused:
            raise Infeasible(self.phases.refused, hint=self.phases.hint)
        if stubborn := [
            job.name for job in self.phases.jobs if job.paced_ms and not job.takes_part
        ]:
            text = f"{', '.join(stubborn)}: the owner's own program, which does not take part in pacing"
            raise Infeasible(
                text, hint="a job of train or replay; testbed service start pacing --by mltcp"
            )
        self.corrections += 1
        self.epoch_ns = epoch_ns
        self.state = "pacing" if self.phases.fits else "alone"
        if self.phases.fits:
            shown = "; ".join(
                f"{job.name} +{job.shift_ms:g} of {job.paced_ms:g} ms"
                for job in self.phases.jobs
                if job.paced_ms
            )
            self.emit("shifted", f"{self.phases.message}: {shown}")
        else:
            hint = "" if self.options.force or not self.phases.links else LONGER
            self.emit("alone", f"{self.phases.message}; they are left alone{hint}")

    def beginning_ns(self) -> int:
        """When the first job's next iteration is to begin: as before, where it is paced, so that no
        job waits for a new order.
        """
        soon = time.monotonic_ns() + AHEAD_NS
        first = next((job for job in self.phases.jobs if job.paced_ms and not job.shift_ms), None)
        if self.state != "pacing" or first is None:
            return soon
        period_ns = round(first.paced_ms * 1e6)
        return self.epoch_ns - (self.epoch_ns - soon) // period_ns * period_ns

    async def renew(self) -> None:
        """Tell the agents again."""
        if self.state != "pacing":
            return
        for one in self.seen:
            job = self._job(one.tenant)
            if not job.paced_ms:
                continue
            notice = await self.session.hosts.ring_changes.pace(
                one.tenant.on_hosts,
                one.tenant.ranks,
                epoch_ns=self.epoch_ns,
                period_ms=job.paced_ms,
                shift_ms=job.shift_ms,
                lease_s=LEASE_S,
                by=self.by,
            )
            if notice < len(one.tenant.ranks):
                self.emit(
                    "deaf",
                    f"{job.name}: {notice} of {len(one.tenant.ranks)} ranks listen to their agents",
                )

    async def together(self) -> None:
        """Have one iteration of all jobs begin at once, and leave them alone then: the lease ends
        before the next.
        """
        if unknown := [one for one in self.seen if not one.now_ms]:
            raise Infeasible(f"{unknown[0].tenant.name}: {unknown[0].error}", hint=unknown[0].hint)
        longest = max(one.now_ms for one in self.seen)
        period_ms = min(60e3, 2 * longest)
        self.epoch_ns = time.monotonic_ns()
        for one in self.seen:
            await self.session.hosts.ring_changes.pace(
                one.tenant.on_hosts,
                one.tenant.ranks,
                epoch_ns=self.epoch_ns,
                period_ms=period_ms,
                shift_ms=0.0,
                lease_s=1.1 * period_ms / 1e3,
                by=self.by,
            )
        await asyncio.sleep(1.2 * period_ms / 1e3)
        self.state = "alone"
        self.emit("together", f"iterations of {len(self.seen)} jobs began at once")

    async def changed(self, found: Sequence[Tenant]) -> str:
        """Why the shifts are to be worked out again; empty if they are still right."""
        before, now = {one.tenant.record for one in self.seen}, {tenant.record for tenant in found}
        if before != now:
            return "other jobs run now"
        if self.state != "pacing":
            return ""
        for one in self.seen:
            job = self._job(one.tenant)
            heartbeats = await self.session.hosts.measure.heartbeats(
                one.tenant.on_hosts, one.tenant.ranks
            )
            rows = iterations(list(heartbeats.values()))[-EVERY:]
            if not job.paced_ms or len(rows) < EVERY or one.source != "records":
                continue
            self.took[job.name] = times = [row[0] + one.between_ms for row in rows]
            took = median(times)
            if abs(took - job.period_ms) > CHANGED * job.period_ms:
                return f"{job.name} takes {took:.1f} ms, which was {job.period_ms:.1f} ms"
        return ""

    def longer(self) -> bool:
        """Whether a job fell behind by more than the slack of one iteration; what is seen of it
        then has the longer time, all of it computing, and its spread. It goes on paced: to measure
        it again would let the jobs collide meanwhile."""
        missed = False
        for at, one in enumerate(self.seen):
            job, times = self._job(one.tenant), self.took.get(one.tenant.name, [])
            if one.phases is None or not job.paced_ms or not times:
                continue
            took = fmean(times)
            later = took - one.phases.period_ms
            if len(times) * (took - job.paced_ms) > job.paced_ms - one.phases.period_ms:
                bursts = tuple((a + later, b + later, rate) for a, b, rate in one.phases.bursts)
                longer = replace(one.phases, period_ms=took, bursts=bursts)
                self.seen[at] = replace(one, phases=longer, spread_ms=max(times) - took)
                self.emit(
                    "longer",
                    f"{job.name} takes {took:.1f} ms, longer than its period of {job.paced_ms:g} ms",
                )
                missed = True
        return missed

    def _job(self, tenant: Tenant) -> JobPhases:
        return next(job for job in self.phases.jobs if job.name == tenant.name)

    async def release(self) -> None:
        """Tell those that can be reached that nobody is paced; the others go on when their lease
        ends.
        """
        for one in self.seen:
            with suppress(TestbedError):
                await self.session.hosts.ring_changes.unpace(
                    one.tenant.on_hosts, one.tenant.ranks, self.by
                )
