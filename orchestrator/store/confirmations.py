"""Changes that are reverted automatically unless they are confirmed in time."""

from __future__ import annotations

import json
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace

from optics import HostName, Interlock
from optics.plain import seconds_text
from orchestrator.processes import boot_clock_ns, boot_id, process_alive, process_mark
from orchestrator.store.audit import Who
from orchestrator.store.keys import lab_of
from orchestrator.store.locks import Locks
from orchestrator.store.options import RunOptions
from orchestrator.store.run import Run
from orchestrator.store.scope import Scope
from orchestrator.store.store import Store

LEAST_S, MOST_S = 1.0, 12 * 3600.0
"""Permitted deadlines (s); an agent counts down for a day at most."""


class Settled(Exception):
    """The change is no longer overdue: another command reverted or confirmed it, or its `up` ended
    only now.
    """


@dataclass(frozen=True, slots=True)
class Awaiting:
    """A change that waits to be confirmed. back: the plan to restore otherwise, empty for none;
    due: wall s, for people; left_s: below zero once it is overdue. watched: a process of this
    machine rolls it back then; if none does, the next command will.
    """

    run: str
    plan: str
    back: str
    due: float
    left_s: float
    watched: bool = True

    @property
    def to(self) -> str:
        """The state to restore, in words."""
        return self.back or "no plan"


@dataclass(frozen=True, slots=True)
class Awaited:
    """A change that is or was waiting for confirmation. state: pending, confirmed, reverted,
    hands-needed or superseded.

    undo: the run whose snapshot is restored; it differs from `run` if that resumed another.
    leaving: hosts of the plan before, which keep their routes until it is confirmed. boot, due_ns:
    the deadline by the clock of the boot it was set in; due: in wall s. pid, process: the watching
    process.
    """

    run: str
    tenancy: str
    undo: str
    plan: str
    back: str
    generation: int
    hosts: tuple[HostName, ...]
    leaving: tuple[HostName, ...]
    within_s: float
    host: str
    boot: str
    due_ns: int
    due: float
    state: str = "pending"
    ended_by: str = ""
    ended: float | None = None
    pid: int = 0
    process: str = ""

    def left_s(self) -> float:
        """Seconds until the deadline, not above zero once it has passed.

        By the boot clock, which cannot be set; by the wall clock if this machine has restarted
        since.
        """
        if self.boot == boot_id():
            return (self.due_ns - boot_clock_ns()) / 1e9
        return min(self.due - time.time(), self.within_s)

    @property
    def reason(self) -> str:
        """The reason of the hosts' reservation, shown to others; it also identifies the reservation
        to release.
        """
        return f"waits to be confirmed: {self.plan}, run {self.run}"

    @property
    def watched(self) -> bool:
        """Whether the process that would revert it is alive."""
        return (
            bool(self.pid)
            and self.host == socket.gethostname()
            and process_alive(self.pid, self.process)
        )

    def report(self) -> Awaiting:
        """For people and `--json`."""
        return Awaiting(
            self.run, self.plan, self.back, self.due, round(self.left_s(), 3), self.watched
        )

    def __str__(self) -> str:
        left = self.left_s()
        how = f"within {seconds_text(left)}" if left > 0 else "and is overdue"
        return f"run {self.run} ({self.plan}) waits to be confirmed {how}, else back to {self.back or 'no plan'}"


