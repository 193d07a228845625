"""The guard with --jobs: looks at the running job once a second, and does what the policy says.

What was done is in the store before it is done, so a guard that dies and is started again neither
repeats it nor forgets it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from optics import HostName, Locked, TestbedError
from optics.errors import unplanned
from optics.plan import Plan
from optics.ranks import RankName, by_host, host_of_rank
from orchestrator.background.kind import Kind
from orchestrator.background.options import Typed
from orchestrator.background.registry import kind, kinds
from orchestrator.background.state import ServiceState
from orchestrator.hosts import JobState, RankTimes
from orchestrator.hosts.late import BETWEEN, ITERATIONS, silent
from orchestrator.jobs.attachments import Inspection, launched_without, neglected, tend
from orchestrator.jobs.jobs import Jobs
from orchestrator.jobs.record import counts_collectives, ranks_of
from orchestrator.plan.evict import why_no_spare
from orchestrator.plan.reader import read_plan
from orchestrator.results import Json
from orchestrator.services.guard.policy import (
    HANG_LEAST_S,
    PROGRAM_LEAST_S,
    Action,
    Budget,
    PastRecovery,
    RankEnd,
    Sight,
    backoff_s,
    decide_recovery,
    hang_s,
)
from orchestrator.services.guard.recover import evict, restart, usable
from orchestrator.session import Command, Session
from orchestrator.store.keys import lab_of
from orchestrator.store.locks import Locks
from orchestrator.store.records import JobRecord
from orchestrator.store.recoveries import Begun, Recovery, close_left, recoveries, recovering
from orchestrator.store.tagouts import Tagouts
from orchestrator.telemetry.progress import Silent

LOOK_S = 1.0
"""Interval (s) between looks at the job; the end of a rank is looked at when its host reports
it.
"""
TOGETHER_S = 0.2
"""Time (s) to wait after a rank's end: those of its peers come with it, and tell more."""
MANY = 200
"""A rank's heartbeat keeps its latest 255 iterations: where this many came at once, some before
them may be missing.
"""


class Notify(Protocol):
    """Emits one event of the guard."""

    def __call__(self, event: str, text: str, **fields: Json) -> None: ...


