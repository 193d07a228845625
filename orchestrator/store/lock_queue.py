"""Locks and their queue: how it changes as time passes and processes end. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from optics.plain import printable
from orchestrator.store.scope import Scope
from orchestrator.store.verbs import Role

Kind = Literal["run", "reservation"]
State = Literal["active", "waiting", "released", "stolen", "expired", "died"]
LIVE: tuple[State, ...] = ("active", "waiting")


@dataclass(frozen=True, slots=True)
class Lock:
    """One lock. A run's ends with its process, a reservation when it expires or is unlocked.

    id: identifies it for unlocking and stealing, never reused. process: identifies `pid`
    (`lablock.process_mark`). seq: place in the queue. for_s: how long (s) a reservation lasts once
    it is active. after: the lock it waits for, whatever it covers. asked, since, expires, ended:
    wall seconds; `since`: active, or requested while it waits. token: of its run, 0 before. role:
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
        return printable(
            f"{self.user} on {self.host}{process}{owner} since {clock(self.since)}{until}: {self.reason}",
            keep="",
        )


def clock(at: float) -> str:
    """Local time of day, with the date unless it is today."""
    near = abs(at - time.time()) < 43_200
    return time.strftime("%H:%M:%S" if near else "%Y-%m-%d %H:%M", time.localtime(at))


def blockers(wish: Lock, live: Sequence[Lock]) -> list[Lock]:
    """The locks that keep `wish` from being active: conflicting active ones, and earlier requests
    that conflict with it.

    A waiting request is overtaken only by runs of the owner whose reservation, or schedule, it
    waits for anyway.
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
        if wish.kind != "run" or not his_own:
            found.append(other)
    return found


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

    def waiting() -> list[Lock]:
        return [lock for lock in locks if lock.state in LIVE]

    dead = {lock.id for lock in locks if lock.kind == "run" and lock.state in LIVE and ended(lock)}
    for lock in [lock for lock in locks if lock.id in dead and lock.state == "waiting"]:
        put(replace(lock, state="died", ended=now, why="its process is gone"))
    while True:
        ends = [
            lock
            for lock in waiting()
            if lock.state == "active" and lock.expires is not None and lock.expires <= now
        ]
        if not ends:
            break
        at = min(lock.expires for lock in ends if lock.expires is not None)
        for lock in ends:
            if lock.expires == at:
                put(replace(lock, state="expired", ended=at, why="it had expired"))
        for lock in _next(waiting(), at):
            put(lock)
    for lock in [lock for lock in locks if lock.id in dead and lock.state == "active"]:
        put(replace(lock, state="died", ended=now, why="its process is gone"))
    for lock in _next(waiting(), now):
        put(lock)
    return waiting(), list(changed.values())


def _next(live: list[Lock], at: float) -> list[Lock]:
    """Those who waited and are free to go at `at`."""
    found = []
    for index, lock in enumerate(live):
        if (
            lock.state != "waiting"
            or any(other.id == lock.after for other in live)
            or blockers(lock, live)
        ):
            continue
        live[index] = replace(
            lock, state="active", since=at, expires=None if lock.for_s is None else at + lock.for_s
        )
        found.append(live[index])
    return found
