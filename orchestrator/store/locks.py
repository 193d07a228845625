"""Locks of a lab: held, waiting, stolen. Every query first applies expiries and ended processes.

A lock is in the same file as the journal, so that a step is begun only while the run's lock is
held: one transaction for both.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from functools import lru_cache
from math import inf
from typing import Any

from optics.errors import Missing, StoreFailed
from orchestrator.inventory.lab import Lab
from orchestrator.processes import process_alive
from orchestrator.settings import Settings
from orchestrator.store.audit import Who, add_audit
from orchestrator.store.clock import moved_s
from orchestrator.store.database import Database
from orchestrator.store.keys import key_of
from orchestrator.store.lock_queue import (
    LIVE,
    STANDING,
    Kind,
    Lock,
    State,
    blockers,
    clock,
    locked,
    lost,
    overlapping,
    settle_locks,
)
from orchestrator.store.run import Run
from orchestrator.store.scope import Scope, scope_of_data
from orchestrator.store.store import Store
from orchestrator.store.verbs import Role

POLL_S = 0.1
"""Interval (s) at which a waiting run checks whether it may continue."""
KEPT_S, OFTEN = 90 * 86_400.0, 100
"""A lock that has ended is remembered this long (s); every so many locks, older ones are forgotten.
"""


class Locks:
    """The locks of one lab, as seen and changed by `who`."""

    def __init__(self, store: Database, lab: str, who: Who) -> None:
        self.store, self.lab, self.who = store, lab, who

    # -- requests
    # --------------------------------------------------------------------------------------------------------------

    def take(
        self,
        kind: Kind,
        scope: Scope,
        reason: str,
        *,
        for_s: float | None = None,
        at: float | None = None,
        queue: bool = False,
        after: str = "",
        role: Role = "change",
        within: Role = "",
        inside: str = "",
    ) -> Lock:
        """Request a lock; it is active, or with `queue` or `after` (a lock to follow) perhaps
        waiting. at: when it begins (wall s), after now: it is booked, with `for_s`.

        inside: an own active lock that covers it: who waits for that waits on.

        Raises: Locked - another lock or an earlier request covers part of it, and neither `queue`
        nor `after` is given. Missing - no lock `after`.
        """
        now = time.time()
        with self.store.transaction() as db:
            live = self._settled(db, now)
            if after and after not in {lock.id for lock in live}:
                raise Missing(
                    f"no lock {after} is held or waited for on this lab", hint="testbed lock"
                )
            seq = int(db.execute("SELECT coalesce(max(seq),0)+1 FROM locks").fetchone()[0])
            who = self.who
            wish = Lock(
                id=_new_id(db),
                kind=kind,
                owner=who.owner,
                user=who.user,
                host=who.host,
                pid=who.pid,
                process=who.process,
                reason=reason,
                scope=scope,
                state="waiting" if at is None else "booked",
                seq=seq,
                asked=now,
                since=now if at is None else at,
                expires=None if at is None or for_s is None else at + for_s,
                for_s=for_s,
                after=after,
                lab=self.lab,
                role=role,
                within=within,
            )
            ahead = blockers(wish, live, now) if at is None else overlapping(wish, live)
            if any(
                one.id == inside and one.state == "active" and one.scope.covers(scope)
                for one in live
            ):
                ahead = [other for other in ahead if other.state == "active"]
            if (ahead or after) and not queue and not after:
                raise locked(ahead, wish)
            if at is None and not ahead and not after:
                wish = replace(wish, state="active", expires=None if for_s is None else now + for_s)
            _insert(db, wish)
            if seq % OFTEN == 0:
                db.execute("DELETE FROM locks WHERE lab=? AND ended<?", (self.lab, now - KEPT_S))
            text = (
                f"{kind} of {scope}"
                + (f" for {for_s:g} s" if for_s is not None else "")
                + (f": {reason}" if reason else "")
            )
            if at is not None:
                text = f"from {clock(at)}: {text}"
            what = {"active": "locked", "booked": "booked"}.get(wish.state, "queued")
            self._note(db, now, what, wish.id, text)
        return wish

    def extend(self, lock: str, scope: Scope) -> None:
        """Extend an own lock by `scope`. Raises: Locked - another owner holds part of it, or the
        lock is no longer held.
        """
        now = time.time()
        with self.store.transaction() as db:
            live = self._settled(db, now)
            ours = next((one for one in live if one.id == lock and one.state == "active"), None)
            if ours is None:
                raise lost(_get(db, lock), "")
            if ours.scope.covers(scope):
                return
            # A request that waits for the lab waits for this lock anyway; yielding to it would be a
            # deadlock.
            wish = replace(ours, scope=scope)
            if ahead := [other for other in blockers(wish, live, now) if other.state == "active"]:
                raise locked(ahead, wish)
            wider = replace(ours, scope=ours.scope | scope)
            db.execute(
                "UPDATE locks SET scope=? WHERE id=?", (json.dumps(wider.scope.to_data()), lock)
            )
            self._note(db, now, "extended", lock, f"by {scope}")

    def bind(self, lock: str, run: str, token: int) -> None:
        """Record the run that holds the lock, and its fencing token."""
        with self.store.transaction() as db:
            db.execute("UPDATE locks SET run=?, token=? WHERE id=?", (run, token, lock))

    # -- ending
    # --------------------------------------------------------------------------------------------------------------

    def release(self, lock: str, why: str = "") -> Lock | None:
        """Release the caller's own lock; None if it was no longer held or waiting."""
        return self._end(lock, "released", why)

    def steal(self, lock: str, reason: str) -> Lock | None:
        """End any owner's lock; its run stops at its next journalled step. None if it had already
        ended.
        """
        return self._end(lock, "stolen", reason)

    def _end(self, lock: str, state: State, why: str) -> Lock | None:
        now = time.time()
        with self.store.transaction() as db:
            live = self._settled(db, now)
            ours = next((one for one in live if one.id == lock), None)
            if ours is None:
                return None
            self._write(db, replace(ours, state=state, ended=now, ended_by=self.who.user, why=why))
            # its run begins no further step: it stays half done, though its process may be alive
            if state == "stolen":
                lost = "UPDATE runs SET status='interrupted', ended=?, message=? WHERE id=? AND status='running'"
                db.execute(lost, (now, f"its lock {lock} was stolen by {self.who.user}", ours.run))
            text = (
                f"held by {ours}" + (f"; because: {why}" if why else "")
                if state == "stolen"
                else why
            )
            self._note(db, now, state, lock, text)
            self._settled(db, now)
        return ours

    # -- queries
    # -------------------------------------------------------------------------------------------------------------

    def listed(self) -> list[Lock]:
        """The locks held, waiting and booked now, in the order of the queue."""
        with self.store.transaction() as db:
            return self._settled(db, time.time())

    def seen(self) -> list[Lock]:
        """As `listed`, without writing to the store what has expired or whose process has ended."""
        rows = self.store.read(
            f"SELECT * FROM locks WHERE lab=? AND state IN {STANDING} ORDER BY seq", (self.lab,)
        )
        return settle_locks(
            [_lock(row) for row in rows if row["id"] not in self.store.unreleased],
            time.time(),
            _ended,
        )[0]

    def between(self, begin: float, end: float) -> list[Lock]:
        """The locks in this time (wall s), ended or not, in the order in which they begin; of those
        that ended before, the last `KEPT_S`.
        """
        with self.store.transaction() as db:
            self._settled(db, time.time())
            rows = db.execute(
                "SELECT * FROM locks WHERE lab=? AND since<? AND coalesce(ended, expires, ?)>?"
                " ORDER BY since, seq",
                (self.lab, end, inf, begin),
            )
            return [_lock(row) for row in rows]

    def get(self, lock: str) -> Lock | None:
        """One lock by its id, ended or not."""
        with self.store.transaction() as db:
            self._settled(db, time.time())
            return _get(db, lock, self.lab)

    def ahead(self, lock: str) -> list[Lock]:
        """The locks that a waiting lock waits for."""
        live = self.listed()
        wish = next((one for one in live if one.id == lock and one.state == "waiting"), None)
        if wish is None:
            return []
        return [one for one in live if one.id == wish.after] or blockers(wish, live, time.time())

    # -- internal
    # --------------------------------------------------------------------------------------------------------------

    def _settled(self, db: sqlite3.Connection, now: float) -> list[Lock]:
        """Apply expiries and ended processes to all locks of the lab; changes are written and
        audited in the same transaction.
        """
        # a reservation lasts a number of hours, whatever the clock shows; a booked one has a date
        if moved := moved_s(db, self.lab, now):
            later = "asked=asked+?1, since=since+?1, expires=expires+?1"
            found = db.execute(
                f"UPDATE locks SET {later} WHERE lab=?2 AND state IN ('active','waiting')",
                (moved, self.lab),
            )
            if found.rowcount:
                self._note(
                    db,
                    now,
                    "clock set",
                    "",
                    f"by {moved:+.0f} s; held and waiting locks keep their duration",
                )
        rows = db.execute(
            f"SELECT * FROM locks WHERE lab=? AND state IN {STANDING} ORDER BY seq", (self.lab,)
        )
        locks = [_lock(row) for row in rows]
        late = [lock for lock in locks if lock.id in self.store.unreleased]
        ended = [
            replace(
                lock,
                state="released",
                ended=now,
                ended_by=self.who.user,
                why="its process could not release it before",
            )
            for lock in late
        ]
        live, changed = settle_locks([lock for lock in locks if lock not in late], now, _ended)
        for lock in (*ended, *changed):
            self._write(db, lock)
            what = "activated" if lock.state == "active" else lock.state
            self._note(
                db,
                now if lock.ended is None else lock.ended,
                what,
                lock.id,
                lock.why or lock.reason,
            )
        return live

    def _write(self, db: sqlite3.Connection, lock: Lock) -> None:
        db.execute(
            "UPDATE locks SET state=?, since=?, expires=?, ended=?, ended_by=?, why=? WHERE id=?",
            (lock.state, lock.since, lock.expires, lock.ended, lock.ended_by, lock.why, lock.id),
        )

    def _note(self, db: sqlite3.Connection, at: float, what: str, subject: str, why: str) -> None:
        add_audit(db, self.lab, self.who, at, what, subject, why)


