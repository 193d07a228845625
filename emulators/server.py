"""Serves an emulated device on a TCP socket: the only place where plants meet a clock and a network."""

from __future__ import annotations

import asyncio
import heapq
import random
import socket
from collections import deque
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Literal

from emulators.dialects.base import AnyDialect, Outgoing, Session
from emulators.plant import Pair, Plant

OnGlass = Callable[[str, frozenset[Pair], float], None]
"""Called with the device's name, the lit pairs and the time (s, the loop's clock) at every change."""
Chunking = Literal["whole", "split", "byte"]


class _Connection(asyncio.Protocol):
    """One client: bytes to the dialect, replies back at their times and in the wanted pieces."""

    def __init__(self, server: DeviceServer) -> None:
        self.server = server
        self.session: Session | None = None
        self.transport: asyncio.Transport | None = None
        self._later: list[tuple[float, int, bytes | None]] = []
        self._order = 0
        self._timer: asyncio.TimerHandle | None = None
        self._pieces: deque[bytes | None] = deque()
        self._pumping: asyncio.Handle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # create_server promises it
        self.transport = transport
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.session = self.server._opened(self)
        if self.session is None:
            transport.close()

    def data_received(self, data: bytes) -> None:
        if self.session is not None:
            self.server._received(self.session, data)

    def connection_lost(self, exc: Exception | None) -> None:
        for handle in (self._timer, self._pumping):
            if handle is not None:
                handle.cancel()
        self._later.clear()
        self._pieces.clear()
        if self.session is not None:
            self.server._lost(self.session)
            self.session = None
        self.transport = None

    def emit(self, at: float, data: bytes | None, now: float) -> None:
        """Send `data` at `at`, after whatever was to be sent at or before that time."""
        if at <= now and not self._later:
            return self._write(data)
        self._order += 1
        heapq.heappush(self._later, (at, self._order, data))
        return self._due(now)

    def _due(self, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._later and self._later[0][0] <= now:
            self._write(heapq.heappop(self._later)[2])
        if self._later:
            when = self._later[0][0]
            self._timer = self.server.loop.call_at(when, lambda: self._due(max(when, self.server.loop.time())))

    def _write(self, data: bytes | None) -> None:
        if self.transport is None:
            return
        if self.server.chunking == "whole" and not self._pieces:
            if data is None:
                self.transport.close()
            else:
                self.transport.write(data)
            return
        self._pieces.extend([None] if data is None else self.server._cut(data))
        if self._pumping is None:
            self._pump()

    def _pump(self) -> None:
        """Send one piece per turn of the loop, so that a client in the same loop sees each alone."""
        self._pumping = None
        if self.transport is None or not self._pieces:
            return
        piece = self._pieces.popleft()
        if piece is None:
            self.transport.close()
            self._pieces.clear()
            return
        self.transport.write(piece)
        if self._pieces:
            self._pumping = self.server.loop.call_soon(self._pump)


class DeviceServer:
    """One device at one address, on a socket that is bound already or on host:port (0: any free one).

    chunking: "whole" replies, "split" at random places, or one "byte" at a time.
    """

    def __init__(
        self,
        name: str,
        dialect: AnyDialect,
        plant: Plant | None = None,
        *,
        sock: socket.socket | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        on_glass: OnGlass | None = None,
        chunking: Chunking = "whole",
        seed: int = 0,
    ) -> None:
        self.name, self.dialect, self.plant = name, dialect, plant or dialect.plant
        self.on_glass, self.chunking = on_glass, chunking
        self.loop: asyncio.AbstractEventLoop
        self._sock, self._host, self._port = sock, host, port
        self._random = random.Random(f"pieces/{seed}/{name}")
        self._server: asyncio.Server | None = None
        self._connections: dict[Session, _Connection] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = float("inf")
        self._gone: asyncio.Future[None] | None = None
        self._version = -1
        self._glass: frozenset[Pair] = frozenset()

    async def start(self) -> None:
        """Listen. Raises OSError when the address is taken."""
        self.loop = asyncio.get_running_loop()
        if self._sock is not None:
            self._server = await self.loop.create_server(lambda: _Connection(self), sock=self._sock)
        else:
            self._server = await self.loop.create_server(lambda: _Connection(self), self._host, self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        self._settle(self.loop.time())

    async def stop(self) -> None:
        """Close every connection and the socket; nothing of this server runs afterwards."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._armed_for = None, float("inf")
        if self._server is None:
            return
        self._server.close()
        for connection in tuple(self._connections.values()):
            if connection.transport is not None:
                connection.transport.abort()
        await self._server.wait_closed()
        self._server = None
        if self._connections:  # connection_lost comes some turns after abort
            self._gone = self.loop.create_future()
            await self._gone

    @property
    def port(self) -> int:
        return self._port

    def add_fault(self, kind: str, **values: object) -> int:
        """Arm a fault (see faults.py); return its number. Raises ValueError."""
        number = self.dialect.inject(self.loop.time(), kind, **values)
        self.changed()
        return number

    def remove_fault(self, number: int) -> None:
        """Disarm a fault. Raises KeyError."""
        self.dialect.lift(self.loop.time(), number)
        self.changed()

    def list_faults(self) -> list[dict[str, object]]:
        return self.dialect.faults.list()

    def set_input(self, port: str, dbm: float | None) -> None:
        """Say what light the fibre brings to ingress `port` (dBm, None: dark)."""
        self.plant.set_input(port, dbm)
        self.changed()

    def changed(self) -> None:
        """Look again: call it after changing the plant from outside."""
        self._settle(self.loop.time())

    # ---- for the connections

    def _opened(self, connection: _Connection) -> Session | None:
        now = self.loop.time()
        session = self.dialect.open(now)
        if session is not None:
            self._connections[session] = connection
            self._rearm(now)
        return session

    def _received(self, session: Session, data: bytes) -> None:
        now = self.loop.time()
        self.dialect.receive(session, data, now)
        self._settle(now)

    def _lost(self, session: Session) -> None:
        self.dialect.close(session)
        self._connections.pop(session, None)
        if not self._connections and self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def _cut(self, data: bytes) -> Iterable[bytes]:
        if self.chunking == "byte":
            return [data[i : i + 1] for i in range(len(data))]
        count = min(len(data) - 1, self._random.randint(1, 4))
        cuts = [0, *sorted(self._random.sample(range(1, len(data)), count)), len(data)] if count > 0 else [0, len(data)]
        return [data[a:b] for a, b in pairwise(cuts)]

    def _settle(self, now: float) -> None:
        """Tell the glass, send what is to be sent, and set the one timer. The glass comes first: light waits for nobody."""
        self.plant.advance(now)
        if self._version != self.plant.version:
            self._version = self.plant.version
            lit = self.plant.lit(now)
            if lit != self._glass:
                self._glass = lit
                if self.on_glass is not None:
                    self.on_glass(self.name, lit, now)
        self.dialect.on_light(now)
        for out in self.dialect.drain():
            self._emit(out, now)
        self._rearm(now)

    def _emit(self, out: Outgoing, now: float) -> None:
        session, at, data = out
        if connection := self._connections.get(session):
            connection.emit(at, data, now)

    def _rearm(self, now: float) -> None:
        """Move the timer only when something comes sooner; one that fires early finds nothing due and looks again."""
        when = self.dialect.next_event(now)
        if when is None or when >= self._armed_for:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_for = when
        self._timer = self.loop.call_at(when, self._tick, when)

    def _tick(self, when: float) -> None:
        self._timer, self._armed_for = None, float("inf")
        now = max(when, self.loop.time())  # the loop may fire a clock step early
        self.dialect.tick(now)
        self._settle(now)
