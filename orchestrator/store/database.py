"""The file of the run store: opened, checked, and written in transactions."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

from optics.errors import StoreFailed
from orchestrator.store.fault import is_fault, store_fault
from orchestrator.store.file import private_file, read_only, shared_file
from orchestrator.store.schema import SCHEMA, create

Fence: TypeAlias = Callable[[sqlite3.Connection], None]
"""Checks, inside the transaction that begins a step, that the run may go on. Raises: Locked - it
may not; nothing was begun.
"""

SHRINK_S = 5.0
"""Half as long as other commands wait for a lock of the file."""


class Database:
    """Opens or creates the file at `path`. Safe to use from several threads and processes.

    durable: force every commit to the disk, so that a power cut loses nothing; off only for tests.
    shared: the members of a group use it together (`file.shared_file`). On a file system that is
    read-only, it can be read. Raises: StoreFailed - it cannot be written, is damaged or not a
    store, or was written by another version. UnsafeStore - others may write it.
    """

    def __init__(self, path: Path, *, durable: bool = True, shared: bool = False) -> None:
        self.path = path
        (shared_file if shared else private_file)(path)
        self._lock = threading.RLock()
        self.fences: dict[str, Fence] = {}
        self.unreleased: set[str] = set()
        """Locks of this process that could not be released, as on a full disk: they are by the next
        change of locks.
        """
        reading = read_only(path)
        self._db = sqlite3.connect(
            _to_read(path) if reading else path,
            timeout=10.0,
            isolation_level=None,
            check_same_thread=False,
            uri=reading,
        )
        self._db.row_factory = sqlite3.Row
        try:
            if reading:
                self._checked(int(self._db.execute("PRAGMA user_version").fetchone()[0]))
            else:
                self._prepare(durable)
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise store_fault(path, error) from error
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def version(self) -> int:
        """A number that changes when another connection has written; it is read without touching a
        table.
        """
        return int(self.read("PRAGMA data_version")[0][0])

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction, on disk when the body ends. A nested one is part of the outer one.

        Raises: StoreFailed - it cannot be written; nothing was.
        """
        with self._lock:
            if self._db.in_transaction:
                yield self._db
                return
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            except BaseException as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error) and is_fault(error):
                    raise store_fault(self.path, error) from error
                raise

    def read(self, query: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """The rows of one query. Raises: StoreFailed."""
        try:
            with self._lock:
                return self._db.execute(query, values).fetchall()
        except sqlite3.DatabaseError as error:
            if is_fault(error):
                raise store_fault(self.path, error) from error
            raise

    def write(self, query: str, values: Sequence[Any] = ()) -> None:
        """Execute one statement in a transaction of its own. Raises: StoreFailed."""
        with self.transaction() as db:
            db.execute(query, values)

    def shrink(self) -> bool:
        """Give the space of deleted rows back to the disk, in at most `SHRINK_S`; whether it did.
        If not, nothing has changed.
        """
        give_up = time.monotonic() + SHRINK_S
        with self._lock:
            self._db.set_progress_handler(lambda: int(time.monotonic() > give_up), 1000)
            try:
                self._db.execute("PRAGMA busy_timeout=1000")
                self._db.execute("VACUUM")
                # the file is as long as before until then
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                return True
            # others use it, it takes too long, or the disk has no room for the copy
            except sqlite3.OperationalError:
                return False
            finally:
                self._db.set_progress_handler(None, 0)
                self._db.execute("PRAGMA busy_timeout=10000")

    def check_fence(self, db: sqlite3.Connection, run: str) -> None:
        """Raises: as the fence of `run`; nothing if it has none."""
        if (fence := self.fences.get(run)) is not None:
            fence(db)

    def _prepare(self, durable: bool) -> None:
        self._db.execute("PRAGMA busy_timeout=10000")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute(f"PRAGMA synchronous={'FULL' if durable else 'OFF'}")
        with self.transaction() as db:
            version = int(db.execute("PRAGMA user_version").fetchone()[0])
            if version == 0:  # a new file
                create(db)
            else:
                self._checked(version)

    def _checked(self, version: int) -> None:
        """Raises: StoreFailed - the file was written by another version."""
        if version == SCHEMA:
            return
        if version > SCHEMA:
            age, hint = (
                "a newer",
                "use that version or a newer one; the store is unharmed, leave it where it is",
            )
        else:
            age, hint = (
                "an older",
                (
                    f"run `down` with that version; then, or without it, start a new store: mv {self.path} {self.path}.old; "
                    "circuits still up are then foreign, and `up --adopt` makes them yours again (docs/how-to/share-a-lab.md)"
                ),
            )
        raise StoreFailed(
            f"{self.path}: was written by {age} testbed (schema {version}, this one uses {SCHEMA})",
            hint=hint,
        )


def _to_read(path: Path) -> str:
    """The URI with which a file that nobody can write is opened; without a log beside it SQLite
    would want to make one.
    """
    log = Path(f"{path}-wal")
    return f"{path.absolute().as_uri()}?mode=ro" + (
        "" if log.exists() and log.stat().st_size else "&immutable=1"
    )


def next_number(db: sqlite3.Connection, table: str, lab: str, least: int = 1) -> int:
    """The next number of a lab's counter in `table`, `least` or more; inside the caller's
    transaction.
    """
    db.execute(
        f"INSERT INTO {table} VALUES(?1,?2) ON CONFLICT(lab) DO UPDATE SET last=max(last+1, ?2)",
        (lab, least),
    )
    return int(db.execute(f"SELECT last FROM {table} WHERE lab=?", (lab,)).fetchone()["last"])
