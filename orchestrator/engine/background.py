"""The one process of a kind that works on an owner's plan in the background: a file next to the store has its pid and its state.

The process locks the file while it lives; the kernel releases the lock however it dies. The contents then describe the last one's
actions. `testbed guard`, `testbed turn` and `testbed adapt` are such kinds.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from optics import Locked, TestbedError, TimedOut
from orchestrator.processes import Daemon, lock_holder, process_mark, spawn
from orchestrator.settings import Settings
from orchestrator.trust import user_name

LOOK_S = 0.02
STOP_S = 15.0
UNREADABLE = "runs, but its file cannot be read"
READER_S = 1.0
"""Who reads the state has it locked for microseconds, or for as long as a busy machine lets it stand there."""


@dataclass(frozen=True, slots=True)
class BackgroundState:
    """What such a process reports of itself; kinds add fields. Times in wall seconds. log: the file of its events.

    keeper, mark: the process that starts it again when it is killed, 0 without one. alive: it runs, or is about to.
    Of one that runs and whose file is damaged only the process is known, or nothing; it mends the file when it next says something.
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
    def of(self) -> str:
        """Which plan's, in words, if that is known."""
        return f" of {self.plan}" if self.plan else ""

    def __str__(self) -> str:
        return f"{self.state}, {self.where if self.pid else 'its process is not known'}" if self.unreadable else self.words()

    def words(self) -> str:
        """What it reported, in words."""
        return f"{self.state}, {self.where}"


S = TypeVar("S", bound=BackgroundState)


@dataclass(frozen=True, slots=True)
class Kind(Generic[S]):
    """One kind of background process: `testbed NAME` starts it, `testbed NAME --stop` (`stops`) ends it.

    noun: what messages call it. does: what one of them does with the plan ("watches"). state: the class of its states. options:
    with which the command does the work itself. of: what there is one for.
    """

    name: str
    noun: str
    does: str
    state: type[S]
    options: tuple[str, ...] = ()
    of: str = "plan"
    stops: str = "--stop"

    def path(self, settings: Settings, slice_: str) -> Path:
        """The file of the process of one slice of a lab."""
        return settings.data_dir / self.name / f"{slice_.replace('/', '@')}.json"

    def own(self, settings: Settings, log: str = "") -> S:
        """The initial state for this process."""
        return self.state(os.getpid(), settings.user, socket.gethostname(), time.time(), log=log)

    def read(self, path: Path) -> S | None:
        """The state in this file, `alive` if its process runs; None if there never was one."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                alive = False
            except BlockingIOError:
                alive = True
            for _ in range(5):  # a reader may come between the write and the truncation of a longer text
                if (found := self._parsed(os.pread(fd, 65536, 0))) is not None:
                    return replace(found, alive=alive or (found.state != "ended" and found.kept.alive))
                time.sleep(0.01)
            return self._unread(fd) if alive else None
        finally:
            os.close(fd)

    def _unread(self, fd: int) -> S:
        """What is known of a process that holds this file, in which there is nothing to read: the lock knows who it is."""
        holder = lock_holder(fd)
        state = UNREADABLE if os.fstat(fd).st_size else "starting"  # it locks the file before it writes
        if holder is None:
            return self.state(state=state, alive=True)
        user = ""
        with suppress(OSError):  # it may have ended since
            user = user_name(Path(f"/proc/{holder.pid}").stat().st_uid)
        return self.state(holder.pid, user, socket.gethostname(), state=state, alive=True)

    def _parsed(self, text: bytes) -> S | None:
        try:
            data = json.loads(text.partition(b"\n")[0])
        except ValueError:
            return None
        if not isinstance(data, Mapping):
            return None
        known = {f.name: f.default for f in fields(self.state)}
        found: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known}
        return self.state(**found) if all(_fits(value, known[name]) for name, value in found.items()) else None

    def running(self, settings: Settings, slice_: str) -> S | None:
        """The state of the process that runs now, None if none does."""
        there = self.read(self.path(settings, slice_))
        return there if there is not None and there.alive else None

    def start(self, settings: Settings, slice_: str, log: Path, words: Sequence[str] = ()) -> S:
        """As `begin`, and wait until it works, as long as it lives, until the time of a command is over.

        Raises: TimedOut; its own error if it ended.
        """
        starting, began = self.begin(settings, slice_, log, words), time.monotonic()
        while (there := starting.look()) is None:
            if time.monotonic() > began + settings.timeout_s:
                starting.end()
                raise TimedOut(f"the {self.noun} is still starting after {settings.timeout_s:g} s", hint=f"see {log}")
            time.sleep(LOOK_S)
        return there

    async def started(self, settings: Settings, slice_: str, log: Path, words: Sequence[str] = ()) -> S:
        """As `start`, for a verb, whose own deadline ends the wait."""
        starting = self.begin(settings, slice_, log, words)
        try:
            while True:
                if (there := starting.look()) is not None:
                    return there
                await asyncio.sleep(LOOK_S)
        except asyncio.CancelledError:
            starting.end()
            raise

    def begin(self, settings: Settings, slice_: str, log: Path, words: Sequence[str] = ()) -> Starting[S]:
        """Start one in the background; one that runs already is found there.

        words: further options of the command. Its events go to `log`, one JSON object a line.
        """
        path, errors = self.path(settings, slice_), log.with_suffix(".err")
        before = self.read(path)  # which is there until the new one has written
        if before is not None and before.alive:
            return Starting(self, path, errors, None, before)
        said = errors.stat().st_size if errors.exists() else 0  # what earlier ones wrote
        process = spawn(settings, [self.name, *self.options, "--log", str(log), *words], errors)
        return Starting(self, path, errors, process, before, said)

    def stop(self, settings: Settings, slice_: str) -> S | None:
        """End it and wait until it has ended; it completes the current step. None if none runs.

        Raises: TimedOut - it does not end. TestbedError - it runs on another machine, or is another user's.
        """
        if (there := self.running(settings, slice_)) is None:
            return None
        if not there.pid:
            words = f"a {self.noun} {UNREADABLE}, and its process is another user's, or on another machine"
            raise TestbedError(words, hint=f"end it where it runs; its lock is on {self.path(settings, slice_)}")
        if there.host != socket.gethostname():
            raise TestbedError(f"the {self.noun} runs on {there.host} (pid {there.pid})", hint="stop it there")
        try:
            ended = (there.kept if there.kept.alive else Daemon(there.pid, process_mark(there.pid))).end(STOP_S)
        except PermissionError:
            raise TestbedError(
                f"the {self.noun} is {there.user}'s (pid {there.pid})", hint=f"ask {there.user} to stop it"
            ) from None
        if not ended:
            raise TimedOut(f"the {self.noun} (pid {there.pid}) does not end", hint=f"see {there.log}")
        return there


def _fits(value: object, default: object) -> bool:
    """Whether a value that was read is of the kind of a field with this default."""
    kinds = (int, float) if isinstance(default, float) else (int, type(None)) if default is None else type(default)
    return isinstance(value, kinds)


@dataclass(frozen=True, slots=True)
class Starting(Generic[S]):
    """A process of a kind that may not work yet. errors: where its stderr goes, from byte `said` on.

    before: the state that was there before it was started; without `process` it is that of the one that runs already.
    """

    kind: Kind[S]
    path: Path
    errors: Path
    process: subprocess.Popen[bytes] | None
    before: S | None
    said: int = 0

    def look(self) -> S | None:
        """Its state once it works, None while it starts. Raises: TestbedError - it ended, with its own error."""
        if self.process is None:
            return self.before
        there, before = self.kind.read(self.path), self.before
        old = before is not None and there is not None and (there.pid, there.since) == (before.pid, before.since)
        if there is not None and there.alive and not old and there.state not in ("starting", "ended", UNREADABLE):
            Daemon.detach(self.process)
            return there
        if self.process.poll() is not None:
            words = self.errors.read_bytes()[self.said :].decode(errors="replace").strip()
            begin = f"the {self.kind.noun} ended at once: "
            raise _own_error(begin, words or f"exit {self.process.returncode}", f"see {self.errors}")
        return None

    def end(self) -> None:
        """End it: nobody waits for it any more."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()


