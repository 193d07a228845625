"""The store's file and who may write it: its owner alone, or, if declared, the members of one
group.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from optics.errors import Missing, TestbedError
from orchestrator.files.trust import believed, group_name, user_name
from orchestrator.store.fault import file_fault

_EFFECTIVE = os.access in os.supports_effective_ids


class UnsafeStore(TestbedError):
    """Another user could write the store and so control the lab through this program."""

    code = "E-UNSAFE-STORE"
    exit_code = 2


def read_only(path: Path) -> bool:
    """Whether the file is there, on a file system that nobody can write: it can still be read."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def private_file(path: Path) -> None:
    """Create the file, readable by its owner only; one that is `read_only` is checked and stays as
    it is.

    Raises: UnsafeStore - others may write it or its directory, or own the directory. Missing - no
    permission. StoreFailed - the disk is full.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        why = f"{path.parent}: the store's directory cannot be created: {error.strerror}"
        raise file_fault(path, error) or Missing(
            why, hint="set data_dir to another directory"
        ) from error
    folder = path.parent.stat()
    share = f"or declare it shared: set `store` instead of `data_dir` to {path.parent} (docs/how-to/share-a-lab.md)"
    if folder.st_uid not in believed():
        raise UnsafeStore(
            f"{path.parent}: belongs to {user_name(folder.st_uid)}, who can replace the store",
            hint=f"set `data_dir` to a directory of your own, {share}",
        )
    if folder.st_mode & 0o022 and not folder.st_mode & stat.S_ISVTX:
        raise UnsafeStore(
            f"{path.parent}: others can write there, and so replace the store",
            hint=f"chmod go-w {path.parent}, {share}",
        )
    fd = _open(path, 0o600, f"it belongs to {_owner(path)}; to use it together {share}")
    try:
        found = os.fstat(fd)
        if found.st_mode & 0o022:
            raise UnsafeStore(
                f"{path}: others may write the store", hint=f"chmod 600 {path}, {share}"
            )
        # SQLite would create it with the umask; plans and the journal are private.
        if found.st_uid == os.geteuid() and not read_only(path):
            _named(fd).chmod(0o600)
    finally:
        os.close(fd)


def shared_file(path: Path) -> None:
    """Create the file in a directory that a group shares, and that passes its group on to new files
    (setgid).

    The write-ahead log and its index get the permissions of the file itself (sqlite3.c,
    findCreateFileMode). Raises: UnsafeStore - others than that group may write it. Missing - no
    permission.
    """
    folder = path.parent
    make = f"sudo install -d -m 2770 -g GROUP {folder}, with GROUP the group of the lab's users"
    if not folder.is_dir():
        raise Missing(f"{folder}: the shared store's directory does not exist", hint=make)
    found = folder.stat()
    group = group_name(found.st_gid)
    if found.st_mode & 0o002:
        raise UnsafeStore(
            f"{folder}: every user can write the shared store, not only its group",
            hint=f"chmod 2770 {folder}",
        )
    if (
        not found.st_mode & stat.S_ISGID
        or found.st_mode & 0o070 != 0o070
        or found.st_mode & stat.S_ISVTX
    ):
        raise UnsafeStore(
            f"{folder}: group {group} cannot share files created there (mode {stat.S_IMODE(found.st_mode):04o}, wanted 2770)",
            hint=f"chmod 2770 {folder}",
        )
    wanted = os.R_OK | os.X_OK | (0 if read_only(path) else os.W_OK)
    if not os.access(folder, wanted, effective_ids=_EFFECTIVE):
        raise Missing(
            f"{folder}: only members of group {group} may use the shared store",
            hint=f"sudo usermod -a -G {group} $USER; log in again",
        )
    fd = _open(path, 0o660, f"sudo chgrp {group} {path}*; sudo chmod 660 {path}*")
    try:
        existing = os.fstat(fd)
        if existing.st_uid == os.geteuid() and not read_only(path):
            _named(fd).chmod(0o660)
        elif (
            existing.st_mode & 0o007
            or existing.st_mode & 0o060 != 0o060
            or existing.st_gid != found.st_gid
        ):
            raise UnsafeStore(
                f"{path}: is not its group's only (mode {stat.S_IMODE(existing.st_mode):04o}, group {group_name(existing.st_gid)})",
                hint=f"sudo chgrp {group} {path}*; sudo chmod 660 {path}*",
            )
    finally:
        os.close(fd)


def _open(path: Path, mode: int, hint: str) -> int:
    """A descriptor that only names the file, which is made where there is none.

    Closing any other descriptor of it would release the locks that SQLite holds on it for other
    connections of this process (fcntl(2), "How To Corrupt An SQLite Database File" 2.2): another
    process would then remove the log that they write to.
    """
    try:
        with suppress(FileExistsError):
            os.mknod(path, stat.S_IFREG | mode)
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
        wanted = os.R_OK | (0 if read_only(path) else os.W_OK)
        if not stat.S_ISREG(os.fstat(fd).st_mode) or not os.access(
            _named(fd), wanted, effective_ids=_EFFECTIVE
        ):
            os.close(fd)
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW))  # fails, and says why
            raise OSError(errno.EINVAL, "no plain file")
        return fd
    except OSError as error:
        raise file_fault(path, error) or Missing(
            f"{path}: the store cannot be opened: {error.strerror}", hint=hint
        ) from error


def _named(fd: int) -> Path:
    """A path to the file that the descriptor names."""
    return Path(f"/proc/self/fd/{fd}")


def _owner(path: Path) -> str:
    try:
        return user_name(path.stat().st_uid)
    except OSError:
        return "another user"
