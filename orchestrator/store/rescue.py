"""Check the store's file page by page, and copy the readable rows of a damaged one to a new file;
the old one is kept.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from optics.errors import Locked, StoreFailed
from orchestrator.store.fault import file_fault, is_damage, store_fault
from orchestrator.store.schema import SCHEMA, create

SHARED_FIRST, SHARED_SIZE = 0x40000002, 510
"""Each process that has a store in WAL mode open holds a shared POSIX lock on these bytes of its
file (SQLite, os_unix.c).
"""
SHOWN = 12
"""Maximum number of findings of the integrity check."""
PROBES = 100_000
"""Row numbers tried individually between the last row read from the front and the last read from
the back.
"""
LOSS = {
    "runs": "some runs may be missing from the history, and with them the states to roll back to",
    "steps": "some steps of runs may be missing from the history",
    "notes": "some notes of runs may be missing: testbed run list",
    "tags": "some runs may have lost tags, and `run list --prune` would remove them: testbed run note RUN --tag TAG",
    "current": "the current plan may be lost: bring it up again",
    "held": "owned circuits may now count as foreign: testbed up --adopt",
    "generation_owners": "routes on hosts may not be known as yours: testbed up stages them again",
    "tokens": "hosts may refuse the next run as older than one they know: testbed lock release --hosts",
    "jobs": "a running job may be lost: testbed job launch starts it again",
    "locks": "reservations may be missing: testbed lock",
    "tagouts": "tag-outs may be missing: find out who works in the rack BEFORE the next change, and tag out again",
    "queue": "jobs may be missing from the queue: testbed job queue; those that ran still hold their hosts: testbed status",
    "awaited": "a pending confirmation may be lost: testbed status",
}
"""The consequence of lost rows of a table, for the operator."""


@dataclass(frozen=True, slots=True)
class Examined:
    """The findings of the integrity check: SQLite's words, none if the file is intact. rows: of
    each table, None: not readable.
    """

    findings: tuple[str, ...]
    rows: dict[str, int | None]


@dataclass(frozen=True, slots=True)
class Rescued:
    """kept: the new path of the damaged file. rows: of each table in the new file. losses: possibly
    missing data, in words.
    """

    kept: Path
    rows: dict[str, int]
    losses: tuple[str, ...]


def check_store_file(path: Path) -> Examined:
    """Check the whole file, writing nothing. Raises: StoreFailed - it cannot be opened, for example
    because the disk is full.
    """
    with closing(_opened(path, "ro")) as db:
        try:
            findings = [str(row[0]) for row in db.execute(f"PRAGMA integrity_check({SHOWN})")]
            findings += [
                f"{row[0]}: a row refers to {row[2]}, which has no such row"
                for row in db.execute("PRAGMA foreign_key_check")
            ]
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise store_fault(path, error) from error
            findings = [str(error)]
        rows: dict[str, int | None] = {}
        for table in _tables(db):
            try:
                rows[table] = db.execute(f'SELECT count(*) FROM "{table}" NOT INDEXED').fetchone()[
                    0
                ]
            except sqlite3.DatabaseError:
                rows[table] = None
    return Examined(tuple(what for what in findings if what != "ok")[:SHOWN], rows)


def rescue(path: Path) -> Rescued:
    """Replace the damaged store by one with all readable rows; the old file stays in the same
    directory under another name.

    Raises: Locked - another command has the store open. StoreFailed - nothing in it can be read, or
    the disk is full.
    """
    work = path.with_name(f"{path.name}.rescue")
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        raise StoreFailed(
            f"{path} cannot be opened: {error.strerror}", hint="run this as its owner"
        ) from error
    try:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, SHARED_SIZE, SHARED_FIRST)
        except BlockingIOError as error:
            raise Locked(
                f"{path}: another command is using it",
                hint="testbed lock; stop running commands, `ui` and `watch` included",
            ) from error
        shutil.rmtree(work, ignore_errors=True)  # left by a recovery that was killed
        try:
            work.mkdir(mode=0o700)
            rows, losses = _copied(path, fd, work)
            return Rescued(_exchanged(path, work / "new", os.fstat(fd)), rows, losses)
        except OSError as error:
            raise file_fault(path, error) or StoreFailed(
                f"{path}: {error.strerror or error}", hint="testbed doctor"
            ) from error
        finally:
            shutil.rmtree(work, ignore_errors=True)
    finally:
        os.close(fd)


def _copied(path: Path, fd: int, work: Path) -> tuple[dict[str, int], tuple[str, ...]]:
    """Read a copy of the damaged file, so that reading writes nothing into it, and fill a new
    one.
    """
    old = work / "old"
    # Through the descriptor that holds the lock: closing another one of the same file would release
    # the lock (fcntl(2)).
    with old.open("wb") as copy:
        offset = 0
        while piece := os.pread(fd, 1 << 20, offset):
            copy.write(piece)
            offset += len(piece)
    log = path.with_name(f"{path.name}-wal")
    if log.exists():
        shutil.copyfile(log, work / "old-wal")
    rows: dict[str, int] = {}
    holes: list[str] = []
    with (
        closing(_opened(old, "rw")) as source,
        closing(sqlite3.connect(work / "new", isolation_level=None)) as target,
    ):
        tables = _tables(source)
        if not tables:
            raise StoreFailed(
                f"{path}: nothing in it can be read; it was not touched",
                hint=f"restore a backup, or start a new store: mv {path} {path}.lost; circuits still up are then foreign, and "
                "`up --adopt` makes them yours again (docs/how-to/share-a-lab.md)",
            )
        version = int(source.execute("PRAGMA user_version").fetchone()[0])
        target.execute("BEGIN")
        for sql in tables.values():
            target.execute(sql)
        for table, sql in _missing(tables, version).items():
            holes.append(table)
            target.execute(sql)
        for table in tables:
            names = [row[1] for row in target.execute(f'PRAGMA table_info("{table}")')]
            rows[table], whole = _filled(source, target, table, names)
            holes += [] if whole else [table]
        for sql in _indices(source):
            target.execute(sql)
        target.execute(f"PRAGMA user_version={version}")
        target.execute("COMMIT")
    return rows, tuple(
        LOSS.get(table, f"rows of {table} may be missing") for table in dict.fromkeys(holes)
    )


def _filled(
    source: sqlite3.Connection, target: sqlite3.Connection, table: str, names: Sequence[str]
) -> tuple[int, bool]:
    """Copy the readable rows of a table; return their number, and whether no row is known to be
    missing.
    """
    listed, marks = ", ".join(f'"{name}"' for name in names), ",".join("?" * (len(names) + 1))
    count, whole = 0, True
    for row in _rows(source, table, listed):
        if row is None:
            whole = False
            continue
        try:
            target.execute(f'INSERT INTO "{table}"(rowid, {listed}) VALUES({marks})', row)
            count += 1
        except sqlite3.IntegrityError:  # the row read is not the row that was written
            whole = False
    return count, whole


def _rows(db: sqlite3.Connection, table: str, listed: str) -> Iterator[tuple[object, ...] | None]:
    """Every readable row, its number first; None for each unreadable place."""
    select = f'SELECT rowid, {listed} FROM "{table}" NOT INDEXED'
    first, last = 0, 0
    try:
        for row in db.execute(f"{select} ORDER BY rowid"):
            first = row[0]
            yield row
        return
    except sqlite3.DatabaseError:
        yield None
    try:
        for row in db.execute(f"{select} WHERE rowid>? ORDER BY rowid DESC", (first,)):
            last = row[0]
            yield row
    except sqlite3.DatabaseError:
        pass
    for number in range(first + 1, min(last or first + PROBES, first + PROBES)):
        try:
            row = db.execute(f"{select} WHERE rowid=?", (number,)).fetchone()
        except sqlite3.DatabaseError:
            continue
        if row is not None:
            yield row


def _exchanged(path: Path, new: Path, like: os.stat_result) -> Path:
    """Replace the store by `new`, with the same permissions; return the new path of the old one."""
    with closing(_opened(new, "rw")) as db:
        found = [row[0] for row in db.execute("PRAGMA integrity_check")]
    if found != ["ok"]:
        raise StoreFailed(
            f"{path}: the recovered rows are inconsistent ({found[0]}); it was not touched"
        )
    os.chown(new, -1, like.st_gid)
    new.chmod(like.st_mode & 0o777)
    with new.open("rb") as file:
        os.fsync(file.fileno())
    kept = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    for ending in ("-wal", "-shm"):
        if (neighbour := path.with_name(path.name + ending)).exists():
            neighbour.rename(kept.with_name(kept.name + ending))
    path.rename(kept)
    new.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return kept


def _opened(path: Path, mode: str) -> sqlite3.Connection:
    from urllib.parse import quote

    db = sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}", uri=True, isolation_level=None, timeout=10.0
    )
    db.text_factory = lambda raw: raw.decode("utf-8", "replace")
    try:
        # a partly damaged schema is read as far as possible (pragma.html)
        db.execute("PRAGMA writable_schema=ON")
        db.execute("PRAGMA cell_size_check=ON")
        db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            db.close()
            raise store_fault(path, error) from error
    return db


def _tables(db: sqlite3.Connection) -> dict[str, str]:
    """Each table in the file's schema, and the statement that created it."""
    try:
        rows = db.execute(
            "SELECT name, sql FROM sqlite_master WHERE type='table' AND name NOT LIKE 'sqlite_%' ORDER BY rowid"
        ).fetchall()
    except sqlite3.DatabaseError:
        return {}
    return {str(name): str(sql) for name, sql in rows if name and sql}


def _indices(db: sqlite3.Connection) -> list[str]:
    return [
        row[0]
        for row in db.execute(
            "SELECT sql FROM sqlite_master WHERE type='index' AND sql IS NOT NULL"
        )
    ]


def _missing(tables: dict[str, str], version: int) -> dict[str, str]:
    """Tables of this version's schema that the file lacks."""
    if version != SCHEMA:
        return {}
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        create(fresh)
        return {name: sql for name, sql in _tables(fresh).items() if name not in tables}
