"""The queue of a lab's jobs in the store. Each state is written before what it stands for is done,
and only if the last one stands.

waiting -> starting (it has hosts and a plan) -> running -> stopping -> waiting again, done or
failed. A process that died between a state and its act leaves the state; whoever finds it does the
act, which may have been done already, again.
"""

from __future__ import annotations

import json
import socket
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from optics import HostName
from optics.errors import Interlock, Locked, Missing
from orchestrator.inventory.partitions import compatible_hosts
from orchestrator.processes import boot_clock_ns, boot_id, process_alive
from orchestrator.store.audit import Who, add_audit
from orchestrator.store.database import Database
from orchestrator.store.keys import tenancy_key

State = Literal["waiting", "starting", "running", "stopping", "done", "failed"]
ENDED: tuple[State, ...] = ("done", "failed")
LIVE: tuple[State, ...] = tuple(state for state in get_args(State) if state not in ENDED)
HOLDING: tuple[State, ...] = ("starting", "running", "stopping")
"""States in which a job has hosts."""
MOST_OWNER = 48
"""Characters of an owner in the name of a job's tenancy, which has at most 64."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """One job of the queue. tenancy: the owner under which its plan is up, its own. text: of its
    workload, or without method plan.

    count: of hosts. for_s: how long it may run, in all; used_s: of which earlier times. iterations:
    to do in all, 0: until its time is over; done: of these, earlier. generation: how often it was
    given hosts. since: of the state, wall s; age_s: the same as a duration, by the boot clock where
    the machine was not restarted. next: the state after stopping. tries: failed starts in a row.
    retry_s: how long it rests (s) once it waits after a failed start.
    """

    number: int
    lab: str
    owner: str
    user: str
    tenancy: str
    name: str
    text: str = field(repr=False)
    method: str
    count: int
    for_s: float
    preemptible: bool
    iterations: int
    added: float
    state: State
    generation: int
    hosts: tuple[HostName, ...]
    plan_text: str = field(repr=False)
    since: float
    age_s: float
    used_s: float
    done: int
    next: str
    detail: str
    tries: int
    retry_s: float

    @property
    def left_s(self) -> float:
        """How much longer (s) it may run; below zero if it is overdue."""
        return self.for_s - self.used_s - (self.age_s if self.state == "running" else 0.0)

    @property
    def rests(self) -> bool:
        """Whether it waits, but is not to be started yet."""
        return self.state == "waiting" and self.age_s < self.retry_s

    @property
    def key(self) -> str:
        """The key of its tenancy in the store."""
        return tenancy_key(self.lab, self.tenancy)

    def __str__(self) -> str:
        return f"{self.number} ({self.name} of {self.owner})"


def add(
    store: Database,
    lab: str,
    who: Who,
    *,
    name: str,
    text: str,
    method: str,
    count: int,
    for_s: float,
    preemptible: bool = False,
    iterations: int = 0,
) -> QueuedJob:
    """Append a job; its number is new on this store, its tenancy one that nobody uses."""
    now = time.time()
    with store.transaction() as db:
        number = int(db.execute("SELECT coalesce(max(number),0)+1 FROM queue").fetchone()[0])
        # a lost store begins at 1 again
        used = "SELECT lab FROM held WHERE lab=?1 UNION SELECT lab FROM current WHERE lab=?1"
        while db.execute(
            used, (tenancy_key(lab, tenancy := f"{who.owner[:MOST_OWNER]}.q{number}"),)
        ).fetchone():
            number += 1
        boot, up = _clock()
        values = {
            "number": number,
            "lab": lab,
            "owner": who.owner,
            "user": who.user,
            "tenancy": tenancy,
            "name": name,
            "text": text,
        }
        values |= {
            "method": method,
            "count": count,
            "for_s": for_s,
            "preemptible": preemptible,
            "iterations": iterations,
        }
        values |= {"added": now, "state": "waiting", "since": now, "boot": boot, "up": up}
        db.execute(
            f"INSERT INTO queue({','.join(values)}) VALUES({','.join(f':{name}' for name in values)})",
            values,
        )
        add_audit(
            db, lab, who, now, "queued", f"job {number}", f"{name} on {count} hosts for {for_s:g} s"
        )
        return _only(db, number)


def queued(store: Database, lab: str, *, ended: int = 0) -> list[QueuedJob]:
    """The jobs that have not ended, in the order in which they came, and the latest `ended` of
    those that have, before them.
    """
    marks = ",".join("?" * len(LIVE))
    rows = store.read(
        f"SELECT * FROM queue WHERE lab=? AND state IN ({marks}) ORDER BY number", (lab, *LIVE)
    )
    old = store.read(
        f"SELECT * FROM queue WHERE lab=? AND state NOT IN ({marks}) ORDER BY since DESC LIMIT ?",
        (lab, *LIVE, ended),
    )
    return [_job(row) for row in (*reversed(old), *rows)]


def get(store: Database, lab: str, number: int) -> QueuedJob | None:
    """One job by its number."""
    rows = store.read("SELECT * FROM queue WHERE lab=? AND number=?", (lab, number))
    return _job(rows[0]) if rows else None


def claim(
    store: Database, who: Who, job: QueuedJob, hosts: Sequence[HostName], plan_text: str
) -> QueuedJob | None:
    """Give a waiting job these hosts: it is starting. None: it does not wait any more, or another
    job has one of them by now.
    """
    with store.transaction() as db:
        marks = ",".join("?" * len(HOLDING))
        held = db.execute(
            f"SELECT hosts FROM queue WHERE lab=? AND state IN ({marks})", (job.lab, *HOLDING)
        ).fetchall()
        if len(
            compatible_hosts(hosts, {host for row in held for host in json.loads(row["hosts"])})
        ) < len(hosts):
            return None
        more = {
            "generation": job.generation + 1,
            "hosts": json.dumps(hosts),
            "plan_text": plan_text,
            "detail": "",
        }
        return _moved(db, who, job, "starting", **more)


def change_job_state(
    store: Database, who: Who, job: QueuedJob, state: State, **values: object
) -> QueuedJob | None:
    """Give a job its next state, and columns new values. None: it is not in the state in which the
    caller knows it any more.

    The time that it has run is added up when it leaves `running`; it has no hosts any more once it
    waits or has ended.
    """
    with store.transaction() as db:
        return _moved(db, who, job, state, **values)


def record_stopped(
    store: Database, who: Who, job: QueuedJob, iterations: int, why: str, finished: str
) -> QueuedJob | None:
    """Record that a job has been stopped, after so many more iterations, and why. finished: in
    words, that it had finished by itself: it does not wait again. None: as `change_job_state`."""
    with store.transaction() as db:
        now = _only(db, job.number)  # it may have been dropped while it was being stopped
        done = now.done + iterations
        over = now.left_s <= 0 or (now.iterations and done >= now.iterations)
        state: State = (
            "failed"
            if now.next == "failed"
            else "done"
            if over or now.next == "done"
            else "waiting"
        )
        if state == "waiting" and finished:
            state, why = "done", finished
        return _moved(db, who, job, state, done=done, detail=why)


def keeps(store: Database, job: QueuedJob, hosts: Sequence[HostName]) -> None:
    """Record that a job that is being stopped has only these hosts left; the others are free."""
    store.write(
        "UPDATE queue SET hosts=? WHERE number=? AND state='stopping'",
        (json.dumps(sorted(hosts)), job.number),
    )


def serve(store: Database, lab: str, who: Who) -> None:
    """Record that this process serves the user's jobs. Raises: Locked - another one does."""
    with store.transaction() as db:
        row = db.execute(
            "SELECT * FROM queue_servers WHERE lab=? AND user=?", (lab, who.user)
        ).fetchone()
        if row is not None and _serves(row) and (row["host"], row["pid"]) != (who.host, who.pid):
            raise Locked(
                f"the queue of {who.user} is served already by pid {row['pid']} on {row['host']}",
                hint="testbed service stop queue",
            )
        values = (lab, who.user, who.host, who.pid, who.process)
        db.execute(
            "INSERT OR REPLACE INTO queue_servers(lab,user,host,pid,process) VALUES(?,?,?,?,?)",
            values,
        )


