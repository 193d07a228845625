"""The guard: watches the hosts' carriers and routes traffic around circuits that lost their light,
until it is back.

Carriers arrive as events over the open channels, without polling. Devices, drift and the store are
read at long intervals. Every action is a run of its own: locked, journalled, staged next to the
routes in use, committed with an armed revert, probed, confirmed. While another run holds the lab,
the guard waits.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace

from optics import Circuit, HostName, HostPort, Link, Locked, Missing, TestbedError
from optics.plain import counted
from orchestrator.background.kind import StateFile
from orchestrator.background.work import Notify, Retries, emit, ready, serving
from orchestrator.change.apply import finish
from orchestrator.fabric.circuits import settings as settings_of
from orchestrator.fabric.detour import FlapDamping, dark_circuits, dead_links, link_text
from orchestrator.hosts import HostEvent
from orchestrator.plan.stored import stored_plan
from orchestrator.results import Json
from orchestrator.services.guard.carriers import Carriers
from orchestrator.services.guard.devices import DeviceDrift, connected, settings_held
from orchestrator.services.guard.jobs import JobWatch
from orchestrator.services.guard.news import flaps, of_light
from orchestrator.services.guard.process import GUARD, GuardOptions, GuardReport, GuardState
from orchestrator.services.guard.reroute import Rerouter, Watched
from orchestrator.session import Command, Session, load_lab, open_session
from orchestrator.store.confirmations import Confirmations
from orchestrator.store.keys import key_of, tenancy_of
from orchestrator.store.locks import locks_of
from orchestrator.store.records import CurrentPlan
from orchestrator.store.scope import reachable_scope
from orchestrator.store.verbs import MOVERS
from orchestrator.verify.degraded import sides

TICK_S = 1.0
"""Interval (s) between checks whether another plan is up; one row of the store."""
LOCKED_POLL_S = 0.25
"""While another run changes the lab, interval (s) between checks whether it has ended."""
TOGETHER_S = 0.015
"""Carriers lost within this time (s) have one cause: a cut cable darkens two hosts, a switch
many.
"""
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 60.0


async def guard(command: Command, *, notify: Notify, options: GuardOptions) -> GuardReport:
    """Guard the plan that is up until it is taken down, or until cancelled. `timeout_s` bounds each
    wait for a host.

    Raises: Missing - no plan is up, and it is not to wait for one. Locked - another guard watches.
    """
    lab, settings = load_lab(command.inventory), command.settings
    key = tenancy_of(lab, settings)
    if command.store.current(key) is None and not options.stay:
        raise Missing(
            f"no plan is up on {lab.name}, so there is nothing to guard",
            hint="testbed up --topology examples/ring-12.json",
        )
    own = replace(GUARD.own(settings, options), jobs=str(options.budget or ""))
    with serving(GUARD.file(settings, key, own)) as file:
        async with open_session(
            lab, command.inventory, settings.cache_dir / "ansible", settings.bounds
        ) as session:
            watcher = Guard(session, command, file, notify, options, min(command.timeout_s, 10.0))
            try:
                await watcher.watch()
            except asyncio.CancelledError:
                watcher.emit("ended", "stopped on request")
            finally:
                await watcher.leave()
            return watcher.report()


@dataclass
class Guard:
    """One running guard. `applied`: the links that the hosts' routes leave out now, None if
    unknown.
    """

    session: Session
    command: Command
    file: StateFile[GuardState]
    notify: Notify
    options: GuardOptions
    patience_s: float
    watched: Watched | None = None
    applied: frozenset[Link] | None = frozenset()
    dead: frozenset[Link] = frozenset()
    detected_ns: int = 0
    silent: dict[str, str] = field(default_factory=dict)
    reroutes: int = 0
    restores: int = 0
    failures: int = 0

    def __post_init__(self) -> None:
        self.lab, self.hosts = self.session.lab, self.session.hosts
        self.carriers = Carriers(self.hosts, self.patience_s)
        self.key, self.tenancy = key_of(self.lab), tenancy_of(self.lab, self.command.settings)
        self.locks = locks_of(self.lab, self.command.settings, self.command.store)
        self.confirmations = Confirmations(self.command.store, self.tenancy, self.locks.who)
        self.rerouter = Rerouter(
            self.session, self.command, self.tenancy, self.locks, lambda: self._state("acting")
        )
        self.damping = FlapDamping(self.options.hold_s)
        self.began = time.monotonic()
        self.tasks: set[asyncio.Task[None]] = set()
        self.one, given = asyncio.Lock(), self.options.budget
        more = (self.emit, lambda: self._others(movers=False), self.one)
        self.jobs = (
            None
            if given is None
            else JobWatch(self.session, self.command, self.tenancy, self.locks, given, *more)
        )
        self.retry_at = 0.0
        self.retries = Retries(FIRST_RETRY_S, LAST_RETRY_S)
        self.behind = ""
        self.drift = DeviceDrift(self.silent)
        self.last = ""

    def report(self) -> GuardReport:
        """What the guard did."""
        plan = self.watched.current.plan_name if self.watched else ""
        seconds, jobs = (
            round(time.monotonic() - self.began, 1),
            self.jobs.recovered if self.jobs is not None else 0,
        )
        return GuardReport(
            self.lab.name,
            plan,
            self.reroutes,
            self.restores,
            self.failures,
            seconds,
            self.last,
            jobs,
        )

    def emit(self, event: str, text: str, **fields: Json) -> None:
        """Emit one event."""
        self.last = text
        emit(self.notify, event, text, **fields)

    def _state(self, state: str, **changes: object) -> None:
        silent = tuple(sorted(self.silent))
        self.file.now(state=state, silent=silent, **changes)

    def _spawn(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def leave(self) -> None:
        """Cancel the background tasks."""
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    # --- the loop

    async def watch(self) -> None:
        """Watch until the plan is taken down."""
        self.queue = self.hosts.channels.subscribe()
        try:
            await self.carriers.connect(tuple(self.lab.hosts), self._lost)
            if not await self._tick():
                return
            ready()
            self._spawn(self._check_repeatedly())
            if self.jobs is not None:
                self._spawn(self.jobs.watch())
            going = await self._decide()
            while going:
                going = await self._wait_for_others()
        finally:
            self.hosts.channels.unsubscribe(self.queue)

    async def _wait_for_others(self) -> bool:
        """Wait for the next event and handle it. False: there is nothing left to guard."""
        # what is overdue waits for others
        due = [] if self.behind else [at for at in (self.damping.due(), self.retry_at) if at]
        waits = [LOCKED_POLL_S if self.behind else TICK_S, *(at - time.monotonic() for at in due)]
        try:
            async with asyncio.timeout(max(min(waits), 0.0)):
                self._handle(await self.queue.get())
        except TimeoutError:
            return await self._tick() and await self._decide()
        if self.dead != self._dead_now():
            await asyncio.sleep(TOGETHER_S)
        while not self.queue.empty():
            self._handle(self.queue.get_nowait())
        return await self._decide()

    def _handle(self, event: HostEvent) -> None:
        match event.kind:
            case "link":
                port = HostPort(event.host, int(event.values["port"]))
                self.carriers.lit[port] = bool(event.values["carrier"])
                if not self.carriers.lit[port] and not self.detected_ns:
                    self.detected_ns = event.at_ns
            case "lost":
                self._lost(event.host, str(event.values.get("error", "")))
            case "reverted" | "expired" if self.watched and event.host in self.watched.hosts:
                self.applied = None  # whatever the cause: the routes in use must be read again
            case "job":
                state, code = str(event.values.get("state")), event.values.get("code")
                self.emit(
                    "job",
                    f"{event.host}: {event.values.get('name')} {state}"
                    + (f" {code}" if code else ""),
                    host=event.host,
                )
                if self.jobs is not None:
                    self.jobs.ended.set()

    def _dead_now(self) -> frozenset[Link]:
        return dead_links(self.watched.links, self.carriers.lit) if self.watched else frozenset()

    async def _tick(self) -> bool:
        """Check that the same plan is up. False: it was taken down, and no other is awaited."""
        current = self.command.store.current(self.tenancy)
        known = self.watched.current if self.watched else None
        if current is None:
            if known is not None:
                self.watched, self.applied, self.dead = None, frozenset(), frozenset()
                self.emit("down", f"{known.plan_name} was taken down")
                self._state("watching", plan="", run="", generation=None, around=(), cut_off=())
            elif self.file.state.state == "starting":
                self._state("watching")
            return self.options.stay
        if known is None or (known.run, known.generation) != (current.run, current.generation):
            await self._take_up(current)
        return True

    async def _take_up(self, current: CurrentPlan) -> None:
        """Watch this plan from now on."""
        links = current.up.links
        plan = stored_plan(current.plan_text, current.plan_name, current.up.slots, self.lab)
        self.watched = Watched(current, plan, links, current.up.circuits(self.lab))
        self.damping.forget()
        self.dead, self.applied, self.retry_at, self.detected_ns = frozenset(), None, 0.0, 0
        self.retries.worked()
        circuits = counted(len(self.watched.circuits), "circuit")
        self.emit(
            "watching",
            f"{current.plan_name}: {circuits} between {counted(len(self.watched.hosts), 'host')}",
            plan=plan.name,
        )
        former = (
            self.file.before
            if self.file.before is not None and self.file.before.run == current.run
            else None
        )
        self.file.before = None
        generation, around, cut_off = (
            (former.generation, former.around, former.cut_off) if former else (None, (), ())
        )
        self._state(
            "watching",
            plan=current.plan_name,
            run=current.run,
            generation=generation,
            around=around,
            cut_off=cut_off,
        )

    async def _decide(self) -> bool:
        """Report what changed, and bring the routes in line with the usable links."""
        if self.watched is None:
            return True
        dead, now = self._dead_now(), time.monotonic()
        lost, restored = dead - self.dead, self.dead - dead
        if (lost or restored or self.behind) and (who := self._others()):
            self._wait_for(who)
            return True
        if self.behind:
            self.behind = ""
            self.emit("on again", "the lab is free again")
            self.applied, self.detected_ns = None, 0
            if not await self._tick() or self.watched is None:
                return self.watched is not None or self.options.stay
            dead = self._dead_now()
            lost, restored = dead - self.dead, self.dead - dead
        self.dead = dead
        self.damping.see(dead, now)
        flapping = flaps(lost | restored, self.damping)
        after_ms = (
            round((time.monotonic_ns() - self.detected_ns) / 1e6, 1) if self.detected_ns else None
        )
        for event, text, fields in of_light(
            lost, restored, flapping, self.damping, self.carriers.lit, after_ms
        ):
            self.emit(event, text, **fields)
        if ends := {port for link in lost - flapping for port in (link.a, link.b)}:
            dark = dark_circuits(self.watched.circuits, self.carriers.lit)
            self._spawn(
                self._report_where([circuit for circuit in dark if circuit.receiver in ends])
            )
        out = self.damping.out(now)
        if out == self.applied:
            self.detected_ns, self.retry_at = 0, 0.0
            self.retries.worked()
        elif now >= self.retry_at:
            await self._try(out)
        return True

    async def _report_where(self, circuits: Collection[Circuit]) -> None:
        """Ask the switches' meters on which side the light was lost."""
        async with connected(
            self.lab, {x.ingress.device for circuit in circuits for x in circuit.path}
        ) as devices:
            found, trouble = await sides(devices, self.lab, circuits)
        for circuit, why in found.items():
            self.emit("where", f"{circuit}: {why}", circuit=str(circuit), why=why)
        if trouble:
            self.emit("where", trouble)

    # --- others

    def _others(self, *, movers: bool = True) -> str:
        """The run that changes the owner's part of the lab, or waits to, empty if none does.
        movers: count the owner's own, too.
        """
        if self.watched is None:
            return "no plan is up"
        scope, this = (
            reachable_scope(self.lab, self.watched.hosts),
            (socket.gethostname(), os.getpid()),
        )
        existing = [
            x
            for x in self.locks.listed()
            if movers or x.owner != self.locks.who.owner or x.role not in MOVERS
        ]
        existing = [x for x in existing if x.kind == "run" and (x.host, x.pid) != this]
        if text := next((str(x) for x in existing if x.scope.overlaps(scope)), ""):
            return text
        waiting = self.confirmations.pending()
        return (
            f"run {waiting.run} ({waiting.plan}) waits to be confirmed"
            if waiting is not None
            else ""
        )

    def _wait_for(self, who: str) -> None:
        if self.behind != who:
            self.behind = who
            self.emit("standing back", who)
            self._state("standing back")

    # --- acting

    async def _try(self, out: frozenset[Link]) -> None:
        """Bring the hosts' routes in line; what cannot be done now is retried at growing
        intervals.
        """
        try:
            async with self.one:
                await finish(self._act(out))
            self.retry_at = 0.0
            self.retries.worked()
        except Locked as error:
            self._wait_for(error.line)
        except TestbedError as error:
            wait_s = self.retries.failed()
            self.failures += 1
            self.retry_at = time.monotonic() + wait_s
            self.emit("failed", f"{error}; again in {wait_s:g} s", retry_s=wait_s)
            self._state("watching")

    async def _act(self, out: frozenset[Link]) -> None:
        """Raises: Locked, and whatever a host reports; the hosts are then as before."""
        assert self.watched is not None
        done = await self.rerouter.move(
            self.watched,
            out,
            self.applied or (),
            self.carriers.macs,
            self.file.state,
            self.detected_ns if out else 0,
        )
        if done is None:
            return  # the next tick finds the plan that came up
        self.applied, self.detected_ns = out, 0
        names = tuple(sorted(map(link_text, out)))
        if done.run:
            tail = "".join(f"; {note}" for note in done.notes)
            fields: dict[str, Json] = {
                "run": done.run,
                "generation": done.generation,
                **done.figures,
                "notes": [*done.notes],
            }
            if out:
                self.reroutes += 1
                text = f"traffic is rerouted around {', '.join(names)}{tail}"
                self.emit("rerouted", text, around=[*names], cut_off=[*done.cut_off], **fields)
            else:
                self.restores += 1
                self.emit("restored", f"the planned routes are in use again{tail}", **fields)
        self._state(
            "watching",
            generation=done.generation if out else None,
            around=names,
            cut_off=done.cut_off,
        )

    # --- hosts that go and come

    def _lost(self, host: HostName, why: str) -> None:
        self._spawn(self._reconnect(host, why))

    async def _reconnect(self, host: HostName, why: str) -> None:
        """Report that a host does not answer, and reconnect when it does."""
        if host in self.silent:
            return
        self.silent[host] = why
        self.carriers.forget(host)
        first = why.splitlines()[0] if why else ""
        remedy = self.lab.hosts[host].ssh.remedy
        self.emit(
            "host lost",
            f"{host} does not answer: {first}; its neighbours still report their carriers"
            + (f"; if it is dead: {remedy}" if remedy else ""),
            host=host,
        )
        self._state(self.file.state.state)
        await self.carriers.reconnect(host)
        del self.silent[host]
        self.emit("host back", f"{host} answers again", host=host)
        self._state(self.file.state.state)
        async with self.one:  # a reroute that began without it knows nothing of its routes
            self.applied = None

    # --- slow checks

    async def _check_repeatedly(self) -> None:
        """Read devices at long intervals and report what changed."""
        while True:
            if self.watched is not None and not self._others():
                with suppress(TestbedError):
                    await self._check_devices()
            await asyncio.sleep(self.options.look_s)

    async def _check_devices(self) -> None:
        watched = self.watched
        assert watched is not None
        wanted = settings_of(watched.circuits)
        found = await settings_held(self.lab, wanted)
        if watched is not self.watched or self._others():
            return  # the reading belongs to another plan, or to a change in progress
        for event, text, device in self.drift.news(wanted, found):
            self.emit(event, text, device=device)
        self._state(self.file.state.state)
