"""Detect that the wall clock was set, so that a lock with an end time neither ends early nor lasts
too long.
"""

from __future__ import annotations

import sqlite3

from orchestrator.processes import boot_clock_ns, boot_id

LEAST_S = 2.0
"""Smaller steps are ignored: a clock slewed by NTP gains them in a day or more (adjtimex(2): 500
ppm at most).
"""


def moved_s(db: sqlite3.Connection, lab: str, wall: float) -> float:
    """The step (s) by which the wall clock, now at `wall`, was set since the last call, inside the
    caller's transaction.

    Compared with the boot clock, which cannot be set. Zero for steps below `LEAST_S`, on the first
    call, and after a restart of the machine, when the time it was off is unknown.
    """
    boot, up = boot_id(), boot_clock_ns() / 1e9
    row = db.execute("SELECT boot, up, wall FROM clocks WHERE lab=?", (lab,)).fetchone()
    same = row is not None and row["boot"] == boot
    jump = (wall - row["wall"]) - (up - row["up"]) if same else 0.0
    if same and abs(jump) < LEAST_S:
        return 0.0
    db.execute("INSERT OR REPLACE INTO clocks VALUES(?,?,?,?)", (lab, boot, up, wall))
    return jump
