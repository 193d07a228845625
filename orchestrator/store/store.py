"""The run store: who changed what and when, which circuits and plans each owner has. One SQLite
file, readable by its owner only.

A step is committed to disk before its effect, so that after any crash the store lists what may have
happened; what did happen is read from the devices. Times are wall seconds for people and monotonic
nanoseconds for durations.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path

from optics import CrossConnect, FrequencySlot, Locked, Port, Setting, SpectralRoute
from orchestrator.fabric.up_state import UpState
from orchestrator.processes import process_alive, process_mark
from orchestrator.results import Json
from orchestrator.store.database import Database, next_number
from orchestrator.store.job_spec import JobSpec
from orchestrator.store.keys import lab_of, owner_of
from orchestrator.store.options import NO_OPTIONS, RunOptions
from orchestrator.store.records import Belonging, CurrentPlan, JobRecord, RunRecord, StepRecord
from orchestrator.store.run import Run


class Store(Database):
    """The runs of all labs, the circuits and plans of each owner, and jobs. Opens or creates the
    file; see `Database`.
    """

    # -- runs
    # -----------------------------------------------------------------------------------------------------------------

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
        options: RunOptions = NO_OPTIONS,
    ) -> Run:
        """Begin a run on a lab; its id is the local date and a number, `2026-11-21-0007`, its token
        higher than any before.

        owner: the owner of the tenancy it changes, by default the user. options: of the verb, kept
        for `resume`.
        """
        day = time.strftime("%Y-%m-%d")
        user = user or str(os.getuid())
        pid, mark = os.getpid(), process_mark(os.getpid())
        with self.transaction() as db:
            found = db.execute(
                "SELECT max(id) AS id FROM runs WHERE id LIKE ? AND length(id)=15", (f"{day}-____",)
            ).fetchone()
            run = f"{day}-{int(found['id'][-4:]) + 1 if found['id'] else 1:04d}"
            # higher than any token of a lost store
            token = next_number(db, "tokens", lab, int(time.time()))
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
                "options": json.dumps(options.to_json()),
            }
            marks = ",".join(f":{name}" for name in values)
            db.execute(f"INSERT INTO runs({','.join(values)}) VALUES({marks})", values)
        return Run(self, run, token)

    def history(self, lab: str | None = None, limit: int = 20) -> list[RunRecord]:
        """The latest runs, newest first."""
        rows = self.read(
            # not by the wall clock, which may be set
            "SELECT * FROM runs WHERE ?1 IS NULL OR lab=?1 ORDER BY rowid DESC LIMIT ?2",
            (lab, limit if 0 < limit < 1 << 63 else -1),
        )
        return [_run(row) for row in rows]

    def get(self, run: str) -> RunRecord | None:
        """One run by its id; `last` is the newest, and an unambiguous ending (`0007`) is enough."""
        if run == "last":
            newest = self.history(limit=1)
            return newest[0] if newest else None
        rows = self.read("SELECT * FROM runs WHERE id=?", (run,)) or self.read(
            "SELECT * FROM runs WHERE substr(id, -length(?1))=?1 AND length(?1)>0 LIMIT 2", (run,)
        )
        return _run(rows[0]) if len(rows) == 1 else None

    def journalled(self, run: str) -> tuple[Json, Json]:
        """The state a run found before its first write, and its target; None each if it did not get
        that far.
        """
        rows = self.read("SELECT before, target FROM runs WHERE id=?", (run,))
        return (
            (json.loads(rows[0]["before"]), json.loads(rows[0]["target"])) if rows else (None, None)
        )

    def unfinished(self, lab: str, owner: str) -> list[RunRecord]:
        """Runs of this owner that stopped half way and were not resumed, undone or superseded
        since; newest first.
        """
        rows = self.read(
            "SELECT * FROM runs WHERE lab=? AND owner=? AND resolved_by='' AND status NOT IN ('ok','rolled-back')"
            # Hosts revert what a guard did not confirm, and it starts over; `status` shows the
            # others on its own; a host is on or off, never half.
            " AND verb NOT IN ('guard','confirm','host power','job launch','job restart','sample') ORDER BY rowid DESC",
            (lab, owner),
        )
        return [record for record in map(_run, rows) if record.unfinished]

    def resolve(self, runs: Iterable[str], by: str) -> None:
        """Record that another run repaired what these runs, and those that they had repaired, left
        half done.
        """
        with self.transaction() as db:
            text = "UPDATE runs SET resolved_by=?1 WHERE (id=?2 OR resolved_by=?2) AND id<>?1"
            db.executemany(text, [(by, run) for run in runs])

    def steps(self, run: str) -> list[StepRecord]:
        """The journalled effects of a run in their planned order."""
        rows = self.read("SELECT * FROM steps WHERE run=? ORDER BY seq", (run,))
        loads = json.loads
        return [
            StepRecord(
                **{
                    **dict(r),
                    "intent": loads(r["intent"]),
                    "inverse": loads(r["inverse"]),
                    "result": loads(r["result"]),
                }
            )
            for r in rows
        ]

    def expected_seconds(self, inventory: str | Path, verb: str) -> dict[str, float]:
        """Usual seconds per phase: the median over the last five good runs whose summary has
        `phases` ({name: seconds}).
        """
        rows = self.read(
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
        rows = self.read("SELECT last FROM tokens WHERE lab=?", (lab,))
        return int(rows[0]["last"]) if rows else 0

    # -- ownership, the current plan, generations
    # -------------------------------------------------------------------------------

    def owned(self, key: str) -> frozenset[Setting]:
        """The settings made for a tenancy (`tenancy_key`) and not taken down."""
        rows = self.read(
            "SELECT device, ingress, egress, low_mhz, high_mhz, attenuation_db FROM held WHERE lab=?",
            (key,),
        )
        return frozenset(_setting(row) for row in rows)

    def owners(self, lab: str) -> dict[Setting, Belonging]:
        """Every setting of every tenancy of the lab, with its owner."""
        rows = self.read(
            "SELECT held.*, coalesce(runs.plan_name, '') AS plan_name FROM held LEFT JOIN runs ON runs.id=held.run"
            " WHERE substr(held.lab, 1, length(?1)+1)=?1 || '/'",
            (lab,),
        )
        return {
            _setting(row): Belonging(owner_of(row["lab"]), row["run"], row["plan_name"])
            for row in rows
        }

    def own(self, key: str, run: str, settings: Iterable[Setting]) -> None:
        """Record settings as the owner's; call before making them, so that a crash leaves none
        without an owner.

        A setting that is recorded already is from now on of `run`, a spectral route with the new
        attenuation. A setting recorded for another owner is taken from that owner: it cannot be
        lit, or it would not be made now. Raises: as the run's fence.
        """
        now, settings = time.time(), list(settings)
        with self.transaction() as db:
            self.check_fence(db, run)
            db.executemany(
                "DELETE FROM held WHERE substr(lab, 1, ?)=? AND lab<>? AND device=? AND ingress=? AND egress=?"
                " AND low_mhz=? AND high_mhz=?",
                [
                    (len(all_of), all_of, key, *_route(s))
                    for all_of in (lab_of(key) + "/",)
                    for s in settings
                ],
            )
            db.executemany(
                "INSERT INTO held(lab,device,ingress,egress,low_mhz,high_mhz,attenuation_db,run,since) VALUES(?,?,?,?,?,?,?,?,?)"
                " ON CONFLICT DO UPDATE SET attenuation_db=excluded.attenuation_db, run=excluded.run",
                [
                    (
                        key,
                        *_route(s),
                        s.attenuation_db if isinstance(s, SpectralRoute) else 0.0,
                        run,
                        now,
                    )
                    for s in settings
                ],
            )

    def disown(self, key: str, settings: Iterable[Setting], by: str = "") -> None:
        """Delete settings, whatever their attenuation; call after the device reported them gone.

        by: the run that read the device. What another run recorded stays while that one lives: its
        light may come later. Nothing is deleted if the lab was taken from `by`: whoever has it may
        have made them again.
        """
        with self.transaction() as db:
            try:
                self.check_fence(db, by)
            except Locked:
                return
            query = (
                "SELECT DISTINCT runs.id, runs.host, runs.pid, runs.process FROM held JOIN runs ON runs.id=held.run"
                " WHERE held.lab=? AND runs.id<>? AND runs.exit_code IS NULL"
            )
            others = [row["id"] for row in db.execute(query, (key, by)) if _alive(row)]
            db.executemany(
                "DELETE FROM held WHERE lab=? AND device=? AND ingress=? AND egress=? AND low_mhz=? AND high_mhz=?"
                f" AND run NOT IN ({','.join('?' * len(others))})",
                [(key, *_route(s), *others) for s in settings],
            )

    def current(self, key: str) -> CurrentPlan | None:
        """The current plan of a tenancy according to this store."""
        rows = self.read(
            "SELECT run,plan_name,plan_sha,plan_text,up,generation,since FROM current WHERE lab=?",
            (key,),
        )
        return _current(rows[0]) if rows else None

    def currents(self, lab: str) -> dict[str, CurrentPlan]:
        """The current plans of the lab, by owner."""
        rows = self.read(
            "SELECT * FROM current WHERE substr(lab, 1, length(?1)+1)=?1 || '/' ORDER BY lab",
            (lab,),
        )
        return {owner_of(row["lab"]): _current(row) for row in rows}

    def set_current(
        self,
        key: str,
        run: str,
        *,
        plan_name: str,
        plan_sha: str,
        plan_text: str,
        up: UpState,
        generation: int,
        by: str = "",
    ) -> None:
        """Record the plan that was brought up and verified. by: the reporting run, if not `run`.
        Raises: as that run's fence.
        """
        with self.transaction() as db:
            self.check_fence(db, by or run)
            db.execute(
                "INSERT OR REPLACE INTO current VALUES(?,?,?,?,?,?,?,?)",
                (
                    key,
                    run,
                    plan_name,
                    plan_sha,
                    plan_text,
                    json.dumps(up.to_json()),
                    generation,
                    time.time(),
                ),
            )

    def keep_current(self, key: str, known: CurrentPlan, by: str) -> None:
        """As `set_current`, of a plan that this store knew; its `since` is now."""
        self.set_current(
            key,
            known.run,
            plan_name=known.plan_name,
            plan_sha=known.plan_sha,
            plan_text=known.plan_text,
            up=known.up,
            generation=known.generation,
            by=by,
        )

    def clear_current(self, key: str, by: str = "") -> None:
        """Record that no plan is up on the tenancy. by: the run that reports it. Raises: as its
        fence.
        """
        with self.transaction() as db:
            self.check_fence(db, by)
            db.execute("DELETE FROM current WHERE lab=?", (key,))

    # -- jobs
    # -------------------------------------------------------------------------------------------------------------------

    def add_job(self, key: str, run: str, name: str, spec: JobSpec, state: str = "starting") -> int:
        """Record a job and return its id; call before launching it. Raises: as the run's fence."""
        with self.transaction() as db:
            self.check_fence(db, run)
            cursor = db.execute(
                "INSERT INTO jobs(lab,run,name,spec,state,started) VALUES(?,?,?,?,?,?)",
                (key, run, name, json.dumps(spec.to_json()), state, time.time()),
            )
            return int(cursor.lastrowid or 0)

    def set_job(self, job: int, state: str, detail: str = "", *, ended: bool = False) -> None:
        """Record a job's state: starting, running, paused, stopped, finished or failed."""
        self.write(
            "UPDATE jobs SET state=?, detail=?, ended=? WHERE id=?",
            (state, detail, time.time() if ended else None, job),
        )

    def set_job_spec(self, job: int, spec: JobSpec) -> None:
        """Note what a job runs as now."""
        self.write("UPDATE jobs SET spec=? WHERE id=?", (json.dumps(spec.to_json()), job))

    def latest_job(self, key: str) -> JobRecord | None:
        """The job launched last on the tenancy."""
        rows = self.read("SELECT * FROM jobs WHERE lab=? ORDER BY id DESC LIMIT 1", (key,))
        return _job(rows[0]) if rows else None

    def job(self, number: int) -> JobRecord | None:
        """One job by the id that `add_job` gave."""
        rows = self.read("SELECT * FROM jobs WHERE id=?", (number,))
        return _job(rows[0]) if rows else None


