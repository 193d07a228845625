"""One store per lab on this machine: locks and circuits are kept in a store, and two stores would not see each other's."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from optics.errors import Locked, TestbedError

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


class OneStore:
    """Holds the note at `path` for one command. The kernel frees it when the process dies, however it dies; the file stays.

    As a context manager: raises Locked - somebody changes the lab now with another store.
    """

    def __init__(self, path: Path, store: Path, *, user: str) -> None:
        self.path = path
        found = store.stat()
        self.keeper = Keeper(str(store), f"{found.st_dev}:{found.st_ino}", user, socket.gethostname(), os.getpid())
        self._fd = -1

    def acquire(self) -> None:
        """Share the note with everybody of our store, or write it where nobody holds it."""
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
            if _lock(fd, fcntl.LOCK_EX):  # nobody is there
                os.ftruncate(fd, 0)
                os.pwrite(fd, json.dumps(asdict(self.keeper)).encode(), 0)
            # Turning the one lock into the other is not atomic (flock(2)): who came in between has written his own.
            if not _lock(fd, fcntl.LOCK_SH):
                return False
        except OSError as error:
            raise TestbedError(f"{self.path}: {error.strerror}", hint="set lock_dir to a directory you may write") from error
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

    def __enter__(self) -> OneStore:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def _lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def process_mark(pid: int) -> str:
    """Tell one life of a process id from the next: this boot and the process's start, empty if there is no such process."""
    boot, stat = boot_id(), _stat(pid)
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
    if not mark.startswith(boot_id() or "?"):
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


def boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def boot_clock_ns() -> int:
    """Nanoseconds since this machine started, the time it slept included; nobody sets this clock."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


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


def _read(fd: int) -> Keeper | None:
    try:
        return Keeper(**json.loads(os.pread(fd, 4096, 0)))
    except (ValueError, TypeError, OSError):
        return None
