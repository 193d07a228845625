"""Which peers the fabric reaches now, and until when: the notification socket of the host's agent
(TESTBED_SLOTS).

A schedule of slots moves light while a program runs. What it sends to a peer without a path waits
in its socket, so a program need not know. One that does sends to whoever is reached, and computes
meanwhile:

    slots = Slots.of(os.environ)
    slots.until("10.255.0.3")       # CLOCK_MONOTONIC (s) at which the path ends; 0: there is none; inf: no end is known
    slots.wait("10.255.0.3", 5.0)   # until there is a path; False if that took longer

Peers are named by the addresses that one connects to. Lines from the agent are JSON: {"slot": k,
"cycle": c, "until_ns": t, "reach": {address: until_ns or null}}; {"slot": null} where no schedule
is loaded. Without an agent or a schedule every peer is reached.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import socket
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any

LONGEST_LINE = 1 << 20
"""Bytes; a longer line ends the connection, and with it the gate."""
CHECK_S = 0.05
"""Who waits looks this often (s) on its own: a path ends by the clock, and another thread may have
taken the line.
"""
FIRST_S = 1.0
"""The agent's first line is waited for so long (s), once."""
WAITS_S = 900.0
"""The silence of peers does not count for so long (s) while a schedule gives them no path or does
not turn: it can be turned again meanwhile, and connections outlast it (`PATIENCE_MS`). One that
never turns again must not hold a job for ever."""
RETRY_S = 1.0
"""An agent that is not there is tried again after this time (s): it is started again when it
dies.
"""


class Slots:
    """The connection to the agent. Nothing here raises, and nothing but `wait` waits."""

    def __init__(self, path: str = "") -> None:
        self.reach: Mapping[str, int | None] | None = None
        self.slot: int | None = None
        self.ends = True
        """Whether the present slot has an end: not where the schedule stands, or changes by the
        job's phases.
        """
        self._path, self._retry_s, self._patience_s = path, 0.0, FIRST_S
        self._lock = threading.RLock()
        self._rest = b""
        self._link: socket.socket | None = None
        self.read()

    def _connect(self) -> None:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.settimeout(self._patience_s)
            link.connect(self._path)
            with contextlib.suppress(TimeoutError, BlockingIOError):
                link.recv(1, socket.MSG_PEEK)  # the agent says at once which slot it is
            link.setblocking(False)
            self._rest, self._link = b"", link
        except OSError:
            link.close()
        self._retry_s, self._patience_s = time.monotonic() + RETRY_S, 0.0

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Slots:
        """The socket that this environment names."""
        return cls(environment.get("TESTBED_SLOTS", ""))

    @property
    def number(self) -> int:
        """The descriptor to wait for lines on; -1 without an agent."""
        return self._link.fileno() if self._link is not None else -1

    def read(self) -> None:
        """Take what the agent has said since."""
        with self._lock:
            self._read()

    def _read(self) -> None:
        newest = b""
        if self._link is None and self._path and time.monotonic() >= self._retry_s:
            self._connect()
        try:
            while self._link is not None:
                data = self._link.recv(1 << 16)
                *lines, self._rest = (self._rest + data).split(b"\n")
                newest = lines[-1] if lines else newest
                if not data or len(self._rest) > LONGEST_LINE:
                    self._drop()
        except BlockingIOError:
            pass
        except OSError:
            self._drop()
        if newest and self._link is not None:
            self._take(newest)

    def _take(self, line: bytes) -> None:
        try:
            reply: Any = json.loads(line)
            slot, reach, end_ns = reply["slot"], reply.get("reach"), reply.get("until_ns")
        except (ValueError, TypeError, KeyError, AttributeError):
            return
        known = isinstance(reach, dict) and all(
            v is None or isinstance(v, int) for v in reach.values()
        )
        self.slot = slot if isinstance(slot, int) else None
        self.reach = reach if known and self.slot is not None else None
        self.ends = self.reach is None or end_ns is not None

    def until(self, peer: str) -> float:
        """When the path to this address ends (s, time.monotonic); 0 if there is none now, inf if no
        end is known.
        """
        self.read()
        reach = self.reach  # another thread may take the next line meanwhile
        if reach is None:
            return math.inf
        if peer not in reach:
            return 0.0
        end = reach[peer]
        if end is None:
            return math.inf
        return end / 1e9 if end > time.monotonic_ns() else 0.0

    def silences(self, peers: Iterable[str]) -> bool:
        """Whether the schedule, as far as it was read, may be why these are silent: one has no
        path, or the slot no end. Then even one with a path may wait for one without."""
        reach, now_ns = self.reach, time.monotonic_ns()
        if reach is None:
            return False
        return not self.ends or any(
            end is not None and end <= now_ns for end in (reach.get(peer, 0) for peer in peers)
        )

    def wait(self, peer: str, timeout_s: float | None = None) -> bool:
        """Wait until there is a path to this address, for `timeout_s` at most; whether there is
        one.
        """
        return self.first((peer,), timeout_s) is not None

    def first(self, peers: Collection[str], timeout_s: float | None = None) -> str | None:
        """Wait until there is a path to one of these addresses, for `timeout_s` at most; return the
        first that has one.
        """
        give_up = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while (reached := next(filter(self.until, peers), None)) is None:
            left_s = give_up - time.monotonic()
            if left_s <= 0:
                break
            poll = select.poll()  # select(2) takes no number above 1023
            if (number := self.number) >= 0:  # another thread may have found the agent gone
                poll.register(number, select.POLLIN)
            poll.poll(1e3 * min(left_s, CHECK_S))
        return reached

    def ended(self, iteration: int) -> None:
        """Say that an iteration has ended, which changes the slots of a schedule by phases."""
        self.read()
        if self.slot is not None and self._link is not None:
            with contextlib.suppress(OSError):
                self._link.send(json.dumps({"ended": iteration}).encode() + b"\n")

    def close(self) -> None:
        """End the connection: from now on every peer counts as reached."""
        with self._lock:
            self._path = ""
            self._drop()

    def _drop(self) -> None:
        link, self._link, self.reach = self._link, None, None
        if link is not None:
            link.close()


@cache
def shared() -> Slots:
    """The connection of this process."""
    return Slots.of(os.environ)
