"""Why the store's file cannot be used: a full disk, a damaged file, another process that holds it.
Each error has its own hint.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from optics.errors import StoreFailed

DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
LEAST_ROOM = 1 << 20
"""With less free space (bytes) a disk counts as full: the index of the write-ahead log takes 32 kB
(sqlite.org/walformat.html).
"""


def is_fault(error: BaseException) -> bool:
    """Whether an SQLite error is due to the file or its disk, and not to the statement."""
    return isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file itself is damaged."""
    return (
        getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGED
    )  # the higher bits say where it happened (sqlite.org/rescode.html)


def store_fault(path: Path, error: sqlite3.Error) -> StoreFailed:
    """The error to raise for an SQLite error."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if is_damage(error):
        return StoreFailed(
            f"{path} is damaged or not a store: {error}",
            hint="testbed doctor --store says what is still readable, and --recover copies it to a new file",
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreFailed(
            f"{path} cannot be used: another process has held it for 10 s ({error})",
            hint="try again in a moment",
        )
    if code == sqlite3.SQLITE_READONLY:
        return StoreFailed(
            f"{path} cannot be written: its file system is read-only",
            hint="testbed doctor; dmesg shows errors of the disk",
        )
    # On a full disk SQLite reports an I/O error unless it was writing a page of the file itself.
    if code == sqlite3.SQLITE_FULL or (
        code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and not has_room(path.parent)
    ):
        return full(
            path, str(error) if code == sqlite3.SQLITE_FULL else f"the disk is full ({error})"
        )
    return StoreFailed(f"{path} cannot be written: {error}", hint="testbed doctor")


def file_fault(path: Path, error: OSError) -> StoreFailed | None:
    """The error to raise for an error of the operating system; None if it is one of permissions."""
    if error.errno in NO_ROOM:
        return full(path, error.strerror or str(error))
    if error.errno in (errno.EROFS, errno.EIO):
        return StoreFailed(
            f"{path} cannot be written: {error.strerror}",
            hint="testbed doctor; dmesg shows errors of the disk",
        )
    return None


def full(path: Path, text: str) -> StoreFailed:
    """The error of a full disk. The content of the store is intact and must stay in place."""
    return StoreFailed(
        f"{path} cannot be written: {text}",
        hint=f"free some space on the disk of {path.parent}, then repeat the command; the store is unharmed, leave it there",
    )


def has_room(folder: Path) -> bool:
    """Whether more can be written there; true if that is unknown."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return True
    return found.f_bavail * found.f_frsize >= LEAST_ROOM and (
        found.f_favail > 0 or found.f_files == 0
    )
