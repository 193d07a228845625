"""Pace: iterations begin at times that suit other jobs of the same links, as the host's agent says over the hand-off socket.

    agent -> rank   {"do": "pace", "epoch_ns": T, "period_ns": P, "shift_ns": S, "lease_s": L}     CLOCK_MONOTONIC of this host
                    {"do": "pace.stop"}

Before an iteration a rank waits until (now - epoch - shift) mod period is 0. One that is late by little goes on at once: the period
is a little longer than iterations are, so it comes back. No wait is longer than a period, and none goes on after the lease: a rank
that hears nothing any more is not paced.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

LATE = 0.15
"""Who is late by up to this share of the period goes on; who is later waits for the next begin, or it would meet others."""
LONGEST_NS = 60_000_000_000
"""Of a period; no iteration worth shifting takes longer."""
LONGEST_LEASE_S = 3600.0
CHECK_S = 0.05
"""Who waits looks this often (s) whether it is asked to stop."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """When iterations begin, and until when (monotonic ns) that counts."""

    first_ns: int
    period_ns: int
    until_ns: int

    def wait_ns(self, now_ns: int) -> int:
        """How long (ns) to wait at this time before an iteration begins."""
        if now_ns >= self.until_ns:
            return 0
        late = (now_ns - self.first_ns) % self.period_ns
        return 0 if late <= LATE * self.period_ns else min(self.period_ns - late, self.until_ns - now_ns)


class Pace:
    """The pace that this rank was told last. `wait` is called by the main thread, `receive` by the one that listens."""

    def __init__(self, asked_to_stop: Callable[[], bool] = lambda: False) -> None:
        self._asked_to_stop = asked_to_stop
        self._now: Beginning | None = None
        self._told = threading.Event()

    def receive(self, message: Mapping[str, Any]) -> bool:
        """Take a message of the agent; False if it is about something else. One that is wrong ends the pace."""
        if message.get("do") not in ("pace", "pace.stop"):
            return False
        self._now = None if message["do"] == "pace.stop" else _beginning(message)
        self._told.set()
        return True

    def wait(self, on_hold: Callable[[bool], None] = lambda _: None) -> float:
        """Wait until an iteration is to begin; return how long that was (ms). on_hold: as in turns.Turns."""
        began_ns = time.monotonic_ns()
        self._told.clear()  # before it is read: what is told from now on ends the wait
        now = self._now
        if now is None or not (left_ns := now.wait_ns(began_ns)):
            return 0.0
        due_ns = began_ns + left_ns
        on_hold(True)
        while (left_ns := due_ns - time.monotonic_ns()) > 0 and not self._asked_to_stop():
            if self._told.wait(min(left_ns / 1e9, CHECK_S)):
                self._told.clear()
                # What was told meanwhile may end this wait or shorten it, and never makes it longer than a period.
                due_ns = min(due_ns, (self._now.wait_ns(time.monotonic_ns()) if self._now else 0) + time.monotonic_ns())
        on_hold(False)
        return round((time.monotonic_ns() - began_ns) / 1e6, 3)


def _beginning(message: Mapping[str, Any]) -> Beginning | None:
    """What the message says; None where it is wrong."""
    epoch, period, shift = (message.get(key) for key in ("epoch_ns", "period_ns", "shift_ns"))
    lease = message.get("lease_s")
    if not (type(epoch) is int and type(period) is int and type(shift) is int) or not isinstance(lease, int | float):
        return None
    if isinstance(lease, bool):
        return None
    if not (0 < period <= LONGEST_NS and 0 <= shift < period and 0 < lease <= LONGEST_LEASE_S):
        return None
    return Beginning(epoch + shift, period, time.monotonic_ns() + int(lease * 1e9))