def serves(store: Database, lab: str, who: Who) -> bool:
    """Whether it is this process that serves the user's jobs: another machine may have been ordered
    that it does not (`given_up`).
    """
    rows = store.read("SELECT host,pid FROM queue_servers WHERE lab=? AND user=?", (lab, who.user))
    return [(row["host"], row["pid"]) for row in rows] == [(who.host, who.pid)]


def unserve(store: Database, lab: str, who: Who) -> None:
    """Record that this process serves the user's jobs no more."""
    store.write(
        "DELETE FROM queue_servers WHERE lab=? AND user=? AND host=? AND pid=?",
        (lab, who.user, who.host, who.pid),
    )


def given_up(store: Database, lab: str, who: Who) -> str:
    """Have no process of another machine serve the user's jobs: one that lives ends. Returns that
    machine, or nothing.
    """
    with store.transaction() as db:
        row = db.execute(
            "SELECT host FROM queue_servers WHERE lab=? AND user=?", (lab, who.user)
        ).fetchone()
        if row is None or row["host"] == who.host:
            return ""
        db.execute("DELETE FROM queue_servers WHERE lab=? AND user=?", (lab, who.user))
        return str(row["host"])


def served(store: Database, lab: str) -> frozenset[str]:
    """The users whose jobs a process serves now; of one on another machine it is not known that it
    has ended.
    """
    return frozenset(
        row["user"]
        for row in store.read("SELECT * FROM queue_servers WHERE lab=?", (lab,))
        if _serves(row)
    )


