"""The audit of locks, tag-outs and the ownership of circuits: written in the same transaction as
the change.
"""

from __future__ import annotations

import os
import socket
import sqlite3
from dataclasses import dataclass, field

from orchestrator.processes import process_mark
from orchestrator.store.database import Database


@dataclass(frozen=True, slots=True)
class Who:
    """The caller: owner, user and process."""

    owner: str
    user: str
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=lambda: os.getpid())

    @property
    def process(self) -> str:
        return process_mark(self.pid)


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One record of the audit: who did what to which lock, tag-out or circuit, and why. at: wall
    seconds.
    """

    at: float
    user: str
    owner: str
    host: str
    pid: int
    what: str
    subject: str
    why: str


def add_audit(
    db: sqlite3.Connection, lab: str, who: Who, at: float, what: str, subject: str, why: str
) -> None:
    """Write one line, inside the caller's transaction."""
    db.execute(
        "INSERT INTO audit(lab,at,user,owner,host,pid,what,subject,why) VALUES(?,?,?,?,?,?,?,?,?)",
        (lab, at, who.user, who.owner, who.host, who.pid, what, subject, why),
    )


def audit(store: Database, lab: str, limit: int = 50) -> list[AuditRecord]:
    """The records of a lab, newest first."""
    rows = store.read(
        "SELECT at,user,owner,host,pid,what,subject,why FROM audit WHERE lab=? ORDER BY seq DESC LIMIT ?",
        (lab, limit),
    )
    return [AuditRecord(**dict(row)) for row in rows]
