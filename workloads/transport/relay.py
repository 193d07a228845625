"""Messages between ranks of which another rank passes some on: from a sender's domain, where links
are fast, to the receiver's rail.

Such a message begins with its length, so that a rank that sends another one than is due is noticed
before any of it counts as data. A relay sends what it has received so far: it holds ROOM bytes of a
message, and the sender waits, by TCP, where the way on is slower.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .loop import Task, Wire
from .tasks import ReceiveTask, SendTask

HEADER = struct.Struct("!Q")
ROOM = 65536
PIECE = 16384
"""A relay is woken for this many bytes, or for the last that are due."""


@dataclass(frozen=True, slots=True)
class Way:
    """From one rank to another over a lane; via: the rank that passes it on, None for none."""

    name: str
    source: int
    target: int
    lane: int = 0
    via: int | None = None

    @property
    def legs(self) -> tuple[tuple[str, int, int], ...]:
        """The connections it takes: name, and the rank at each end."""
        if self.via is None:
            return ((self.name, self.source, self.target),)
        return (self.name, self.source, self.via), (f"{self.name} on", self.via, self.target)

    @property
    def first(self) -> str:
        return self.legs[0][0]

    @property
    def last(self) -> str:
        return self.legs[-1][0]


def relay_of(source: int, target: int, domain: int) -> int | None:
    """The rank of the sender's domain at the receiver's place, None where that is one of the two.
    domain: ranks of each, at places 0, 1, ... of it; 0: there are none.

    >>> [relay_of(0, target, 2) for target in (1, 2, 3)]
    [None, None, 1]
    """
    if not domain:
        return None
    via = source // domain * domain + target % domain
    return None if via in (source, target) else via


def ends(
    ways: Iterable[Way], rank: int
) -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]]]:
    """The connections that a rank needs, out and in (wires.Ends)."""
    out, into = {}, {}
    for way in ways:
        for name, begin, end in way.legs:
            if begin == rank:
                out[name] = end, way.lane
            if end == rank:
                into[name] = begin, way.lane
    return out, into


def _announced(out: Wire, message: memoryview) -> SendTask:
    """Send a message with its length before it."""
    return SendTask(out, [memoryview(HEADER.pack(len(message))), message])


def sending(way: Way, out: Mapping[str, Wire], message: memoryview) -> SendTask:
    """Send a message along its way."""
    wire = out[way.first]
    return SendTask(wire, [message]) if way.via is None else _announced(wire, message)


class Receiving(ReceiveTask):
    """Receive a message of exactly as many bytes as there is memory. `slice`: as tasks.SLICE."""

    def __init__(self, into: Wire, message: memoryview, slice: int) -> None:
        self._header, self._size = bytearray(HEADER.size), len(message)
        super().__init__(into, [memoryview(self._header), message], slice)

    def begin(self) -> None:
        super().begin()
        self._wire.wake_at(HEADER.size)  # a message may be shorter than the one that is due

    def take(self) -> bool:
        before = self._whole - self._due
        whole = super().take()
        if before < HEADER.size <= self._whole - self._due:
            _check(self._header, range(self._size, self._size + 1), self._wire)
        return whole


def receiving(way: Way, into: Mapping[str, Wire], message: memoryview, slice: int) -> ReceiveTask:
    """Receive a message that came along its way."""
    wire = into[way.last]
    if way.via is None:
        return ReceiveTask(wire, [message], slice)
    return Receiving(wire, message, slice)


class Relay:
    """Pass a message on while it comes in. `sizes`: those that it may have."""

    def __init__(self, into: Wire, out: Wire, sizes: range) -> None:
        self.into: Wire | None = into
        self.out: Wire | None = out
        self._from, self._to, self._sizes = into, out, sizes
        self._memory = memoryview(bytearray(ROOM))
        self._came = self._gone = self._may = self._due = 0
        self._open = self._reads = False

    @property
    def late(self) -> bool:
        return not self._came

    def begin(self) -> None:
        """Begin with a message, or go on with one where there is room again."""
        if not self._open:
            self._came = self._gone = self._may = 0
            self._due, self._open = HEADER.size, True
        self._reads = True
        self._wake()

    @property
    def waits(self) -> bool:
        """Whether it has stopped receiving for want of room, and has room now."""
        return (
            self._open and not self._reads and self._due > 0 and self._room >= min(PIECE, self._due)
        )

    @property
    def _room(self) -> int:
        return ROOM - (self._came - self._gone)

    def _wake(self) -> None:
        self._from.wake_at(max(1, min(PIECE, self._due)))

    def take(self) -> bool:
        at = self._came % ROOM
        count = self._from.receive(self._memory[at : at + min(self._room, ROOM - at, self._due)])
        self._came += count
        self._due -= count
        if not self._may:
            if self._due:
                return False
            self._due = _check(self._memory[: HEADER.size], self._sizes, self._from)
        self._may = self._came
        self._wake()
        self._reads = self._due > 0 and self._room > 0
        return not self._reads

    def push(self) -> bool:
        while self._gone < self._may:
            at = self._gone % ROOM
            count = self._to.send(self._memory[at : min(ROOM, at + self._may - self._gone)])
            if not count:
                return True
            self._gone += count
        # the header is sent by then, so that nothing due is the end of the message
        self._open = self._open and (not self._may or self._due > 0)
        return False


def _check(header: bytes | bytearray | memoryview, sizes: range, wire: Wire) -> int:
    """The length that a message announces. Raises: RuntimeError - it is none of `sizes`."""
    (size,) = HEADER.unpack(header)
    if size not in sizes:
        wanted = f"{sizes[0]}" if len(sizes) == 1 else f"at most {sizes[-1]}"
        raise RuntimeError(
            f"rank {wire.peer} announces a message of {size} bytes, {wanted} are due: "
            "ranks of one job must run the same version with the same plan; launch it again"
        )
    return int(size)


def stages(
    ways: Iterable[Way],
    rank: int,
    out: Mapping[str, Wire],
    into: Mapping[str, Wire],
    messages: Mapping[str, memoryview],
    sizes: Mapping[str, range],
    slice: int,
    *,
    whole: bool = False,
) -> list[list[Task]]:
    """What a rank has to carry, one list after the other: what it receives and sends, in `messages`
    by the name of the way, and what it passes on, in `sizes`.

    whole: it passes on only what it has received whole, after all of it, in memory of its size.
    """
    first: list[Task] = []
    second: list[Task] = []
    for way in ways:
        relayed = way.via is not None
        if not relayed and not messages.get(way.name):
            continue  # nothing would come, so nobody is to wait for it
        if way.target == rank:
            (second if relayed and whole else first).append(
                receiving(way, into, messages[way.name], slice)
            )
        elif way.source == rank:
            first.append(sending(way, out, messages[way.name]))
        elif way.via == rank and whole:
            held = memoryview(bytearray(sizes[way.name][-1]))
            first.append(Receiving(into[way.first], held, slice))
            second.append(_announced(out[way.last], held))
        elif way.via == rank:
            first.append(Relay(into[way.first], out[way.last], sizes[way.name]))
    return [first, second] if second else [first]
