"""The common part of every transport: one client's replies at their times and in the wanted
pieces.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol, runtime_checkable

from emulators.devices.dialects.base import AnyDialect, Session

BYTEWISE = 256
"""So many bytes at either end of an answer are sent one at a time if requested: what frames it is
there, and all of a command line's answer.
"""
SHORT = 61
"""Bytes of the pieces between them, if requested: a prime, so that no length of rows or chunks
keeps cuts away from what is inside.
"""

Chunking = Literal["whole", "split", "byte"]


@dataclass(frozen=True, slots=True)
class Access:
    """Who may log in over SSH, and the device's own key.

    username None: any name. password None: no login by password. authorized: public keys that may
    log in, lines as in an authorized_keys file. host_key: the device's private key in OpenSSH form;
    "": one made at the start.
    """

    username: str | None = None
    password: str | None = None
    authorized: tuple[str, ...] = ()
    host_key: str = ""


@runtime_checkable
class RunsOnce(Protocol):
    """A dialect that runs a single command in place of a shell and then ends the session."""

    def run_once(self, session: Session, command: str, now: float) -> None:
        """Run `command`; `send` None after its output."""


class Wire(Protocol):
    """The connection to one client."""

    def encode(self, data: bytes) -> bytes:
        """Return `data` as the transport writes it; done before it is cut into pieces."""

    def write(self, data: bytes) -> None:
        """Send."""

    def close(self, session: Session) -> None:
        """End the connection, or the part of it that belongs to `session`, after all that was
        written.
        """

    def abort(self) -> None:
        """End the connection now."""


class Device(Protocol):
    """The part of the server that a transport uses."""

    name: str
    dialect: AnyDialect
    loop: asyncio.AbstractEventLoop
    chunking: Chunking

    def open(self, wire: Wire, command: str | None = None) -> Conversation | None:
        """Begin a conversation, with one command in place of a shell if given; None: the device
        takes no connection now.
        """

    def received(self, conversation: Conversation, data: bytes) -> None:
        """Hand bytes of the client to the device."""

    def lost(self, conversation: Conversation) -> None:
        """Note that the client is gone."""


class Listener(Protocol):
    """The listener for clients of one scheme. `address` is the one that clients use; port 0: it has
    none.
    """

    @property
    def address(self) -> str: ...

    @property
    def port(self) -> int: ...

    async def open(self, device: Device) -> None:
        """Let clients in. Raises OSError."""

    async def shut(self) -> None:
        """Refuse new connections, end the open ones and return when none is left."""


class Conversation:
    """One client: bytes to the device, its replies back."""

    def __init__(self, device: Device, wire: Wire, session: Session, pieces: random.Random) -> None:
        self.device, self.wire, self.session = device, wire, session
        self.ended = False
        self.ending = False  # the client has closed its sending side
        self._random = pieces
        self._later: list[tuple[float, int, bytes | None]] = []
        self._order = 0
        self._timer: asyncio.TimerHandle | None = None
        self._pieces: deque[bytes | None] = deque()
        self._pumping: asyncio.Handle | None = None

    # ---- for the transport

    def receive(self, data: bytes) -> None:
        if not self.ended:
            self.device.received(self, data)

    def finish(self) -> None:
        """The client sends no more: end when all its requests are answered."""
        self.ending = True
        self.device.received(self, b"")

    def control(self, data: bytes) -> None:
        """Send the transport's own bytes, not between two pieces of one sequence."""
        self._pieces.append(data)
        if self._pumping is None:
            self._pump()

    def lost(self) -> None:
        """Forget everything: there is no client any more."""
        if self.ended:
            return
        self.ended = True
        for handle in (self._timer, self._pumping):
            if handle is not None:
                handle.cancel()
        self._later.clear()
        self._pieces.clear()
        self.device.lost(self)

    # ---- for the device

    @property
    def waiting(self) -> bool:
        """Whether something is still to be done or sent."""
        return bool(self.session.queue or self.session.held or self._later)

    def emit(self, at: float, data: bytes | None, now: float) -> None:
        """Send `data` at `at`, after whatever was to be sent at or before that time; None ends the
        connection.
        """
        if at <= now and not self._later:
            return self._write(data)
        self._order += 1
        heapq.heappush(self._later, (at, self._order, data))
        return self._due(now)

    # ---- inside

    def _due(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._later and self._later[0][0] <= now:
            self._write(heapq.heappop(self._later)[2])
        if self._later:
            when = self._later[0][0]
            loop = self.device.loop
            self._timer = loop.call_at(when, lambda: self._due(max(when, loop.time())))
        elif self.ending and not self.waiting:
            self._write(None)

    def _write(self, data: bytes | None) -> None:
        if self.ended:
            return
        encoded = None if data is None else self.wire.encode(data)
        if self.device.chunking == "whole" and not self._pieces:
            self._put(encoded)
            return
        self._pieces.extend([None] if encoded is None else self._cut(encoded))
        if self._pumping is None:
            self._pump()

    def _pump(self) -> None:
        """Send one piece per turn of the loop, so that a client in the same loop sees each
        alone.
        """
        self._pumping = None
        if self.ended or not self._pieces:
            return
        piece = self._pieces.popleft()
        if piece is None:
            self._pieces.clear()
        self._put(piece)
        if self._pieces:
            self._pumping = self.device.loop.call_soon(self._pump)

    def _put(self, piece: bytes | None) -> None:
        if piece is None:
            self.wire.close(self.session)
        else:
            self.wire.write(piece)

    def _cut(self, data: bytes) -> Iterable[bytes]:
        if self.device.chunking == "whole":
            return [data]
        if self.device.chunking == "byte":
            first = min(BYTEWISE, len(data))
            last = max(first, len(data) - BYTEWISE)
            cuts = [*range(first), *range(first, last, SHORT), *range(last, len(data)), len(data)]
            return [data[a:b] for a, b in pairwise(cuts)]
        count = min(len(data) - 1, self._random.randint(1, 4))
        cuts = (
            [0, *sorted(self._random.sample(range(1, len(data)), count)), len(data)]
            if count > 0
            else [0, len(data)]
        )
        return [data[a:b] for a, b in pairwise(cuts)]
