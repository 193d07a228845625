"""A folder of working files for one command; one left by a killed command is removed by the
next.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from orchestrator.processes import try_lock

LOCK = ".lock"
"""A file, not the folder: NFS locks only what is open for writing (flock(2))."""


class Workplace:
    """The folder `path`, this user's alone, from now until `close`.

    It is in `home`; without one in a folder of the user's in XDG_RUNTIME_DIR or the temporary
    directory: a socket's path has 108 bytes (unix(7)), which a state directory may exceed. The
    kernel releases its lock when this process ends, however that happens, on whichever machine or
    in whichever container that shares the folder. Nobody waits for a lock: who holds it may be
    stopped.
    """

    def __init__(self, home: Path | None = None) -> None:
        base = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
        home = home or base / f"testbed-{os.geteuid()}"
        with suppress(FileExistsError):
            home.mkdir(mode=0o700)
        self._fd = -1
        found = home.lstat()
        if (
            stat.S_ISDIR(found.st_mode)
            and found.st_uid == os.geteuid()
            and not found.st_mode & 0o077
        ):
            for left in home.iterdir():
                if (fd := _locked(left)) >= 0:
                    shutil.rmtree(left, ignore_errors=True)
                    os.close(fd)
            # another command may take a new folder for an abandoned one before it is locked
            for _ in range(5):
                self.path = Path(tempfile.mkdtemp(prefix="", dir=home))
                if (fd := _locked(self.path)) >= 0:
                    self._fd = fd
                    return
                shutil.rmtree(self.path, ignore_errors=True)
        # another user took the name, or files cannot be locked
        self.path = Path(tempfile.mkdtemp(prefix="testbed-", dir=base))

    def close(self) -> None:
        """Remove the folder; safe to call twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _locked(folder: Path) -> int:
    """A descriptor that holds the folder's lock; -1 if another process holds it, or the folder is
    no longer there.
    """
    try:
        fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return -1
    try:
        if try_lock(fd) and os.path.samestat(os.fstat(fd), (folder / LOCK).lstat()):
            return fd
    except OSError:
        pass
    os.close(fd)
    return -1
