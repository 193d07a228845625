"""Connections in memory: bytes arrive in order, in other pieces, later; or never, with the
connection.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import random
import socket
from collections.abc import Callable
from typing import Any

from tests.sim.loop import ACTOR, Actor, SimLoop


class Net:
    """Latencies, and what goes wrong on the way. `slow`, `cut`: probabilities, per piece."""

    def __init__(self, loop: SimLoop, seed: str) -> None:
        self.loop, self.rng = loop, random.Random(f"net/{seed}")
        self.listeners: dict[int, SimServer] = {}
        self.last_port = 40000
        self.slow, self.long_s, self.cut, self.split = 0.0, 0.5, 0.0, 0.1
        self.sending: Callable[[Actor, int, bytes], Callable[[], object]] = (
            lambda actor, port, data: lambda: None
        )
        """Called with what a process is about to send to a port; what it returns is called once
        that is sent.
        """

    def latency(self) -> float:
        if self.slow and self.rng.random() < self.slow:
            return self.rng.uniform(0.01, self.long_s)
        return 2e-5 + 1e-3 * self.rng.random()

    def calm(self) -> None:
        """Nothing goes wrong any more."""
        self.slow = self.cut = 0.0

    def listen(self, factory: Any, port: int | None) -> SimServer:
        if not port:
            self.last_port += 1
            port = self.last_port
        self.listeners[port] = server = SimServer(self, factory, port)
        return server

    async def connect(self, factory: Any, port: int) -> tuple[SimTransport, Any]:
        """Raises: ConnectionRefusedError - nobody listens there."""
        await asyncio.sleep(self.latency())
        listener = self.listeners.get(port)
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        mine = SimTransport(self, contextvars.copy_context(), port)
        theirs = SimTransport(self, listener.context.copy(), 0)
        mine.peer, theirs.peer = theirs, mine
        mine.protocol = factory()
        self.loop.call_soon(listener.accept, theirs, context=theirs.context)
        mine.protocol.connection_made(mine)
        return mine, mine.protocol


class SimSocket:
    """What is asked of the socket of a connection or a listener."""

    def __init__(self, port: int = 0) -> None:
        self.port, self.lingers = port, False

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        if (level, option) == (socket.SOL_SOCKET, socket.SO_LINGER):
            self.lingers = bool(value[0])

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self.port


class SimServer:
    """A listener."""

    def __init__(self, net: Net, factory: Any, port: int) -> None:
        self.net, self.factory, self.sockets = net, factory, [SimSocket(port)]
        self.context = contextvars.copy_context()

    def accept(self, transport: SimTransport) -> None:
        transport.protocol = self.factory()
        transport.protocol.connection_made(transport)

    def close(self) -> None:
        self.net.listeners.pop(self.sockets[0].port, None)

    async def wait_closed(self) -> None:
        pass


class SimTransport(asyncio.Transport):
    """One end of a connection. port: of the listener it leads to, 0 at the listener's own end."""

    peer: SimTransport

    def __init__(self, net: Net, context: contextvars.Context, port: int) -> None:
        super().__init__()
        self.net, self.loop, self.context, self.port = net, net.loop, context, port
        self.actor = context.get(ACTOR, net.loop.sea)
        self.protocol: Any = None
        self.closing = self.ended = False
        self.last = 0.0
        self.socket = SimSocket()
        self.flying: list[tuple[asyncio.TimerHandle, bytes]] = []
        self.actor.on_death.append(self.reset)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.socket if name == "socket" else default

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: Any) -> None:
        if self.closing or not data:
            return
        net, data = self.net, bytes(data)
        sent = net.sending(self.actor, self.port, data)
        if net.cut and net.rng.random() < net.cut:
            self.loop.note(f"CUT at {len(data)} bytes of {self.actor}")
            if net.rng.random() < 0.5:  # they arrive, and their answer does not
                self._send(data)
            self.reset()
            self._lose()
            return
        if len(data) > 1 and net.rng.random() < net.split:
            half = net.rng.randrange(1, len(data))
            self._send(data[:half])
            data = data[half:]
        self._send(data)
        sent()

    def _send(self, data: bytes) -> None:
        now = self.loop.now
        self.last = max(self.last, now + self.net.latency()) + 1e-9
        self.flying = [each for each in self.flying if each[0].when() > now]
        self.flying.append(
            (self.loop.call_at(self.last, self.peer.arrive, data, context=self.peer.context), data)
        )

    def arrive(self, data: bytes) -> None:
        if not self.ended and self.protocol is not None:
            self.protocol.data_received(data)

    def _ended(self) -> None:
        if self.ended or self.protocol is None:
            return
        if not self.closing:
            self.protocol.eof_received()
        self.closing = True
        self._lose()

    def _lose(self) -> None:
        if not self.ended:
            self.ended = self.closing = True
            self.loop.call_soon(self._lost, context=self.context)

    def _lost(self) -> None:
        if self.protocol is not None:
            self.protocol.connection_lost(None)

    def reset(self) -> None:
        """End the connection, as `close` or as the kernel does for a process that died; the other
        end hears it after what was sent.

        What is on its way then arrives late: a segment that was lost is sent again by the kernel.
        With SO_LINGER it is not sent again: it arrives at once or never.
        """
        if self.closing:
            return
        self.closing = True
        now = self.loop.now
        if self.socket.lingers:
            arrives, self.last = self.net.rng.random() < 0.5, now
            for handle, data in self.flying:
                if handle.when() > now:
                    handle.cancel()
                    if arrives:
                        self.last += 1e-5
                        self.loop.call_at(
                            self.last, self.peer.arrive, data, context=self.peer.context
                        )
        elif self.flying and self.flying[-1][0].when() > now and self.net.slow:
            again = self.net.rng.uniform(0.0, self.net.long_s)
            for handle, data in self.flying:
                if handle.when() > now:
                    handle.cancel()
                    self.last = handle.when() + again
                    self.loop.call_at(self.last, self.peer.arrive, data, context=self.peer.context)
        self.last = max(self.last, now + self.net.latency()) + 1e-9
        self.loop.call_at(self.last, self.peer._ended, context=self.peer.context)

    def close(self) -> None:
        if not self.closing:
            self.reset()
            self._lose()

    def abort(self) -> None:
        self.reset()
        self._lose()
