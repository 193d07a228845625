"""The run store: who changed what when, what is ours, what is up. One SQLite file, readable by its owner only.

A step is committed to disk before its effect, so that after any death the store names what may have happened; what did happen is
read from the devices. Times are wall seconds for people and monotonic nanoseconds for durations.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from optics import CrossConnect, Port, Setting, Slot, SpectralRoute
from optics.errors import TestbedError
from orchestrator.lablock import Holder, LabLock, process_mark
from orchestrator.reports import Json, to_json

__all__ = [
    "CurrentPlan",
    "Holder",
    "JobRecord",
    "LabLock",
    "LightPoint",
    "Run",
    "RunRecord",
    "Step",
    "StepRecord",
    "Store",
    "lab_key",
]

SCHEMA = 2

_TABLES = """
CREATE TABLE runs(
  id TEXT PRIMARY KEY, verb TEXT NOT NULL, lab TEXT NOT NULL, plan_name TEXT NOT NULL, plan_sha TEXT NOT NULL,
  plan_text TEXT NOT NULL, inventory TEXT NOT NULL, user TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL,
  process TEXT NOT NULL, started REAL NOT NULL, ended REAL, status TEXT NOT NULL, exit_code INTEGER,
  message TEXT NOT NULL DEFAULT '', summary TEXT NOT NULL DEFAULT '{}');
CREATE TABLE steps(
  run TEXT NOT NULL REFERENCES runs(id), seq INTEGER NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL, what TEXT NOT NULL,
  intent TEXT NOT NULL, inverse TEXT NOT NULL, state TEXT NOT NULL, planned REAL NOT NULL, began REAL, ended REAL, seconds REAL,
  result TEXT NOT NULL DEFAULT 'null', error TEXT NOT NULL DEFAULT '', PRIMARY KEY(run, seq));
CREATE TABLE current(
  lab TEXT PRIMARY KEY, run TEXT NOT NULL, plan_name TEXT NOT NULL, plan_sha TEXT NOT NULL, plan_text TEXT NOT NULL,
  links TEXT NOT NULL, generation INTEGER NOT NULL, since REAL NOT NULL);
CREATE TABLE generations(lab TEXT PRIMARY KEY, last INTEGER NOT NULL);
CREATE TABLE jobs(
  id INTEGER PRIMARY KEY, lab TEXT NOT NULL, run TEXT NOT NULL, name TEXT NOT NULL, spec TEXT NOT NULL, state TEXT NOT NULL,
  started REAL NOT NULL, ended REAL, detail TEXT NOT NULL DEFAULT '');
CREATE INDEX runs_by_lab ON runs(lab, started);
"""

# Schema 2: settings may be spectral routes (a cross-connect has the slot 0 to 0), and measured light is kept over runs.
_SINCE_2 = """
CREATE TABLE held(
  lab TEXT NOT NULL, device TEXT NOT NULL, ingress TEXT NOT NULL, egress TEXT NOT NULL,
  low_mhz INTEGER NOT NULL, high_mhz INTEGER NOT NULL, attenuation_db REAL NOT NULL, run TEXT NOT NULL, since REAL NOT NULL,
  PRIMARY KEY(lab, device, ingress, egress, low_mhz, high_mhz));
CREATE TABLE light(
  lab TEXT NOT NULL, circuit TEXT NOT NULL, path TEXT NOT NULL, at REAL NOT NULL, run TEXT NOT NULL, in_dbm REAL, out_dbm REAL,
  loss_db REAL);
