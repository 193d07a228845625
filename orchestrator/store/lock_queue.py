"""Locks and their queue: how it changes as time passes and processes end. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

from optics.errors import Locked
from optics.plain import printable
from orchestrator.store.scope import Scope
from orchestrator.store.verbs import MOVERS, Role

Kind = Literal["run", "reservation"]
State = Literal["booked", "active", "waiting", "released", "stolen", "expired", "died"]
LIVE: tuple[State, ...] = ("active", "waiting")
STANDING: tuple[State, ...] = ("booked", *LIVE)
"""States of a lock that has not ended: a booked one begins at a date."""


@dataclass(frozen=True, slots=True)
class Lock:
    """One lock. A run's ends with its process, a reservation when it expires or is unlocked.

    id: identifies it for unlocking and stealing, never reused. process: identifies `pid`
    (`lablock.process_mark`). seq: place in the queue. for_s: how long (s) a reservation lasts once
    it is active. after: the lock it waits for, whatever it covers. asked, since, expires, ended:
    wall seconds; `since`: active, or requested while it waits, or the date when it begins while it is
    booked, which has its end in `expires` from the beginning. token: of its run, 0 before. role:
    what its run does; within: the role of a run of the same owner that it does not disturb, or
    empty.
    """

    id: str
    kind: Kind
    owner: str
    user: str
    host: str
    pid: int
    process: str
    reason: str
    scope: Scope
    state: State
    seq: int
    asked: float
    since: float
    expires: float | None = None
    for_s: float | None = None
    after: str = ""
    run: str = ""
    token: int = 0
    ended: float | None = None
    ended_by: str = ""
    why: str = ""
    lab: str = field(default="", repr=False)
    role: Role = "change"
    within: Role = ""

    def meets(self, other: Lock) -> bool:
        """Whether both cannot be active at the same time: they overlap, and have different owners
        or both change the lab.
        """
        return not self.apart(other) and self.scope.overlaps(other.scope)

    def apart(self, other: Lock) -> bool:
        """Whether one owner has both, and they do not disturb each other: a run within a
        reservation, a job within slots.
        """
        within = self.within == other.role or other.within == self.role
        return self.owner == other.owner and (within or "reservation" in (self.kind, other.kind))

    def __str__(self) -> str:
        process = f" (pid {self.pid})" if self.kind == "run" else ""
        owner = f" for {self.owner}" if self.owner != self.user else ""
        until = f" until {clock(self.expires)}" if self.expires is not None else ""
        since = "from" if self.state == "booked" else "since"
        return printable(
            f"{self.user} on {self.host}{process}{owner} {since} {clock(self.since)}{until}: {self.reason}",
            keep="",
        )


def clock(at: float) -> str:
    """Local time of day, with the date unless it is today."""
    near = abs(at - time.time()) < 43_200
    return time.strftime("%H:%M:%S" if near else "%Y-%m-%d %H:%M", time.localtime(at))


def blockers(wish: Lock, live: Sequence[Lock], now: float) -> list[Lock]:
    """The locks that keep `wish` from being active: conflicting active ones, earlier requests
    that conflict with it, and for a reservation those that are booked before it would end.

    A waiting request is overtaken only by runs: of the owner whose reservation, or schedule, it
    waits for anyway, and of all if it did not fit before a booked one when it was asked for.
    """
    active = [other for other in live if other.state == "active" and other.id != wish.id]
    found = [other for other in active if wish.meets(other)]
    by_id = {other.id: other for other in live}
    for other in live:
        if (
            other.state != "waiting"
            or other.seq >= wish.seq
            or not wish.meets(other)
            or other.after in by_id
        ):
            continue
        his_own = [h for h in active if h.apart(wish) and h.meets(other)]
        if wish.kind != "run" or not (his_own or _booked_before(other, live, other.asked)):
            found.append(other)
    return found + _booked_before(wish, live, now)


def _booked_before(wish: Lock, live: Sequence[Lock], now: float) -> list[Lock]:
    """What others have booked before a reservation would end that begins now."""
    if wish.kind == "run":  # it is over soon, and what was booked waits for its end
        return []
    end = _end(wish, now)
    booked = [other for other in live if other.state == "booked" and other.since < end]
    return [other for other in booked if other.id != wish.id and wish.meets(other)]


def _end(lock: Lock, begin: float) -> float:
    if lock.expires is not None:
        return lock.expires
    return inf if lock.for_s is None else begin + lock.for_s


def overlapping(wish: Lock, live: Sequence[Lock]) -> list[Lock]:
    """The reservations that will have a part of a booked one's scope in its time.

    Those that wait are taken to begin when the reservations before them have ended.
    """
    held = [one for one in live if one.kind == "reservation"]
    left, ended = settle_locks(held, inf, lambda lock: False)
    times = {one.id: one for one in (*ended, *left)}
    return [
        one
        for one in held
        if one.meets(wish)
        and times[one.id].since < _end(wish, wish.since)
        and _end(times[one.id], times[one.id].since) > wish.since
    ]


def settle_locks(
    live: Iterable[Lock], now: float, ended: Callable[[Lock], bool]
) -> tuple[list[Lock], list[Lock]]:
    """The locks at `now`, and those that changed: first those whose processes are gone, expired
    ones, then the next in the queue.

    The result does not depend on how often it is called: a lock ends at its own expiry, and its
    successor begins then.
    """
    locks = sorted(live, key=lambda lock: lock.seq)
    changed: dict[str, Lock] = {}

    def put(lock: Lock) -> None:
        changed[lock.id] = lock
        locks[next(i for i, old in enumerate(locks) if old.id == lock.id)] = lock

    def standing() -> list[Lock]:
        return [lock for lock in locks if lock.state in STANDING]

    dead = {lock.id for lock in locks if lock.kind == "run" and lock.state in LIVE and ended(lock)}
    for lock in [lock for lock in locks if lock.id in dead and lock.state == "waiting"]:
        put(replace(lock, state="died", ended=now, why="its process is gone"))
    while due := [
        (at, lock)
        for lock in standing()
        if (at := lock.since if lock.state == "booked" else lock.expires) is not None and at <= now
    ]:
        at = min(each for each, _ in due)
        for lock in [lock for each, lock in due if each == at]:
            if lock.state == "booked":  # if others still hold it, it is the first to be served
                put(replace(lock, state="waiting"))
            else:
                put(replace(lock, state="expired", ended=at, why="it had expired"))
        for lock in _next(standing(), at):
            put(lock)
    for lock in [lock for lock in locks if lock.id in dead and lock.state == "active"]:
        put(replace(lock, state="died", ended=now, why="its process is gone"))
    for lock in _next(standing(), now):
        put(lock)
    return standing(), list(changed.values())


def _next(live: list[Lock], at: float) -> list[Lock]:
    """Those who waited and are free to go at `at`."""
    found = []
    for index, lock in enumerate(live):
        if (
            lock.state != "waiting"
            or any(other.id == lock.after for other in live)
            or blockers(lock, live, at)
        ):
            continue
        end = _end(lock, at)
        live[index] = replace(lock, state="active", since=at, expires=None if end == inf else end)
        found.append(live[index])
    return found


def lost(lock: Lock | None, run: str) -> Locked:
    """The error of a run whose lock is gone."""
    what = f"run {run}" if run else "this command"
    if lock is None:
        return Locked(f"{what} no longer holds the lab", hint="testbed lock; testbed status")
    how = f"{lock.state} by {lock.ended_by}" if lock.ended_by else lock.state
    at = f" at {clock(lock.ended)}" if lock.ended is not None else ""
    return Locked(
        f"{what} no longer holds the lab: its lock {lock.id} was {how}{at}"
        + (f": {lock.why}" if lock.why else ""),
        hint="it stopped before its next step; testbed status says what is done and what is not",
    )


def holder_text(lock: Lock, part: Scope) -> str:
    """That somebody has, awaits or has booked a part of the lab."""
    verb = "is locked by" if lock.kind == "run" else "is reserved by"
    verb = "is waited for by" if lock.state == "waiting" else verb
    return f"{part} {verb} {lock} [lock {lock.id}]"


def locked(ahead: Sequence[Lock], wish: Lock) -> Locked:
    """The error if the caller does not wait: who holds which part, since when, why, until when."""
    lines = [holder_text(lock, lock.scope & wish.scope) for lock in ahead]
    first = ahead[0]
    if first.kind == "run" and first.owner == wish.owner and first.role in MOVERS:
        return Locked("\n".join(lines), hint=f"first: testbed service stop {first.role}")
    if wish.state == "booked":
        return Locked(
            "\n".join(lines), hint=f"another time: testbed lock calendar; or ask {first.user}"
        )
    ends = (
        f"the lock ends with process {first.pid}"
        if first.kind == "run"
        else "it ends when it expires or is unlocked"
    )
    wait = (
        "--wait 10m (or TESTBED_WAIT=10m) waits for it"
        if wish.kind == "run"
        else "add --queue to wait for it"
    )
    return Locked("\n".join(lines), hint=f"{wait}, or ask {first.user}; {ends}")
