"""Recoveries of jobs: what was tried, when and why. The budget is checked in the transaction that
begins one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from optics import HostName, Locked, TestbedError
from orchestrator.processes import boot_clock_ns, boot_id, process_alive
from orchestrator.store.audit import Who, add_audit
from orchestrator.store.database import Database

KEPT = 200
"""Rows that are read: far more than any budget allows in its period."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """One attempt. job: the id of the job that failed. hosts: those whose ranks were lost. run: the
    run that did it, if it began.

    at, ended: wall s. age_s, idle_s: since it began and ended (s; 0: it goes on), by the boot clock
    where the machine was not restarted, so that a clock that is set neither refills a budget nor
    blocks it. outcome: ok, failed, died; empty: it goes on.
    """

    seq: int
    job: int
    action: str
    hosts: tuple[HostName, ...]
    why: str
    run: str
    at: float
    ended: float | None
    age_s: float
    idle_s: float
    outcome: str
    message: str

    def __str__(self) -> str:
        how = {"": "goes on", "ok": "done"}.get(self.outcome, self.outcome)
        run = f" (run {self.run})" if self.run else ""
        more = f": {self.message.splitlines()[0]}" if self.message and self.outcome != "ok" else ""
        return f"{self.action}{run}, {how}{more}; because {self.why}"


def recoveries(store: Database, key: str) -> list[Recovery]:
    """The attempts on a tenancy of a lab (`tenancy_key`), newest first. One whose process is gone
    counts as died.
    """
    rows = store.read(
        "SELECT * FROM recoveries WHERE tenancy=? ORDER BY seq DESC LIMIT ?", (key, KEPT)
    )
    boot, up, now = boot_id(), boot_clock_ns() / 1e9, time.time()
    found = []
    for row in rows:
        same = row["boot"] == boot

        def since(wall: float | None, then: float | None, same: bool = same) -> float:
            if wall is None:
                return 0.0
            return max(up - (then or 0.0) if same else now - wall, 0.0)

        outcome, ended = row["outcome"], row["ended"]
        if not outcome and not process_alive(row["pid"], row["process"]):
            outcome, ended = "died", row["at"]
        idle_s = since(ended, row["ended_up"] if row["ended"] is not None else row["up"])
        found.append(
            Recovery(
                row["seq"],
                row["job"],
                row["action"],
                tuple(filter(None, row["hosts"].split(","))),
                row["why"],
                row["run"],
                row["at"],
                ended,
                since(row["at"], row["up"]),
                idle_s,
                outcome,
                row["message"],
            )
        )
    return found


def close_left(store: Database, key: str, who: Who) -> None:
    """Record as failed what this process began and could not record the end of, the disk being
    full. Only while it does none.
    """
    text, now, up = "its end could not be recorded", time.time(), boot_clock_ns() / 1e9
    store.write(
        "UPDATE recoveries SET outcome='failed', message=?, ended=?, ended_up=? WHERE tenancy=? AND outcome='' AND pid=? AND process=?",
        (text, now, up, key, who.pid, who.process),
    )


@dataclass
class Begun:
    """An attempt that has begun; `run` may be set once there is one."""

    store: Database
    seq: int

    def by(self, run: str) -> None:
        """Record the run that does it."""
        self.store.write("UPDATE recoveries SET run=? WHERE seq=?", (run, self.seq))


@contextmanager
def recovering(
    store: Database,
    lab: str,
    key: str,
    who: Who,
    *,
    job: int,
    name: str,
    action: str,
    hosts: Sequence[HostName],
    why: str,
    may: Callable[[list[Recovery]], str],
) -> Iterator[Begun]:
    """Record an attempt before it has any effect, and how it ended.

    may: called with the earlier attempts inside the transaction; a text is the reason why this one
    must not begin. Raises: Locked - with that reason; or the job was recovered already, or another
    recovery goes on. Nothing is recorded then.
    """
    with store.transaction() as db:
        past = recoveries(store, key)
        if any(one.job == job and one.outcome == "ok" for one in past):
            raise Locked(f"job {name} was recovered already", hint="testbed job status")
        if going := next((one for one in past if not one.outcome), None):
            raise Locked(f"a recovery goes on already: {going}", hint="testbed status")
        if refused := may(past):
            raise Locked(refused, hint="testbed status")
        now, up = time.time(), boot_clock_ns() / 1e9
        cursor = db.execute(
            "INSERT INTO recoveries(lab,tenancy,job,action,hosts,why,at,boot,up,pid,process) VALUES(?,?,?,?,?,?,?,?,?,?,?)",
            (lab, key, job, action, ",".join(hosts), why, now, boot_id(), up, who.pid, who.process),
        )
        add_audit(db, lab, who, now, "recovering", f"job {name}", f"{action}: {why}")
    begun = Begun(store, int(cursor.lastrowid or 0))
    outcome, text = "failed", "interrupted"
    try:
        yield begun
        outcome, text = "ok", ""
    except TestbedError as error:
        text = str(error)
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise
    finally:
        with store.transaction() as db:
            now, up = time.time(), boot_clock_ns() / 1e9
            db.execute(
                "UPDATE recoveries SET outcome=?, message=?, ended=?, ended_up=? WHERE seq=?",
                (outcome, text, now, up, begun.seq),
            )
            first = (text.splitlines() or [action])[0]
            add_audit(
                db,
                lab,
                who,
                now,
                "recovered" if outcome == "ok" else "not recovered",
                f"job {name}",
                first,
            )