def still_held(db: sqlite3.Connection, lock: str, run: str) -> None:
    """Check, inside the transaction that begins a step, that the run's lock was not taken from it.
    Raises: Locked.
    """
    found = _get(db, lock)
    if found is None or found.state != "active":
        raise lost(found, run)


class HeldLock:
    """A run's lock while it is held."""

    def __init__(self, locks: Locks, lock: Lock) -> None:
        self.locks, self.lock = locks, lock

    @property
    def id(self) -> str:
        return self.lock.id

    def bind(self, run: Run) -> None:
        """Register the run that works under the lock: its steps begin only while the lock is
        held.
        """
        self.locks.bind(self.lock.id, run.id, run.token)
        run.fence(lambda db: still_held(db, self.lock.id, run.id))

    def check(self, run: str) -> None:
        """Raises: Locked - `run` does not hold it any more."""
        rows = self.locks.store.read("SELECT * FROM locks WHERE id=?", (self.lock.id,))
        if not rows or rows[0]["state"] != "active":
            raise lost(_lock(rows[0]) if rows else None, run)

    def extend(self, scope: Scope) -> bool:
        """Also hold `scope`; False if it was held already. Raises: Locked."""
        if self.lock.scope.covers(scope):
            return False
        self.locks.extend(self.lock.id, scope)
        self.lock = replace(self.lock, scope=self.lock.scope | scope)
        return True


