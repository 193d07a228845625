"""The tables of the run store, and how a file of an older version becomes one of this version."""

from __future__ import annotations

import getpass
import os
import sqlite3

SCHEMA = 3

TABLES = """
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
SINCE_2 = """
CREATE TABLE held(
  lab TEXT NOT NULL, device TEXT NOT NULL, ingress TEXT NOT NULL, egress TEXT NOT NULL,
  low_mhz INTEGER NOT NULL, high_mhz INTEGER NOT NULL, attenuation_db REAL NOT NULL, run TEXT NOT NULL, since REAL NOT NULL,
  PRIMARY KEY(lab, device, ingress, egress, low_mhz, high_mhz));
CREATE TABLE light(
  lab TEXT NOT NULL, circuit TEXT NOT NULL, path TEXT NOT NULL, at REAL NOT NULL, run TEXT NOT NULL, in_dbm REAL, out_dbm REAL,
  loss_db REAL);
CREATE INDEX light_by_circuit ON light(lab, circuit, path, at);
"""
FROM_1 = "INSERT INTO held SELECT lab, device, ingress, egress, 0, 0, 0, run, since FROM owned; DROP TABLE owned"

# Schema 3: what a run belongs to, found and wanted; circuits, plans and jobs belong to an owner on a lab (`slice_key`).
SINCE_3 = """
ALTER TABLE runs ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN token INTEGER NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN options TEXT NOT NULL DEFAULT '{}';
ALTER TABLE runs ADD COLUMN before TEXT NOT NULL DEFAULT 'null';
ALTER TABLE runs ADD COLUMN target TEXT NOT NULL DEFAULT 'null';
ALTER TABLE runs ADD COLUMN seconds REAL;
ALTER TABLE runs ADD COLUMN resolved_by TEXT NOT NULL DEFAULT '';
CREATE TABLE tokens(lab TEXT PRIMARY KEY, last INTEGER NOT NULL);
CREATE TABLE generation_owners(
  lab TEXT NOT NULL, generation INTEGER NOT NULL, owner TEXT NOT NULL, run TEXT NOT NULL, PRIMARY KEY(lab, generation));
"""
FROM_2 = (
    "UPDATE runs SET owner=user",
    "WITH RECURSIVE given(lab, number) AS (SELECT lab, last FROM generations UNION ALL"
    " SELECT lab, number-1 FROM given WHERE number>1)"
    " INSERT INTO generation_owners SELECT g.lab, g.number, coalesce(r.owner, :opener), coalesce(c.run, '')"
    " FROM given g LEFT JOIN current c ON c.lab=g.lab LEFT JOIN runs r ON r.id=c.run",
    *(
        f"UPDATE {table} SET lab=lab || '/' || coalesce((SELECT owner FROM runs WHERE runs.id={table}.run), :opener)"
        for table in ("current", "held", "jobs")
    ),
)
"""Until then a lab had one plan: what is up belongs to whoever brought it up; where that is not known, to who opens the file."""


def upgrade(db: sqlite3.Connection, version: int) -> None:
    """Bring the tables from `version` (0: there are none) to `SCHEMA`, inside the caller's transaction."""
    if version == SCHEMA:
        return
    scripts = {0: (TABLES, SINCE_2, SINCE_3), 1: (SINCE_2, FROM_1, SINCE_3), 2: (SINCE_3,)}[version]
    for statement in (statement for script in scripts for statement in script.split(";")):
        db.execute(statement)
    if version:
        for statement in FROM_2:
            db.execute(statement, {"opener": opener()} if ":opener" in statement else {})
    db.execute(f"PRAGMA user_version={SCHEMA}")


def opener() -> str:
    """Who runs this program."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid{os.getuid()}"
