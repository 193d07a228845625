"""Admission by the receiver: who sends to a rank waits for its credits, and the rank has given out
so many bytes at most at a time, over all who send to it, in turn.

So what is in flight to it fits the queue of its port, which senders that know nothing of each other
overrun (A. Gangidi et al., RDMA over Ethernet for Distributed AI Training at Meta Scale, SIGCOMM
2024). Credits go over connections of their own, from the receiver back to each sender, as numbers
of bytes to be added to what it may send.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable

from .loop import Wire
from .tasks import SLICE, ReceiveTask, SendTask

CREDIT = struct.Struct("!Q")
TURN = 14480
"""Bytes that a sender is given at a time: ten segments, which TCP sends at once, after a pause too
(RFC 6928).
"""


class BeyondCredit(ValueError):
    """A rank sent what it had no credit for."""


class Admission:
    """What a receiver has given out. `most`: so many bytes at a time."""

    def __init__(self, most: int) -> None:
        self._most, self._turn = most, min(TURN, most)
        self.slice = max(1, self._turn // 2)
        """For so many bytes a receiver is to be woken, so that credits follow each other."""
        self._waiting: deque[AdmittedReceive] = deque()
        self._lost: RuntimeError | None = None
        self.flying = 0
        """Bytes that were given out and have not arrived."""

    def enter(self, one: AdmittedReceive) -> None:
        """A sender is to be given credits, as the last of those that wait."""
        self._waiting.append(one)

    def give(self) -> Iterable[CreditTask]:
        """Give out what may be given; return what has credits to send."""
        given: dict[CreditTask, None] = {}
        while self._waiting:
            size = min(self._turn, self._waiting[0].ungranted)
            if self.flying + size > self._most:
                break
            one = self._waiting.popleft()
            one.grant(size)
            self.flying += size
            given[one.credits] = None
            if one.ungranted:
                self._waiting.append(one)
        return given

    def arrived(self, count: int) -> None:
        """So many bytes of those are here."""
        self.flying -= count

    def gone(self, one: AdmittedReceive, error: RuntimeError) -> None:
        """This sender is lost: the others are given what it had."""
        self.flying -= one.flying
        self._lost = self._lost or error
        if one in self._waiting:
            self._waiting.remove(one)

    def check(self) -> None:
        """To be called when all is carried. Raises: RuntimeError - a sender was lost."""
        if self._lost is not None:
            raise self._lost


class CreditTask:
    """Send one sender its credits."""

    into = None
    late = False

    def __init__(self, out: Wire) -> None:
        self.out: Wire | None = out
        self._wire, self._left = out, b""

    def begin(self) -> None:
        pass  # what was added is sent next

    def add(self, size: int) -> None:
        self._left += CREDIT.pack(size)

    def take(self) -> bool:
        return True

    def push(self) -> bool:
        while self._left:
            try:
                count = self._wire.send(memoryview(self._left))
            except RuntimeError:
                # the connection that it sends by says so, too, after what has arrived before
                count = len(self._left)
            if not count:
                return True
            self._left = self._left[count:]
        return False


class AdmittedReceive(ReceiveTask):
    """As ReceiveTask, of a sender that is admitted: `credits` go to it."""

    def __init__(
        self,
        into: Wire,
        credits: Wire,
        buffers: Iterable[memoryview],
        admission: Admission,
        slice: int = SLICE,
    ) -> None:
        super().__init__(into, buffers, min(slice, admission.slice))
        self.credits, self._admission = CreditTask(credits), admission
        self._granted = 0

    @property
    def ungranted(self) -> int:
        """Bytes that it is still to be given credit for."""
        return self._whole - self._granted

    @property
    def flying(self) -> int:
        """Bytes that it has credit for and that are not here; below 0: it sent more."""
        return self._granted - (self._whole - self._due)

    @property
    def late(self) -> bool:
        """A sender that had no credit yet is not."""
        return self._granted > 0 and super().late

    def begin(self) -> None:
        self._granted = 0
        super().begin()
        if self._whole:
            self._admission.enter(self)

    def grant(self, size: int) -> None:
        self._granted += size
        self.credits.add(size)
        self._wake()

    def take(self) -> bool:
        due = self._due
        try:
            done = super().take()
        except RuntimeError as error:
            self._admission.gone(self, error)
            return True
        self._admission.arrived(due - self._due)
        if self.flying < 0:
            raise BeyondCredit(
                f"rank {self._wire.peer} sent {self._whole - self._due} bytes and had credit for"
                f" {self._granted}: all ranks need the same --credits and the same program"
            )
        return done

    def _wake(self) -> None:
        # for more than it may send nobody is ever woken
        self._wire.wake_at(max(1, min(self._slice, self.flying)))


class AdmittedSend(SendTask):
    """As SendTask, as far as `credits` have come."""

    def __init__(self, out: Wire, credits: Wire, buffers: Iterable[memoryview]) -> None:
        super().__init__(out, buffers)
        self.into = credits
        self.credits, self._room = credits, bytearray(CREDIT.size)

    @property
    def late(self) -> bool:
        return self._awaited == self._whole

    def begin(self) -> None:
        super().begin()
        self._awaited, self._may, self._here = self._whole, 0, 0

    def take(self) -> bool:
        self._here += self.credits.receive(memoryview(self._room)[self._here :])
        if self._here == CREDIT.size:
            (size,) = CREDIT.unpack(self._room)
            self._may += size
            self._awaited -= size
            self._here = 0
        return self._awaited <= 0
