"""What a thread carries between ranks over connections: buffers sent, buffers received, a member's
part in a ring collective.

A receiver gets a wake-up per SLICE (SO_RCVLOWAT). Rings pass on what they have summed so far, not
whole chunks, so that no link waits while there is anything to send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .buffers import Buffer, pieces
from .loop import Wire

SLICE = 65536
"""A receiver is woken for this many bytes, or for the last that are due."""
SCRATCH = 4 * SLICE


class SendTask:
    """Send buffers one after the other."""

    into: Wire | None = None

    def __init__(self, out: Wire, buffers: Iterable[memoryview]) -> None:
        self.out: Wire | None = out
        self.wire, self._buffers = out, [buffer for buffer in buffers if len(buffer)]
        self._whole = sum(map(len, self._buffers))

    @property
    def late(self) -> bool:
        return False

    def begin(self) -> None:
        self._left, self._may = deque(self._buffers), self._whole

    def take(self) -> bool:
        return True

    def push(self) -> bool:
        while self._left and self._may:
            count = self.wire.send(self._left[0][: self._may])
            if not count:
                return True
            self._may -= count
            if count < len(self._left[0]):
                self._left[0] = self._left[0][count:]
            else:
                self._left.popleft()
        return False


class ReceiveTask:
    """Receive into buffers one after the other. `slice`: as SLICE."""

    out = None

    def __init__(self, into: Wire, buffers: Iterable[memoryview], slice: int = SLICE) -> None:
        self.into: Wire | None = into
        self._wire, self._buffers, self._slice = (
            into,
            [buffer for buffer in buffers if len(buffer)],
            slice,
        )

    @property
    def late(self) -> bool:
        return self._due == self._whole

    def begin(self) -> None:
        self._left = deque(self._buffers)
        self._due = self._whole = sum(map(len, self._buffers))
        self._wake()

    def take(self) -> bool:
        if self._left:
            count = self._wire.receive(self._left[0])
            self._due -= count
            if count < len(self._left[0]):
                self._left[0] = self._left[0][count:]
            else:
                self._left.popleft()
            if self._due:
                self._wake()
        return not self._left

    def push(self) -> bool:
        return False

    def _wake(self) -> None:
        self._wire.wake_at(max(1, min(self._slice, self._due)))


@dataclass(frozen=True, slots=True)
class Segment:
    """What comes in next: bytes for `memory`; or numbers, of which each is combined with one of
    `addend` to one of `into`.

    The memory of `into` is `memory`; `into` and `addend` are of one dimension, and may be the same.
    """

    memory: memoryview
    into: Any = None
    addend: Any = None


@dataclass(frozen=True, slots=True)
class Combining:
    """How numbers that come in are combined: by a function of torch with an `out`, such as
    torch.add, of so many bytes each.

    `scratch`: SCRATCH bytes for what comes in, which passings that receive one after the other can
    share; `numbers`: the same bytes as numbers.
    """

    function: Any
    unit: int
    scratch: memoryview
    numbers: Any


class Passing:
    """A member's part in a ring collective: it sends what is its own and passes on what comes in,
    as far as it has come in.
    """

    def __init__(
        self,
        into: Wire,
        out: Wire,
        own: memoryview,
        incoming: Iterable[Segment],
        passed_on: int,
        combining: Combining | None = None,
    ) -> None:
        """`passed_on`: how many of the incoming segments are passed on, the first ones."""
        self.into: Wire | None = into
        self.out: Wire | None = out
        self._from, self._to, self._combining = into, out, combining
        segments = list(incoming)
        self._incoming = [segment for segment in segments if len(segment.memory)]
        self._outgoing = [
            piece
            for piece in (own, *(segment.memory for segment in segments[:passed_on]))
            if len(piece)
        ]
        self._own = len(own)
        first = self._own or (len(self._incoming[0].memory) if self._incoming else 0)
        self._slice = max(1, min(SLICE, first // 4))

    def begin(self) -> None:
        self.reset()
        self.wake()

    def reset(self) -> None:
        """Be as before the first byte."""
        self._coming, self._going = deque(self._incoming), deque(self._outgoing)
        self._due = sum(len(segment.memory) for segment in self._incoming)
        self._may = self._own
        self._at = 0  # bytes of the first segment that are there
        self._odd = 0  # bytes of a number that is not whole yet

    def wake(self) -> None:
        """Be woken for what this member receives."""
        self._from.wake_at(max(1, min(self._slice, self._due)))

    def take(self) -> bool:
        if not self._coming:
            return True
        segment = self._coming[0]
        if segment.into is None:
            count = self._from.receive(segment.memory[self._at :])
            self._due -= count
        else:
            count = self._combine(segment)
        self._at += count
        self._may += count
        if self._at == len(segment.memory):
            self._coming.popleft()
            self._at = 0
        if 0 < self._due < self._slice:
            self._from.wake_at(self._due)
        return not self._coming

    def _combine(self, segment: Segment) -> int:
        by = self._combining
        assert by is not None
        existing = self._odd + self._from.receive(
            by.scratch[self._odd : min(SCRATCH, len(segment.memory) - self._at)]
        )
        count = existing - existing % by.unit
        here = slice(self._at // by.unit, (self._at + count) // by.unit)
        by.function(segment.addend[here], by.numbers[: count // by.unit], out=segment.into[here])
        self._due -= existing - self._odd
        self._odd = existing - count
        if self._odd:
            by.scratch[: self._odd] = by.scratch[count:existing]
        return count

    @property
    def late(self) -> bool:
        """Whether what it is to be woken for is, in part, the first of what one more rank adds:
        each segment is of one more.
        """
        if not self._coming:
            return False
        segment = self._coming[0]
        # what is summed already is of all ranks
        begun = self._combining is not None and segment.into is None
        return not begun and (not self._at or len(segment.memory) - self._at < self._slice)

    @property
    def received(self) -> bool:
        """Whether all that comes in is there."""
        return not self._coming

    @property
    def sent(self) -> bool:
        """Whether this rank has sent all it is to send."""
        return not self._going

    def push(self) -> bool:
        while self._may and self._going:
            piece = self._going[0]
            count = self._to.send(piece[: self._may])
            if not count:
                return True
            self._may -= count
            if count < len(piece):
                self._going[0] = piece[count:]
            else:
                self._going.popleft()
        return False


class Round(Passing):
    """A member's part in a ring all-reduce: it starts with its own chunk and passes on all that
    comes in.

    What comes in first, of size - 1 chunks, is added to what is here; then come as many that are
    summed already. The last of them every other member has had.
    """

    def __init__(
        self,
        into: Wire,
        out: Wire,
        position: int,
        size: int,
        buffer: Buffer,
        torch: Any,
        scratch: bytearray | None = None,
    ) -> None:
        """`scratch`: SCRATCH bytes for what is to be added, which rounds that receive one after the
        other can share.
        """
        scratch = bytearray(SCRATCH) if scratch is None else scratch
        numbers = torch.frombuffer(scratch, dtype=buffer.tensor.dtype)
        adding = Combining(torch.add, numbers.element_size(), memoryview(scratch), numbers)
        chunks = [buffer.part(begin, end) for begin, end in pieces(buffer.tensor.numel(), size)]
        own, incoming = all_reduce_steps(chunks, position)
        super().__init__(into, out, own, incoming, len(incoming) - 1, adding)


def all_reduce_steps(chunks: Sequence[Buffer], position: int) -> tuple[memoryview, list[Segment]]:
    """What a member of a ring all-reduce in place starts with, and what comes in: first to be
    added, then summed.
    """
    size = len(chunks)
    sums = [chunks[(position - step - 1) % size] for step in range(size - 1)]
    whole = [chunks[(position - step) % size] for step in range(size - 1)]
    incoming = [Segment(chunk.memory, chunk.tensor, chunk.tensor) for chunk in sums] + [
        Segment(chunk.memory) for chunk in whole
    ]
    return chunks[position].memory, incoming
