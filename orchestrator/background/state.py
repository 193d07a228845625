"""The file of a service: what it says of itself. The process locks the file while it lives; the
kernel releases the lock however it dies, and the contents then describe the last one's actions.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.files.trust import user_name
from orchestrator.processes import Daemon, lock_holder, parent_of, try_lock

UNREADABLE = "runs, but its file cannot be read"
MOST_BYTES = 65536
READER_S = 1.0
"""Who reads the state has it locked for microseconds, or for as long as a busy machine lets it
stand there.
"""


@dataclass(frozen=True, slots=True)
class ServiceState:
    """What a service says of itself; kinds add fields. Times in wall seconds. log: the file of its
    events.

    options: as they were typed. keeper, mark: the process that starts it again when it is killed, 0 without one. trouble: what
    keeps it from its work now. error: why it ended, if nobody asked it to. alive: it runs, or is
    about to. Of one that runs and whose file is damaged only the process is known, or nothing; it
    mends the file when it next says something.
    """

    pid: int = 0
    user: str = ""
    host: str = ""
    since: float = 0.0
    plan: str = ""
    run: str = ""
    state: str = "starting"
    log: str = ""
    keeper: int = 0
    mark: str = ""
    trouble: str = ""
    error: str = ""
    options: tuple[str, ...] = ()
    alive: bool = field(default=False, compare=False)

    @property
    def kept(self) -> Daemon:
        """Its keeper."""
        return Daemon(self.keeper, self.mark)

    @property
    def where(self) -> str:
        """The process, and whose it is."""
        return f"pid {self.pid} of {self.user}@{self.host}"

    @property
    def unreadable(self) -> bool:
        """It runs, and nobody can read what it reported."""
        return self.state == UNREADABLE

    @property
    def halted(self) -> bool:
        """It died or gave up, and nobody has seen to what it left."""
        return not self.alive and (self.state != "ended" or bool(self.error))

    @property
    def of(self) -> str:
        """Which plan's, in words, if that is known."""
        return f" of {self.plan}" if self.plan else ""

    @property
    def leaves(self) -> str:
        """What it did and leaves as it is when it is stopped, in words."""
        return ""

    def __str__(self) -> str:
        return (
            f"{self.state}, {self.where if self.pid else 'its process is not known'}"
            if self.unreadable
            else self.text()
        )

    def text(self) -> str:
        """What it reported, in words."""
        return f"{self.state}, {self.where}"


S = TypeVar("S", bound=ServiceState)


def read_state(path: Path, kind: type[S]) -> S | None:
    """The state in this file, `alive` if its process runs; None if there never was one, or nothing
    that can be read.
    """
    if (fd := _opened(path)) is None:
        return None
    try:
        alive = not try_lock(fd, fcntl.LOCK_SH)
        # a reader may come between the write and the truncation of a longer text
        for _ in range(5):
            if (found := _parsed(os.pread(fd, MOST_BYTES, 0), kind)) is not None:
                return replace(found, alive=alive or (found.state != "ended" and found.kept.alive))
            time.sleep(0.01)
        return _unread(fd, kind) if alive else None
    finally:
        os.close(fd)


def process_of(path: Path, state: ServiceState) -> Daemon:
    """Whom to ask to end the service with this state: its keeper, or itself. What the file says is
    believed where the kernel says the same: who holds the lock, whose child that is; without a
    lock, whose process it is.

    Raises: PermissionError - it is not known to be a process of who owns the file.
    """
    if (fd := _opened(path)) is None:
        return state.kept
    try:
        holder, owner, free = lock_holder(fd), os.fstat(fd).st_uid, try_lock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)
    if holder is not None:
        return state.kept if state.kept.alive and parent_of(holder.pid) == state.keeper else holder
    chosen = state.kept if free or state.kept.alive else Daemon.of(state.pid)
    with suppress(FileNotFoundError):
        if Path(f"/proc/{chosen.pid}").stat().st_uid != owner:
            raise PermissionError
    return chosen


def _opened(path: Path) -> int | None:
    """The file; None if there is none. One who waits for a pipe to be written to would wait for
    ever.
    """
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
    return None


def _unread(fd: int, kind: type[S]) -> S:
    """What is known of a process that holds this file, in which there is nothing to read: the lock
    knows who it is.
    """
    holder = lock_holder(fd)
    state = UNREADABLE if os.fstat(fd).st_size else "starting"  # it locks the file before it writes
    if holder is None:
        return kind(state=state, alive=True)
    user = ""
    with suppress(OSError):  # it may have ended since
        user = user_name(Path(f"/proc/{holder.pid}").stat().st_uid)
    return kind(holder.pid, user, socket.gethostname(), state=state, alive=True)


def _parsed(text: bytes, kind: type[S]) -> S | None:
    try:
        data = json.loads(text.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, Mapping):
        return None
    known = {f.name: f.default for f in fields(kind) if f.name != "alive"}
    found: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known
    }
    return (
        kind(**found) if all(_fits(value, known[name]) for name, value in found.items()) else None
    )


def _fits(value: object, default: object) -> bool:
    """Whether a value that was read is of the kind of a field with this default."""
    if isinstance(value, bool) != isinstance(default, bool):
        return False
    if isinstance(default, tuple):
        return isinstance(value, tuple) and all(isinstance(each, str) for each in value)
    kinds = (
        (int, float)
        if isinstance(default, float)
        else (int, type(None))
        if default is None
        else type(default)
    )
    return isinstance(value, kinds)
