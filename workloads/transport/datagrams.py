"""Datagrams between two ranks over one lane: numbers, acknowledgements, how much may be in flight.
Nothing here sends or waits.

A datagram, big-endian, begins with HEADER:

    token     8 bytes  drawn by its receiver, given to the sender over the management network
    name      8 bytes  of the block (Block); in an acknowledgement: the sums that its sender has begun, from 0 on
    number    4 bytes  counts the datagrams of this sender on this lane, modulo 2^32
    count     2 bytes  ranks whose numbers are in the block; in an acknowledgement: numbers that never came so far, modulo 2^16
    kind      1 byte   DATA, PING (asks for an acknowledgement) or ACK
    reserved  1 byte
    before    2 x 8    names of the blocks in the two datagrams before this one; NOTHING where it was none

DATA goes on with the numbers of the block. ACK goes on with 64 bytes: bit k says that the datagram
with `number` - 1 - k need not come any more. A lane keeps the order of what is sent, so a gap is a
loss, and `before` says at once of what: its receiver may go on without it (blocks.py), and then
acknowledges it as if it had come.

How much is in flight follows the delay, as in LEDBAT (RFC 6817), not the loss: links that lose now
and then are not slowed down by that. Only above HEAVY it is taken for a queue that overflows.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

HEADER = struct.Struct("!QQIHBxQQ")
DATA, PING, ACK = 1, 2, 3
NOTHING = (1 << 64) - 1
KEPT = 512
"""Of so many datagrams a receiver knows whether they came."""
SUMS, RINGS, HOPS, BLOCKS = 1 << 24, 1 << 6, 1 << 12, 1 << 21
LARGEST = 8960
"""Bytes of a datagram at most, its header included: one of Ethernet's jumbo frames."""

QUEUE_S = 0.02
"""A sender fills the queues on its lane for so long (s), which is what a receiver on a busy machine
may be late by.
"""
HEAVY, CUT = 0.08, 0.7
"""Above this share of datagrams lost in a window, a queue overflows, and the window is cut to this
part.
"""
LEAST, MOST = 16 << 10, 448 << 10
"""Bytes in flight on a lane. MOST as wires.QUEUE."""
PROBE_S, LONGEST_PROBE_S = 0.01, 0.1
"""The least and the longest time (s) without an acknowledgement after which one is asked for."""
TAIL_S = 0.002
"""So long (s) after the last of some datagrams a ping follows."""
ACK_S, ACK_EVERY = 0.002, 8
"""Datagrams are acknowledged after this time (s), or so many at once."""
BASE_S = 10.0
"""The least delay of a lane is that of the last one or two times this (s)."""


class Block(NamedTuple):
    """Which block of numbers: of which sum and ring, on its way over which hop, which of its chunk;
    dear: it may not be lost.
    """

    sum: int
    ring: int
    hop: int
    at: int
    dear: bool

    def packed(self) -> int:
        return (self.sum % SUMS) << 40 | self.ring << 34 | self.hop << 22 | self.at << 1 | self.dear


def unpacked(name: int) -> Block:
    """
    >>> unpacked(Block(7, 1, 3, 200, True).packed())
    Block(sum=7, ring=1, hop=3, at=200, dear=True)
    """
    return Block(
        name >> 40,
        name >> 34 & (RINGS - 1),
        name >> 22 & (HOPS - 1),
        name >> 1 & (BLOCKS - 1),
        bool(name & 1),
    )


