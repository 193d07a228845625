"""TCP, the transport of nearly every switch: `tcp://host:port`."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import ClassVar, cast

from drivers.link.base import MOST_BYTES, Link, reset_at_the_end
from optics import Unreachable

GOODBYE_S = 1.0
"""How long (s) `close` waits for the kernel to take the last bytes before it aborts."""


class _Stream(asyncio.Protocol):
    """Bytes as they arrive. A `StreamReader` would do, but cannot be asked to forget what came
    before a question.
    """

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.ended = False
        self.closed = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._news: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if len(self.buffer) > MOST_BYTES and self._transport is not None:
            self._transport.abort()
        self._wake()

    def eof_received(self) -> bool:
        self.ended = True
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        self._wake()
        if not self.closed.done():
            self.closed.set_result(None)

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def take(self, silence_s: float) -> bytes:
        if not self.buffer and not self.ended:
            self._news = asyncio.get_running_loop().create_future()
            async with asyncio.timeout(silence_s):
                await self._news
        data = bytes(self.buffer)
        self.buffer.clear()
        return data


class TcpLink(Link):
    """One TCP connection with Nagle's delay off and keep-alive probes on (a dead peer is found
    without a question).
    """

    protocol: ClassVar[type[_Stream]] = _Stream

    def __init__(self, who: str, address: str, timeout_s: float, *, host: str, port: int) -> None:
        super().__init__(who, address, timeout_s)
        self._host = host
        self._port = port
        self._stream: _Stream | None = None
        self._transport: asyncio.Transport | None = None
        self._answer_owed = False

    @property
    def alive(self) -> bool:
        return self._stream is not None and not self._stream.ended

    async def open(self) -> None:
        await self.close()
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.timeout_s):
                self._transport, self._stream = await loop.create_connection(
                    self.protocol, self._host, self._port
                )
        except TimeoutError:
            raise Unreachable(
                f"{self.who}: no connection to {self.address} in {self.timeout_s:.1f} s"
            ) from None
        except OSError as error:
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise Unreachable(f"{self.who}: cannot connect to {self.address}: {why}") from error
        self._answer_owed = False
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    async def close(self) -> None:
        transport, stream = self._transport, self._stream
        self._transport = self._stream = None
        if transport is None or stream is None:
            return
        if self._answer_owed:
            transport.abort()
        transport.close()
        try:
            async with asyncio.timeout(GOODBYE_S):
                await asyncio.shield(stream.closed)
        except TimeoutError:
            transport.abort()
            await stream.closed

    def _owed(self, answer: bool) -> None:
        if self._transport is not None and answer is not self._answer_owed:
            self._answer_owed = answer
            reset_at_the_end(self._transport.get_extra_info("socket"), answer)

    async def _write(self, data: bytes) -> None:
        if self._transport is None:
            raise ConnectionResetError("closed")
        self._transport.write(data)

    async def _read(self, silence_s: float) -> bytes:
        return await self._stream.take(silence_s) if self._stream is not None else b""

    async def _discard(self) -> None:
        if self._stream is not None:
            self._stream.buffer.clear()