class Confirmations:
    """The pending confirmation of one tenancy of a lab, as seen and changed by `who`."""

    def __init__(self, store: Store, tenancy: str, who: Who) -> None:
        self.store, self.tenancy = store, tenancy
        self.locks = Locks(store, lab_of(tenancy), who)

    def pending(self) -> Awaited | None:
        """The pending change; there is at most one."""
        found = self.last()
        return found if found is not None and found.state == "pending" else None

    def last(self) -> Awaited | None:
        """The pending change, or the last one that was pending."""
        rows = self.store.read(
            "SELECT * FROM awaited WHERE tenancy=? ORDER BY rowid DESC LIMIT 1", (self.tenancy,)
        )
        return _awaited(rows[0]) if rows else None

    def get(self, run: str) -> Awaited | None:
        """The record of one run."""
        rows = self.store.read(
            "SELECT * FROM awaited WHERE run=? AND tenancy=?", (run, self.tenancy)
        )
        return _awaited(rows[0]) if rows else None

    def begin(self, made: Awaited, scope: Scope, inside: str = "") -> None:
        """Record a pending change, and reserve `scope` for its owner; a change that it continues is
        no longer pending.

        inside: the lock of the run that makes it, which covers `scope`.
        """
        before = self.pending()
        if before is not None:
            self._release(before)
        values = {f.name: getattr(made, f.name) for f in fields(made)}
        values |= {"hosts": json.dumps(made.hosts), "leaving": json.dumps(made.leaving)}
        marks = ",".join(f":{name}" for name in values)
        with self.store.transaction() as db:
            if before is not None:
                _end(db, before.run, "superseded", made.run)
            db.execute(f"INSERT INTO awaited({','.join(values)}) VALUES({marks})", values)
        # The record is written before the reservation and ended after it, so that a crash leaves no
        # lock without a record.
        self.locks.take("reservation", scope, made.reason, inside=inside)

    def watch(self, found: Awaited, pid: int) -> Awaited:
        """Record the watching process."""
        found = replace(found, pid=pid, process=process_mark(pid), host=socket.gethostname())
        self.store.write(
            "UPDATE awaited SET pid=?, process=?, host=? WHERE run=?",
            (pid, found.process, found.host, found.run),
        )
        return found

    def count(self, found: Awaited) -> Awaited:
        """The time to confirm counts from now on."""
        due_ns, due = boot_clock_ns() + int(found.within_s * 1e9), time.time() + found.within_s
        self.store.write(
            "UPDATE awaited SET due_ns=?, due=? WHERE run=? AND state='pending'",
            (due_ns, due, found.run),
        )
        return replace(found, due_ns=due_ns, due=due)

    def close(self, found: Awaited, state: str, by: str) -> None:
        """End the wait, and release the hosts."""
        self._release(found)
        with self.store.transaction() as db:
            _end(db, found.run, state, by)

    def _release(self, found: Awaited) -> None:
        for lock in self.locks.listed():
            if lock.kind == "reservation" and lock.reason == found.reason:
                self.locks.release(lock.id)

    # --- permissions

    def may(self, verb: str, options: RunOptions) -> None:
        """Check, under the lock, whether a verb may begin.

        Raises: Interlock - a change waits to be confirmed, and the verb would make its rollback
        impossible. Settled - see there.
        """
        found = self.pending()
        # a rollback that is resumed is the operator's own
        if options.unconfirmed and not options.resumes:
            if found is None or found.run != options.unconfirmed or found.left_s() > 0:
                raise Settled
            return
        if found is None or verb in ("down", "rollback", "confirm") or options.resumes == found.run:
            return
        raise Interlock(
            f"{found}",
            hint=f"keep it: testbed confirm; or roll back now: testbed rollback {found.run}",
        )

    @contextmanager
    def ending(self, verb: str, run: Run, options: RunOptions) -> Iterator[None]:
        """Wrap a verb that reverts the change: once that has begun, the change is no longer
        pending.

        The rollback after the deadline is the exception: it is repeated until it has finished.
        """
        if verb not in ("down", "rollback"):
            yield
            return
        found, overdue, done = self.pending(), bool(options.unconfirmed), False
        try:
            yield
            done = True
        finally:
            record = self.store.get(run.id)
            if found is not None and record is not None:
                hands = record.status == "hands-needed"
                if overdue and (done or hands):
                    self.close(found, "hands-needed" if hands else "reverted", run.id)
                elif not overdue and (done or record.begun):
                    self.close(found, "superseded", run.id)


def _end(db: sqlite3.Connection, run: str, state: str, by: str) -> None:
    db.execute(
        "UPDATE awaited SET state=?, ended_by=?, ended=? WHERE run=? AND state='pending'",
        (state, by, time.time(), run),
    )


def _awaited(row: sqlite3.Row) -> Awaited:
    values = dict(row)
    return Awaited(
        **{
            **values,
            "hosts": tuple(json.loads(values["hosts"])),
            "leaving": tuple(json.loads(values["leaving"])),
        }
    )
