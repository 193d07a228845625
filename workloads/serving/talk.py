"""The connections between ranks that compute prompts and ranks that make tokens: each of the first
with each of the second, and one thread that waits for all of them and for a time.

A rank says something to each of its peers once a second, so one that is silent for the job's
timeout is gone, however long a request takes. What the light does not carry meanwhile waits in the
sockets, and TCP sends again what was lost: a change of circuits loses no request.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..host.place import Place
from ..transport.loop import TICK_S, Stall
from ..transport.wires import Wires
from .posts import ALIVE, END, PAGES, Inbox, Message, Outbox


class Talk:
    """A rank's connections to its peers. Raises: RuntimeError - one is gone or silent."""

    def __init__(
        self,
        place: Place,
        store: Any,
        stall: Stall,
        peers: Sequence[int],
        *,
        prefills: bool,
        room: Callable[[Message], list[memoryview]],
    ) -> None:
        """prefills: this rank computes prompts, and its peers make tokens, or the other way round.
        room: as Inbox. Raises: RuntimeError - a peer does not come.
        """
        me, self._timeout_s, self._stall = place.rank, place.timeout_s, stall
        bulk = {peer: f"{me} to {peer}" if prefills else f"{peer} to {me}" for peer in peers}
        asks = {peer: f"{me} asks {peer}" if prefills else f"{peer} asks {me}" for peer in peers}
        tells = {peer: f"{peer} tells {me}" if prefills else f"{me} tells {peer}" for peer in peers}
        forth = {name: (peer, 0) for named in (bulk, asks) for peer, name in named.items()}
        back = {name: (peer, 0) for peer, name in tells.items()}
        out, into = (forth, back) if prefills else (back, forth)
        wires = Wires(place, store, out, into, "serving", stall=stall)
        wakes_at = wires.share([name for name in bulk.values() if name in into])
        self.peers = peers
        self._inboxes = {wire.number: Inbox(wire, room, wakes_at) for wire in wires.into.values()}
        boxes = {name: Outbox(wire) for name, wire in wires.out.items()}
        self._bulk = {peer: boxes[name] for peer, name in bulk.items() if name in boxes}
        self._short = {
            peer: boxes[name]
            for named in (asks, tells)
            for peer, name in named.items()
            if name in boxes
        }
        self._outboxes = {box.wire.number: box for box in boxes.values()}
        self._full: set[int] = set()
        self._heard_s: dict[int, float] = {}
        self._tick_s = 0.0
        self._ended: list[int] = []
        self._wires, self._poll = wires, select.epoll()
        for number in self._inboxes:
            self._poll.register(number, select.EPOLLIN)

    def begin(self) -> None:
        """From now on peers talk."""
        now_s = time.monotonic()
        self._heard_s, self._tick_s = dict.fromkeys(self.peers, now_s), now_s + TICK_S

    def tell(
        self,
        peer: int,
        message: Message,
        bulk: Iterable[memoryview] = (),
        ends: int | None = None,
    ) -> None:
        """bulk, ends: as Outbox.put."""
        box = self._bulk[peer] if message.kind == PAGES else self._short[peer]
        box.put(message, bulk, ends)
        if box.wire.number not in self._full:
            self._push(box)

    def wait(self, until_s: float | None) -> tuple[list[tuple[int, Message]], list[int]]:
        """Wait until something happens or this time (s, monotonic) comes; return what peers said,
        and the requests of which all was sent.
        """
        heard: list[tuple[int, Message]] = []
        now_s = time.monotonic()
        if now_s >= self._tick_s:
            self._tick(now_s)
        left_s = min(self._tick_s, until_s if until_s is not None else self._tick_s) - now_s
        for number, _ in self._poll.poll(0 if self._ended else max(0.0, left_s)):
            if number in self._inboxes:
                inbox = self._inboxes[number]
                said = inbox.take()
                heard += [(inbox.wire.peer, message) for message in said]
                if inbox.wire.peer in self._heard_s:
                    self._heard_s[inbox.wire.peer] = time.monotonic()
            else:
                self._push(self._outboxes[number])
        for peer, message in heard:
            if message.kind == END:
                self._heard_s.pop(peer)
        ended, self._ended = self._ended, []
        return heard, ended

    def _push(self, box: Outbox) -> None:
        self._ended += box.push()
        number = box.wire.number
        if box.waits and number not in self._full:
            self._full.add(number)
            self._poll.register(number, select.EPOLLOUT)
        elif not box.waits and number in self._full:
            self._full.remove(number)
            self._poll.unregister(number)

    def _tick(self, now_s: float) -> None:
        self._tick_s = now_s + TICK_S
        self._stall.alive(time.monotonic_ns())
        for peer, heard_s in self._heard_s.items():
            if now_s - heard_s > self._timeout_s:
                raise RuntimeError(f"timed out: nothing from rank {peer}")
            if not self._short[peer].waits:
                self.tell(peer, Message(ALIVE))

    @property
    def waits(self) -> bool:
        """Whether something is not sent yet."""
        return bool(self._full)

    def close(self) -> None:
        self._poll.close()
        self._wires.close()
