"""The ends of lanes to other ranks: their sockets, what waits to be sent over them, and what a rank
counts of it.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections import deque
from collections.abc import Iterator

from ..host.slots import shared
from .datagrams import Item, Lane

EARLY = 4 << 20
"""Bytes that are kept for sums that this rank has not begun, of each peer, and that are sent
ahead.
"""
BUFFER = 1 << 20
"""Bytes of a socket's buffers that are asked for; the kernel may give less (net.core.rmem_max), and
counts its own needs in.
"""
IP_MTU = 14  # linux/in.h


class Tally:
    """What a rank sent, in bytes of datagrams, and how many contributions its sums lack; of all its
    sets.
    """

    def __init__(self) -> None:
        self.sent, self.resent, self.missing, self.contributions = 0, 0, 0, 0


class End:
    """A socket for one lane to one rank."""

    def __init__(self, lane: str) -> None:
        self.token = secrets.randbits(64)
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                self.socket.setsockopt(socket.SOL_SOCKET, option, BUFFER)
            self.socket.bind((lane, 0))
            self.socket.setblocking(False)
        except BaseException:
            self.socket.close()
            raise
        # a datagram takes up to twice its length
        self.room = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 3
        self.address = ""
        self.lane: Lane
        self.neighbour: Neighbour

    def connect(self, address: str, port: int) -> int:
        """Have the kernel take datagrams from there alone, and drop what came before; return the
        bytes that one may have.
        """
        self.socket.connect((address, port))
        self.address = address
        with contextlib.suppress(BlockingIOError, ConnectionRefusedError):
            while True:
                self.socket.recv(1)
        return self.socket.getsockopt(socket.IPPROTO_IP, IP_MTU) - 28  # headers of IP and UDP

    @property
    def open(self) -> bool:
        """Whether the fabric reaches the other end in this slot."""
        return shared().reach is None or bool(shared().until(self.address))


class Neighbour:
    """A rank that this one sends to, receives from, or both."""

    def __init__(self, peer: int, ends: list[End]) -> None:
        self.peer, self.ends = peer, ends
        self.begun = 0
        """Sums that it has begun."""
        # sum -> block's name -> count, bytes
        self.early: dict[int, dict[int, tuple[int, bytes]]] = {}
        self.early_size = 0
        self._ahead: dict[int, int] = {}  # sum that it has not begun -> bytes sent
        self._queues: dict[int, deque[Item]] = {}  # by sum
        self.again: deque[Item] = deque()
        # sums of which all is here: others wait for what is still to be sent of them
        self._last: set[int] = set()

    def queue(self, item: Item) -> None:
        """Send it when there is room."""
        self._queues.setdefault(item.sum, deque()).append(item)

    def closing(self, number: int) -> None:
        """All of this sum is here."""
        if number in self._queues:
            self._last.add(number)

    def next(self) -> Item | None:
        """What is to be sent now, if something is."""
        if self.again:
            return self.again.popleft()
        for number in sorted(
            self._queues, key=lambda number: (number in self._last, number), reverse=True
        ):
            some = self._queues[number]
            if not some:
                del self._queues[number]
                self._last.discard(number)
            elif number < self.begun:
                return some.popleft()
            elif sum(self._ahead.values()) + len(some[0].memory) <= EARLY:
                item = some.popleft()
                self._ahead[number] = self._ahead.get(number, 0) + len(item.memory)
                return item
        return None

    def has_begun(self, begun: int) -> None:
        """It says so itself."""
        self.begun = max(self.begun, begun)
        self._ahead = {number: size for number, size in self._ahead.items() if number >= self.begun}

    @property
    def waits(self) -> bool:
        """Whether something is to be sent."""
        return bool(self.again or any(self._queues.values()))

    def forget(self) -> None:
        """Send nothing more."""
        self.again.clear()
        self._queues.clear()
        for end in self.ends:
            end.lane.forget()

    def unsent(self) -> Iterator[Item]:
        """All that is not acknowledged."""
        yield from self.again
        for some in self._queues.values():
            yield from some
        for end in self.ends:
            yield from end.lane.flying()