def full(short: int, near: int, size: int) -> int:
    """The number that is `short` modulo `size` and nearest to `near`.

    >>> full(3, 65530, 65536), full(65530, 65540, 65536)
    (65539, 65530)
    """
    return near + (short - near + size // 2) % size - size // 2


@dataclass(slots=True, eq=False)
class Item:
    """A block to be sent. memory: its numbers. sends: how often it was sent."""

    name: int
    memory: Any
    count: int
    sum: int
    sends: int = 0


class Receipts:
    """What came in on a lane."""

    def __init__(self) -> None:
        self.top = 0  # one above the largest number that came
        self.settled = 0  # bit k: the datagram top - 1 - k need not come any more
        self.ended = 0  # numbers that never came
        self.ack_s: float | None = None  # when an acknowledgement is due
        self._pending = 0

    def take(self, short: int, now_s: float, ask: bool = False) -> int:
        """Note that a datagram with this number came; return the number in full. ask: it wants an
        acknowledgement at once.
        """
        number = full(short, self.top, 1 << 32)
        skipped = 0
        if number >= self.top:
            skipped = number - self.top
            self.settled = (self.settled << min(skipped + 1, KEPT) | 1) & ((1 << KEPT) - 1)
            self.ended += skipped
            self.top = number + 1
        elif (age := self.top - 1 - number) < KEPT:
            if not self.settled >> age & 1:
                self.ended -= 1
            self.settled |= 1 << age
        self._pending += 1
        if ask or skipped or self._pending >= ACK_EVERY:
            self.ack_s = now_s
        elif self.ack_s is None:
            self.ack_s = now_s + ACK_S
        return number

    def missing(self, number: int) -> bool:
        """Whether a datagram of this number, below the top, was not settled yet."""
        age = self.top - 1 - number
        return number >= 0 and 0 <= age < KEPT and not self.settled >> age & 1

    def settle(self, number: int) -> None:
        """It need not come any more."""
        self.settled |= 1 << (self.top - 1 - number)

    def acknowledgement(self, token: int, begun: int) -> bytes:
        self.ack_s, self._pending = None, 0
        head = HEADER.pack(
            token, begun, self.top & 0xFFFFFFFF, self.ended & 0xFFFF, ACK, NOTHING, NOTHING
        )
        return head + self.settled.to_bytes(KEPT // 8, "big")


class Window:
    """How many bytes may be in flight: as many as keep the lane busy and its queues filled for
    QUEUE_S.
    """

    def __init__(self, unit: int, most: int) -> None:
        """unit: bytes of a datagram. most: what the receiver has room for."""
        self._unit, self._most = unit, max(2 * unit, min(most, MOST))
        self._least = min(max(LEAST, 4 * unit), self._most)
        self.size = float(self._least)
        self._base_s: list[float] = []
        self._base_until_s = 0.0
        self.smooth_s, self._varies_s = 0.0, 0.0

    def delay(self, took_s: float, now_s: float, size: int, *, busy: bool) -> None:
        """An acknowledgement of so many bytes came after `took_s`; busy: about as much was in
        flight as may be.
        """
        if now_s >= self._base_until_s:
            self._base_s, self._base_until_s = [*self._base_s[-1:], took_s], now_s + BASE_S
        self._base_s[-1] = min(self._base_s[-1], took_s)
        if not self.smooth_s:
            self.smooth_s, self._varies_s = took_s, took_s / 2
        self._varies_s += (abs(took_s - self.smooth_s) - self._varies_s) / 4
        self.smooth_s += (took_s - self.smooth_s) / 8
        room = max(1 - (took_s - min(self._base_s)) / QUEUE_S, -0.5)
        if room < 0 or busy:
            self.size = min(max(self.size + room * size, self._least), self._most)

    def overflows(self) -> None:
        self.size = max(self.size * CUT, self._least)

    @property
    def probe_s(self) -> float:
        return min(max(PROBE_S, self.smooth_s + 4 * self._varies_s), LONGEST_PROBE_S)


class Lane:
    """A rank's end of a lane to another rank: what it sends there and what comes from there."""

    def __init__(self, token: int, unit: int, most: int) -> None:
        """token: what the other rank asks for. unit, most: as Window."""
        self.window, self.receipts = Window(unit, most), Receipts()
        self.in_flight = 0
        self.silent = 0  # probes since the last acknowledgement
        self.probe_at_s: float | None = None
        # infinity: data was sent, and it is not known yet whether more follows
        self.tail_at_s: float | None = None
        self.token, self._next = token, 0
        self._flight: dict[int, tuple[Item, float]] = {}
        self._before = deque((NOTHING, NOTHING), maxlen=2)
        self._ended, self._round_lost, self._round_from, self._round_end = 0, 0, 0, 0

    @property
    def room(self) -> int:
        """Bytes that may be sent; none while the lane is silent."""
        return 0 if self.silent else int(self.window.size) - self.in_flight

    def send(self, item: Item, now_s: float) -> bytes:
        """The header of a datagram with this block, which is in flight from now on."""
        self._flight[self._next] = item, now_s
        self.in_flight += len(item.memory) + HEADER.size
        if self.probe_at_s is None:
            self.probe_at_s = now_s + self.window.probe_s
        self.tail_at_s = math.inf
        item.sends += 1
        return self._head(item.name, item.count, DATA)

    def ask(self, now_s: float) -> None:
        """Have a ping sent in time, if nothing is in flight that will be acknowledged."""
        if self.probe_at_s is None:
            self.probe_at_s = now_s + self.window.probe_s

    def forget(self) -> None:
        """Nothing is in flight any more."""
        self._flight.clear()
        self.in_flight = 0

    def flying(self) -> Iterator[Item]:
        for item, _ in self._flight.values():
            yield item

    def rest(self, now_s: float) -> None:
        """There is nothing more to send: a ping in TAIL_S will tell whether the last datagrams were
        lost, if none does before.
        """
        if self._flight and self.tail_at_s == math.inf:
            self.tail_at_s = now_s + TAIL_S

    def ping(self) -> bytes:
        self.tail_at_s = None
        return self._head(NOTHING, 0, PING)

    def _head(self, name: int, count: int, kind: int) -> bytes:
        one, two = self._before
        head = HEADER.pack(self.token, name, self._next & 0xFFFFFFFF, count, kind, one, two)
        self._before.appendleft(name)
        self._next += 1
        return head

    def acknowledged(
        self, short: int, settled: int, ended: int, now_s: float
    ) -> tuple[list[Item], list[Item]]:
        """Take an acknowledgement: what is settled, and what is to be sent again. Raises:
        ValueError - of what was never sent.
        """
        top = full(short, self._next, 1 << 32)
        if top > self._next:
            raise ValueError("acknowledges what was never sent")
        self.silent = 0
        done, again, size, busy = [], [], 0, self.in_flight > self.window.size / 2
        newest: float | None = None
        for number in list(self._flight):
            if number >= top:
                break
            item, sent_s = self._flight.pop(number)
            age = top - 1 - number
            if age < KEPT and settled >> age & 1:
                done.append(item)
                size += len(item.memory) + HEADER.size
                newest = sent_s if age == 0 else newest
            else:
                again.append(item)
            self.in_flight -= len(item.memory) + HEADER.size
        if newest is not None:
            self.window.delay(now_s - newest, now_s, size, busy=busy)
        self._watch(top, ended)
        self.probe_at_s = now_s + self.window.probe_s if self._flight else None
        return done, again

    def _watch(self, top: int, ended: int) -> None:
        """Whether too much was lost since the round began."""
        self._ended = full(ended, self._ended, 1 << 16)
        if top < self._round_end:
            return
        lost, sent = self._ended - self._round_lost, top - self._round_from
        if lost >= 3 and lost > HEAVY * sent:
            self.window.overflows()
        self._round_lost, self._round_from, self._round_end = self._ended, top, self._next

    def probe(self, now_s: float) -> list[Item]:
        """No acknowledgement came in time: what is to be sent again, if need be on another lane. A
        ping follows.
        """
        self.silent += 1
        self.probe_at_s = now_s + min(self.window.probe_s * 2**self.silent, LONGEST_PROBE_S)
        if self.silent < 3:
            return []
        again = list(self.flying())
        self.forget()
        return again
