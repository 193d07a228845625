"""The lab's stall curve: one link of the plan that is up goes dark for chosen times, and the
traffic of its hosts is timed.

Circuits are broken and made again under the same recorded steps as those of a change. Whatever
happens, what the run found is restored: by itself if it fails or is interrupted, by `rollback` or
`resume` if it dies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from optics import (
    Change,
    ChangeFailed,
    DeviceName,
    HostName,
    HostPort,
    Interlock,
    Locked,
    Missing,
    NotVerified,
    Outcome,
    Refused,
    TestbedError,
    TimedOut,
)
from optics.plain import counted, seconds_text
from orchestrator.change.apply import Before, apply_changes
from orchestrator.change.context import Context
from orchestrator.change.dark import EMPTY_S, EXCESS_S
from orchestrator.change.port_counters import quiet
from orchestrator.change.rollback import Rollback
from orchestrator.change.snapshot import Snapshot, differences
from orchestrator.change.stall_link import Subject, choose
from orchestrator.change.verdict import verdict
from orchestrator.fabric.circuits import settings
from orchestrator.fabric.detour import link_text
from orchestrator.fabric.lightpath import among
from orchestrator.fabric.rules import Route, Rules, drain_rules, rules
from orchestrator.hosts import HostEvent, Stream
from orchestrator.plan.stored import stored_plan
from orchestrator.session import Observation
from orchestrator.store.records import CurrentPlan, StallPoint
from orchestrator.telemetry.journal import Journal

MODES = ("drained", "sending", "held")
"""drained: traffic has moved to other paths before. ridden: it keeps its routes. held: its routes
are left out until the light is back, and its sockets are pushed then."""
REPEATS = 3
DARK_S = (0.0, 0.2, 1.0)
"""Times to be dark (s) if none are chosen; 0: as short as the devices can."""
LEAD_S, TAIL_S = 0.4, 0.8
"""Traffic runs this long (s) before anything changes, and beyond twice the darkness for commands
and recovery: a timer of TCP that has backed off expires within the darkness once more."""
LONGEST_S = 5.0
"""The longest darkness (s) that is asked for; changes that take longer are drained, not ridden or
held.
"""


class Stall:
    """The measurement of one stall curve; dark_s: the times to be dark (s), 0 for as short as the
    devices can.
    """

    def __init__(self, context: Context, current: CurrentPlan, dark_s: Sequence[float]) -> None:
        self.context, self.current, self.dark_s = context, current, dark_s
        self.lab, self.hosts = context.session.lab, context.session.hosts
        self.plan = stored_plan(current.plan_text, current.plan_name, current.up.slots, self.lab)
        self.links = current.up.links
        self.circuits = current.up.circuits(self.lab)
        self.named = sorted({port.host for link in self.links for port in (link.a, link.b)})
        self.patience_s = self.plan.acceptance.link_up_timeout_s
        self.touched = False
        self.asked: set[HostName] = set()
        self.notes: list[str] = []
        self.points: list[StallPoint] = []
        self.drain: Mapping[HostName, Rules] = {}
        self.hold: Mapping[HostName, Rules] = {}
        self.drain_generation = self.hold_generation = 0

    async def carry_out(self) -> Subject:
        """Measure; `points` and `notes` have the result.

        Raises: Interlock - a job runs. Refused, Missing - the lab is not as planned. Infeasible -
        no link can be measured. As `up` where it fails after it began.
        """
        context = self.context
        seen = await self._observe()
        before_rules = rules(
            self.links, self.lab, self.hosts.channels.macs(), self.plan.routes, self.plan.rings
        )
        subject = choose(
            self.links, self.circuits, self.lab, context.session.traits, seen.settings, before_rules
        )
        changes = {device: Change(device, held) for device, held in subject.held.items()}
        await context.allowed(changes, seen.settings)
        modes = self._prepare(subject, before_rules)
        context.need(
            sum(len(modes) * REPEATS * self._seconds(dark_s, subject) for dark_s in self.dark_s),
            "the stall curve",
        )
        before = context.snapshot(seen.settings, seen.hellos, self.current)
        context.begin(before, before.owned, self.current.generation, self.named)
        try:
            await self._stage()
            await self.hosts.measure.watch_links(subject.names)
            for dark_s in self.dark_s:
                with context.recorder.phase(
                    "dark", f"{link_text(subject.link)}, {_dark_text(dark_s)}"
                ) as phase:
                    for _ in range(REPEATS):
                        for mode in modes:
                            self.points.append(await self._once(subject, mode, dark_s))
                    phase.detail += f": {counted(len(modes) * REPEATS, 'time')}"
            await self._check(before)
        except (Exception, asyncio.CancelledError) as error:
            if not self.touched:
                context.run.unchanged = True
                raise
            if isinstance(error, Locked):
                raise
            undone = await Rollback(context, before, self.asked, self.patience_s).carry_out()
            raise verdict(context, error, undone, moved=True) from error
        return subject

    # --- before anything is changed

    async def _observe(self) -> Observation:
        """The lab, which must be exactly as planned, without a job. Raises: as `carry_out`."""
        context, current = self.context, self.current
        with context.recorder.phase("observe") as phase:
            seen = await context.session.observe()
            wanted = settings(self.circuits)
            self.notes += seen.needing({*self.named, *wanted})
            phase.detail = (
                f"{counted(len(seen.settings), 'device')}, {counted(len(seen.hellos), 'host')}"
            )
        job = await context.jobs.running()
        if job is not None:
            raise Interlock(
                f"job {job.name} runs: the stall curve would darken a link that it may use, and would compete with its traffic",
                hint="testbed job stop",
            )
        lost = [
            f"{d}: {counted(missing, 'planned cross-connect')} missing"
            for d, held in wanted.items()
            if (missing := len(held) - len(among(seen.settings[d], held)))
        ]
        lost += [
            f"{h}: runs generation {seen.hellos[h].active}, {current.generation} was committed"
            for h in self.named
            if seen.hellos[h].active != current.generation or seen.hellos[h].pending_s is not None
        ]
        if lost:
            raise Refused(
                f"{current.plan_name} is not up as planned, so its stall curve would show something else:\n"
                + "\n".join(lost),
                hint="testbed status; testbed restore",
            )
        if old := sorted(set(self.named) & set(self.hosts.channels.unprovisioned())):
            raise Missing(
                f"the agents of {', '.join(old)} are not those of this version",
                hint="testbed restore",
            )
        await self.hosts.channels.fence(context.run.token, context.hosts())
        return seen

    def _prepare(self, subject: Subject, before: Mapping[HostName, Rules]) -> tuple[str, ...]:
        """Compute and number the routes of each mode; return the modes that can be measured."""
        kept = [link for link in self.links if link != subject.link]
        interfaces = {port.host: self.lab.interface(port) for port in subject.ports}
        self.hold = {
            name: frozenset(
                r for r in before[name] if not (isinstance(r, Route) and r.interface == interface)
            )
            for name, interface in interfaces.items()
        }
        self.hold_generation = self.context.next_generation()
        if not subject.other_path:
            self.notes.append(
                f"drained: not measured, as {' and '.join(subject.names)} have no other path in this plan"
            )
            return MODES[1:]
        drain = drain_rules(
            self.links,
            kept,
            self.lab,
            self.hosts.channels.macs(),
            self.plan.routes,
            self.plan.rings,
        )
        self.drain = {name: wanted for name, wanted in drain.items() if wanted != before.get(name)}
        self.drain_generation = self.context.next_generation()
        return MODES

    def _seconds(self, dark_s: float, subject: Subject) -> float:
        """How long (s) traffic runs for one measurement."""
        return LEAD_S + 2 * max(dark_s, 2 * subject.switching_s) + TAIL_S

    async def _stage(self) -> None:
        """Fill the tables of both kinds of routes, which no rule selects yet."""
        generations = {self.hold_generation: self.hold}
        if self.drain:
            generations[self.drain_generation] = self.drain
        numbers = sorted(generations)
        with self.context.recorder.phase("stage") as phase:
            self.touched = True
            with self.context.run.step(
                "host", "all", "stage", {"generations": numbers}, {"clear": numbers}
            ):
                staged = await self.hosts.routes.stage_warm(generations)
            phase.detail = f"routes to hold and to drain, on {counted(len(staged), 'host')}"

    # --- one measurement

    async def _once(self, subject: Subject, mode: str, dark_s: float) -> StallPoint:
        """Darken the link once. Raises: ChangeFailed, TimedOut, Refused - something did not come
        about.
        """
        hosts, seconds = self.hosts, self._seconds(dark_s, subject)
        ends = {name: self.lab.hosts[name].lane_address(0) for name in subject.names}
        token = await hosts.measure.stream(ends, seconds)
        await asyncio.sleep(LEAD_S)
        since_ns, at = time.monotonic_ns(), time.time()
        with self._events() as carriers, self._events() as commits:
            if mode == "drained":
                await self._drain(subject, dark_s)
            before = await self._armed(subject, dark_s) if mode == "held" else None
            broken = await self._apply(
                {d: Change(d, held) for d, held in subject.held.items()}, "break", before
            )
            broken_ns = min(outcome.broken_ns or outcome.settled_ns for outcome in broken.values())
            await asyncio.sleep(
                max(0.0, dark_s - subject.switching_s - (time.monotonic_ns() - broken_ns) / 1e9)
            )
            await self._apply({d: Change(d, add=held) for d, held in subject.held.items()}, "make")
            dark_ns = await self._lit(subject, carriers)
            if mode == "held":
                answers = await hosts.routes.wait_committed(
                    self.current.generation, subject.names, self.patience_s, commits
                )
                if late := [
                    str(answer) for answer in answers.values() if isinstance(answer, TestbedError)
                ]:
                    raise TimedOut("\n".join(late))
            if mode == "drained":
                with self.context.run.step(
                    "host", "all", "revert", {"generation": self.drain_generation}
                ):
                    await hosts.routes.revert(sorted(self.drain))
        streams = await hosts.measure.streamed(token, subject.names, seconds + EXCESS_S)
        return self._point(subject, mode, dark_s, at, since_ns, dark_ns / 1e6, streams)

    @contextmanager
    def _events(self) -> Iterator[asyncio.Queue[HostEvent]]:
        queue = self.hosts.channels.subscribe()
        try:
            yield queue
        finally:
            self.hosts.channels.unsubscribe(queue)

    async def _drain(self, subject: Subject, dark_s: float) -> None:
        """Move traffic to other paths; hosts go back by themselves if this program dies."""
        self.asked.update(self.drain)
        with self.context.run.step("host", "all", "drain", {"generation": self.drain_generation}):
            await self.hosts.routes.commit(
                self.drain_generation, sorted(self.drain), self._revert_s(subject, dark_s)
            )
        await quiet(self.hosts, subject.ports)

    async def _armed(self, subject: Subject, dark_s: float) -> Before:
        """Arm both hosts to end the hold when the light is back; return what begins it."""
        self.asked.update(subject.names)
        generation = self.current.generation
        with self.context.run.step("host", "all", "arm", {"generation": generation}):
            when_up = {port.host: [port.number] for port in subject.ports}
            await self.hosts.routes.arm(
                generation, when_up, deadline_s=self._revert_s(subject, dark_s) + self.patience_s
            )

        async def begin() -> None:
            await self.hosts.routes.hold(
                self.hold_generation, subject.names, self._revert_s(subject, dark_s)
            )
            await quiet(self.hosts, subject.ports, EMPTY_S)

        return begin

    def _revert_s(self, subject: Subject, dark_s: float) -> float:
        return max(dark_s, 2 * subject.switching_s) + EXCESS_S

    async def _apply(
        self, changes: Mapping[DeviceName, Change], phase: str, before: Before | None = None
    ) -> Mapping[DeviceName, Outcome]:
        applied = await apply_changes(self.context, changes, phase, before=before)
        if applied.problems:
            raise ChangeFailed("\n".join(applied.problems))
        return applied.outcomes

    async def _lit(self, subject: Subject, events: asyncio.Queue[HostEvent]) -> int:
        """Wait until both ports have light again; return how long (ns) the link was dark. Raises:
        TimedOut.
        """
        down: dict[HostPort, int] = {}
        up: dict[HostPort, int] = {}
        try:
            async with asyncio.timeout(self.patience_s):
                while len(up) < len(subject.ports):
                    event = await events.get()
                    if (
                        event.kind != "link"
                        or (port := HostPort(event.host, int(event.values["port"])))
                        not in subject.ports
                    ):
                        continue
                    if not event.values["carrier"]:
                        down.setdefault(port, event.at_ns)
                        up.pop(port, None)
                    elif port in down:
                        up[port] = event.at_ns
        except TimeoutError:
            dark = ", ".join(str(port) for port in subject.ports if port not in up)
            text = f"{dark}: its carrier did not go and come back within {self.patience_s:g} s"
            raise TimedOut(text, hint="testbed verify says where the light is lost") from None
        return max(up.values()) - min(down.values())

    def _point(
        self,
        subject: Subject,
        mode: str,
        dark_s: float,
        at: float,
        since_ns: int,
        dark_ms: float,
        streams: Mapping[HostName, Stream],
    ) -> StallPoint:
        """Raises: Refused - a host received nothing at all."""
        if silent := [name for name, stream in streams.items() if not stream.bytes]:
            raise Refused(
                f"{', '.join(silent)}: no traffic arrived over TCP, so nothing can be measured",
                hint="testbed verify",
            )
        gaps = [gap for stream in streams.values() for gap in stream.gaps]
        lost = max((end - begin for begin, end in gaps if end > since_ns), default=0) / 1e6
        usual = max((end - begin for begin, end in gaps if end <= since_ns), default=0) / 1e6
        if any(stream.open for stream in streams.values()):
            self.notes.append(
                f"{mode}, dark {dark_ms:.0f} ms: traffic paused to the end, for {lost:.0f} ms at least"
            )
        link, devices, journal = (
            link_text(subject.link),
            " ".join(sorted(subject.held)),
            self.context.recorder.journal,
        )
        times = (round(ms, 3) for ms in (dark_s * 1e3, dark_ms, lost, usual))
        point = StallPoint(at, self.context.run.id, link, devices, mode, *times)
        if journal is not None:
            record_stall(journal, point, since_ns)
        return point

    # --- afterwards

    async def _check(self, before: Snapshot) -> None:
        """Read all devices and hosts again. Raises: NotVerified - something is not as it was; it is
        then rolled back.
        """
        context = self.context
        with context.recorder.phase("check") as phase:
            seen = await context.session.observe()
            seen.needing(before.owned.keys() | set(self.named))
            lines = differences(
                seen.settings, before, before.owned.keys(), context.foreign_settings()
            )
            lines += [
                f"{name}: runs generation {seen.hellos[name].active}, {was} was active before"
                for name, was in sorted(before.generations.items())
                if name in self.named
                and (seen.hellos[name].active != was or seen.hellos[name].pending_s is not None)
            ]
            if lines:
                raise NotVerified("\n".join(lines))
            phase.detail = "circuits and routes are as they were"


def _dark_text(dark_s: float) -> str:
    return f"dark for {seconds_text(dark_s)}" if dark_s else "dark as short as its devices can"


def record_stall(journal: Journal, point: StallPoint, at_ns: int) -> None:
    """Write one measurement, which began at `at_ns` (monotonic ns)."""
    fields = ("link", "devices", "asked_ms", "dark_ms", "lost_ms", "usual_ms")
    journal.point(
        "stall", {"mode": point.mode}, {name: getattr(point, name) for name in fields}, at_ns
    )
