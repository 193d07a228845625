"""A temporary folder with a short path for Ansible's working files; one left by a killed command is removed by the next."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


class Workplace:
    """The folder `path`, this user's alone, from now until `close`.

    It is in a folder of the user's in XDG_RUNTIME_DIR or the temporary directory: a socket's path has 108 bytes (unix(7)), which a
    state directory may exceed. The kernel releases its lock when this process ends, however that happens.
    """

    def __init__(self) -> None:
        base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
        home = base / f"testbed-{os.geteuid()}"
        with suppress(FileExistsError):
            home.mkdir(mode=0o700)
        self._fd = -1
        found = home.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            self.path = Path(tempfile.mkdtemp(prefix="testbed-", dir=base))  # another user took the name
            return
        at_home = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(at_home, fcntl.LOCK_EX)  # no other process may take a new folder for an abandoned one before it is locked
            for left in home.iterdir():
                _remove_if_left(left)
            self.path = Path(tempfile.mkdtemp(prefix="", dir=home))
            self._fd = _locked(self.path)
        finally:
            os.close(at_home)

    def close(self) -> None:
        """Remove the folder; safe to call twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _remove_if_left(folder: Path) -> None:
    fd = _locked(folder)
    if fd >= 0:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(fd)


def _locked(folder: Path) -> int:
    """A descriptor that holds the folder's lock; -1 if another process holds it, or the folder no longer exists."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return -1
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return -1
    return fd
