"""One writer per lab on this machine: a file lock that names its holder and dies with him."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from optics.errors import Locked, TestbedError


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock. `since`: wall seconds; `id`: names this one holding, never used again."""

    user: str
    host: str
    pid: int
    since: float
    reason: str
    id: str

    def __str__(self) -> str:
        since = time.strftime("%H:%M:%S", time.localtime(self.since))
        return f"{self.user} on {self.host} (pid {self.pid}) since {since}: {self.reason}"


class LabLock:
    """Holds `path` for one command. The kernel frees it when the process dies, however it dies; the file itself stays.

    As a context manager: raises Locked - somebody else holds it; the message names user, host, pid, since and reason.
    """

    def __init__(self, path: Path, *, user: str, reason: str, wait_s: float = 0.0) -> None:
        self.path, self.wait_s = path, wait_s
        self.holder = Holder(user, socket.gethostname(), os.getpid(), time.time(), reason, secrets.token_hex(4))
        self._fd = -1

    def acquire(self) -> None:
        """Take the lock, waiting at most `wait_s` (s) for another holder."""
        fd = _open(self.path)
        deadline = time.monotonic() + self.wait_s
        try:
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise self._locked(fd) from None
                    time.sleep(0.05)
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(asdict(self.holder)).encode(), 0)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def release(self) -> None:
        """Free the lock; safe to call twice."""
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> LabLock:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def _locked(self, fd: int) -> Locked:
        holder = _read(fd)
        if holder is None:  # between his taking the lock and his writing the name
            return Locked(f"the lab is locked by another process ({self.path})", hint="try again in a moment")
        return Locked(
            f"the lab is locked by {holder}", hint=f"wait for it, or ask {holder.user}; the lock ends with process {holder.pid}"
        )


def holder(path: Path) -> Holder | None:
    """Who holds the lock now, None if nobody does."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(fd)
    else:
        return None
    finally:
        os.close(fd)


def process_mark(pid: int) -> str:
    """Tell one life of a process id from the next: this boot and the process's start, empty if there is no such process."""
    boot, stat = _boot(), _stat(pid)
    if not boot or not stat:
        return ""
    fields = stat[stat.rfind(")") + 2 :].split()
    # proc(5): field 22 is the start time; field 3, the state, is the first after the name. A zombie does nothing any more.
    return "" if fields[0] == "Z" else f"{boot}/{fields[19]}"


def process_alive(pid: int, mark: str) -> bool:
    """Whether the process that had `mark` still lives; one that only its owner may see (proc mounted with hidepid) is taken to."""
    now = process_mark(pid)
    if now:
        return now == mark
    if not mark.startswith(_boot() or "?"):
        return False
    if _stat(pid):
        return False  # a zombie
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _stat(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _open(path: Path) -> int:
    # Every user of this machine must be able to lock: the directory is like /tmp, the file is writable by all. Opening comes before
    # creating because the kernel refuses O_CREAT on another user's file in such a directory (fs.protected_regular).
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o1777)
    for _ in range(10):
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            pass
        except PermissionError as error:
            raise TestbedError(
                f"{path}: cannot be opened: {error.strerror}", hint="set lock_dir to a directory you may write"
            ) from error
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            continue
        os.fchmod(fd, 0o666)
        return fd
    raise TestbedError(f"{path}: appears and disappears; is something cleaning {path.parent}?")


def _read(fd: int) -> Holder | None:
    try:
        return Holder(**json.loads(os.pread(fd, 4096, 0)))
    except (ValueError, TypeError, OSError):
        return None