@asynccontextmanager
async def hold(
    locks: Locks,
    scope: Scope,
    reason: str,
    *,
    role: Role = "change",
    within: Role = "",
    wait_s: float = 0.0,
    notify: Callable[[str], None] = lambda text: None,
) -> AsyncIterator[HeldLock]:
    """Hold a run's lock while the body runs. wait_s: longest wait (s) in the queue; `notify` is
    called with the locks waited for.

    Raises: Locked - another lock still covers part of it after `wait_s`.
    """
    lock = locks.take("run", scope, reason, queue=wait_s > 0, role=role, within=within)
    try:
        give_up = time.monotonic() + wait_s
        text = ""
        while lock.state == "waiting":
            ahead = locks.ahead(lock.id)
            if ahead and time.monotonic() >= give_up:
                raise locked(ahead, lock)
            if ahead and (now := "; ".join(f"{one} [lock {one.id}]" for one in ahead)) != text:
                text = now
                notify(text)
            await asyncio.sleep(POLL_S)
            found = locks.get(lock.id)
            if found is None or found.state not in LIVE:
                raise lost(found, "")
            lock = found
        yield HeldLock(locks, lock)
    finally:
        try:
            locks.release(lock.id)
        except StoreFailed:  # it ends with this process, if not before
            locks.store.unreleased.add(lock.id)


def _ended(lock: Lock) -> bool:
    """Whether the process that held it is known to have ended; unknown for processes of other
    machines.
    """
    return lock.host == socket.gethostname() and not process_alive(lock.pid, lock.process)


def _new_id(db: sqlite3.Connection) -> str:
    while True:
        made = secrets.token_hex(3)
        if not db.execute("SELECT 1 FROM locks WHERE id=?", (made,)).fetchone():
            return made


def _get(db: sqlite3.Connection, lock: str, lab: str | None = None) -> Lock | None:
    row = db.execute(
        "SELECT * FROM locks WHERE id=?1 AND (?2 IS NULL OR lab=?2)", (lock, lab)
    ).fetchone()
    return _lock(row) if row is not None else None


def _lock(row: sqlite3.Row) -> Lock:
    return _lock_of(tuple(row.keys()), tuple(row))


# who waits reads all locks ten times a second, and of most of them nothing has changed
@lru_cache(maxsize=256)
def _lock_of(names: tuple[str, ...], values: tuple[Any, ...]) -> Lock:
    found = dict(zip(names, values, strict=True))
    return Lock(**{**found, "scope": scope_of_data(json.loads(found["scope"]))})


def _insert(db: sqlite3.Connection, lock: Lock) -> None:
    names = [f.name for f in fields(Lock) if f.name != "scope"]
    values = [getattr(lock, name) for name in names] + [json.dumps(lock.scope.to_data())]
    marks = ",".join("?" * len(values))
    db.execute(f"INSERT INTO locks({','.join(names)},scope) VALUES({marks})", values)


def who(settings: Settings) -> Who:
    """The caller of this command, and the owner it acts for."""
    return Who(settings.owner, settings.user)


def locks_of(lab: Lab, settings: Settings, store: Store) -> Locks:
    return Locks(store, key_of(lab), who(settings))


def next_token(store: Store, lab: str) -> int:
    """The token that a new run of this store would get."""
    return max(store.last_token(lab) + 1, int(time.time()))
