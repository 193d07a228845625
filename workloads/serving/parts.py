"""What a rank does for requests: it computes their prompts, makes their tokens, or both."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from .books import Books
from .pages import Pages, pages_of
from .posts import ASK, END, FIRST, FREE, LAST, PAGES, ROOM, THERE, Message
from .queues import Chunk, Costs, Decode, Prefill, Rooms, Together
from .talk import Talk
from .trace import Request

MARK = struct.Struct("<II")
"""What a page begins with: its request, and which of its pages it is."""


class Part(Protocol):
    """One of a rank. books: of the requests that come to it, in this iteration."""

    books: Books
    moved: int
    """Bytes of keys and values that it sent, or that came to it, in this iteration."""

    def begin(self, requests: Sequence[Request], start_s: float) -> None: ...  # an iteration
    def hear(self, peer: int, message: Message, now_s: float) -> None: ...
    def sent(self, request: int) -> None: ...  # all keys and values of it
    def advance(self, now_s: float) -> None: ...  # do what is due by now
    @property
    def next_s(self) -> float | None: ...  # when something is due
    @property
    def over(self) -> bool: ...  # of the iteration


class Memory:
    """A rank's pages, and their bytes."""

    def __init__(self, count: int, size: int) -> None:
        self.pages, self.size = Pages(count), size
        self._bytes = memoryview(bytearray(count * size))

    def views(self, request: int, first: int, count: int) -> list[memoryview]:
        """The bytes of a request's pages `first` to `first + count`."""
        table = self.pages.tables[request][first : first + count]
        return [self._bytes[page * self.size : (page + 1) * self.size] for page in table]


class Arrivals:
    """Requests that are still to come, by time (s, monotonic)."""

    def __init__(self, requests: Sequence[Request], start_s: float) -> None:
        self._left = deque((start_s + request.at_s, request) for request in requests)

    def by(self, now_s: float) -> list[tuple[float, Request]]:
        found = []
        while self._left and self._left[0][0] <= now_s:
            found.append(self._left.popleft())
        return found

    @property
    def next_s(self) -> float | None:
        return self._left[0][0] if self._left else None


def earlier(one: float | None, other: float | None) -> float | None:
    return min((each for each in (one, other) if each is not None), default=None)


class Both:
    """Prompts and tokens on one rank."""

    def __init__(self, memory: Memory, costs: Costs) -> None:
        self._queue, self.books, self.moved = Together(memory.pages, costs), Books(), 0
        self._arrivals, self._left = Arrivals((), 0.0), 0

    def begin(self, requests: Sequence[Request], start_s: float) -> None:
        self.books, self._left = Books(), len(requests)
        self._arrivals = Arrivals(requests, start_s)

    def hear(self, peer: int, message: Message, now_s: float) -> None:
        """It has no peers."""

    def sent(self, request: int) -> None:
        """It sends nothing."""

    def advance(self, now_s: float) -> None:
        for at_s, request in self._arrivals.by(now_s):
            self._work(at_s)
            self.books.note(request.number, "arrived", at_s)
            self._queue.arrive(request)
            self._work(at_s)
        self._work(now_s)

    def _work(self, now_s: float) -> None:
        for token in self._queue.advance(now_s):
            if token.first:
                self.books.note(token.request, "first", now_s)
            if token.last:
                self.books.note(token.request, "last", now_s)
                self._left -= 1

    @property
    def next_s(self) -> float | None:
        return earlier(self._arrivals.next_s, self._queue.next_s)

    @property
    def over(self) -> bool:
        return not self._left