CREATE INDEX light_by_circuit ON light(lab, circuit, path, at);
"""
_FROM_1 = "INSERT INTO held SELECT lab, device, ingress, egress, 0, 0, 0, run, since FROM owned; DROP TABLE owned"


def lab_key(name: str, addresses: Iterable[str]) -> str:
    """Name a lab by its devices' addresses, so that two copies of one inventory are one lab and two labs of one name are two."""
    safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in name) or "lab"
    return f"{safe}-{hashlib.sha256(chr(10).join(sorted(addresses)).encode()).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One row of the history. `status`: running, ok, failed, rolled-back, hands-needed, interrupted, died (process gone)."""

    id: str
    verb: str
    lab: str
    plan_name: str
    plan_sha: str
    plan_text: str = field(repr=False)
    inventory: str
    user: str
    host: str
    pid: int
    started: float
    ended: float | None
    status: str
    exit_code: int | None
    message: str
    summary: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One journalled effect. `state`: planned, doing (may or may not have happened), done, failed. Durations in seconds."""

    run: str
    seq: int
    kind: str
    subject: str
    what: str
    intent: Json
    inverse: Json
    state: str
    planned: float
    began: float | None
    ended: float | None
    seconds: float | None
    result: Json
    error: str


@dataclass(frozen=True, slots=True)
class CurrentPlan:
    """What was last brought up on a lab; `links` as the engine gave them (JSON), `since` wall seconds."""

    run: str
    plan_name: str
    plan_sha: str
    plan_text: str = field(repr=False)
    links: Json
    generation: int
    since: float


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One launched job; `spec` is the engine's (JSON)."""

    id: int
    lab: str
    run: str
    name: str
    spec: Json
    state: str
    started: float
    ended: float | None
    detail: str


@dataclass(frozen=True, slots=True)
class LightPoint:
    """What was measured of one circuit at one time (`at`, wall s), over the settings of `path`; None where no meter told.

    loss_db: between the meters, attenuation that was set on purpose taken off. run: empty for a look outside any run.
    """

    circuit: str
    path: str
    at: float
    in_dbm: float | None
    out_dbm: float | None
    loss_db: float | None
    run: str = ""


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
        words = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else error or ""
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

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self.id = run
        self.finished = False

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
        self._store._write(
            "UPDATE runs SET ended=?, status=?, exit_code=?, message=?, summary=?, plan_name=coalesce(?, plan_name) WHERE id=?",
            (time.time(), status, exit_code, message, json.dumps(to_json(summary or {})), plan_name, self.id),
        )

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.finished:
            return
        if error is None:
            self.finish("ok")
        elif isinstance(error, TestbedError):
            self.finish("failed", error.exit_code, str(error))
        elif isinstance(error, Exception):
            self.finish("failed", 1, f"{type(error).__name__}: {error}")
        else:  # KeyboardInterrupt, CancelledError: the operator stopped it
            self.finish("interrupted", 130, "interrupted")


