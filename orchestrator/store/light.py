"""Measured optical power of circuits, kept across runs."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.store.database import Database
from orchestrator.store.records import LightPoint


def add_light(store: Database, lab: str, run: str, points: Iterable[LightPoint]) -> None:
    """Store measurements of circuits; `at` of each point is stored unchanged."""
    with store.transaction() as db:
        db.executemany(
            "INSERT INTO light VALUES(?,?,?,?,?,?,?,?)",
            [(lab, p.circuit, p.path, p.at, run, p.in_dbm, p.out_dbm, p.loss_db) for p in points],
        )


def light_history(store: Database, lab: str) -> list[LightPoint]:
    """All measurements of the lab's circuits, oldest first."""
    rows = store.read(
        "SELECT circuit, path, at, run, in_dbm, out_dbm, loss_db FROM light WHERE lab=? ORDER BY at",
        (lab,),
    )
    return [LightPoint(**dict(row)) for row in rows]


def latest_light(store: Database, lab: str) -> list[LightPoint]:
    """The newest measurement of each circuit over each path."""
    # the other columns are of the row with the maximum
    columns = "circuit, path, max(at) AS at, run, in_dbm, out_dbm, loss_db"
    rows = store.read(f"SELECT {columns} FROM light WHERE lab=? GROUP BY circuit, path", (lab,))
    return [LightPoint(**dict(row)) for row in rows]
