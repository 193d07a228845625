"""Notices that somebody set the wall clock: what ends at a time of day must not end, or last for ever, because of that."""

from __future__ import annotations

import sqlite3

from orchestrator.processes import boot_clock_ns, boot_id

LEAST_S = 2.0
"""Smaller steps are left: a clock that is only slewed by NTP gains them in a day or more (adjtimex(2): 500 ppm at most)."""


def moved_s(db: sqlite3.Connection, lab: str, wall: float) -> float:
    """By how much (s) the wall clock, which says `wall`, was set since the last look, inside the caller's transaction.

    Held against the clock that nobody sets. Zero for steps below `LEAST_S`, at the first look, and after a restart of the machine:
    nobody knows then how long it was off.
    """
    boot, up = boot_id(), boot_clock_ns() / 1e9
    row = db.execute("SELECT boot, up, wall FROM clocks WHERE lab=?", (lab,)).fetchone()
    same = row is not None and row["boot"] == boot
    jump = (wall - row["wall"]) - (up - row["up"]) if same else 0.0
    if same and abs(jump) < LEAST_S:
        return 0.0
    db.execute("INSERT OR REPLACE INTO clocks VALUES(?,?,?,?)", (lab, boot, up, wall))
    return jump
