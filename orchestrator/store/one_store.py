"""One store per lab on this machine: locks and circuits are kept in a store, and two stores would not see each other's."""

from __future__ import annotations

import errno
import fcntl
import grp
import json
import os
import socket
import stat
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from optics.errors import Locked, Missing, Untrusted
from orchestrator.trust import SHARED, group_name, user_name

GROUP = "testbed"
"""Root hands `SHARED` to this group, where there is one (docs/decisions/0023-who-may-lock-a-lab.md)."""
_JOIN = "only members of its group may lock there (docs/how-to/share-a-lab.md); or set lock_dir to a directory of your own"
GIVE_UP_S = 2.0
"""The note is held exclusively for the moment of a write only."""


@dataclass(frozen=True, slots=True)
class Keeper:
    """Which store keeps the lab, and who noted it. store: its file, `identity` the same however the path is written."""

    store: str
    identity: str
    user: str
    host: str
    pid: int


class StoreClaim:
    """Holds the note at `path` for one command. The kernel frees it when the process dies, however it dies; the file stays.

    As a context manager: raises Locked - another store is in use for this lab now. Untrusted - others than root, this user and one
    group could have put something there. Missing - we may not write there.
    """

    def __init__(self, path: Path, store: Path, *, user: str) -> None:
        self.path = path
        found = store.stat()
        self.keeper = Keeper(str(store), f"{found.st_dev}:{found.st_ino}", user, socket.gethostname(), os.getpid())
        self._fd = -1

    def acquire(self) -> None:
        """Share the note with other commands on this store; write it first where no command holds it."""
        fd = _open(self.path)
        give_up = time.monotonic() + GIVE_UP_S
        try:
            while not self._shared(fd):
                if time.monotonic() >= give_up:
                    raise Locked(f"{self.path}: is held and says not by whom", hint="try again in a moment")
                time.sleep(0.005)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def _shared(self, fd: int) -> bool:
        """Whether we share the note now. Raises: Locked - it names another store."""
        try:
            if _lock(fd, fcntl.LOCK_EX):  # no holder
                os.ftruncate(fd, 0)
                os.pwrite(fd, json.dumps(asdict(self.keeper)).encode(), 0)
            # Turning the one lock into the other is not atomic (flock(2)): who came in between has written his own.
            if not _lock(fd, fcntl.LOCK_SH):
                return False
        except OSError as error:
            raise _closed(self.path, error) from error
        keeper = _read(fd)
        if keeper is None:
            fcntl.flock(fd, fcntl.LOCK_UN)
            return False
        if keeper.identity != self.keeper.identity:
            raise Locked(
                f"{keeper.user} (pid {keeper.pid}) changes this lab now with another store, {keeper.store}; two stores do not know "
                "each other's locks and circuits",
                hint="share one: set `store` to its directory (docs/how-to/share-a-lab.md)",
            )
        return True

    def release(self) -> None:
        """Let go of the note; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> StoreClaim:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def who_locks(folder: Path) -> str:
    """Who may lock in this directory, in words. Raises: as `StoreClaim`."""
    if not folder.exists():
        return "nothing was locked here yet"
    fd = _folder(folder)
    try:
        found = os.fstat(fd)
    finally:
        os.close(fd)
    if found.st_mode & stat.S_IWGRP:
        return f"{folder}: root and group {group_name(found.st_gid)}"
    return f"{folder}: {user_name(found.st_uid)} alone"


def _lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: Path) -> int:
    """Open the note for writing, made if it is not there, in a directory where only root, we and perhaps one group may write.

    Everything is opened relative to the directory that was looked at, and no link is followed.
    """
    folder = _folder(path.parent)
    try:
        shared = bool(os.fstat(folder).st_mode & stat.S_IWGRP)
        fd = _made(path.name, folder, 10 if shared else 1)
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or (found.st_uid not in (0, os.geteuid()) and not shared):
            os.close(fd)
            raise Untrusted(f"{path}: is no lock file of this program's making", hint=f"see what it is, then: rm {path}")
        if found.st_uid == os.geteuid():
            os.fchmod(fd, 0o660 if shared else 0o600)
        return fd
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise Untrusted(f"{path}: is no lock file of this program's making", hint=f"see what it is, then: rm {path}") from None
        raise _closed(path, error) from error
    finally:
        os.close(folder)


def _made(name: str, folder: int, tries: int) -> int:
    """Open the file. tries: a member of the group may have made it this moment and not given it to the group yet."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        try:
            return os.open(name, flags, 0o660, dir_fd=folder)
        except PermissionError:
            if (tries := tries - 1) <= 0:
                raise
            time.sleep(0.01)


def _folder(path: Path) -> int:
    """Open the directory, made if it is not there: for our own use, or, at the machine's usual place, for the group `GROUP`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            path.mkdir(mode=0o700)
            made = True
        except FileExistsError:
            made = False
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EEXIST):
            raise Untrusted(
                f"{path}: is no directory", hint=f"see what it is, then: rm {path}; or set lock_dir to another"
            ) from None
        raise _closed(path, error) from error
    found = os.fstat(fd)
    if made and path == SHARED:
        with suppress(KeyError, OSError):
            os.fchown(fd, -1, grp.getgrnam(GROUP).gr_gid)
            os.fchmod(fd, 0o2770)
        return fd
    why = ""
    if found.st_uid not in (0, os.geteuid()):
        why = f"belongs to {user_name(found.st_uid)}"
    elif found.st_mode & stat.S_IWOTH:
        why = "everybody may write there"
    elif found.st_mode & stat.S_IWGRP and not found.st_mode & stat.S_ISGID:
        why = "its group may write there, and was not declared to share it (mode 2770)"
    if why:
        os.close(fd)
        raise Untrusted(f"{path}: {why}, so its locks cannot be relied on", hint=f"sudo rm -r {path}, or set lock_dir to another")
    return fd


def _closed(path: Path, error: OSError) -> Missing:
    return Missing(f"{path}: {error.strerror}", hint=_JOIN)


def _read(fd: int) -> Keeper | None:
    try:
        return Keeper(**json.loads(os.pread(fd, 4096, 0)))
    except (ValueError, TypeError, OSError):
        return None
