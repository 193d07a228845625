"""Who did what to locks, tag-outs and the ownership of circuits, and why: written with the deed, in the same transaction."""

from __future__ import annotations

import os
import socket
import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.processes import process_mark

if TYPE_CHECKING:
    from orchestrator.store.store import Store

_TABLE = """
CREATE TABLE IF NOT EXISTS audit(
  seq INTEGER PRIMARY KEY, lab TEXT NOT NULL, at REAL NOT NULL, user TEXT NOT NULL, owner TEXT NOT NULL, host TEXT NOT NULL,
  pid INTEGER NOT NULL, what TEXT NOT NULL, subject TEXT NOT NULL, why TEXT NOT NULL)
"""


@dataclass(frozen=True, slots=True)
class Who:
    """Who asks: on whose behalf, as which user, from which process."""

    owner: str
    user: str
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)

    @property
    def process(self) -> str:
        return process_mark(self.pid)


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One line of the audit: who did what to which lock, tag-out or circuit, and why. at: wall seconds."""

    at: float
    user: str
    owner: str
    host: str
    pid: int
    what: str
    subject: str
    why: str


def make_tables(store: Store, *tables: str) -> None:
    """Make the audit's table and these (CREATE ... IF NOT EXISTS) where they are not there yet."""
    with store.transaction() as db:
        for statement in (_TABLE, *tables):
            db.execute(statement)


def add_audit(db: sqlite3.Connection, lab: str, who: Who, at: float, what: str, subject: str, why: str) -> None:
    """Write one line, inside the caller's transaction."""
    db.execute(
        "INSERT INTO audit(lab,at,user,owner,host,pid,what,subject,why) VALUES(?,?,?,?,?,?,?,?,?)",
        (lab, at, who.user, who.owner, who.host, who.pid, what, subject, why),
    )


def audit(store: Store, lab: str, limit: int = 50) -> list[AuditRecord]:
    """What was done on a lab, newest first."""
    make_tables(store)
    fields = "at,user,owner,host,pid,what,subject,why"
    with store.transaction() as db:
        rows = db.execute(f"SELECT {fields} FROM audit WHERE lab=? ORDER BY seq DESC LIMIT ?", (lab, limit)).fetchall()
    return [AuditRecord(**dict(row)) for row in rows]