def _own_error(begin: str, said: str, hint: str) -> TestbedError:
    """The error that a command printed. said: its stderr, of which the last line counts if there is no error in it."""
    if found := re.search(r"^(E-[A-Z-]+) (.+?)(?:\nnext: (.+))?\Z", said, re.DOTALL | re.MULTILINE):
        code, words, own_hint = found.groups()
        kinds = (kind for kind in TestbedError.__subclasses__() if kind.code == code and "__init__" not in vars(kind))
        return next(kinds, TestbedError)(begin + words, hint=own_hint or hint)
    return TestbedError(begin + said.splitlines()[-1], hint=hint)


def _locked(fd: int) -> bool:
    """Lock the file; a reader, who holds it for a moment, is waited for."""
    give_up = time.monotonic() + READER_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > give_up:
                return False
            time.sleep(0.01)


class StateFile(Generic[S]):
    """Holds the file while the process lives. As a context manager: raises Locked - another one works on this plan.

    before: the state that the last one left.
    """

    def __init__(self, kind: Kind[S], path: Path, state: S) -> None:
        self.kind, self.path, self.state = kind, path, state
        self.before = kind.read(path)
        self._fd = -1

    def __enter__(self) -> StateFile[S]:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _locked(fd):
            os.close(fd)
            there = self.kind.read(self.path)
            who = f" ({there})" if there else ""
            message = f"another {self.kind.noun} {self.kind.does} this {self.kind.of}{who}"
            raise Locked(message, hint=f"testbed {self.kind.name} {self.kind.stops}")
        self._fd = fd
        self.say(self.state)
        return self

    def say(self, state: S) -> None:
        """Write the current state."""
        self.state = state
        text = json.dumps({k: v for k, v in asdict(state).items() if k != "alive"}).encode()
        os.pwrite(self._fd, text + b"\n", 0)
        os.ftruncate(self._fd, len(text) + 1)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._fd)


HERE = ("--foreground",)
TURN = Kind("turn", "turner", "turns", BackgroundState, HERE)
ADAPT = Kind("adapt", "adapter", "adapts", BackgroundState, HERE)
MOVERS = (TURN, ADAPT)
"""The kinds that move light, and hold the lab while they do: whoever is to change it stops them first."""


def stop_movers(settings: Settings, slice_: str) -> list[str]:
    """Stop what moves light for this owner in the background, unless it is this process; return in words what was stopped.

    Raises: as `Kind.stop`.
    """
    stopped = []
    for kind in MOVERS:
        there = kind.running(settings, slice_)
        if there is not None and there.pid != os.getpid() and kind.stop(settings, slice_) is not None:
            stopped.append(f"{kind.noun}{there.of} stopped (pid {there.pid})")
    return stopped


def ready() -> None:
    """Report to systemd that the process works, by sd_notify(3), if it asked."""
    if not (address := os.environ.get("NOTIFY_SOCKET")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.connect("\0" + address[1:] if address.startswith("@") else address)
        link.sendall(b"READY=1\n")
