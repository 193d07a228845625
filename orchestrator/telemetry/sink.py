"""The sink: a process of its own that follows all journals and copies them to InfluxDB, so that no
change waits for a server.

At least once, and idempotent: a batch that was written but not yet noted is written again after a
crash, onto the same series and times. One process per destination and state directory, held by a
file lock; it ends when nothing is left to send.
"""

from __future__ import annotations

import math
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from optics.errors import TestbedError, TimedOut
from orchestrator.background.kind import StateFile
from orchestrator.background.work import Notify, Retries, emit, serving
from orchestrator.files.trust import user_name
from orchestrator.processes import LOWLY, Daemon
from orchestrator.settings import Settings
from orchestrator.telemetry import influxd, tail
from orchestrator.telemetry.influx import Influx
from orchestrator.telemetry.influx_api import Denied, InfluxTarget, Later, Written
from orchestrator.telemetry.process import (
    SINK,
    SinkOptions,
    SinkReport,
    SinkState,
    configured,
    server_dir,
)
from orchestrator.telemetry.tail import JournalTail

LOOK_S = 0.1
"""Interval (s) of checks of growing journals: with the time of a request, a point reaches the
server within 200 ms.
"""
ALL_S = 5.0
"""Interval (s) of checks of all journals; iterations of a job go into the journal of the run that
started it.
"""
FRESH_S = 60.0
IDLE_S = 30.0
GIVE_UP_S = 600.0
"""How long (s) a server may be unreachable before the sink ends; the next command starts another
one.
"""
BACKOFF_S = (0.2, 15.0)
_AT_ONCE = 20


class Sink:
    """Copies the journals below `runs` to the target, newest run first."""

    def __init__(
        self,
        target: InfluxTarget,
        state_dir: Path,
        *,
        idle_s: float = IDLE_S,
        give_up_s: float = GIVE_UP_S,
        own: SinkState | None = None,
        notify: Notify = lambda event: None,
    ) -> None:
        self.target = target
        self.notify = notify
        self.runs = state_dir / "runs"
        self.state_dir = state_dir
        self.idle_s, self.give_up_s = idle_s, give_up_s
        self.stopping = threading.Event()
        own = own or SinkState(
            os.getpid(), user_name(os.geteuid()), socket.gethostname(), time.time()
        )
        present = influxd.running_influxd(server_dir(state_dir)) if target.private else None
        self.state = replace(
            own, state="following", url=present.url if present else target.url, db=target.db
        )
        self.file = StateFile(SINK, state_path(state_dir, target), self.state)
        self._influx: Influx | None = None
        self._tails: dict[Path, JournalTail] = {}
        self._moved: dict[Path, float] = {}
        self._all_at = -ALL_S
        self._runs_at = 0
        self._reported: SinkState | None = None
        self._interruptible = False

    def run(self) -> SinkState:
        """Follow the journals until stopped, idle, or the server is silent for too long.

        Raises: Denied, Later. Locked - another sink runs.
        """
        with serving(self.file):
            try:
                return self._follow()
            except TestbedError as error:
                self._emit(trouble=str(error))
                raise
            finally:
                for each in self._tails.values():
                    each.close()
                self._disconnect()

    def _follow(self) -> SinkState:
        moved_at = time.monotonic()
        while True:
            if self.round():
                moved_at = time.monotonic()
            if self.stopping.is_set():
                return self.state
            if time.monotonic() - moved_at >= self.idle_s:
                # A command that writes now may still have seen this sink alive: free the lock
                # first, then check once more.
                self._emit(state="ended")
                self.file.leave()
                self._all_at = -ALL_S
                if not self._waiting() or not self.file.take():
                    return self.state  # or another sink has started
                self._emit(state="following")
            self.stopping.wait(LOOK_S)

    def round(self) -> bool:
        """Check once the journals that may have grown and send new lines; True if there were
        any.
        """
        moved = False
        for run_dir in self._candidates():
            follower = self._tail(run_dir)
            for _ in range(_AT_ONCE):
                data = follower.take()
                if not data or self.stopping.is_set():
                    break
                written = self._delivered(data)
                if written is None:
                    return moved
                follower.taken(data, data.count(b"\n"), written.refused, written.message)
                self._note(follower)
                self._moved[run_dir] = time.monotonic()
                moved = True
                self._emit(
                    points=self.state.points + data.count(b"\n"),
                    refused=self.state.refused + written.refused,
                    refusal=written.message or self.state.refusal,
                    trouble="",
                    last=time.time(),
                )
            else:
                self._all_at = -ALL_S  # more lines wait; newer runs first
        return moved

    def _waiting(self) -> bool:
        return any(self._tail(run_dir).take() for run_dir in self._candidates())

    def _candidates(self) -> list[Path]:
        """Journals that may have new lines: those that grew recently, and periodically all of them.
        The newest first.
        """
        now = time.monotonic()
        if now - self._all_at >= ALL_S:
            self._all_at = now
            with suppress(OSError):
                return sorted(
                    (p for p in self.runs.iterdir() if (p / "telemetry").is_dir()), reverse=True
                )
            return []
        with suppress(OSError):
            changed = self.runs.stat().st_mtime_ns
            if changed != self._runs_at:
                self._runs_at = changed
                self._moved |= {
                    path: now for path in self.runs.iterdir() if path not in self._tails
                }
        return sorted((p for p, at in self._moved.items() if now - at < FRESH_S), reverse=True)

    def _tail(self, run_dir: Path) -> JournalTail:
        if run_dir not in self._tails:
            self._tails[run_dir] = JournalTail(
                run_dir, tail.stored_mark(run_dir, self.target.key, self.target.name)
            )
        return self._tails[run_dir]

    def _note(self, follower: JournalTail) -> None:
        # Disk full, or the run was pruned: the lines are written again after a restart and
        # overwrite themselves.
        with suppress(OSError):
            tail.store_mark(follower.run_dir, self.target.key, follower.mark)

    def _delivered(self, data: bytes) -> Written | None:
        """Write a batch, however long it takes; None when asked to stop. Raises: Denied; Later -
        unreachable for too long.
        """
        began, retries = time.monotonic(), Retries(*BACKOFF_S)
        while not self.stopping.is_set():
            try:
                influx = self._connected()
                with self._waiting_for_the_server():
                    return influx.write(data)
            except InterruptedError:
                break  # stop requested; the next sink writes this batch again
            except Later as error:
                if self.stopping.is_set():
                    break  # the same, while waiting for the server
                if time.monotonic() - began > self.give_up_s:
                    raise
                if self.state.trouble != str(error):
                    emit(self.notify, "trouble", str(error))
                self._emit(trouble=str(error))
                self._disconnect()
                self.stopping.wait(max(error.after_s, retries.failed() * random.uniform(0.7, 1.3)))
        return None

    def _connected(self) -> Influx:
        if self._influx is None:
            target = self.target
            if target.private:
                try:
                    target = replace(
                        target, url=influxd.start_influxd(server_dir(self.state_dir)).url
                    )
                except TimedOut as error:
                    raise Later(str(error)) from error
            influx = Influx(target)
            with self._waiting_for_the_server():
                influx.ping()
            self._influx = influx
            self._emit(url=target.url, version=influx.version, api=influx.api)
            emit(
                self.notify,
                "connected",
                f"{target.url}, version {influx.version or 'unknown'}, database {target.db}",
            )
        return self._influx

    @contextmanager
    def _waiting_for_the_server(self) -> Iterator[None]:
        """While the body waits for the server, a stop signal interrupts it immediately."""
        self._interruptible = True
        try:
            yield
        finally:
            self._interruptible = False

    def request_stop(self, *_: object) -> None:
        """Handle a signal. Raises: InterruptedError - where the main thread waits for the
        server.
        """
        self.stopping.set()
        if self._interruptible:
            raise InterruptedError("stop requested")

    def _disconnect(self) -> None:
        if self._influx is not None:
            self._influx.close()
            self._influx = None

    def _emit(self, **news: object) -> None:
        self.state = replace(self.state, **news)  # type: ignore[arg-type]
        old = self._reported
        quiet = old is not None and replace(self.state, points=old.points, last=old.last) == old
        if old is not None and quiet and self.state.last - old.last < 1.0:
            return
        self._reported = self.state
        self.file.emit(self.state)


