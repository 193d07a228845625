"""Ranks that answer requests in virtual time, over links of a given rate and delay: what the lab is
to show, without one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from itertools import count

from workloads.serving.books import Answered
from workloads.serving.pages import page_bytes
from workloads.serving.parts import Back, Both, Front, Memory
from workloads.serving.posts import PAGES, Message
from workloads.serving.queues import Costs
from workloads.serving.trace import Request


class Network:
    """A link for each ordered pair, `rate` bytes a second (0: any), `delay_s` long, dark from
    `dark[0]` to `dark[1]` (s); short messages wait for nobody. circuits: the rates of the pairs that
    have one; then all others of a sender share its port.
    """

    def __init__(
        self,
        rate: float,
        delay_s: float,
        dark: tuple[float, float] = (0.0, 0.0),
        circuits: Mapping[tuple[int, int], float] | None = None,
    ) -> None:
        self.rate, self.delay_s, self.dark, self.now_s = rate, delay_s, dark, 0.0
        self._circuits = circuits
        self.events: list[tuple[float, int, int, int, Message]] = []
        self._free_s: dict[tuple[int, int], float] = {}
        self._order = count()

    def send(self, source: int, target: int, message: Message, size: int) -> None:
        at_s = self.now_s
        if size and self.rate:
            circuits, pair = self._circuits or {}, (source, target)
            link = pair if self._circuits is None or pair in circuits else (source, -1)
            at_s = max(at_s, self._free_s.get(link, 0.0)) + size / circuits.get(pair, self.rate)
            self._free_s[link] = at_s
        at_s += self.delay_s
        if self.dark[0] <= at_s < self.dark[1]:
            at_s = self.dark[1]
        heapq.heappush(self.events, (at_s, next(self._order), source, target, message))


class Line:
    """What a rank knows of the network; as Talk."""

    def __init__(self, network: Network, me: int, peers: Sequence[int]) -> None:
        self.peers, self._network, self._me = peers, network, me
        self.ended: list[int] = []

    def tell(
        self,
        peer: int,
        message: Message,
        bulk: Iterable[memoryview] = (),
        ends: int | None = None,
    ) -> None:
        size = sum(map(len, bulk)) if message.kind == PAGES else 0
        self._network.send(self._me, peer, message, size)
        if ends is not None:
            self.ended.append(ends)


def served(
    requests: Sequence[Request],
    costs: Costs,
    ranks: int,
    prefill: int,
    *,
    pages: int = 1024,
    size: int = page_bytes(4, 2, 64, 2),
    network: Network | None = None,
    homes: Sequence[int] = (),
) -> dict[int, Answered]:
    """Answer a trace; every request's times, by number. homes: the rank that is home to requests
    of each rank that computes prompts.
    """
    net = network or Network(0.0, 0.0)
    fronts = prefill or ranks
    stored = 16 if net.rate == 0 else size
    parts: list[Front | Back | Both] = []
    lines = []
    for rank in range(ranks):
        memory = Memory(pages, stored)
        peers = [*range(prefill, ranks)] if rank < fronts else [*range(fronts)]
        lines.append(Line(net, rank, peers if prefill else []))
        part: Front | Back | Both
        if not prefill:
            part = Both(memory, costs)
        elif rank < fronts:
            part = Front(memory, costs, dict.fromkeys(peers, pages))
            part.home = homes[rank] if homes else 0
        else:
            part = Back(memory, costs)
        if not isinstance(part, Both):
            part.talk = lines[-1]  # type: ignore[assignment]
        parts.append(part)
    for rank, part in enumerate(parts):
        part.begin([r for r in requests if r.number % fronts == rank], 0.0)
    for _ in range(1_000_000):
        if all(part.over for part in parts):
            break
        due = [part.next_s for part in parts if part.next_s is not None]
        net.now_s = min([*due, *(event[0] for event in net.events[:1])])
        for part in parts:
            part.advance(net.now_s)
        while net.events and net.events[0][0] <= net.now_s:
            _, _, source, target, message = heapq.heappop(net.events)
            if message.kind == PAGES:  # the bytes are those of the sender
                views = parts[target].room(message)  # type: ignore[union-attr]
                for number, view in enumerate(views, message.one):
                    view[:8] = message.request.to_bytes(4, "little") + number.to_bytes(4, "little")
            parts[target].hear(source, message, net.now_s)
        for part, line in zip(parts, lines, strict=True):
            ended, line.ended = line.ended, []
            for request in ended:
                part.sent(request)
        for part in parts:
            part.advance(net.now_s)
    found = {}
    for rank, part in enumerate(parts):
        for request in requests:
            if request.number % fronts == rank and rank < fronts:
                one = part.books.answered(request.number, request.output)
                if one is not None:
                    found[request.number] = one
    return found