def _current(row: sqlite3.Row) -> CurrentPlan:
    values = {k: v for k, v in dict(row).items() if k != "lab"}
    return CurrentPlan.of_json({**values, "up": json.loads(values["up"])})


def _job(row: sqlite3.Row) -> JobRecord:
    return JobRecord(**{**dict(row), "spec": JobSpec.of_json(json.loads(row["spec"]))})


def _route(setting: Setting) -> tuple[str, str, str, int, int]:
    slot = (
        (setting.slot.low_mhz, setting.slot.high_mhz)
        if isinstance(setting, SpectralRoute)
        else (0, 0)
    )
    return (setting.ingress.device, setting.ingress.label, setting.egress.label, *slot)


def _setting(row: sqlite3.Row) -> Setting:
    ports = Port(row["device"], row["ingress"]), Port(row["device"], row["egress"])
    if not row["high_mhz"]:
        return CrossConnect(*ports)
    return SpectralRoute(
        *ports, FrequencySlot(row["low_mhz"], row["high_mhz"]), row["attenuation_db"]
    )


def _alive(row: sqlite3.Row) -> bool:
    """Whether the process of a run is there; taken to be, on another machine."""
    return row["host"] != socket.gethostname() or process_alive(row["pid"], row["process"])


def _run(row: sqlite3.Row) -> RunRecord:
    values = dict(row)
    values.pop("process")
    values.pop("target")
    values["begun"] = values.pop("before") != "null"
    if values["status"] == "running" and not _alive(row):
        values["status"] = "died"
    return RunRecord(
        **{
            **values,
            "summary": json.loads(values["summary"]),
            "options": RunOptions.of_json(json.loads(values["options"])),
        }
    )
