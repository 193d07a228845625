"""TCP streams put together again from captured segments: in any order, with holes, within
bounds.
"""

from __future__ import annotations

import re
import struct

from .segments import RST, SYN, Segment

FLOWS = 1024
"""Connections that are looked at at once; beyond, the one that has not said its name for the
longest time gives way.
"""
ALIKE = 4
"""Connections of the same name that are kept: a stranger may use the name of one of the job's."""
HOLES = 1024
NAME = 200
"""Bytes of a connection's name at the most (wires.py sends it first, after its length)."""
STREAM, ALL = 64 << 20, 512 << 20
"""Bytes that are kept of one stream, and of all."""


class Budget:
    """How many bytes all streams hold together."""

    def __init__(self, most: int = ALL) -> None:
        self.most, self.used = most, 0


class Stream:
    """The bytes of one direction of a connection, counted from 0, as far as they were seen and are
    not dropped.

    initial: the sequence number of the SYN. What is seen twice is taken from the first time, as the
    receiver's kernel does.
    """

    def __init__(self, initial: int, budget: Budget, most: int = STREAM) -> None:
        self.initial, self._budget, self._most = initial, budget, most
        self.start = 0
        """What is before this position was dropped."""
        self._data = bytearray()
        self._holes: list[tuple[int, int]] = []

    @property
    def end(self) -> int:
        """One past the furthest byte that was seen, or `start`."""
        return self.start + len(self._data)

    def feed(self, sequence: int, payload: memoryview) -> None:
        """Take a segment. Sequence numbers wrap: the position nearest to `end` is meant."""
        end = self.end
        ahead = (sequence - self.initial - 1 - end) & 0xFFFFFFFF
        position = end + (ahead if ahead < 1 << 31 else ahead - (1 << 32))
        if position < self.start:
            payload, position = payload[self.start - position :], self.start
        if not len(payload):
            return
        if position < end:
            self._fill(position, payload[: end - position])
            payload, position = payload[end - position :], end
            if not len(payload):
                return
        more = position + len(payload) - end
        if (
            position + len(payload) - self.start > self._most
            or self._budget.used + more > self._budget.most
        ):
            return
        if position > end:
            if len(self._holes) >= HOLES:
                return
            self._holes.append((end, position))
            self._data += bytes(position - end)
        self._data += payload
        self._budget.used += more

    def _fill(self, position: int, payload: memoryview) -> None:
        """Put into holes what belongs there."""
        if not self._holes:
            return
        left, last = [], position + len(payload)
        for begin, end in self._holes:
            low, high = max(begin, position), min(end, last)
            if low >= high:
                left.append((begin, end))
                continue
            self._data[low - self.start : high - self.start] = payload[
                low - position : high - position
            ]
            left += [(a, b) for a, b in ((begin, low), (high, end)) if a < b]
        if len(left) <= HOLES:
            self._holes = left

    def has(self, begin: int, end: int) -> bool:
        """Whether all bytes from `begin` to `end` were seen and are not dropped."""
        return (
            begin >= self.start
            and end <= self.end
            and not any(a < end and begin < b for a, b in self._holes)
        )

    def missing(self, begin: int, end: int) -> int:
        """How many bytes between `begin` and `end` were not seen, or are dropped."""
        low, high = max(begin, self.start), min(end, self.end)
        if low >= high:
            return end - begin
        holes = sum(max(0, min(b, high) - max(a, low)) for a, b in self._holes)
        return end - begin - (high - low) + holes

    def copy(self, begin: int, end: int, into: memoryview) -> None:
        """Copy bytes that are there (`has`)."""
        with memoryview(self._data) as data:
            into[:] = data[begin - self.start : end - self.start]

    def first(self, count: int) -> bytes | None:
        """The first `count` bytes; None where they were not all seen."""
        return bytes(self._data[:count]) if self.start == 0 and self.has(0, count) else None

    def drop(self, to: int) -> None:
        """Forget what is before this position, seen or not."""
        if to <= self.start:
            return
        ended = min(to - self.start, len(self._data))
        self._budget.used -= ended
        del self._data[:ended]
        self.start = to
        self._holes = [(max(a, to), b) for a, b in self._holes if b > to]

    def forget(self) -> None:
        """Drop everything."""
        self.drop(self.end)


class Streams:
    """The connections of a job, by the names that wires.py sends first."""

    def __init__(self, wanted: re.Pattern[str], budget: Budget | None = None) -> None:
        """wanted: what names of the job's are like; others are not looked at any further."""
        self._wanted, self._budget = wanted, budget or Budget()
        self._flows: dict[bytes, Stream] = {}
        self._unnamed: dict[bytes, Stream] = {}
        self.named: dict[str, list[tuple[Stream, int]]] = {}
        """By name: the streams, and how many bytes their greeting took."""

    def take(self, segment: Segment) -> None:
        """Take a captured segment. Connections whose beginning was not seen are left out."""
        key, sequence, flags, payload = segment
        stream = self._flows.get(key)
        if flags & SYN:
            if stream is None or stream.initial != sequence:
                self._begin(key, sequence)
            return
        # a reset may be forged, and a real one needs nothing done
        if stream is None or flags & RST:
            return
        stream.feed(sequence, payload)
        if key in self._unnamed:
            self._look(key, stream)

    def _begin(self, key: bytes, initial: int) -> None:
        self._end(key)
        if len(self._flows) >= FLOWS:
            self._end(next(iter(self._unnamed or self._flows)))
        self._flows[key] = self._unnamed[key] = Stream(initial, self._budget)

    def _end(self, key: bytes) -> None:
        stream = self._flows.pop(key, None)
        if self._unnamed.pop(key, None) is not None and stream is not None:
            stream.forget()  # one with a name is still needed for what it carried

    def _look(self, key: bytes, stream: Stream) -> None:
        size = stream.first(2)
        if size is None:
            return
        (length,) = struct.unpack("!H", size)
        greeting = stream.first(2 + length) if length <= NAME else b""
        if greeting is None:
            return
        name = greeting[2:].decode("utf-8", "replace")
        if not greeting or not self._wanted.fullmatch(name) or not self._room(name):
            self._end(key)
            return
        del self._unnamed[key]
        alike = self.named.setdefault(name, [])
        alike.append((stream, len(greeting)))
        for old, _ in alike[:-ALIKE]:
            old.forget()
        del alike[:-ALIKE]

    def _room(self, name: str) -> bool:
        """Whether one more name can be kept, once the oldest that never carried anything (of a ring
        change that was given up) has gone.
        """
        if name not in self.named and len(self.named) >= FLOWS:
            idle = (
                old
                for old, each in self.named.items()
                if all(stream.end <= greeting for stream, greeting in each)
            )
            if (oldest := next(idle, None)) is None:
                return False
            self._drop(oldest)
        return True

    def forget(self, prefix: str) -> None:
        """Forget the connections whose names begin so."""
        for name in [name for name in self.named if name.startswith(prefix)]:
            self._drop(name)

    def _drop(self, name: str) -> None:
        removed = [stream for stream, _ in self.named.pop(name)]
        for stream in removed:
            stream.forget()
        self._flows = {key: each for key, each in self._flows.items() if each not in removed}
