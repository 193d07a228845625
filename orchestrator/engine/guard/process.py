"""The one guard of an owner's plan on a lab, as a process: a file next to the store has its pid and its state.

The guard locks the file while it lives; the kernel releases the lock however the guard dies. The contents then describe the last
guard's actions.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType

from optics import Locked, TestbedError, TimedOut
from orchestrator.processes import Daemon, process_mark, spawn
from orchestrator.results import JsonReport
from orchestrator.settings import Settings

START_S = 20.0
STOP_S = 15.0


@dataclass(frozen=True, slots=True)
class GuardState:
    """What a guard reports of itself. state: starting, watching, standing back, acting. Times in wall seconds.

    generation: the routes that replaced the plan's, None while the plan's own are in use. around: the links they leave out.
    cut_off: hosts that cannot be reached over the fabric. silent: hosts and devices without an answer. log: the file of its events.
    jobs: the budget of recoveries of the job, empty if it leaves jobs alone.
    """

    pid: int = 0
    user: str = ""
    host: str = ""
    since: float = 0.0
    plan: str = ""
    run: str = ""
    state: str = "starting"
    generation: int | None = None
    around: tuple[str, ...] = ()
    cut_off: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    log: str = ""
    jobs: str = ""
    alive: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        where = f"pid {self.pid} of {self.user}@{self.host}" + (f", recovers the job up to {self.jobs}" if self.jobs else "")
        if not self.around:
            return f"{self.state}, {where}"
        return f"{self.state}, {where}; traffic is rerouted around {', '.join(self.around)} (generation {self.generation})"


@dataclass(frozen=True, slots=True)
class GuardReport(JsonReport):
    """What a guard did while it watched. failures: attempts that were rolled back. recovered: its job, so often. last: its latest
    message."""

    lab: str
    plan: str
    reroutes: int = 0
    restores: int = 0
    failures: int = 0
    seconds: float = 0.0
    last: str = ""
    recovered: int = 0


def guard_path(settings: Settings, slice_: str) -> Path:
    """The file of the guard of one slice of a lab."""
    return settings.data_dir / "guard" / f"{slice_.replace('/', '@')}.json"


class GuardFile:
    """Holds the file while the guard lives. As a context manager: raises Locked - another guard watches this plan."""

    def __init__(self, path: Path, state: GuardState) -> None:
        self.path, self.state = path, state
        self.before = read_state(path)
        self._fd = -1

    def __enter__(self) -> GuardFile:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            there = read_state(self.path)
            who = f" ({there})" if there else ""
            raise Locked(f"another guard watches this plan{who}", hint="testbed guard --stop") from None
        self._fd = fd
        self.say(self.state)
        return self

    def say(self, state: GuardState) -> None:
        """Write the current state."""
        self.state = state
        text = json.dumps({k: v for k, v in asdict(state).items() if k != "alive"}).encode()
        os.pwrite(self._fd, text + b"\n", 0)
        os.ftruncate(self._fd, len(text) + 1)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._fd)


def read_state(path: Path) -> GuardState | None:
    """The state in this guard's file, `alive` if it runs; None if there never was one."""
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
            if (found := _read(os.pread(fd, 65536, 0))) is not None:
                return GuardState(**{**found, "alive": alive})  # type: ignore[arg-type]
            time.sleep(0.01)
        return None
    finally:
        os.close(fd)


def _read(text: bytes) -> dict[str, object] | None:
    try:
        data = json.loads(text.partition(b"\n")[0])
    except ValueError:
        return None
    known = {f.name for f in fields(GuardState)}
    if not isinstance(data, Mapping):
        return None
    return {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known}


def own_state(settings: Settings, log: str = "", jobs: str = "") -> GuardState:
    """The initial state for this process."""
    return GuardState(os.getpid(), settings.user, socket.gethostname(), time.time(), log=log, jobs=jobs)


def ready() -> None:
    """Report to systemd that the guard is ready, by sd_notify(3), if it asked."""
    if not (address := os.environ.get("NOTIFY_SOCKET")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.connect("\0" + address[1:] if address.startswith("@") else address)
        link.sendall(b"READY=1\n")


def running(settings: Settings, slice_: str, jobs: str = "") -> GuardState | None:
    """The guard that runs, if one does. jobs: the budget it should recover the job within, empty: whatever it does about jobs.

    Raises: Locked - it leaves jobs alone, or has another budget.
    """
    there = read_state(guard_path(settings, slice_))
    if there is None or not there.alive:
        return None
    if jobs and there.jobs != jobs:
        does = f"recovers the job up to {there.jobs}, not {jobs}" if there.jobs else "does not recover the job"
        where = f"pid {there.pid} of {there.user}@{there.host}"
        raise Locked(f"a guard watches this plan already, and {does} ({where})", hint="testbed guard --stop, then the same again")
    return there


def start(settings: Settings, slice_: str, log: Path, jobs: str = "") -> GuardState:
    """Start a guard in the background and wait until it watches; one that runs already is returned as it is.

    Its events go to `log`, one JSON object a line. jobs: as `running`. Raises: as `running`; TestbedError - it ended at once, with
    its own message. TimedOut.
    """
    path = guard_path(settings, slice_)
    if (there := running(settings, slice_, jobs)) is not None:
        return there
    recovering = ["--jobs", "--restarts", jobs] if jobs else []
    guard = spawn(settings, ["guard", "--log", str(log), *recovering], log.with_suffix(".err"))
    give_up = time.monotonic() + START_S
    while time.monotonic() < give_up:
        there = read_state(path)
        if there is not None and there.alive and there.state != "starting":
            Daemon.detach(guard)
            return there
        if guard.poll() is not None:
            said = log.with_suffix(".err").read_text(errors="replace").strip().splitlines()
            raise TestbedError(f"the guard ended at once: {said[0] if said else f'exit {guard.returncode}'}", hint=f"see {log}")
        time.sleep(0.02)
    guard.terminate()
    guard.wait()
    raise TimedOut(f"the guard does not watch after {START_S:g} s", hint=f"see {log}")


def stop(settings: Settings, slice_: str) -> GuardState | None:
    """End the guard and wait until it has ended; it completes the current step. None if none runs.

    Raises: TimedOut - it does not end. TestbedError - it runs on another machine, or is another user's.
    """
    path = guard_path(settings, slice_)
    there = read_state(path)
    if there is None or not there.alive:
        return None
    if there.host != socket.gethostname():
        raise TestbedError(f"the guard runs on {there.host} (pid {there.pid})", hint="stop it there")
    try:
        ended = Daemon(there.pid, process_mark(there.pid)).end(STOP_S)
    except PermissionError:
        raise TestbedError(f"the guard is {there.user}'s (pid {there.pid})", hint=f"ask {there.user} to stop it") from None
    if not ended:
        raise TimedOut(f"the guard (pid {there.pid}) does not end", hint=f"see {there.log}")
    return there
