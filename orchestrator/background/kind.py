"""The kinds of services: `testbed service start NAME` starts the one of a plan, lab or server in
the background, `stop` ends it.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from fcntl import LOCK_EX, LOCK_UN, flock
from pathlib import Path
from types import TracebackType
from typing import Generic, Literal

from optics.errors import Locked, TestbedError, TimedOut, Untrusted
from optics.plain import reason
from orchestrator.background.options import ServiceOptions
from orchestrator.background.state import READER_S, UNREADABLE, S, process_of, read_state
from orchestrator.files.trust import believed, user_name
from orchestrator.processes import Daemon, process_mark, spawn, try_lock
from orchestrator.settings import Settings

LOOK_S = 0.02
STOP_S = 15.0


@dataclass(frozen=True, slots=True)
class Kind(Generic[S]):
    """One kind of service, with all that `testbed service` needs to know of it: its verbs are made
    from this.

    name: as it is typed. state: the class of its states. short, examples, more: its help. options:
    the class of its options. work: the function that does the work in this process, as
    `module:function`. A coroutine function gets a `Command`, a plain one the settings; then
    `notify` and `options`. It returns a `ServiceReport`. begin: the function that is called with
    the options first where one is started: it returns the state if it has started it, a
    `ServiceNote` if no process is to be started, else None. after: the function that is called with
    the state of one that was stopped, or None; it returns a `ServiceNote`. Both are called as
    `work` is. server: the key of a service of a server, from the settings. kept: in the background
    its parent starts it again when it is killed. lowly: it works at a low priority. moves_light: it
    holds the lab meanwhile, so that a command that is to change the lab stops it first. halts: the
    guard stops it while it recovers a job, and starts it again. stop_s: how long (s) it may take to
    end.
    """

    name: str
    state: type[S]
    short: str = ""
    work: str = ""
    options: type[ServiceOptions] = ServiceOptions
    examples: str = ""
    more: str = ""
    begin: str = ""
    after: str = ""
    of: Literal["plan", "lab", "server"] = "plan"
    server: Callable[[Settings], str] | None = None
    kept: bool = False
    lowly: bool = False
    moves_light: bool = False
    halts: bool = False
    stop_s: float = STOP_S

    @property
    def noun(self) -> str:
        """What messages call it."""
        return f"{self.name} service"

    def key(self, settings: Settings, plan: str, lab: str) -> str:
        """What there is one for, of these keys of the owner's plan and of the lab. Raises: Usage -
        no server is configured.
        """
        return (
            self.server(settings) if self.server is not None else lab if self.of == "lab" else plan
        )

    def path(self, settings: Settings, key: str) -> Path:
        """The file of the one for this plan (the tenancy of its owner), lab or server."""
        folder = settings.state_dir if self.of == "server" else settings.data_dir
        return folder / self.name / f"{key.replace('/', '@')}.json"

    def log(self, settings: Settings, key: str) -> Path:
        """Where one in the background writes its events, unless it is given another file."""
        return self.path(settings, key).with_suffix(".jsonl")

    def own(self, settings: Settings, options: ServiceOptions | None = None) -> S:
        """The initial state for this process."""
        options = options or ServiceOptions()
        keeper = os.getppid() if options.kept else 0
        state = self.state(
            os.getpid(),
            settings.user,
            socket.gethostname(),
            time.time(),
            log=options.log,
            options=tuple(options.text()),
        )
        return replace(state, keeper=keeper, mark=process_mark(keeper)) if options.kept else state

    def read(self, path: Path) -> S | None:
        """The state in this file, `alive` if its process runs; None if there never was one."""
        return read_state(path, self.state)

    def file(self, settings: Settings, key: str, own: S) -> StateFile[S]:
        """The file for this process, of which `own` is the initial state."""
        return StateFile(self, self.path(settings, key), own)

    def running(self, settings: Settings, key: str) -> S | None:
        """The state of the process that runs now, None if none does."""
        place = self.read(self.path(settings, key))
        return place if place is not None and place.alive else None

    def start(
        self,
        settings: Settings,
        key: str,
        log: Path | None = None,
        options: ServiceOptions | None = None,
    ) -> S:
        """Start one in the background, and wait until it works, as long as it lives, until the time
        of a command is over. One that works already is found there.

        Its events go to `log`, one JSON object a line; its stderr beside it. Raises: TimedOut; its
        own error if it ended.
        """
        looks, began = self._starting(settings, key, log, options), time.monotonic()
        while (existing := next(looks)) is None:
            if time.monotonic() > began + settings.timeout_s:
                looks.close()
                hint = f"see {log or self.log(settings, key)}"
                raise TimedOut(
                    f"the {self.noun} is still starting after {settings.timeout_s:g} s", hint=hint
                )
            time.sleep(LOOK_S)
        return existing

    async def started(
        self,
        settings: Settings,
        key: str,
        log: Path | None = None,
        options: ServiceOptions | None = None,
    ) -> S:
        """As `start`, for a verb, whose own deadline ends the wait."""
        looks = self._starting(settings, key, log, options)
        try:
            while True:
                if (existing := next(looks)) is not None:
                    return existing
                await asyncio.sleep(LOOK_S)
        except asyncio.CancelledError:
            looks.close()
            raise

    def launch(
        self, settings: Settings, log: Path, options: ServiceOptions | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process in the background that does the work, and do not wait for it."""
        argv = ["service", "run", self.name, "--log", str(log), *(["--kept"] if self.kept else [])]
        return spawn(
            settings,
            [*argv, *(options.text() if options else [])],
            log.with_suffix(".err"),
            lowly=self.lowly,
        )

    def _starting(
        self, settings: Settings, key: str, log: Path | None, options: ServiceOptions | None
    ) -> Generator[S | None, None, None]:
        """Look again and again: None until it works, then its state. Closed before, it is ended:
        nobody waits for it any more.
        """
        path, log = self.path(settings, key), log or self.log(settings, key)
        while (
            (before := self.read(path)) is not None
            and before.alive
            and before.state in ("starting", "ended")
        ):
            # it does not work yet; or it leaves, and may not see what another is started for
            yield None
        if before is not None and before.alive:
            yield before
            return
        errors = log.with_suffix(".err")
        wrote = errors.stat().st_size if errors.exists() else 0  # what earlier ones did
        process = self.launch(settings, log, options)
        try:
            while (existing := self._working(path, before)) is None:
                if process.poll() is not None:
                    text = errors.read_bytes()[wrote:].decode(errors="replace").strip()
                    begin = f"the {self.noun} ended at once: "
                    raise _own_error(begin, text or f"exit {process.returncode}", f"see {errors}")
                yield None
        except GeneratorExit:
            process.terminate()
            process.wait()
            raise
        Daemon.detach(process)
        yield existing

    def _working(self, path: Path, before: S | None) -> S | None:
        """The state of one that works, and is not that which was there `before`: it stays until the
        new one has written.
        """
        place = self.read(path)
        if place is None or not place.alive or place.state in ("starting", "ended", UNREADABLE):
            return None
        return (
            None
            if before is not None and (place.pid, place.since) == (before.pid, before.since)
            else place
        )

    def stop(self, settings: Settings, key: str) -> S | None:
        """End it and wait until it has ended; it completes the current step. None if none runs.

        Raises: TimedOut - it does not end. TestbedError - it runs on another machine, or is another
        user's.
        """
        return self.end(self.path(settings, key))

    def end(self, path: Path) -> S | None:
        """As `stop`, the one with this file."""
        if (place := self.read(path)) is None or not place.alive:
            return None
        if not place.pid:
            text = f"a {self.noun} {UNREADABLE}, and its process is another user's, or on another machine"
            raise TestbedError(text, hint=f"end it where it runs; its lock is on {path}")
        if place.host != socket.gethostname():
            raise TestbedError(
                f"the {self.noun} runs on {place.host} (pid {place.pid})", hint="stop it there"
            )
        try:
            ended = process_of(path, place).end(self.stop_s)
        except PermissionError:
            raise TestbedError(
                f"the {self.noun} is {place.user}'s (pid {place.pid})",
                hint=f"ask {place.user} to stop it",
            ) from None
        if not ended:
            raise TimedOut(
                f"the {self.noun} (pid {place.pid}) does not end",
                hint=f"see {place.log}" if place.log else "",
            )
        return place


