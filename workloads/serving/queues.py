"""What the processor of a rank computes next, and when it is through: prompts (prefill), tokens of
many requests at once (decode), or both. Pure: times are given, in seconds.

Work follows on work without a gap, however late its end was noticed, as on a GPU whose next kernels
wait in its queue. A request keeps the pages of its prompt and its output from its begin to its end,
so none is ever put off for another.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from .pages import Pages, pages_of
from .trace import Request


class Chunk(NamedTuple):
    """Pages `first` to `first + pages` of a request's prompt are computed; last: no more follow."""

    request: int
    first: int
    pages: int
    last: bool


class Token(NamedTuple):
    """A request has its first token, its last one, or both at once."""

    request: int
    first: bool
    last: bool


@dataclass(frozen=True, slots=True)
class Costs:
    """prompt_s: of a token of a prompt. step_s, sequence_s: of a step, and more for each of its
    requests. chunk: tokens of a prompt between whose ends pages go out. batch: requests of a step
    at most.
    """

    prompt_s: float
    step_s: float
    sequence_s: float
    chunk: int
    batch: int


class Prefill:
    """Prompts, first come, first served. A prompt begins once there are pages for it."""

    def __init__(self, pages: Pages, costs: Costs) -> None:
        self._pages, self._costs = pages, costs
        self._queue: deque[Request] = deque()
        self._now: Request | None = None
        self._done = 0
        self.next_s: float | None = None
        """When the chunk of now is through; None: nothing is computed."""

    def arrive(self, request: Request) -> None:
        self._queue.append(request)

    def advance(self, now_s: float) -> list[Chunk]:
        """The chunks that are through by now. To be called again once pages were given back."""
        found: list[Chunk] = []
        at_s = now_s
        while self._now is not None or self._begin(at_s):
            request, costs = self._now, self._costs
            assert request is not None and self.next_s is not None
            if self.next_s > now_s:
                break
            at_s, before = self.next_s, self._done
            self._done = min(request.prompt, before + costs.chunk)
            first, last = pages_of(before), self._done == request.prompt
            found.append(Chunk(request.number, first, pages_of(self._done) - first, last))
            if last:
                self._now, self.next_s = None, None
            else:
                self.next_s = at_s + self._chunk_s(request)
        return found

    def _begin(self, at_s: float) -> bool:
        if not self._queue:
            return False
        request = self._queue[0]
        if not self._pages.take(request.number, pages_of(request.prompt)):
            return False
        self._now, self._done = self._queue.popleft(), 0
        self.next_s = at_s + self._chunk_s(request)
        return True

    def _chunk_s(self, request: Request) -> float:
        return min(self._costs.chunk, request.prompt - self._done) * self._costs.prompt_s


class Decode:
    """Steps, each of which makes a token for every request that has begun, `batch` at most."""

    def __init__(self, pages: Pages, costs: Costs) -> None:
        self._pages, self._costs = pages, costs
        self._joined: deque[int] = deque()
        self._left: dict[int, int] = {}  # tokens to make, of those that have begun
        self._wanted: dict[int, int] = {}
        self._step: list[int] = []
        self.next_s: float | None = None
        """When the work of now is through; None: nothing is computed."""

    def join(self, request: int, output: int) -> None:
        """Its keys and values are there, and so many tokens of it are to be made."""
        self._wanted[request] = self._left[request] = output
        self._joined.append(request)

    def advance(self, now_s: float) -> list[Token]:
        """First and last tokens by now."""
        found: list[Token] = []
        at_s = now_s
        while self.next_s is not None or self._begin(at_s):
            assert self.next_s is not None
            if self.next_s > now_s:
                break
            at_s, self.next_s = self.next_s, None
            found += self._end()
        return found

    def _begin(self, at_s: float) -> bool:
        while self._joined and len(self._step) < self._costs.batch:
            self._step.append(self._joined.popleft())
        if not self._step:
            return False
        self.next_s = at_s + self._costs.step_s + len(self._step) * self._costs.sequence_s
        return True

    def _end(self) -> list[Token]:
        found = [self._token(request) for request in self._step]
        self._step = [request for request in self._step if request in self._left]
        return [token for token in found if token.first or token.last]

    def _token(self, request: int) -> Token:
        self._left[request] -= 1
        first = self._left[request] + 1 == self._wanted[request]
        last = not self._left[request]
        if last:
            del self._left[request], self._wanted[request]
            self._pages.give(request)
        return Token(request, first, last)


class Together(Decode):
    """Prompts and tokens on one processor: a prompt that has pages goes before the next step, and
    its end is the request's first token, as in vLLM without chunked prefill.
    """

    def __init__(self, pages: Pages, costs: Costs) -> None:
        super().__init__(pages, costs)
        self._queue: deque[Request] = deque()
        self._prompt: Request | None = None

    def arrive(self, request: Request) -> None:
        self._queue.append(request)

    def _begin(self, at_s: float) -> bool:
        if self._queue and len(self._step) + len(self._joined) < self._costs.batch:
            request = self._queue[0]
            if self._pages.take(request.number, pages_of(request.prompt + request.output)):
                self._prompt = self._queue.popleft()
                self.next_s = at_s + request.prompt * self._costs.prompt_s
                return True
        return super()._begin(at_s)

    def _end(self) -> list[Token]:
        if self._prompt is None:
            return super()._end()
        request, self._prompt = self._prompt, None
        self.join(request.number, request.output)
        token = self._token(request.number)
        if token.last:
            self._joined.remove(request.number)
        return [token]


class Rooms:
    """Which decode rank a prompt's pages go to, as far as a prefill rank knows: the one with most
    room.

    A rank's own word counts until the next; what was asked of it since is taken off.
    """

    def __init__(self, room: dict[int, int]) -> None:
        """room: free pages of each decode rank."""
        self._room = dict(room)
        self._asked: dict[int, tuple[int, int]] = {}

    def ask(self, request: int, pages: int, home: int | None = None) -> int:
        """Choose a rank, `home` where there is one; it may let the request wait until it has the
        pages.
        """
        room = {rank: free - self._pending(rank) for rank, free in self._room.items()}
        chosen = max(room, key=lambda rank: (room[rank], -rank)) if home is None else home
        self._asked[request] = chosen, pages
        return chosen

    def answer(self, request: int) -> None:
        """It has given them."""
        self._asked.pop(request, None)

    def hear(self, rank: int, free: int) -> None:
        self._room[rank] = free

    def _pending(self, rank: int) -> int:
        return sum(pages for asked, pages in self._asked.values() if asked == rank)
