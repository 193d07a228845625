"""Why the store's file cannot be used: a full disk, a damaged file, another process that holds it. Each error has its own hint."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from optics.errors import StoreFailed

DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
LEAST_ROOM = 1 << 20
"""Less free than this many bytes is none: the index of the write-ahead log alone takes 32 kB (sqlite.org/walformat.html)."""


def is_fault(error: BaseException) -> bool:
    """Whether the file or its disk is to blame for an error of SQLite's, and not what was asked of it."""
    return isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file itself is not what it should be."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGED  # the rest says where it happened (sqlite.org/rescode.html)


def store_fault(path: Path, error: sqlite3.Error) -> StoreFailed:
    """The error to raise for one of SQLite's."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if is_damage(error):
        return StoreFailed(
            f"{path} is damaged or no store: {error}",
            hint="testbed doctor --store says what can still be read of it, and takes it into a new file with --recover",
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreFailed(f"{path} cannot be used: another process has held it for 10 s ({error})", hint="try again in a moment")
    # On a full disk SQLite reports an I/O error wherever it is not a page of the file itself that finds no room.
    if code == sqlite3.SQLITE_FULL or (code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and not has_room(path.parent)):
        return full(path, str(error) if code == sqlite3.SQLITE_FULL else f"the disk is full ({error})")
    return StoreFailed(f"{path} cannot be written: {error}", hint="testbed doctor")


def file_fault(path: Path, error: OSError) -> StoreFailed | None:
    """The error to raise where the operating system says why, None where it is a matter of rights."""
    if error.errno in NO_ROOM:
        return full(path, error.strerror or str(error))
    if error.errno in (errno.EROFS, errno.EIO):
        return StoreFailed(f"{path} cannot be written: {error.strerror}", hint="testbed doctor; dmesg says what the disk has")
    return None


def full(path: Path, words: str) -> StoreFailed:
    """The error of a full disk. What is in the store is as it was, and must stay where it is."""
    return StoreFailed(
        f"{path} cannot be written: {words}",
        hint=f"make room where {path.parent} is, then give the command again; the store is unharmed, leave it there",
    )


def has_room(folder: Path) -> bool:
    """Whether more can be written there; true where that is unknown."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return True
    return found.f_bavail * found.f_frsize >= LEAST_ROOM and (found.f_favail > 0 or found.f_files == 0)