def _own_error(begin: str, message: str, hint: str) -> TestbedError:
    """The error that a command printed. message: its stderr, of which the last line counts if there
    is no error in it.
    """
    if found := re.search(
        r"^(E-[A-Z-]+) (.+?)(?:\nnext: (.+))?\Z", message, re.DOTALL | re.MULTILINE
    ):
        code, text, own_hint = found.groups()
        kinds = (
            kind
            for kind in TestbedError.__subclasses__()
            if kind.code == code and "__init__" not in vars(kind)
        )
        return next(kinds, TestbedError)(begin + text, hint=own_hint or hint)
    return TestbedError(begin + message.splitlines()[-1], hint=hint)


class StateFile(Generic[S]):
    """Holds the file while the process lives. As a context manager: raises Locked - another one
    works on this plan. Untrusted - the file is another user's. TestbedError - it cannot be opened.

    before: the state that the last one left.
    """

    def __init__(self, kind: Kind[S], path: Path, state: S) -> None:
        self.kind, self.path, self.state = kind, path, state
        self.before = kind.read(path)
        self._fd = -1
        self._mine = False

    def __enter__(self) -> StateFile[S]:
        self._fd = self._opened()
        if not self.take(READER_S):
            os.close(self._fd)
            place = self.kind.read(self.path)
            who = f" ({place})" if place else ""
            raise Locked(
                f"another {self.kind.noun} runs for this {self.kind.of}{who}",
                hint=f"testbed service stop {self.kind.name}",
            )
        self.emit(self.state)
        return self

    def _opened(self) -> int:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(
                self.path,
                os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o600,
            )
        except OSError as error:
            text = f"the {self.kind.noun} cannot write {self.path}: {reason(error)}"
            raise TestbedError(text, hint="it must be a file of yours, or none") from error
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode) and found.st_uid in believed():
            return fd
        os.close(fd)
        raise Untrusted(
            f"{self.path}: is no file, or of {user_name(found.st_uid)}",
            hint=f"see what it is, then: rm {self.path}",
        )

    def take(self, patience_s: float = 0.0) -> bool:
        """Lock the file, which a reader holds for a moment; False if another process has it for
        longer than `patience_s` (s).
        """
        self._mine = try_lock(self._fd, LOCK_EX, patience_s)
        return self._mine

    def leave(self) -> None:
        """Let another one start; until this one has taken the file again, nothing is written."""
        self._mine = False
        flock(self._fd, LOCK_UN)

    def emit(self, state: S) -> None:
        """Write the current state; where the disk is full, what was said before stays."""
        self.state = state
        if not self._mine:
            return
        text = json.dumps({k: v for k, v in asdict(state).items() if k != "alive"}).encode()
        with suppress(OSError):
            os.pwrite(self._fd, text + b"\n", 0)
            os.ftruncate(self._fd, len(text) + 1)

    def now(self, **changes: object) -> None:
        """Write the current state with these changes."""
        self.emit(replace(self.state, **changes))  # type: ignore[arg-type]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._mine = False
        os.close(self._fd)
