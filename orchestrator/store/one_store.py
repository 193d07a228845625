"""One store per lab on this machine: locks and circuits are kept in a store, and two stores would
not see each other's entries.
"""

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
from orchestrator.files.trust import SHARED, group_name, user_name
from orchestrator.processes import try_lock

GROUP = "testbed"
"""Root assigns `SHARED` to this group, if it exists
(docs/decisions/0023-lab-locks-in-a-group-directory.md).
"""
_JOIN = "only members of its group may lock there (docs/how-to/share-a-lab.md); or set lock_dir to a directory of your own"
GIVE_UP_S = 2.0
"""The file is locked exclusively only while it is written."""


@dataclass(frozen=True, slots=True)
class Keeper:
    """The store that keeps the lab, and the user who recorded it. store: its file; `identity` is
    the same for any spelling.
    """

    store: str
    identity: str
    user: str
    host: str
    pid: int


class StoreClaim:
    """Locks the file at `path` for one command. The kernel releases it when the process ends, for
    any reason; the file stays.

    As a context manager: raises Locked - another store is in use for this lab now. Untrusted -
    others than root, this user and one group could have written there. Missing - no permission to
    write there.
    """

    def __init__(self, path: Path, store: Path, *, user: str) -> None:
        self.path = path
        found = store.stat()
        self.keeper = Keeper(
            str(store), f"{found.st_dev}:{found.st_ino}", user, socket.gethostname(), os.getpid()
        )
        self._fd = -1

    def acquire(self) -> None:
        """Share the file with other commands on this store; write it first if no command holds
        it.
        """
        fd = _open(self.path)
        give_up = time.monotonic() + GIVE_UP_S
        try:
            while not self._shared(fd):
                if time.monotonic() >= give_up:
                    raise Locked(
                        f"{self.path}: is locked but names no owner", hint="try again in a moment"
                    )
                time.sleep(0.005)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def _shared(self, fd: int) -> bool:
        """Whether the file is shared now. Raises: Locked - it names another store."""
        try:
            if try_lock(fd, fcntl.LOCK_EX):  # no holder
                os.ftruncate(fd, 0)
                os.pwrite(fd, json.dumps(asdict(self.keeper)).encode(), 0)
            # Converting one kind of lock to the other is not atomic (flock(2)): another may have
            # written in between.
            if not try_lock(fd, fcntl.LOCK_SH):
                return False
        except OSError as error:
            raise _closed(self.path, error) from error
        keeper = _read(fd)
        if keeper is None:
            fcntl.flock(fd, fcntl.LOCK_UN)
            return False
        if keeper.identity != self.keeper.identity:
            raise Locked(
                f"{keeper.user} (pid {keeper.pid}) is changing this lab with another store, {keeper.store}; two stores do not see "
                "each other's locks and circuits",
                hint="share one: set `store` to its directory (docs/how-to/share-a-lab.md)",
            )
        return True

    def release(self) -> None:
        """Release the file; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> StoreClaim:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def who_locks(folder: Path) -> str:
    """The users who may lock in this directory, in words. Raises: as `StoreClaim`."""
    if not folder.exists():
        return "no lock has been taken here yet"
    fd = _folder(folder)
    try:
        found = os.fstat(fd)
    finally:
        os.close(fd)
    if found.st_mode & stat.S_IWGRP:
        return f"{folder}: root and group {group_name(found.st_gid)}"
    return f"{folder}: {user_name(found.st_uid)} alone"


def _open(path: Path) -> int:
    """Open the file for writing, created if missing, in a directory where only root, this user and
    perhaps one group may write.

    Everything is opened relative to the directory that was checked, and no link is followed.
    """
    folder = _folder(path.parent)
    try:
        shared = bool(os.fstat(folder).st_mode & stat.S_IWGRP)
        fd = _made(path.name, folder, 10 if shared else 1)
        found = os.fstat(fd)
        if (
            not stat.S_ISREG(found.st_mode)
            or found.st_nlink != 1
            or (found.st_uid not in (0, os.geteuid()) and not shared)
        ):
            os.close(fd)
            raise Untrusted(
                f"{path}: is not a lock file of this program",
                hint=f"check its content, then: rm {path}",
            )
        if found.st_uid == os.geteuid():
            os.fchmod(fd, 0o660 if shared else 0o600)
        return fd
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise Untrusted(
                f"{path}: is not a lock file of this program",
                hint=f"check its content, then: rm {path}",
            ) from None
        raise _closed(path, error) from error
    finally:
        os.close(folder)


def _made(name: str, folder: int, tries: int) -> int:
    """Open the file. tries: a member of the group may have just created it and not assigned it to
    the group yet.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        try:
            return os.open(name, flags, 0o660, dir_fd=folder)
        except PermissionError:
            if (tries := tries - 1) <= 0:
                raise
            time.sleep(0.01)


def _folder(path: Path) -> int:
    """Open the directory, created if missing: private, or, at the machine's default place, for the
    group `GROUP`.
    """
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
                f"{path}: is not a directory",
                hint=f"check its content, then: rm {path}; or set lock_dir to another",
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
        why = "every user can write there"
    elif found.st_mode & stat.S_IWGRP and not found.st_mode & stat.S_ISGID:
        why = "its group can write there, but the directory is not declared as shared (mode 2770)"
    if why:
        os.close(fd)
        raise Untrusted(
            f"{path}: {why}, so its locks cannot be relied on",
            hint=f"sudo rm -r {path}, or set lock_dir to another",
        )
    return fd


def _closed(path: Path, error: OSError) -> Missing:
    return Missing(f"{path}: {error.strerror}", hint=_JOIN)


def _read(fd: int) -> Keeper | None:
    try:
        return Keeper(**json.loads(os.pread(fd, 4096, 0)))
    except (ValueError, TypeError, OSError):
        return None
