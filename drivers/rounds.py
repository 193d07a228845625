"""The frame that every `apply` shares: timestamps, and rounds that begin by reading; a lost answer
is never retried blindly.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from drivers.api import Ready, at_once
from optics import DeviceName, Garbled, Outcome, Setting, TimedOut, Unreachable

K = TypeVar("K")
T = TypeVar("T")

ROUNDS = 3
"""A change is given up after the answer was lost in three rounds."""


@dataclass(slots=True)
class Marks(Generic[K]):
    """Times (ns, monotonic) and counts of one `apply`, over all its rounds; `reasons`: the device's
    reasons in this round.

    tried: items for which a command was sent. doubtful: items for which it was sent twice, so that
    a refusal may only mean that the first is being carried out; they are still waited for.
    """

    ready: Ready = at_once
    sent_ns: int = 0
    broken_ns: int = 0
    acked_ns: int = 0
    writes: int = 0
    reasons: dict[K, str] = field(default_factory=dict)
    tried: set[K] = field(default_factory=set)
    doubtful: set[K] = field(default_factory=set)

    async def begin(self) -> bool:
        """Await the ready signal, once; call before the first command that could change the device.

        Return whether it had to wait: then earlier reads may be out of date, and the device is read
        again.
        """
        ready, self.ready = self.ready, at_once
        await ready()
        return ready is not at_once

    def write(self, commands: int = 1) -> None:
        """Note that `commands` which could change the device are about to be sent."""
        self.sent_ns = self.sent_ns or time.monotonic_ns()
        self.writes += commands

    def trying(self, what: Iterable[K]) -> None:
        """Note the items for which commands are about to be sent."""
        wanted = set(what)
        self.doubtful |= wanted & self.tried
        self.tried |= wanted

    def final(self, what: K) -> bool:
        """Whether the device's answer about it is conclusive."""
        return what in self.reasons and what not in self.doubtful

    def broke(self) -> None:
        self.broken_ns = self.broken_ns or time.monotonic_ns()

    def acknowledged(self) -> None:
        self.acked_ns = time.monotonic_ns()

    def outcome(
        self,
        device: DeviceName,
        observed: frozenset[Setting],
        settled_ns: int,
        failed: Mapping[Setting, str],
    ) -> Outcome:
        sent_ns = self.sent_ns or self.acked_ns  # nothing was sent: nothing took time
        broken_ns = self.broken_ns or sent_ns
        # settings of two kinds have no order
        texts = dict(sorted(failed.items(), key=lambda item: str(item[0])))
        return Outcome(
            device, observed, sent_ns, broken_ns, self.acked_ns, settled_ns, self.writes, texts
        )


async def in_rounds(marks: Marks[K], attempt: Callable[[], Awaitable[T]]) -> T:
    """Run `attempt`, which reads the device and sends what is missing, until it ends without a lost
    answer.

    A lost or unreadable answer leaves open whether the command was executed; the next round reads
    the device and decides. A round that failed before it sent anything is not repeated: then the
    device does not answer at all. Raises: whatever the last attempt raised; an Unreachable after
    commands were sent becomes a TimedOut, which claims less.
    """
    for left in reversed(range(ROUNDS)):
        before = marks.writes
        marks.reasons.clear()
        try:
            return await attempt()
        except (TimedOut, Garbled, Unreachable) as error:
            if marks.writes > before and left:
                continue
            if isinstance(error, Unreachable) and marks.writes:
                raise TimedOut(
                    f"{error}; commands were sent before, what they did is not known"
                ) from error
            raise
    raise AssertionError("unreachable: the last round returns or raises")
