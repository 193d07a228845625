"""Pace: iterations begin at times that suit other jobs of the same links, as the host's agent says
over the hand-off socket.

    agent -> rank   {"do": "pace", "epoch_ns": T, "period_ns": P, "shift_ns": S, "lease_s": L}     CLOCK_MONOTONIC of this host
                    {"do": "pace.stop"}

Before an iteration a rank waits until (now - epoch - shift) mod period is 0. One whose iteration
took a little longer than the period goes on at once, however often that happens: it loses what it
overran, and never the rest of a period. Periods are a little longer than iterations, so it comes
back. No wait is longer than a period, and none goes on after the lease: a rank that hears nothing
any more is not paced.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

LATE = 0.15
"""By up to this share of a period an iteration may overrun, or new beginnings be others than the
old ones, and the rank goes on from where it is; where it is more, it waits for the next begin, or
it would meet others."""
LONGEST_NS = 60_000_000_000
"""Of a period; no iteration worth shifting takes longer."""
LONGEST_LEASE_S = 3600.0
CHECK_S = 0.05
"""Who waits looks this often (s) whether it is asked to stop."""


@dataclass(frozen=True, slots=True)
class Begun:
    """When an iteration began (monotonic ns), how late that was, and after which beginnings."""

    at_ns: int
    late_ns: int
    by: Beginning


@dataclass(frozen=True, slots=True)
class Beginning:
    """When iterations begin, and until when (monotonic ns) that counts."""

    first_ns: int
    period_ns: int
    until_ns: int

    def late_ns(self, now_ns: int, before: Begun | None) -> int:
        """How late (ns) an iteration is that would begin at this time; below 0: early. before: the
        iteration that has ended.
        """
        late = (now_ns - self.first_ns) % self.period_ns
        if (
            before is None
            or not self._continues(before.by)
            or now_ns - before.at_ns > (1 + LATE) * before.by.period_ns
        ):
            return late if late <= LATE * self.period_ns else late - self.period_ns
        due_ns = before.at_ns - before.late_ns + before.by.period_ns
        return late + self.period_ns * round((now_ns - due_ns - late) / self.period_ns)

    def wait_ns(self, now_ns: int, before: Begun | None = None) -> int:
        """How long (ns) to wait at this time before an iteration begins."""
        return max(0, min(-self.late_ns(now_ns, before), self.period_ns, self.until_ns - now_ns))

    def _continues(self, old: Beginning) -> bool:
        """Whether these are nearly the beginnings that an iteration had, perhaps with another
        period from now on.
        """
        apart = (self.first_ns - old.first_ns) % old.period_ns
        return min(apart, old.period_ns - apart) <= LATE * old.period_ns


class Pace:
    """The pace that this rank was given last. `wait` is called by the main thread, `receive` by the
    one that listens.
    """

    def __init__(self, asked_to_stop: Callable[[], bool] = lambda: False) -> None:
        self._asked_to_stop = asked_to_stop
        self._now: Beginning | None = None
        self._begun: Begun | None = None
        self._notified = threading.Event()

    def receive(self, message: Mapping[str, Any]) -> bool:
        """Take a message of the agent; False if it is about something else. One that is wrong ends
        the pace.
        """
        if message.get("do") not in ("pace", "pace.stop"):
            return False
        self._now = None if message["do"] == "pace.stop" else _beginning(message)
        self._notified.set()
        return True

    def wait(self, on_hold: Callable[[bool], None] = lambda _: None) -> float:
        """Wait until an iteration is to begin; return how long that was (ms). on_hold: as in
        ring_changes.
        """
        began_ns = time.monotonic_ns()
        self._notified.clear()  # before it is read: what is sent from now on ends the wait
        if not (left_ns := self.left_ns(began_ns)):
            self.begins(began_ns)
            return 0.0
        due_ns = began_ns + left_ns
        on_hold(True)
        while (left_ns := due_ns - time.monotonic_ns()) > 0 and not self._asked_to_stop():
            if self._notified.wait(min(left_ns / 1e9, CHECK_S)):
                self._notified.clear()
                # What was sent meanwhile may end this wait or shorten it, and never makes it longer
                # than a period.
                now_ns = time.monotonic_ns()
                due_ns = min(due_ns, now_ns + self.left_ns(now_ns))
        on_hold(False)
        now_ns = time.monotonic_ns()
        self.begins(now_ns)
        return round((now_ns - began_ns) / 1e6, 3)

    def left_ns(self, now_ns: int) -> int:
        """How long (ns) the next iteration is to wait at this time."""
        notified = self._now
        return notified.wait_ns(now_ns, self._begun) if notified else 0

    def begins(self, now_ns: int) -> None:
        """Note that the next iteration begins at this time."""
        notified = self._now
        paced = notified is not None and now_ns < notified.until_ns
        self._begun = (
            Begun(now_ns, notified.late_ns(now_ns, self._begun), notified)
            if notified and paced
            else None
        )


def _beginning(message: Mapping[str, Any]) -> Beginning | None:
    """What the message says; None where it is wrong."""
    epoch, period, shift = (message.get(key) for key in ("epoch_ns", "period_ns", "shift_ns"))
    lease = message.get("lease_s")
    if not (type(epoch) is int and type(period) is int and type(shift) is int) or not isinstance(
        lease, int | float
    ):
        return None
    if isinstance(lease, bool):
        return None
    if not (0 < period <= LONGEST_NS and 0 <= shift < period and 0 < lease <= LONGEST_LEASE_S):
        return None
    return Beginning(epoch + shift, period, time.monotonic_ns() + int(lease * 1e9))
