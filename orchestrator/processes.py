"""Processes that outlive the command that starts them: guard, telemetry sink, influxd, the watch
over an unconfirmed change.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import optical_testbed_home
from orchestrator.settings import Settings

LOWLY = 10
"""Niceness of background work: a tenth of the share of an ordinary process (sched(7)), and never
starved, as 19 would be.
"""


def spawn(
    settings: Settings, argv: Sequence[str], message: Path, *, lowly: bool = False
) -> subprocess.Popen[bytes]:
    """Start `testbed WORDS` on the same lab and store, in a session of its own; its stderr goes to
    the file `message`.

    lowly: at a low priority from its first instruction on. The caller waits for it, or leaves it
    running: `Daemon.detach`.
    """
    message.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # -P: -m would search modules in the current directory first, which may belong to another user.
    command = [sys.executable, "-P", "-m", "orchestrator.cli.main", *argv, "--no-color"]
    command += ["--inventory", str(settings.inventory), "--as", settings.owner or settings.user]
    if lowly and (nice := shutil.which("nice")) is not None:
        command = [nice, "-n", str(LOWLY), *command]
    places = {
        "DATA_DIR": settings.data_dir,
        "STATE_DIR": settings.state_dir,
        "LOCK_DIR": settings.lock_dir,
    }
    places |= {} if settings.store is None else {"STORE": settings.store}
    environment = optical_testbed_home.environment() | {
        f"TESTBED_{name}": str(value) for name, value in places.items()
    }
    argv_fd = os.open(message, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=argv_fd,
            start_new_session=True,
            env=environment,
        )
    finally:
        os.close(argv_fd)


@dataclass(frozen=True, slots=True)
class Daemon:
    """A process that outlives the command that started it: its id, and a mark that distinguishes it
    from later users of the id.

    mark: of `process_mark`; empty where there was no such process.
    """

    pid: int
    mark: str

    @classmethod
    def detach(cls, process: subprocess.Popen[bytes]) -> Daemon:
        """Leave a child running when this process ends."""
        process.returncode = 0  # else Popen warns that it still runs
        return cls.of(process.pid)

    @classmethod
    def of(cls, pid: int) -> Daemon:
        """The process that has this id now."""
        return cls(pid, process_mark(pid))

    @property
    def alive(self) -> bool:
        """Whether it runs; a child that has ended is collected. Whatever a file says it is: no
        other process is touched.
        """
        mark, ended = _identity(self.pid)
        if not mark or mark != self.mark:
            return False
        if ended:
            with suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)
        return not ended

    def end(self, timeout_s: float, sent: signal.Signals = signal.SIGTERM) -> bool:
        """Send the signal and wait; whether it ended within `timeout_s`. Raises: PermissionError -
        it is another user's.
        """
        with suppress(ProcessLookupError):
            if self.alive:
                os.kill(self.pid, sent)
        return self.ended(timeout_s)

    def ended(self, timeout_s: float) -> bool:
        """Wait until it has ended; whether it did within `timeout_s`."""
        give_up = time.monotonic() + timeout_s
        while self.alive:
            if time.monotonic() > give_up:
                return False
            time.sleep(0.02)
        return True


def parent_of(pid: int) -> int:
    """The id of a process's parent; 0 if there is no such process."""
    stat = _stat(pid)
    return int(stat[stat.rfind(")") + 2 :].split()[1]) if stat else 0


def process_mark(pid: int) -> str:
    """Identify a process beyond its id: this boot and the process's start time, empty if there is
    no such process.
    """
    mark, ended = _identity(pid)
    return "" if ended else mark


def _identity(pid: int) -> tuple[str, bool]:
    """The mark of a process, empty if there is none, and whether it has ended and nobody has
    collected it.
    """
    boot, stat = boot_id(), _stat(pid)
    if not boot or not stat:
        return "", False
    fields = stat[stat.rfind(")") + 2 :].split()
    # proc(5): field 22 is the start time; field 3, the state, is the first after the name.
    return f"{boot}/{fields[19]}", fields[0] == "Z"


def process_alive(pid: int, mark: str) -> bool:
    """Whether the process with `mark` is alive; one that only its owner may see (proc mounted with
    hidepid) is assumed to be.
    """
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


def try_lock(fd: int | IO[Any], how: int = fcntl.LOCK_EX, patience_s: float = 0.0) -> bool:
    """Lock an open file by flock(2); False if another process has it for longer than `patience_s`
    (s): it may be stopped.
    """
    give_up = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up:
                return False
            time.sleep(0.01)
        else:
            return True


@contextmanager
def file_lock(path: Path) -> Iterator[bool]:
    """Lock this file, which is created if missing, while it lasts: whether it is locked. Raises:
    OSError - it cannot be opened.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield try_lock(fd)
    finally:
        os.close(fd)


def lock_holder(fd: int) -> Daemon | None:
    """The process that has locked this open file with flock(2), exclusively; None if it is not one
    that this user may look at.
    """
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    own = os.fstat(fd)
    # proc_locks(5): `1: FLOCK ADVISORY WRITE 4711 fe:00:2173260 0 EOF`; some file systems show
    # another device
    for line in lines:
        tokens = line.split()
        if tokens[1:4] == ["FLOCK", "ADVISORY", "WRITE"] and tokens[5].rpartition(":")[2] == str(
            own.st_ino
        ):
            with suppress(OSError):
                if any(
                    os.path.samestat(path.stat(), own)
                    for path in Path(f"/proc/{tokens[4]}/fd").iterdir()
                ):
                    return Daemon.of(int(tokens[4]))
    return None


def boot_id() -> str:
    """Of this start of the machine; empty if this system has none. Hosts with the same one share a
    monotonic clock.
    """
    return _proc("sys/kernel/random/boot_id").strip()


def boot_clock_ns() -> int:
    """Nanoseconds since this machine started, suspended time included; this clock cannot be set."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _stat(pid: int) -> str:
    return _proc(f"{pid}/stat")


def _proc(name: str) -> str:
    """A file of proc(5); empty if it cannot be read."""
    try:
        return Path("/proc", name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