class Store:
    """Opens or creates the store at `path`. Safe to use from several threads and processes.

    durable: force every commit to the disk (a power cut then loses nothing that was begun); off only for tests.
    Raises: TestbedError - the file is no store, or was written by a newer version.
    """

    def __init__(self, path: Path, *, durable: bool = True) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # SQLite would create it with the umask; the plan and the journal are nobody else's business.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        path.chmod(0o600)
        self._lock = threading.RLock()
        self._db = sqlite3.connect(path, timeout=10.0, isolation_level=None, check_same_thread=False)
        self._db.row_factory = sqlite3.Row
        try:
            self._prepare(durable)
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise TestbedError(f"{path}: {error}", hint=f"move it away to start a new one: mv {path} {path}.broken") from error
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
    ) -> Run:
        """Begin a run; its id is the local date and a number, `2026-11-21-0007`."""
        day = time.strftime("%Y-%m-%d")
        with self._transaction() as db:
            found = db.execute("SELECT max(id) AS id FROM runs WHERE id LIKE ? AND length(id)=15", (f"{day}-____",)).fetchone()
            run = f"{day}-{int(found['id'][-4:]) + 1 if found['id'] else 1:04d}"
            db.execute(
                "INSERT INTO runs(id,verb,lab,plan_name,plan_sha,plan_text,inventory,user,host,pid,process,started,status)"
                " VALUES(?,?,?,?,?,?,?,?,?,?,?,?,'running')",
                (
                    *(
                        run,
                        verb,
                        lab,
                        plan_name,
                        plan_sha,
                        plan_text,
                        str(inventory),
                        user or str(os.getuid()),
                        socket.gethostname(),
                    ),
                    *(os.getpid(), process_mark(os.getpid()), time.time()),
                ),
            )
        return Run(self, run)

    def history(self, lab: str | None = None, limit: int = 20) -> list[RunRecord]:
        """The latest runs, newest first."""
        rows = self._read(
            "SELECT * FROM runs WHERE ?1 IS NULL OR lab=?1 ORDER BY started DESC, id DESC LIMIT ?2",
            (lab, limit if limit > 0 else -1),
        )
        return [_run(row) for row in rows]

    def get(self, run: str) -> RunRecord | None:
        """One run by its id; `last` is the newest, and an unambiguous ending (`0007`) is enough."""
        if run == "last":
            newest = self.history(limit=1)
            return newest[0] if newest else None
        rows = self._read("SELECT * FROM runs WHERE id=?", (run,)) or self._read(
            "SELECT * FROM runs WHERE substr(id, -length(?1))=?1 AND length(?1)>0 ORDER BY started DESC LIMIT 2", (run,)
        )
        return _run(rows[0]) if len(rows) == 1 else None

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
            "SELECT summary FROM runs WHERE inventory=? AND verb=? AND status='ok' ORDER BY started DESC LIMIT 5",
            (str(inventory), verb),
        )
        seen: dict[str, list[float]] = {}
        for row in rows:
            phases = json.loads(row["summary"]).get("phases")
            for name, seconds in phases.items() if isinstance(phases, dict) else ():
                seen.setdefault(name, []).append(float(seconds))
        return {name: sorted(values)[len(values) // 2] for name, values in seen.items()}

    # -- ownership, the current plan, generations -------------------------------------------------------------------------------

    def owned(self, lab: str) -> frozenset[Setting]:
        """The settings this program made on the lab and has not taken down."""
        rows = self._read("SELECT device, ingress, egress, low_mhz, high_mhz, attenuation_db FROM held WHERE lab=?", (lab,))
        return frozenset(_setting(row) for row in rows)

    def own(self, lab: str, run: str, settings: Iterable[Setting]) -> None:
        """Note settings as ours; call before making them, so that a crash leaves none behind that nobody owns.

        A spectral route that is ours already gets the new attenuation.
        """
        now = time.time()
        with self._transaction() as db:
            db.executemany(
                "INSERT INTO held(lab,device,ingress,egress,low_mhz,high_mhz,attenuation_db,run,since) VALUES(?,?,?,?,?,?,?,?,?)"
                " ON CONFLICT DO UPDATE SET attenuation_db=excluded.attenuation_db",
                [(lab, *_route(s), s.attenuation_db if isinstance(s, SpectralRoute) else 0.0, run, now) for s in settings],
            )

    def disown(self, lab: str, settings: Iterable[Setting]) -> None:
        """Forget settings, whatever their attenuation; call after the device reported them gone."""
        with self._transaction() as db:
            db.executemany(
                "DELETE FROM held WHERE lab=? AND device=? AND ingress=? AND egress=? AND low_mhz=? AND high_mhz=?",
                [(lab, *_route(s)) for s in settings],
            )

    # -- light measured over runs -----------------------------------------------------------------------------------------------

    def add_light(self, lab: str, run: str, points: Iterable[LightPoint]) -> None:
        """Keep what was measured of circuits; `at` of each point is kept as it is."""
        with self._transaction() as db:
            db.executemany(
                "INSERT INTO light VALUES(?,?,?,?,?,?,?,?)",
                [(lab, p.circuit, p.path, p.at, run, p.in_dbm, p.out_dbm, p.loss_db) for p in points],
            )

    def light(self, lab: str) -> list[LightPoint]:
        """Everything measured of the lab's circuits, oldest first."""
        rows = self._read("SELECT circuit, path, at, run, in_dbm, out_dbm, loss_db FROM light WHERE lab=? ORDER BY at", (lab,))
        return [LightPoint(**dict(row)) for row in rows]

    def current(self, lab: str) -> CurrentPlan | None:
        """What is up on the lab as far as this store knows."""
        rows = self._read("SELECT run,plan_name,plan_sha,plan_text,links,generation,since FROM current WHERE lab=?", (lab,))
        return CurrentPlan(**{**dict(rows[0]), "links": json.loads(rows[0]["links"])}) if rows else None

    def set_current(
        self, lab: str, run: str, *, plan_name: str, plan_sha: str, plan_text: str, links: object, generation: int
    ) -> None:
        """Note what was brought up and verified."""
        self._write(
            "INSERT OR REPLACE INTO current VALUES(?,?,?,?,?,?,?,?)",
            (lab, run, plan_name, plan_sha, plan_text, json.dumps(to_json(links)), generation, time.time()),
        )

    def clear_current(self, lab: str) -> None:
        """Note that nothing of ours is up."""
        self._write("DELETE FROM current WHERE lab=?", (lab,))

    def next_generation(self, lab: str) -> int:
        """A number for a set of host routes, never given before for this lab; counts from 1."""
        with self._transaction() as db:
            db.execute("INSERT INTO generations VALUES(?,1) ON CONFLICT(lab) DO UPDATE SET last=last+1", (lab,))
            return int(db.execute("SELECT last FROM generations WHERE lab=?", (lab,)).fetchone()["last"])

    # -- jobs -------------------------------------------------------------------------------------------------------------------

    def add_job(self, lab: str, run: str, name: str, spec: object, state: str = "starting") -> int:
        """Note a job and return its id; call before launching it."""
        with self._transaction() as db:
            cursor = db.execute(
                "INSERT INTO jobs(lab,run,name,spec,state,started) VALUES(?,?,?,?,?,?)",
                (lab, run, name, json.dumps(to_json(spec)), state, time.time()),
            )
            return int(cursor.lastrowid or 0)

    def set_job(self, job: int, state: str, detail: str = "", *, ended: bool = False) -> None:
        """Note a job's state: starting, running, paused, stopped, finished or failed."""
        self._write("UPDATE jobs SET state=?, detail=?, ended=? WHERE id=?", (state, detail, time.time() if ended else None, job))

    def latest_job(self, lab: str) -> JobRecord | None:
        """The job launched last on the lab."""
        rows = self._read("SELECT * FROM jobs WHERE lab=? ORDER BY id DESC LIMIT 1", (lab,))
        return JobRecord(**{**dict(rows[0]), "spec": json.loads(rows[0]["spec"])}) if rows else None

    # -- inside -----------------------------------------------------------------------------------------------------------------

    def _prepare(self, durable: bool) -> None:
        self._db.execute("PRAGMA busy_timeout=10000")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
        with self._transaction() as db:
            version = int(db.execute("PRAGMA user_version").fetchone()[0])
            if version > SCHEMA:
                raise TestbedError(f"{self.path}: written by a newer testbed (schema {version}, this one knows {SCHEMA})")
            made = {0: (_TABLES, _SINCE_2), 1: (_SINCE_2, _FROM_1)}.get(version, ())
            for statement in (statement for script in made for statement in script.split(";")):
                db.execute(statement)
            if made:
                db.execute(f"PRAGMA user_version={SCHEMA}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _read(self, query: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        with self._lock:
            return self._db.execute(query, values).fetchall()

    def _write(self, query: str, values: Sequence[Any] = ()) -> None:
        with self._transaction() as db:
            db.execute(query, values)

    def _plan(self, run: str, effects: Iterable[tuple[str, str, str, object, object]]) -> list[Step]:
        now = time.time()
        steps = []
        with self._transaction() as db:
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
        with self._transaction() as db:
            db.executemany("UPDATE steps SET state='doing', began=? WHERE run=? AND seq=?", [(now, s.run, s.seq) for s in steps])
        for step in steps:
            step._began_ns = time.monotonic_ns()


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
    if values["status"] == "running" and values["host"] == socket.gethostname() and process_mark(values["pid"]) != process:
        values["status"] = "died"
    return RunRecord(**{**values, "summary": json.loads(values["summary"])})