def _serves(row: sqlite3.Row) -> bool:
    return bool(row["host"] != socket.gethostname() or process_alive(row["pid"], row["process"]))


def note_obstacle(store: Database, job: QueuedJob, detail: str) -> None:
    """Say of a job what keeps its act from being done."""
    store.write(
        "UPDATE queue SET detail=? WHERE number=? AND state=? AND generation=?",
        (detail, job.number, job.state, job.generation),
    )


def drop(store: Database, lab: str, who: Who, number: int) -> QueuedJob:
    """Take a job out: one that waits is done, one that has hosts is stopped first.

    Raises: Missing - there is none of this number, or it has ended. Interlock - it is another
    owner's.
    """
    with store.transaction() as db:
        row = db.execute("SELECT * FROM queue WHERE lab=? AND number=?", (lab, number)).fetchone()
        job = _job(row) if row is not None else None
        if job is None:
            raise Missing(
                f"there is no job {number} in the queue of this lab", hint="testbed job queue"
            )
        if job.owner != who.owner:
            raise Interlock(
                f"job {job} is {job.owner}'s", hint=f"ask {job.owner}, or add: --as {job.owner}"
            )
        if job.state in ENDED:
            raise Missing(
                f"job {job} has ended already: {job.state}", hint="testbed job queue list --all"
            )
        text = f"dropped by {who.user}"
        if job.state == "waiting":
            found = _moved(db, who, job, "done", detail=text)
        elif job.state == "stopping":
            db.execute("UPDATE queue SET next='done' WHERE number=?", (number,))
            found = _only(db, number)
        else:
            found = _moved(db, who, job, "stopping", next="done", detail=text)
        assert found is not None
        return found


def _moved(
    db: sqlite3.Connection, who: Who, job: QueuedJob, state: State, **values: object
) -> QueuedJob | None:
    now, (boot, up) = time.time(), _clock()
    row = db.execute("SELECT * FROM queue WHERE number=?", (job.number,)).fetchone()
    if row is None or (row["state"], row["generation"]) != (job.state, job.generation):
        return None
    values |= {"state": state, "since": now, "boot": boot, "up": up}
    if job.state == "running":
        values["used_s"] = row["used_s"] + _job(row).age_s
    if state not in HOLDING:
        values["hosts"] = "[]"
    db.execute(
        f"UPDATE queue SET {','.join(f'{name}=:{name}' for name in values)} WHERE number=:is",
        values | {"is": job.number},
    )
    why = str(values.get("detail") or "")
    add_audit(
        db,
        job.lab,
        who,
        now,
        f"queue: {state}",
        f"job {job.number}",
        f"{job.name}" + (f"; {why}" if why else ""),
    )
    return _only(db, job.number)


def _clock() -> tuple[str, float]:
    return boot_id(), boot_clock_ns() / 1e9


def _only(db: sqlite3.Connection, number: int) -> QueuedJob:
    return _job(db.execute("SELECT * FROM queue WHERE number=?", (number,)).fetchone())


def _job(row: sqlite3.Row) -> QueuedJob:
    values = dict(row)
    boot, up = _clock()
    was_boot, was_up = values.pop("boot"), values.pop("up")
    age_s = up - was_up if was_boot == boot else time.time() - values["since"]
    values |= {
        "hosts": tuple(json.loads(row["hosts"])),
        "preemptible": bool(row["preemptible"]),
        "age_s": max(age_s, 0.0),
    }
    return QueuedJob(**values)
