"""Messages between ranks that answer requests, and the keys and values that follow some of them,
over connections (Wire). Nothing here waits.

A message is HEADER: its kind, a request's number, and two numbers.

    ASK    prefill to decode   pages are wanted for a request: tokens of its prompt, of its output
    PAGES  prefill to decode   keys and values follow: the first of the request's pages, how many
    END    prefill to decode   all requests of this rank are answered
    ROOM   decode to prefill   the request has its pages: how many are free now
    FREE   decode to prefill   (no request) how many are free now
    THERE  decode to prefill   all keys and values of the request have come
    FIRST  decode to prefill   it has its first token
    LAST   decode to prefill   it has its last token: how many it has
    ALIVE  both ways           (no request) nothing else was to be said
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..transport.loop import Wire

HEADER = struct.Struct("<BIII")
ASK, PAGES, END, ROOM, FREE, THERE, FIRST, LAST, ALIVE = range(1, 10)
AT_ONCE = 8
"""So often a connection is read before the others have their turn."""


class Message(NamedTuple):
    kind: int
    request: int = 0
    one: int = 0
    two: int = 0


class Outbox:
    """What is to be sent over one connection, in order."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._left: deque[tuple[memoryview, int | None]] = deque()

    def put(
        self, message: Message, bulk: Iterable[memoryview] = (), ends: int | None = None
    ) -> None:
        """bulk: what follows it. ends: the request of which nothing more is to be sent then."""
        views = [memoryview(HEADER.pack(*message)), *bulk]
        self._left += [(view, None) for view in views[:-1]] + [(views[-1], ends)]

    def push(self) -> list[int]:
        """Send what may be sent; return the requests of which all was."""
        ended = []
        while self._left:
            view, request = self._left[0]
            count = self.wire.send(view)
            if not count:
                break
            if count < len(view):
                self._left[0] = view[count:], request
                continue
            self._left.popleft()
            if request is not None:
                ended.append(request)
        return ended

    @property
    def waits(self) -> bool:
        """Whether something is left."""
        return bool(self._left)


class Inbox:
    """What comes in over one connection."""

    def __init__(
        self, wire: Wire, place: Callable[[Message], list[memoryview]], wakes_at: int
    ) -> None:
        """place: where the bytes go that follow a message of PAGES. wakes_at: for so many of them
        the rank is woken.
        """
        self.wire, self._place, self._wakes_at = wire, place, wakes_at
        self._head = memoryview(bytearray(HEADER.size))
        self._message: Message | None = None
        self._room: deque[memoryview] = deque([self._head])

    def take(self) -> list[Message]:
        """What has come in whole."""
        found = []
        for _ in range(AT_ONCE):
            count = self.wire.receive(self._room[0])
            if not count:
                break
            if count < len(self._room[0]):
                self._room[0] = self._room[0][count:]
                continue
            self._room.popleft()
            if self._message is None:
                self._message = Message(*HEADER.unpack(self._head))
                if self._message.kind == PAGES:
                    self._room += self._place(self._message)
            if not self._room:
                found.append(self._message)
                self._message = None
                self._room.append(self._head)
        due = 1 if self._message is None else sum(map(len, self._room))
        self.wire.wake_at(min(due, self._wakes_at))
        return found
