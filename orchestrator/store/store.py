"""The run store: who changed what when, what is ours, what is up. One SQLite file, readable by its owner only.

A step is committed to disk before its effect, so that after any death the store names what may have happened; what did happen is
read from the devices. Times are wall seconds for people and monotonic nanoseconds for durations.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from optics import CrossConnect, Port, Setting, Slot, SpectralRoute
from optics.errors import HandsNeeded, Interrupted, RolledBack, StoreFailed, TestbedError
from orchestrator.processes import process_alive, process_mark
from orchestrator.results import Json, to_json
from orchestrator.store.fault import is_fault, store_fault
from orchestrator.store.file import private_file, shared_file
from orchestrator.store.keys import lab_key, lab_of, slice_key
from orchestrator.store.records import Belonging, CurrentPlan, JobRecord, LightPoint, RunRecord, StepRecord
from orchestrator.store.schema import SCHEMA, upgrade

__all__ = [
    "Belonging",
    "CurrentPlan",
    "JobRecord",
    "LightPoint",
    "Run",
    "RunRecord",
    "Step",
    "StepRecord",
    "Store",
    "lab_key",
    "lab_of",
    "slice_key",
]

Fence: TypeAlias = Callable[[sqlite3.Connection], None]
"""Looks, inside the transaction that begins a step, whether the run still may. Raises: Locked - it may not; nothing was begun."""


class Step:
    """One effect of a run. Entering commits `doing` before the effect; leaving commits `done`, or `failed` with the error."""

    __slots__ = ("_began_ns", "_result", "_store", "run", "seq")

    def __init__(self, store: Store, run: str, seq: int) -> None:
        self._store, self.run, self.seq = store, run, seq
        self._result: Json = None
        self._began_ns = 0

    def result(self, value: object) -> None:
        """Keep what the effect reported (anything `to_json` takes); written when the step ends."""
        self._result = to_json(value)

    def begin(self) -> None:
        """Commit that the effect may happen from now on."""
        self._store._begin([self])

    def end(self, error: BaseException | str | None = None) -> None:
        """Commit how it ended."""
        seconds = (time.monotonic_ns() - self._began_ns) / 1e9 if self._began_ns else None
        words = _words(error) if isinstance(error, BaseException) else error or ""
        self._store._write(
            "UPDATE steps SET state=?, ended=?, seconds=?, result=?, error=? WHERE run=? AND seq=?",
            ("failed" if error is not None else "done", time.time(), seconds, json.dumps(self._result), words, self.run, self.seq),
        )

    def __enter__(self) -> Step:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end(error)


class Run:
    """The run being written. Use as a context manager, or call `finish` on every way out."""

    def __init__(self, store: Store, run: str, token: int = 0) -> None:
        self._store = store
        self.id = run
        self.token = token
        self.finished = False
        self.unchanged = False
        """Set when it failed before it changed anything: nothing is left that somebody must put right."""
        self._began_ns = time.monotonic_ns()

    def found(self, before: object, target: object) -> None:
        """Commit what was found and what is wanted (anything `to_json` takes); call before the first step begins."""
        self._store._write(
            "UPDATE runs SET before=?, target=? WHERE id=?", (json.dumps(to_json(before)), json.dumps(to_json(target)), self.id)
        )

    def fence(self, check: Fence) -> None:
        """Call `check` in the transaction of every step that begins from now on: what it raises keeps the step from beginning."""
        self._store._fences[self.id] = check

    def plan(self, kind: str, subject: str, what: str, intent: object = None, inverse: object = None) -> Step:
        """Note one effect to come, without beginning it. kind: device, host, job. intent, inverse: anything `to_json` takes."""
        return self.plan_all([(kind, subject, what, intent, inverse)])[0]

    def plan_all(self, effects: Iterable[tuple[str, str, str, object, object]]) -> list[Step]:
        """Note many effects to come in one commit: (kind, subject, what, intent, inverse) each."""
        return self._store._plan(self.id, effects)

    def begin_all(self, steps: Sequence[Step]) -> None:
        """Begin several steps in one commit: what runs in parallel pays for the disk once."""
        self._store._begin(steps)

    def step(self, kind: str, subject: str, what: str, intent: object = None, inverse: object = None) -> Step:
        """One effect, to be used as `with run.step(...) as step:`; committed as begun before the body runs."""
        return self.plan(kind, subject, what, intent, inverse)

    def finish(
        self,
        status: str,
        exit_code: int = 0,
        message: str = "",
        summary: Mapping[str, object] | None = None,
        *,
        plan_name: str | None = None,
    ) -> None:
        """Close the run. status: ok, failed, rolled-back, hands-needed or interrupted. summary: small numbers for the history."""
        self.finished = True
        seconds = (time.monotonic_ns() - self._began_ns) / 1e9
        self._store._write(
            "UPDATE runs SET ended=?, seconds=?, status=?, exit_code=?, message=?, summary=?, plan_name=coalesce(?, plan_name),"
            " resolved_by=coalesce(?, resolved_by) WHERE id=?",
            (
                *(time.time(), seconds, status, exit_code, message, json.dumps(to_json(summary or {})), plan_name),
                *(self.id if self.unchanged else None, self.id),
            ),
        )
        self._store._fences.pop(self.id, None)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.finished:
            return
        with suppress(StoreFailed) if error is not None else nullcontext():  # it reads as died, and the next command says so
            self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        if error is None:
            self.finish("ok")
        elif isinstance(error, TestbedError):
            self.finish(_STATUS.get(type(error), "failed"), error.exit_code, str(error))
        elif isinstance(error, Exception):
            self.finish("failed", 1, f"{type(error).__name__}: {error}")
        else:  # KeyboardInterrupt, CancelledError: the operator stopped it
            self.finish("interrupted", 130, "interrupted")


_STATUS: Mapping[type[TestbedError], str] = {
    RolledBack: "rolled-back",
    Interrupted: "rolled-back",
    HandsNeeded: "hands-needed",
}


class Store:
    """Opens or creates the store at `path`. Safe to use from several threads and processes.

    durable: force every commit to the disk (a power cut then loses nothing that was begun); off only for tests.
    shared: the members of a group use it together (`storefile.shared_file`).
    Raises: StoreFailed - it cannot be written, is damaged or no store, or was written by a newer version. UnsafeStore - others may
    write it.
    """

    def __init__(self, path: Path, *, durable: bool = True, shared: bool = False) -> None:
        self.path = path
        (shared_file if shared else private_file)(path)
        self._lock = threading.RLock()
        self._fences: dict[str, Fence] = {}
        self._db = sqlite3.connect(path, timeout=10.0, isolation_level=None, check_same_thread=False)
        self._db.row_factory = sqlite3.Row
        try:
            self._prepare(durable)
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise store_fault(path, error) from error
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def version(self) -> int:
        """A number that is another one once somebody else has written; asking costs no look at a table."""
        return int(self._read("PRAGMA data_version")[0][0])

    # -- runs -----------------------------------------------------------------------------------------------------------------

    def new_run(
        self,
        verb: str,
        lab: str,
        *,
        plan_name: str = "",
        plan_sha: str = "",
        plan_text: str = "",
        inventory: str | Path = "",
        user: str = "",
        owner: str = "",
        options: Mapping[str, object] | None = None,
    ) -> Run:
        """Begin a run on a lab; its id is the local date and a number, `2026-11-21-0007`, its token higher than any before.

        owner: whose slice it changes, the user's own unless said otherwise. options: of the verb, kept to be resumed with.
        """
        day = time.strftime("%Y-%m-%d")
        user = user or str(os.getuid())
        pid, mark = os.getpid(), process_mark(os.getpid())
        with self.transaction() as db:
            found = db.execute("SELECT max(id) AS id FROM runs WHERE id LIKE ? AND length(id)=15", (f"{day}-____",)).fetchone()
            run = f"{day}-{int(found['id'][-4:]) + 1 if found['id'] else 1:04d}"
            token = _count(db, "tokens", lab, int(time.time()))  # higher than a store's that was lost ever gave
            values = {
                "id": run,
                "verb": verb,
                "lab": lab,
                "plan_name": plan_name,
                "plan_sha": plan_sha,
                "plan_text": plan_text,
                "inventory": str(inventory),
                "user": user,
                "host": socket.gethostname(),
                "pid": pid,
                "process": mark,
                "started": time.time(),
                "status": "running",
                "owner": owner or user,
                "token": token,
                "options": json.dumps(to_json(options or {})),
            }
            marks = ",".join(f":{name}" for name in values)
            db.execute(f"INSERT INTO runs({','.join(values)}) VALUES({marks})", values)
        return Run(self, run, token)

    def history(self, lab: str | None = None, limit: int = 20) -> list[RunRecord]:
        """The latest runs, newest first."""
        rows = self._read(
            "SELECT * FROM runs WHERE ?1 IS NULL OR lab=?1 ORDER BY rowid DESC LIMIT ?2",  # not by a clock that somebody may set
            (lab, limit if limit > 0 else -1),
        )
        return [_run(row) for row in rows]

    def get(self, run: str) -> RunRecord | None:
        """One run by its id; `last` is the newest, and an unambiguous ending (`0007`) is enough."""
        if run == "last":
            newest = self.history(limit=1)
            return newest[0] if newest else None
        rows = self._read("SELECT * FROM runs WHERE id=?", (run,)) or self._read(
            "SELECT * FROM runs WHERE substr(id, -length(?1))=?1 AND length(?1)>0 LIMIT 2", (run,)
        )
        return _run(rows[0]) if len(rows) == 1 else None

    def journalled(self, run: str) -> tuple[Json, Json]:
        """What a run found before its first write and what it wanted; None each where it did not come so far."""
        rows = self._read("SELECT before, target FROM runs WHERE id=?", (run,))
        return (json.loads(rows[0]["before"]), json.loads(rows[0]["target"])) if rows else (None, None)

    def unfinished(self, lab: str, owner: str) -> list[RunRecord]:
        """Runs of this owner that stopped on their way and were not resumed, undone or superseded since; newest first."""
        rows = self._read(
            "SELECT * FROM runs WHERE lab=? AND owner=? AND resolved_by='' AND status NOT IN ('ok','rolled-back')"
            # What a guard did not confirm the hosts take back, and it looks anew; of the others `status` tells by itself.
            " AND verb NOT IN ('guard','confirm','job launch','sample') ORDER BY rowid DESC",
            (lab, owner),
        )
        return [record for record in map(_run, rows) if record.unfinished]

    def resolve(self, runs: Iterable[str], by: str) -> None:
        """Note that what these runs left half done was put right by another run."""
        with self.transaction() as db:
            db.executemany("UPDATE runs SET resolved_by=? WHERE id=? AND id<>?", [(by, run, by) for run in runs])

    def steps(self, run: str) -> list[StepRecord]:
        """The journalled effects of a run in their planned order."""
        rows = self._read("SELECT * FROM steps WHERE run=? ORDER BY seq", (run,))
        loads = json.loads
        return [
            StepRecord(**{**dict(r), "intent": loads(r["intent"]), "inverse": loads(r["inverse"]), "result": loads(r["result"])})
            for r in rows
        ]

    def expected_seconds(self, inventory: str | Path, verb: str) -> dict[str, float]:
        """Usual seconds per phase: the median over the last five good runs whose summary has `phases` ({name: seconds})."""
        rows = self._read(
            "SELECT summary FROM runs WHERE inventory=? AND verb=? AND status='ok' ORDER BY rowid DESC LIMIT 5",
            (str(inventory), verb),
        )
        seen: dict[str, list[float]] = {}
        for row in rows:
            phases = json.loads(row["summary"]).get("phases")
            for name, seconds in phases.items() if isinstance(phases, dict) else ():
                seen.setdefault(name, []).append(float(seconds))
        return {name: sorted(values)[len(values) // 2] for name, values in seen.items()}

    def last_token(self, lab: str) -> int:
        """The token of the lab's latest run, 0 if there was none."""
        rows = self._read("SELECT last FROM tokens WHERE lab=?", (lab,))
        return int(rows[0]["last"]) if rows else 0

    # -- ownership, the current plan, generations -------------------------------------------------------------------------------

    def owned(self, key: str) -> frozenset[Setting]:
        """The settings this program made for a slice (`slice_key`) and has not taken down."""
        rows = self._read("SELECT device, ingress, egress, low_mhz, high_mhz, attenuation_db FROM held WHERE lab=?", (key,))
        return frozenset(_setting(row) for row in rows)

    def owners(self, lab: str) -> dict[Setting, Belonging]:
        """Every setting of every slice of the lab, and whose it is."""
        rows = self._read(
            "SELECT held.*, coalesce(runs.plan_name, '') AS plan_name FROM held LEFT JOIN runs ON runs.id=held.run"
            " WHERE substr(held.lab, 1, length(?1)+1)=?1 || '/'",
            (lab,),
        )
        return {_setting(row): Belonging(row["lab"].partition("/")[2], row["run"], row["plan_name"]) for row in rows}

    def own(self, key: str, run: str, settings: Iterable[Setting]) -> None:
        """Note settings as ours; call before making them, so that a crash leaves none behind that nobody owns.

        A spectral route that is ours already gets the new attenuation. Whoever had one is not its owner any more: it is not there,
        else it were not made. Raises: as the run's fence.
        """
        now, settings = time.time(), list(settings)
        with self.transaction() as db:
            self._still(db, run)
            db.executemany(
                "DELETE FROM held WHERE substr(lab, 1, ?)=? AND lab<>? AND device=? AND ingress=? AND egress=?"
                " AND low_mhz=? AND high_mhz=?",
                [(len(all_of), all_of, key, *_route(s)) for all_of in (lab_of(key) + "/",) for s in settings],
            )
            db.executemany(
                "INSERT INTO held(lab,device,ingress,egress,low_mhz,high_mhz,attenuation_db,run,since) VALUES(?,?,?,?,?,?,?,?,?)"
                " ON CONFLICT DO UPDATE SET attenuation_db=excluded.attenuation_db",
                [(key, *_route(s), s.attenuation_db if isinstance(s, SpectralRoute) else 0.0, run, now) for s in settings],
            )

    def disown(self, key: str, settings: Iterable[Setting]) -> None:
        """Forget settings, whatever their attenuation; call after the device reported them gone."""
        with self.transaction() as db:
            db.executemany(
                "DELETE FROM held WHERE lab=? AND device=? AND ingress=? AND egress=? AND low_mhz=? AND high_mhz=?",
                [(key, *_route(s)) for s in settings],
            )

    # -- light measured over runs -----------------------------------------------------------------------------------------------

    def add_light(self, lab: str, run: str, points: Iterable[LightPoint]) -> None:
        """Keep what was measured of circuits; `at` of each point is kept as it is."""
        with self.transaction() as db:
            db.executemany(
                "INSERT INTO light VALUES(?,?,?,?,?,?,?,?)",
                [(lab, p.circuit, p.path, p.at, run, p.in_dbm, p.out_dbm, p.loss_db) for p in points],
            )

    def light(self, lab: str) -> list[LightPoint]:
        """Everything measured of the lab's circuits, oldest first."""
        rows = self._read("SELECT circuit, path, at, run, in_dbm, out_dbm, loss_db FROM light WHERE lab=? ORDER BY at", (lab,))
        return [LightPoint(**dict(row)) for row in rows]

    def current(self, key: str) -> CurrentPlan | None:
        """What is up on a slice as far as this store knows."""
        rows = self._read("SELECT run,plan_name,plan_sha,plan_text,links,generation,since FROM current WHERE lab=?", (key,))
        return _current(rows[0]) if rows else None

    def currents(self, lab: str) -> dict[str, CurrentPlan]:
        """What is up on the lab, by owner."""
        rows = self._read("SELECT * FROM current WHERE substr(lab, 1, length(?1)+1)=?1 || '/' ORDER BY lab", (lab,))
        return {row["lab"].partition("/")[2]: _current(row) for row in rows}

    def set_current(
        self, key: str, run: str, *, plan_name: str, plan_sha: str, plan_text: str, links: object, generation: int, by: str = ""
    ) -> None:
        """Note what was brought up and verified. by: the run that says so, if not `run`. Raises: as that run's fence."""
        with self.transaction() as db:
            self._still(db, by or run)
            db.execute(
                "INSERT OR REPLACE INTO current VALUES(?,?,?,?,?,?,?,?)",
                (key, run, plan_name, plan_sha, plan_text, json.dumps(to_json(links)), generation, time.time()),
            )

    def clear_current(self, key: str, by: str = "") -> None:
        """Note that nothing is up on the slice. by: the run that says so. Raises: as its fence."""
        with self.transaction() as db:
            self._still(db, by)
            db.execute("DELETE FROM current WHERE lab=?", (key,))

    def next_generation(self, lab: str, owner: str = "", run: str = "") -> int:
        """A number for a set of host routes, never given before for this lab; counts from 1. It is noted as the owner's."""
        with self.transaction() as db:
            number = _count(db, "generations", lab)
            db.execute("INSERT INTO generation_owners VALUES(?,?,?,?)", (lab, number, owner, run))
        return number

    def generations(self, lab: str) -> dict[int, Belonging]:
        """Whose every generation is that this store gave for the lab."""
        rows = self._read(
            "SELECT g.*, coalesce(runs.plan_name, '') AS plan_name FROM generation_owners g LEFT JOIN runs ON runs.id=g.run"
            " WHERE g.lab=?",
            (lab,),
        )
        return {row["generation"]: Belonging(row["owner"], row["run"], row["plan_name"]) for row in rows}

    def hand_over(self, lab: str, owner: str, to: str) -> None:
        """Make an owner's generations somebody else's: the hosts that run them are his to change."""
        self._write("UPDATE generation_owners SET owner=? WHERE lab=? AND owner=?", (to, lab, owner))

    # -- jobs -------------------------------------------------------------------------------------------------------------------

    def add_job(self, key: str, run: str, name: str, spec: object, state: str = "starting") -> int:
        """Note a job and return its id; call before launching it."""
        with self.transaction() as db:
            cursor = db.execute(
                "INSERT INTO jobs(lab,run,name,spec,state,started) VALUES(?,?,?,?,?,?)",
                (key, run, name, json.dumps(to_json(spec)), state, time.time()),
            )
            return int(cursor.lastrowid or 0)

    def set_job(self, job: int, state: str, detail: str = "", *, ended: bool = False) -> None:
        """Note a job's state: starting, running, paused, stopped, finished or failed."""
        self._write("UPDATE jobs SET state=?, detail=?, ended=? WHERE id=?", (state, detail, time.time() if ended else None, job))

    def latest_job(self, key: str) -> JobRecord | None:
        """The job launched last on the slice."""
        rows = self._read("SELECT * FROM jobs WHERE lab=? ORDER BY id DESC LIMIT 1", (key,))
        return _job(rows[0]) if rows else None

    def job(self, number: int) -> JobRecord | None:
        """One job by the id that `add_job` gave."""
        rows = self._read("SELECT * FROM jobs WHERE id=?", (number,))
        return _job(rows[0]) if rows else None

    # -- inside -----------------------------------------------------------------------------------------------------------------

    def _prepare(self, durable: bool) -> None:
        self._db.execute("PRAGMA busy_timeout=10000")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
        with self.transaction() as db:
            version = int(db.execute("PRAGMA user_version").fetchone()[0])
            if version > SCHEMA:
                raise StoreFailed(
                    f"{self.path}: was written by a newer testbed (schema {version}, this one knows up to {SCHEMA})",
                    hint="use that version or a newer one; the store is unharmed, leave it where it is",
                )
            upgrade(db, version)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, on disk when the body is left; for tables that other modules keep in the same file.

        One inside another is part of it. Raises: StoreFailed - it cannot be written; nothing of it is.
        """
        with self._lock:
            if self._db.in_transaction:
                yield self._db
                return
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            except BaseException as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error) and is_fault(error):
                    raise store_fault(self.path, error) from error
                raise

    def _read(self, query: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        try:
            with self._lock:
                return self._db.execute(query, values).fetchall()
        except sqlite3.DatabaseError as error:
            if is_fault(error):
                raise store_fault(self.path, error) from error
            raise

    def _write(self, query: str, values: Sequence[Any] = ()) -> None:
        with self.transaction() as db:
            db.execute(query, values)

    def _still(self, db: sqlite3.Connection, run: str) -> None:
        if (fence := self._fences.get(run)) is not None:
            fence(db)

    def _plan(self, run: str, effects: Iterable[tuple[str, str, str, object, object]]) -> list[Step]:
        now = time.time()
        steps = []
        with self.transaction() as db:
            seq = int(db.execute("SELECT coalesce(max(seq),0) FROM steps WHERE run=?", (run,)).fetchone()[0])
            for kind, subject, what, intent, inverse in effects:
                seq += 1
                db.execute(
                    "INSERT INTO steps(run,seq,kind,subject,what,intent,inverse,state,planned) VALUES(?,?,?,?,?,?,?,'planned',?)",
                    (run, seq, kind, subject, what, json.dumps(to_json(intent)), json.dumps(to_json(inverse)), now),
                )
                steps.append(Step(self, run, seq))
        return steps

    def _begin(self, steps: Sequence[Step]) -> None:
        now = time.time()
        with self.transaction() as db:
            for run in {step.run for step in steps}:
                self._still(db, run)
            db.executemany("UPDATE steps SET state='doing', began=? WHERE run=? AND seq=?", [(now, s.run, s.seq) for s in steps])
        for step in steps:
            step._began_ns = time.monotonic_ns()


def _words(error: BaseException) -> str:
    if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)):
        return "interrupted"
    return f"{type(error).__name__}: {error}"


def _count(db: sqlite3.Connection, table: str, lab: str, least: int = 1) -> int:
    """The next number of a counter that a lab has, `least` or more."""
    db.execute(f"INSERT INTO {table} VALUES(?1,?2) ON CONFLICT(lab) DO UPDATE SET last=max(last+1, ?2)", (lab, least))
    return int(db.execute(f"SELECT last FROM {table} WHERE lab=?", (lab,)).fetchone()["last"])


def _current(row: sqlite3.Row) -> CurrentPlan:
    values = {k: v for k, v in dict(row).items() if k != "lab"}
    return CurrentPlan(**{**values, "links": json.loads(values["links"])})


def _job(row: sqlite3.Row) -> JobRecord:
    return JobRecord(**{**dict(row), "spec": json.loads(row["spec"])})


def _route(setting: Setting) -> tuple[str, str, str, int, int]:
    slot = (setting.slot.low_mhz, setting.slot.high_mhz) if isinstance(setting, SpectralRoute) else (0, 0)
    return (setting.ingress.device, setting.ingress.label, setting.egress.label, *slot)


def _setting(row: sqlite3.Row) -> Setting:
    ports = Port(row["device"], row["ingress"]), Port(row["device"], row["egress"])
    if not row["high_mhz"]:
        return CrossConnect(*ports)
    return SpectralRoute(*ports, Slot(row["low_mhz"], row["high_mhz"]), row["attenuation_db"])


def _run(row: sqlite3.Row) -> RunRecord:
    values = dict(row)
    process = values.pop("process")
    values.pop("target")
    values["begun"] = values.pop("before") != "null"
    if values["status"] == "running" and values["host"] == socket.gethostname() and not process_alive(values["pid"], process):
        values["status"] = "died"
    return RunRecord(**{**values, "summary": json.loads(values["summary"]), "options": json.loads(values["options"])})