def state_path(state_dir: Path, target: InfluxTarget) -> Path:
    return state_dir / SINK.name / f"{target.key}.json"


def sink_status(state_dir: Path, target: InfluxTarget) -> SinkState:
    """The status that the sink of the target, or the last one, published; `alive` if it runs."""
    return SINK.read(state_path(state_dir, target)) or SinkState()


def ensure(settings: Settings) -> None:
    """Start a sink in the background if one is wanted and none runs. Takes a few ms and never
    fails: no change waits for it.
    """
    with suppress(OSError, TestbedError):
        target = configured(settings)
        if target.private and influxd.program() is None:
            return
        if not sink_status(settings.state_dir, target).alive:
            Daemon.detach(SINK.launch(settings, SINK.log(settings, target.key)))


def run_sink(settings: Settings, *, notify: Notify, options: SinkOptions) -> SinkReport:
    """Run the sink at low priority until idle or stopped by SIGTERM or SIGINT. Raises: Missing,
    Usage; as `Sink.run`.
    """
    target = configured(settings)
    with suppress(OSError):
        os.nice(max(0, LOWLY - os.getpriority(os.PRIO_PROCESS, 0)))
        # A session of its own is a scheduling group of its own, where `nice` counts only inside
        # (sched(7), autogroup).
        Path("/proc/self/autogroup").write_text(str(LOWLY), encoding="ascii")
    idle_s = math.inf if options.stay else IDLE_S
    sink = Sink(
        target, settings.state_dir, idle_s=idle_s, own=SINK.own(settings, options), notify=notify
    )
    before = {
        number: signal.signal(number, sink.request_stop)
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        state = sink.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return SinkReport(state.points, state.refused)


def send(target: InfluxTarget, run_dir: Path, *, timeout_s: float) -> tuple[int, Written]:
    """Send one run from its first byte; return how many points were sent. Raises: Later, Denied -
    no checkpoint is written.
    """
    influx = Influx(target)
    follower = JournalTail(run_dir, tail.Mark())
    written, points, give_up = Written(), 0, time.monotonic() + timeout_s
    try:
        influx.ping()
        while data := follower.take():
            retries = Retries(*BACKOFF_S)
            while True:
                try:
                    written += influx.write(data)
                    break
                except Later as error:
                    pause = max(error.after_s, retries.failed())
                    if time.monotonic() + pause > give_up:
                        raise
                    time.sleep(pause)
            points += data.count(b"\n")
            follower.taken(data, data.count(b"\n"))
    finally:
        follower.close()
        influx.close()
    return points, written


__all__ = ["Denied", "Sink", "ensure", "run_sink", "send", "sink_status", "state_path"]
