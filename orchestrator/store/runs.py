"""Queries of runs: the latest that counts for a verb, and those that other rows need."""

from __future__ import annotations

import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from optics import Missing
from orchestrator.store.records import RunRecord
from orchestrator.store.store import Store
from orchestrator.store.verbs import verb_of

KEEP = 200
"""Default number of runs to keep."""
MANY, LARGE_MB = 1000, 1000
"""From this many runs or megabytes on, `doctor` suggests pruning."""

SENDING_S = 3600.0
"""No run sends a device its commands for longer than this (s): a robot of 48 moves takes less."""
LISTED = 5
"""Of the latest runs, in an error."""


def named(store: Store, run: str, noun: str = "run") -> RunRecord:
    """The run of this id, ending of an id, or `last`. Raises: Missing - none, or several; the
    message lists runs.
    """
    record = store.get(run)
    if record is None:
        found = [one.id for one in store.history(limit=0)]
        alike = [one for one in found if run and one.endswith(run)]
        if alike:
            raise Missing(
                f"{len(alike)} runs end in {run!r}, the latest are {', '.join(alike[:LISTED])}",
                hint="give more of its id",
            )
        latest = f"the latest are {', '.join(found[:LISTED])}" if found else "there are no runs yet"
        raise Missing(f"there is no {noun} {run!r}; {latest}", hint="testbed run list")
    return record


def latest_change(store: Store, lab: str, owner: str, before: str = "") -> RunRecord:
    """The owner's latest run that changed something and did not roll itself back; `before`: this
    run. Raises: Missing.
    """
    history = iter(store.history(lab, 0))
    if before:
        next((record for record in history if record.id == before), None)
    for record in history:
        # of a measurement that died, half of the light
        change = record.begun and (verb_of(record.verb).light or record.unfinished)
        if (
            change
            and record.owner == owner
            and record.status not in ("running", "rolled-back")
            and record.resolved_by != record.id
        ):
            return record
    raise Missing("no change has been made yet that could be rolled back", hint="testbed run list")


def first_of(store: Store, run: RunRecord, *, half: bool) -> RunRecord:
    """The first of the runs that `run` completed, as `resume`, the same command again and the slots
    of a plan do; else the run.

    half: it began with half of the light of a plan. Then the first of all the owner's runs that
    were unfinished at that time.
    """
    history = store.history(run.lab, 0)  # newest first; not by id, as the clock may have been set
    place = {record.id: number for number, record in enumerate(history)}
    first, same = run, (run.owner, run.verb, run.plan_sha)
    for record in history[place[run.id] + 1 :]:
        resolved = record.resolved_by
        completed = resolved == run.id and (record.owner, record.verb, record.plan_sha) == same
        unfinished = (
            place.get(resolved, len(place)) <= place[run.id] if resolved else record.unfinished
        )
        if record.begun and (
            completed
            or (half and unfinished and record.owner == run.owner and verb_of(record.verb).half)
        ):
            first = record
    return first


def latest_begun(store: Store, lab: str, owner: str) -> RunRecord:
    """The owner's latest run that may have changed something, however it ended. Raises: Missing."""
    for record in store.history(lab, 0):
        if record.owner == owner and verb_of(record.verb).light and record.may_have_begun:
            return record
    raise Missing("there is no run yet that could be resumed", hint="testbed run list")


def unanswered(store: Store, lab: str) -> dict[str, float]:
    """Devices to which runs that are over sent commands without a result, unresolved since: how
    long (s) it is known to be over.

    Of a run that died only the beginning is known, so that its last command may have been sent just
    now.
    """
    now, found = time.time(), dict[str, float]()
    query = (
        "SELECT runs.id, steps.subject, steps.ended FROM runs JOIN steps ON steps.run=runs.id WHERE runs.lab=?"
        " AND runs.status<>'ok' AND runs.resolved_by='' AND steps.kind='device' AND steps.began>? AND steps.result='null'"
    )
    for run, device, ended in map(tuple, store.read(query, (lab, now - SENDING_S))):
        record = store.get(run)
        if record is not None and record.status != "running":
            found[device] = min(
                found.get(device, SENDING_S), 0.0 if ended is None else max(0.0, now - ended)
            )
    return found


def folder_bytes(folder: Path) -> int:
    """Bytes of the files in a folder and below."""
    found = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # an active run may compress its journal meanwhile
            found += path.lstat().st_size
    return found


def outcomes(store: Store, lab: str) -> list[tuple[str, str, str]]:
    """Id, verb and status of every run of a lab, oldest first."""
    rows = store.read("SELECT id, verb, status FROM runs WHERE lab=? ORDER BY rowid", (lab,))
    found = []
    for run, verb, status in map(tuple, rows):
        # which knows whether its process lives
        record = store.get(run) if status == "running" else None
        found.append((run, verb, status if record is None else record.status))
    return found


def running_jobs(store: Store, lab: str) -> dict[str, int]:
    """The number of jobs of a lab that have not ended, by state."""
    text = "SELECT state, count(*) FROM jobs WHERE ended IS NULL AND substr(lab, 1, length(?1)+1)=?1 || '/' GROUP BY state"
    return {row[0]: row[1] for row in store.read(text, (lab,))}


def job_tenancies(store: Store, lab: str) -> set[str]:
    """The tenancies of a lab with a job that has not ended."""
    text = "SELECT DISTINCT lab FROM jobs WHERE ended IS NULL AND substr(lab, 1, length(?1)+1)=?1 || '/'"
    return {row[0] for row in store.read(text, (lab,))}


def rows_in_use(db: sqlite3.Connection) -> list[tuple[str, str]]:
    """The runs that other rows of the store refer to, and why each must stay."""
    asked = [
        ("SELECT run FROM current", "the current plan belongs to it"),
        ("SELECT run FROM held", "existing circuits belong to it"),
        (
            "SELECT run FROM jobs WHERE ended IS NULL OR id IN (SELECT max(id) FROM jobs GROUP BY lab)",
            "the latest job belongs to it",
        ),
        *(
            (f"SELECT {column} FROM awaited WHERE state='pending'", "it waits to be confirmed")
            for column in ("run", "undo")
        ),
    ]
    return [(row[0], why) for query, why in asked for row in db.execute(query)]