class Front:
    """Requests come to this rank, which computes their prompts and sends keys and values to a rank
    that makes their tokens, chunk by chunk while it computes the next.
    """

    def __init__(self, memory: Memory, costs: Costs, room: dict[int, int]) -> None:
        """room: pages of each rank that makes tokens."""
        self._memory, self._queue = memory, Prefill(memory.pages, costs)
        self._rooms, self.books, self.moved = Rooms(room), Books(), 0
        self._arrivals = Arrivals((), 0.0)
        self._requests: dict[int, Request] = {}
        self._chosen: dict[int, int] = {}
        self._held: dict[int, list[Chunk]] = {}  # no pages are known for them yet
        self._left = self._open = 0
        self.home = 0
        """The rank where requests with a home have theirs, in this iteration."""
        self.talk: Talk

    def begin(self, requests: Sequence[Request], start_s: float) -> None:
        self.books, self.moved = Books(), 0
        self._requests = {request.number: request for request in requests}
        self._arrivals = Arrivals(requests, start_s)
        self._left, self._open = len(requests), len(self.talk.peers)
        self._end()

    def hear(self, peer: int, message: Message, now_s: float) -> None:
        kind, request = message.kind, message.request
        if kind in (ROOM, FREE):
            self._rooms.hear(peer, message.one)
        if kind == ROOM:
            self._rooms.answer(request)
            for chunk in self._held.pop(request):
                self._send(chunk)
        elif kind == THERE:
            self.books.note(request, "there", now_s)
        elif kind == FIRST:
            self.books.note(request, "first", now_s)
        elif kind == LAST:
            self.books.note(request, "last", now_s)
            self._left -= 1
            self._end()
        elif kind == END:
            self._open -= 1

    def sent(self, request: int) -> None:
        self._memory.pages.give(request)
        del self._chosen[request]

    def advance(self, now_s: float) -> None:
        for at_s, request in self._arrivals.by(now_s):
            self._work(at_s)
            self.books.note(request.number, "arrived", at_s)
            self._queue.arrive(request)
            self._work(at_s)
        self._work(now_s)

    def _work(self, now_s: float) -> None:
        for chunk in self._queue.advance(now_s):
            views = self._memory.views(chunk.request, chunk.first, chunk.pages)
            for number, view in enumerate(views, chunk.first):
                MARK.pack_into(view, 0, chunk.request, number)
            if chunk.last:
                self.books.note(chunk.request, "computed", now_s)
            if not chunk.first:
                self._ask(self._requests[chunk.request])
            if chunk.request in self._held:
                self._held[chunk.request].append(chunk)
            else:
                self._send(chunk)

    def _ask(self, request: Request) -> None:
        pages = pages_of(request.prompt + request.output)
        peer = self._rooms.ask(request.number, pages, self.home if request.home else None)
        self._chosen[request.number], self._held[request.number] = peer, []
        self.talk.tell(peer, Message(ASK, request.number, request.prompt, request.output))

    def _send(self, chunk: Chunk) -> None:
        self.talk.tell(
            self._chosen[chunk.request],
            Message(PAGES, chunk.request, chunk.first, chunk.pages),
            self._memory.views(chunk.request, chunk.first, chunk.pages),
            chunk.request if chunk.last else None,
        )
        self.moved += chunk.pages * self._memory.size

    def _end(self) -> None:
        if not self._left:
            for peer in self.talk.peers:
                self.talk.tell(peer, Message(END))

    @property
    def next_s(self) -> float | None:
        return earlier(self._arrivals.next_s, self._queue.next_s)

    @property
    def over(self) -> bool:
        return not self._open


class Back:
    """Makes the tokens of requests whose keys and values come from other ranks."""

    def __init__(self, memory: Memory, costs: Costs) -> None:
        self._memory, self._queue = memory, Decode(memory.pages, costs)
        self.books, self.moved, self._open = Books(), 0, 0
        self._asks: deque[tuple[int, Request]] = deque()
        self._given: dict[int, tuple[int, Request]] = {}
        self._due: dict[int, int] = {}  # pages that are to come
        self.talk: Talk

    def begin(self, requests: Sequence[Request], start_s: float) -> None:
        self.moved, self._open = 0, len(self.talk.peers)

    def room(self, message: Message) -> list[memoryview]:
        """Where the pages of this message go."""
        return self._memory.views(message.request, message.one, message.two)

    def hear(self, peer: int, message: Message, now_s: float) -> None:
        if message.kind == ASK:
            self._asks.append((peer, Request(message.request, 0.0, message.one, message.two)))
            self._give()
        elif message.kind == PAGES:
            self._came(message)
        elif message.kind == END:
            self._open -= 1
            if not self._open:
                for other in self.talk.peers:
                    self.talk.tell(other, Message(END))

    def sent(self, request: int) -> None:
        """It sends no keys and values."""

    def advance(self, now_s: float) -> None:
        for token in self._queue.advance(now_s):
            peer, request = self._given[token.request]
            if token.first:
                self.talk.tell(peer, Message(FIRST, token.request))
            if token.last:
                del self._given[token.request]
                self.talk.tell(peer, Message(LAST, token.request, request.output))
                self._give()
                for other in self.talk.peers:
                    self.talk.tell(other, Message(FREE, 0, self._memory.pages.free))

    def _give(self) -> None:
        """Pages to those who wait for them, in order."""
        pages = self._memory.pages
        while self._asks:
            peer, request = self._asks[0]
            if not pages.take(request.number, pages_of(request.prompt + request.output)):
                return
            self._given[request.number] = self._asks.popleft()
            self._due[request.number] = pages_of(request.prompt)
            self.talk.tell(peer, Message(ROOM, request.number, pages.free))

    def _came(self, message: Message) -> None:
        number = message.request
        for index, view in enumerate(self.room(message), message.one):
            if MARK.unpack_from(view) != (number, index):
                raise RuntimeError(f"request {number}: page {index} is another one")
        self.moved += message.two * self._memory.size
        self._due[number] -= message.two
        if not self._due[number]:
            del self._due[number]
            peer, request = self._given[number]
            self.talk.tell(peer, Message(THERE, number))
            self._queue.join(number, request.output)

    @property
    def next_s(self) -> float | None:
        return self._queue.next_s

    @property
    def over(self) -> bool:
        return not self._open