@dataclass
class JobWatch:
    """Recovers the job of one owner's plan. one: held while the guard changes something. others:
    who else holds the lab, if anyone but what moves light for the owner in the background: of these
    some are stopped meanwhile (`Kind.halts`); slots go on.
    """

    session: Session
    command: Command
    tenancy: str
    locks: Locks
    budget: Budget
    emit: Notify
    others: Callable[[], str]
    one: asyncio.Lock
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a host reports the end of a rank."""

    def __post_init__(self) -> None:
        self.jobs = Jobs(
            self.session, self.command.store, self.tenancy, self.command.settings.runs_dir
        )
        self.silent_since: dict[HostName, float] = {}
        self.quiet_since = time.monotonic()
        self.latest: dict[RankName, int] = {}
        self.longest_s = 0.0
        self.job = 0
        self.plan: tuple[tuple[str, int], Plan] | None = None
        self.reported: tuple[int, str] = (0, "")
        self.recovered = 0
        # spares of attempts that failed since the last one that did not
        self.refused: set[HostName] = set()
        self.begun, self.wait_until = False, 0.0
        self.halted: dict[Kind[Any], ServiceState] = {}

    async def watch(self) -> None:
        """Look until cancelled; what fails is looked at again."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self.ended.wait()
                    await asyncio.sleep(TOGETHER_S)
            self.ended.clear()
            try:
                await self.look()
            # a task that ended would do so unseen, while `status` says that jobs are recovered
            except Exception as error:
                with suppress(OSError):  # of the disk of the log
                    self._note(self.job, "job", f"cannot be looked at: {unplanned(error)}")

    async def look(self) -> Action | None:
        """One look, and what follows from it. None: there is no job to look after, or others hold
        the lab.
        """
        store = self.command.store
        current, record = store.current(self.tenancy), store.latest_job(self.tenancy)
        if (
            current is None
            or record is None
            or (record.ended is not None and record.ended < current.since)
        ):
            return None
        if self.one.locked() or self.others():
            self.quiet_since = time.monotonic()
            return None
        if record.ended is None and neglected(record.spec):
            await tend(
                Inspection(
                    self.jobs.session,
                    store,
                    record,
                    self.command.settings.run_dir(record.run),
                    alive=True,
                )
            )
        halting = self._halting()
        # A job may wait for its slots for a cycle: only one that has ended is recovered.
        if kind("schedule").running(self.command.settings, self.tenancy) is not None:
            self.quiet_since = time.monotonic()
        if self.job != record.id:
            self.job, self.longest_s, self.latest, self.quiet_since = (
                record.id,
                0.0,
                {},
                time.monotonic(),
            )
        if self.plan is None or self.plan[0] != (current.run, current.generation):
            self.plan = (
                (current.run, current.generation),
                read_plan(current.plan_text, current.plan_name, self.session.lab),
            )
        plan = self.plan[1]
        attached = set(self.session.hosts.channels.attached())
        sight = await self.sight(record, attached)
        if any(not one.outcome for one in recoveries(store, self.tenancy)):
            close_left(store, self.tenancy, self.locks.who)
        past = [
            PastRecovery(one.job, one.hosts, one.age_s, one.idle_s, one.outcome)
            for one in recoveries(store, self.tenancy)
        ]
        tags = Tagouts(store, lab_of(self.tenancy), self.locks.who).listed()
        # `up` installs the agent there
        bare = {
            name
            for name, hello in self.session.hosts.channels.hellos.items()
            if not hello.installed
        }
        # as `rewritten` refuses
        spares = (
            usable(plan, self.session.lab, attached | bare, tags) if plan.schedule is None else ()
        )
        action, by = decide_recovery(sight, past, self.budget, spares), None
        # One that follows a job which has lost its first rank takes that for the job's end.
        self.halted = halting if action.kind == "none" else self.halted | halting
        if action.kind == "evict":
            dead = bool(set(action.hosts) & set(sight.silent_s))
            by = _places(
                action.hosts, [one for one in spares if one not in self.refused], plan, self.session
            )
            # none but those is left, and without one the job stays down
            if by is None and dead and self.refused:
                self.refused, by = set(), _places(action.hosts, spares, plan, self.session)
            if by is None:
                # that one fits is not known to the policy: a job is not left down for want of a
                # spare unless its host is dead
                why = f"{action.why}; no {'other' if self.refused else 'usable'} spare is like {', '.join(action.hosts)}"
                action = replace(action, kind="report" if dead else "restart", why=why)
        if action.kind in ("wait", "report"):
            self._note(
                record.id,
                "job fault",
                f"{record.name}: {action.why}",
                action.kind + ",".join(action.hosts),
            )
        if (
            action.kind not in ("restart", "evict")
            or self.others()
            or time.monotonic() < self.wait_until
        ):
            return action
        async with self.one:
            settings = self.command.settings
            try:
                for service in halting:  # it holds the lab
                    await asyncio.to_thread(service.stop, settings, self.tenancy)
                await self._act(action, record, by or {})
            finally:
                ended = (now := store.latest_job(self.tenancy)) is None or now.ended is not None
                for service, was in self.halted.items() if not ended else ():
                    log = Path(was.log) if was.log else None
                    options = Typed(words=was.options)
                    start = partial(service.start, settings, self.tenancy, log, options)
                    try:
                        await asyncio.to_thread(start)
                    except (TestbedError, OSError) as error:  # the others start nevertheless
                        self.emit("not started again", f"{service.noun}: {error}")
        return action

    def _halting(self) -> dict[Kind[Any], ServiceState]:
        """The owner's services that run and are to stand still while a job is recovered."""
        settings = self.command.settings
        existing = [(each, each.running(settings, self.tenancy)) for each in kinds() if each.halts]
        return {each: now for each, now in existing if now is not None}

    async def sight(self, record: JobRecord, attached: Collection[HostName]) -> Sight:
        """What the hosts say of the job's ranks now. One that was switched off keeps its channel
        for a while but is silent.
        """
        name, ranks, now = (
            record.spec.on_hosts,
            ranks_of(record, self.session.lab),
            time.monotonic(),
        )
        near = [here for host, here in by_host(ranks).items() if host in attached]
        asked = [self.session.hosts.jobs.states(name, here) for here in near]
        states: dict[RankName, JobState] = {}
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, TestbedError):
                raise answer
            states |= {} if isinstance(answer, BaseException) else answer
        heard = {host_of_rank(rank) for rank in states}
        hosts = {host_of_rank(rank) for rank in ranks}
        self.silent_since = {host: self.silent_since.get(host, now) for host in hosts - heard}
        ends = {
            rank: RankEnd(states[rank].state, states[rank].code)
            if rank in states
            else RankEnd("silent")
            for rank in ranks
        }
        still_s, blamed, least_s = (
            0.0,
            "",
            PROGRAM_LEAST_S if counts_collectives(record) else HANG_LEAST_S,
        )
        if (
            record.ended is None
            and record.pause is None
            and any(end.state == "running" for end in ends.values())
        ):
            still_s, blamed = await self._still(
                name, [rank for rank, end in ends.items() if end.state == "running"], now, least_s
            )
        quiet = {host: now - since for host, since in self.silent_since.items()}
        return Sight(record.id, record.state, ends, still_s, self.longest_s, quiet, blamed, least_s)

    async def _still(
        self, name: str, ranks: Collection[RankName], now: float, least_s: float
    ) -> tuple[float, HostName]:
        """How long (s) no heartbeat of these ranks has changed, and the host that the others wait
        for, if it is one: its ranks stopped, as `hosts/late.py` tells them.

        0 while a rank holds or has no heartbeat, and while one starts, ends or writes a checkpoint
        that others do not wait for too long.
        """
        heartbeats = await self.session.hosts.measure.heartbeats(name, ranks, self.latest or None)
        for rank, heartbeat in heartbeats.items():
            self.longest_s = max(
                self.longest_s, _longest_s(heartbeat.times, self.latest.get(rank) or None)
            )
            self.latest[rank] = max(
                self.latest.get(rank, 0), *(one.iteration for one in heartbeat.times), 0
            )
        if not heartbeats or any(
            heartbeat.phase == "hold" or math.isinf(heartbeat.age_s)
            for heartbeat in heartbeats.values()
        ):
            return 0.0, ""
        stopped, waiting = silent(
            heartbeats.values(), 1e3 * hang_s(self.longest_s, least_s) / ITERATIONS
        )
        if any(
            heartbeat.phase in BETWEEN and heartbeat not in stopped
            for heartbeat in heartbeats.values()
        ):
            return 0.0, ""
        blamed = {host_of_rank(heartbeat.rank) for heartbeat in stopped}
        others = {host_of_rank(heartbeat.rank) for heartbeat in waiting} - blamed
        still_s = min(
            min(heartbeat.age_s for heartbeat in heartbeats.values()), now - self.quiet_since
        )
        return still_s, blamed.pop() if len(blamed) == 1 and others else ""

    # --- acting

    async def _act(
        self, action: Action, record: JobRecord, by: Mapping[HostName, HostName]
    ) -> None:
        """Do it; by: hosts and the spares that replace them, none for a restart. A failure is said,
        recorded, and tried again after the pause that the policy prescribes. Whoever stops the
        guard does not wait for its end: `up` rolls back, and a launch is recorded as interrupted.
        """
        what = (
            "restart"
            if not by
            else "evict " + ", ".join(f"{host} -> {spare}" for host, spare in by.items())
        )
        began, self.begun = time.monotonic(), False
        self.emit(
            "recovering",
            f"{record.name}: {what}: {action.why}",
            job=record.name,
            action=action.kind,
            hosts=[*action.hosts],
        )
        try:
            if by:
                lost = [host for host in by if host not in self.session.hosts.channels.attached()]
                report = await evict(
                    replace(self.command, progress=Silent()),
                    by,
                    why=action.why,
                    lost=lost,
                    begin=lambda: self._begin(what, action, record),
                )
                run, status = report.run, report.job
            else:
                status = await restart(
                    self.jobs,
                    self.command,
                    record,
                    action.why,
                    lambda: self._begin(what, action, record),
                )
                run = status.run
        except Locked as error:
            self._note(record.id, "standing back", error.line)
            return
        except (TestbedError, OSError) as error:
            self.emit("not recovered", f"{record.name}: {error}", job=record.name)
            task = asyncio.current_task()
            # `up` makes an error of its own of a cancellation
            if task is not None and task.cancelling():
                raise asyncio.CancelledError from error
            self.refused |= set(by.values())
            # it counts nevertheless: the budget and the pauses bound how often it is tried
            if not self.begun:
                with suppress(TestbedError, OSError), self._begin(what, action, record):
                    raise error
            if not self.begun:  # the store cannot be written
                self.wait_until = time.monotonic() + backoff_s(1)
            return
        finally:
            self.quiet_since = time.monotonic()
        self.recovered += 1
        self.refused.clear()
        took = time.monotonic() - began
        after = (
            f"after iteration {status.resumed_from}"
            if status is not None and status.resumed_from
            else "from its start"
        )
        text = f"{record.name} runs again {after}, {took:.1f} s after: {action.why}"
        self.emit(
            "recovered", text, job=record.name, run=run, seconds=round(took, 3), action=action.kind
        )
        for noun, text in (
            launched_without(record.name, status.attached) if status is not None else ()
        ):
            self.emit(f"without {noun}", text, job=record.name, run=run)

    @contextmanager
    def _begin(self, what: str, action: Action, record: JobRecord) -> Iterator[Begun]:
        def may(past: list[Recovery]) -> str:
            spent = sum(one.age_s < self.budget.per_s for one in past)
            return f"the budget of {self.budget} is spent" if spent >= self.budget.restarts else ""

        with recovering(
            self.command.store,
            lab_of(self.tenancy),
            self.tenancy,
            self.locks.who,
            job=record.id,
            name=record.name,
            action=what,
            hosts=action.hosts,
            why=action.why,
            may=may,
        ) as begun:
            self.begun = True
            yield begun

    def _note(self, job: int, event: str, text: str, what: str = "") -> None:
        """Say something once; what: the same, whatever times the words give."""
        if (key := (job, f"{event} {what or text}")) != self.reported:
            self.reported = key
            self.emit(event, text)


def _longest_s(times: Sequence[RankTimes], before: int | None) -> float:
    """The longest time (s) from one of these iterations of a rank to the next, 0 without any;
    before: the one seen before them.

    Each has the time of one iteration, also where a program shows only every n-th: that moves its
    heartbeat n times as seldom.
    """
    longest = 0.0
    for one in times:
        # Of many that came at once the earlier ones may have been overwritten.
        steps = (
            one.iteration - before
            if before is not None and (one is not times[0] or len(times) < MANY)
            else 1
        )
        if 0 < one.iter_ms < math.inf:
            longest = max(longest, one.iter_ms / 1e3 * max(steps, 1))
        before = one.iteration
    return longest


def _places(
    hosts: Collection[HostName], spares: Collection[HostName], plan: Plan, session: Session
) -> dict[HostName, HostName] | None:
    """A spare for each host, None if one has none that is like it."""
    found: dict[HostName, HostName] = {}
    for host in hosts:
        fit = [
            one
            for one in spares
            if one not in found.values() and not why_no_spare(host, one, plan, session.lab)
        ]
        if not fit:
            return None
        found[host] = fit[0]
    return found
