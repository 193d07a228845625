"""Measured stall curves, kept across runs: how long traffic paused while a link was dark."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.store.database import Database
from orchestrator.store.records import StallPoint


def add_stalls(store: Database, lab: str, points: Iterable[StallPoint]) -> None:
    """Store measurements."""
    with store.transaction() as db:
        db.executemany(
            "INSERT INTO stalls(lab, at, run, link, devices, mode, asked_ms, dark_ms, lost_ms, usual_ms)"
            " VALUES(?,?,?,?,?,?,?,?,?,?)",
            [
                (
                    lab,
                    p.at,
                    p.run,
                    p.link,
                    p.devices,
                    p.mode,
                    p.asked_ms,
                    p.dark_ms,
                    p.lost_ms,
                    p.usual_ms,
                )
                for p in points
            ],
        )


def stall_history(store: Database, lab: str) -> tuple[StallPoint, ...]:
    """All measurements on the lab, oldest first."""
    columns = "at, run, link, devices, mode, asked_ms, dark_ms, lost_ms, usual_ms"
    rows = store.read(f"SELECT {columns} FROM stalls WHERE lab=? ORDER BY at, rowid", (lab,))
    return tuple(StallPoint(**dict(row)) for row in rows)
