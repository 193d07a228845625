"""The tables of the run store.

Circuits (`held`), plans (`current`) and jobs are kept per owner on a lab: their column `lab` has
`keys.tenancy_key`. A cross-connect has the slot 0 to 0. Times are wall seconds; `clocks` has the
reference of `clock.moved_s`.
"""

from __future__ import annotations

import sqlite3

SCHEMA = 12
"""Incremented with every change of the tables; a file of another schema is refused
(`database.Database`).
"""

TABLES = """
CREATE TABLE runs(
  id TEXT PRIMARY KEY, verb TEXT NOT NULL, lab TEXT NOT NULL, plan_name TEXT NOT NULL, plan_sha TEXT NOT NULL,
  plan_text TEXT NOT NULL, inventory TEXT NOT NULL, user TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL,
  process TEXT NOT NULL, started REAL NOT NULL, ended REAL, status TEXT NOT NULL, exit_code INTEGER,
  message TEXT NOT NULL DEFAULT '', summary TEXT NOT NULL DEFAULT '{}', owner TEXT NOT NULL, token INTEGER NOT NULL,
  options TEXT NOT NULL, before TEXT NOT NULL DEFAULT 'null', target TEXT NOT NULL DEFAULT 'null', seconds REAL,
  resolved_by TEXT NOT NULL DEFAULT '');
CREATE INDEX runs_by_lab ON runs(lab, started);
CREATE TABLE steps(
  run TEXT NOT NULL REFERENCES runs(id), seq INTEGER NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL, what TEXT NOT NULL,
  intent TEXT NOT NULL, inverse TEXT NOT NULL, state TEXT NOT NULL, planned REAL NOT NULL, began REAL, ended REAL, seconds REAL,
  result TEXT NOT NULL DEFAULT 'null', error TEXT NOT NULL DEFAULT '', PRIMARY KEY(run, seq));
CREATE TABLE notes(
  number INTEGER PRIMARY KEY, run TEXT NOT NULL, at REAL NOT NULL, user TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE tags(run TEXT NOT NULL, tag TEXT NOT NULL, at REAL NOT NULL, user TEXT NOT NULL, PRIMARY KEY(run, tag));
CREATE TABLE tokens(lab TEXT PRIMARY KEY, last INTEGER NOT NULL);
CREATE TABLE current(
  lab TEXT PRIMARY KEY, run TEXT NOT NULL, plan_name TEXT NOT NULL, plan_sha TEXT NOT NULL, plan_text TEXT NOT NULL,
  up TEXT NOT NULL, generation INTEGER NOT NULL, since REAL NOT NULL);
CREATE TABLE held(
  lab TEXT NOT NULL, device TEXT NOT NULL, ingress TEXT NOT NULL, egress TEXT NOT NULL,
  low_mhz INTEGER NOT NULL, high_mhz INTEGER NOT NULL, attenuation_db REAL NOT NULL, run TEXT NOT NULL, since REAL NOT NULL,
  PRIMARY KEY(lab, device, ingress, egress, low_mhz, high_mhz));
CREATE TABLE generations(lab TEXT PRIMARY KEY, last INTEGER NOT NULL);
CREATE TABLE generation_owners(
  lab TEXT NOT NULL, generation INTEGER NOT NULL, owner TEXT NOT NULL, run TEXT NOT NULL, PRIMARY KEY(lab, generation));
CREATE TABLE jobs(
  id INTEGER PRIMARY KEY, lab TEXT NOT NULL, run TEXT NOT NULL, name TEXT NOT NULL, spec TEXT NOT NULL, state TEXT NOT NULL,
  started REAL NOT NULL, ended REAL, detail TEXT NOT NULL DEFAULT '');
CREATE TABLE light(
  lab TEXT NOT NULL, circuit TEXT NOT NULL, path TEXT NOT NULL, at REAL NOT NULL, run TEXT NOT NULL, in_dbm REAL, out_dbm REAL,
  loss_db REAL);
CREATE INDEX light_by_circuit ON light(lab, circuit, path, at);
CREATE TABLE stalls(
  lab TEXT NOT NULL, at REAL NOT NULL, run TEXT NOT NULL, link TEXT NOT NULL, devices TEXT NOT NULL, mode TEXT NOT NULL,
  asked_ms REAL NOT NULL, dark_ms REAL NOT NULL, lost_ms REAL NOT NULL, usual_ms REAL NOT NULL);
CREATE INDEX stalls_by_lab ON stalls(lab, at);
CREATE TABLE locks(
  seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, lab TEXT NOT NULL, kind TEXT NOT NULL, owner TEXT NOT NULL, user TEXT NOT NULL,
  host TEXT NOT NULL, pid INTEGER NOT NULL, process TEXT NOT NULL, run TEXT NOT NULL DEFAULT '', token INTEGER NOT NULL DEFAULT 0,
  reason TEXT NOT NULL, scope TEXT NOT NULL, state TEXT NOT NULL, asked REAL NOT NULL, since REAL NOT NULL, expires REAL,
  for_s REAL, after TEXT NOT NULL DEFAULT '', ended REAL, ended_by TEXT NOT NULL DEFAULT '', why TEXT NOT NULL DEFAULT '',
  role TEXT NOT NULL DEFAULT 'change', within TEXT NOT NULL DEFAULT '');
CREATE INDEX locks_by_state ON locks(lab, state);
CREATE TABLE clocks(lab TEXT PRIMARY KEY, boot TEXT NOT NULL, up REAL NOT NULL, wall REAL NOT NULL);
CREATE TABLE tagouts(
  id TEXT PRIMARY KEY, lab TEXT NOT NULL, subject TEXT NOT NULL, user TEXT NOT NULL, owner TEXT NOT NULL, host TEXT NOT NULL,
  since REAL NOT NULL, reason TEXT NOT NULL, ended REAL, ended_by TEXT NOT NULL DEFAULT '', why TEXT NOT NULL DEFAULT '');
CREATE TABLE awaited(
  run TEXT PRIMARY KEY, tenancy TEXT NOT NULL, undo TEXT NOT NULL, plan TEXT NOT NULL, back TEXT NOT NULL,
  generation INTEGER NOT NULL, hosts TEXT NOT NULL, leaving TEXT NOT NULL, within_s REAL NOT NULL,
  host TEXT NOT NULL, boot TEXT NOT NULL,
  due_ns INTEGER NOT NULL, due REAL NOT NULL, state TEXT NOT NULL, ended_by TEXT NOT NULL DEFAULT '', ended REAL,
  pid INTEGER NOT NULL DEFAULT 0, process TEXT NOT NULL DEFAULT '');
CREATE TABLE recoveries(
  seq INTEGER PRIMARY KEY, lab TEXT NOT NULL, tenancy TEXT NOT NULL, job INTEGER NOT NULL, action TEXT NOT NULL, hosts TEXT NOT NULL,
  why TEXT NOT NULL, run TEXT NOT NULL DEFAULT '', at REAL NOT NULL, boot TEXT NOT NULL, up REAL NOT NULL, pid INTEGER NOT NULL,
  process TEXT NOT NULL, ended REAL, ended_up REAL, outcome TEXT NOT NULL DEFAULT '', message TEXT NOT NULL DEFAULT '');
CREATE INDEX recoveries_by_tenancy ON recoveries(tenancy, seq);
CREATE TABLE queue(
  number INTEGER PRIMARY KEY, lab TEXT NOT NULL, owner TEXT NOT NULL, user TEXT NOT NULL, tenancy TEXT NOT NULL, name TEXT NOT NULL,
  text TEXT NOT NULL, method TEXT NOT NULL, count INTEGER NOT NULL, for_s REAL NOT NULL, preemptible INTEGER NOT NULL,
  iterations INTEGER NOT NULL, added REAL NOT NULL, state TEXT NOT NULL, generation INTEGER NOT NULL DEFAULT 0,
  hosts TEXT NOT NULL DEFAULT '[]', plan_text TEXT NOT NULL DEFAULT '', since REAL NOT NULL, boot TEXT NOT NULL, up REAL NOT NULL,
  used_s REAL NOT NULL DEFAULT 0, done INTEGER NOT NULL DEFAULT 0, next TEXT NOT NULL DEFAULT '', detail TEXT NOT NULL DEFAULT '',
  tries INTEGER NOT NULL DEFAULT 0, retry_s REAL NOT NULL DEFAULT 0);
CREATE INDEX queue_by_state ON queue(lab, state);
CREATE TABLE queue_servers(
  lab TEXT NOT NULL, user TEXT NOT NULL, host TEXT NOT NULL, pid INTEGER NOT NULL, process TEXT NOT NULL, PRIMARY KEY(lab, user));
CREATE TABLE audit(
  seq INTEGER PRIMARY KEY, lab TEXT NOT NULL, at REAL NOT NULL, user TEXT NOT NULL, owner TEXT NOT NULL, host TEXT NOT NULL,
  pid INTEGER NOT NULL, what TEXT NOT NULL, subject TEXT NOT NULL, why TEXT NOT NULL);
"""


def create(db: sqlite3.Connection) -> None:
    """Create the tables, inside the caller's transaction."""
    for statement in TABLES.split(";"):
        db.execute(statement)
    db.execute(f"PRAGMA user_version={SCHEMA}")
