"""Plain TCP, and telnet on top of it."""

from __future__ import annotations

import asyncio
import socket

from emulators.devices.dialects.base import Session
from emulators.devices.transports.base import Conversation, Device
from emulators.devices.transports.telnet import Telnet


class TcpWire(asyncio.Protocol):
    """One TCP client."""

    def __init__(self, listener: TcpListener, device: Device) -> None:
        self.listener, self.device = listener, device
        self.transport: asyncio.Transport | None = None
        self.conversation: Conversation | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # create_server promises it
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.listener.joined(self)
        self.begin()
        self.conversation = self.device.open(self)
        if self.conversation is None:
            transport.close()

    def begin(self) -> None:
        """Send the transport's greeting before the device's."""

    def data_received(self, data: bytes) -> None:
        if self.conversation is not None:
            self.conversation.receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.conversation is not None:
            self.conversation.lost()
        self.listener.left(self)

    # ---- Wire

    def encode(self, data: bytes) -> bytes:
        return data

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    def close(self, session: Session) -> None:
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class TelnetWire(TcpWire):
    """One telnet client: the device sees the text without the options."""

    def __init__(self, listener: TcpListener, device: Device) -> None:
        super().__init__(listener, device)
        self._telnet = Telnet()

    def begin(self) -> None:
        self.write(self._telnet.offers())

    def data_received(self, data: bytes) -> None:
        clean, answers = self._telnet.receive(data)
        if answers and self.conversation is not None:
            self.conversation.control(answers)
        if clean:
            super().data_received(clean)

    def encode(self, data: bytes) -> bytes:
        return self._telnet.encode(data)


class TcpListener:
    """Clients come over TCP, to a socket that is bound already or to host:port (0: any free
    one).
    """

    def __init__(self, scheme: str, sock: socket.socket | None, host: str, port: int) -> None:
        self.scheme, self.host, self.port = scheme, host, port
        self._sock = sock
        self._server: asyncio.Server | None = None
        self._clients: set[TcpWire] = set()
        self._ended: asyncio.Future[None] | None = None

    @property
    def address(self) -> str:
        return f"{self.scheme}://{self.host}:{self.port}"

    async def open(self, device: Device) -> None:
        make = TelnetWire if self.scheme == "telnet" else TcpWire
        loop = asyncio.get_running_loop()
        if self._sock is not None:
            self._server = await loop.create_server(lambda: make(self, device), sock=self._sock)
        else:
            self._server = await loop.create_server(
                lambda: make(self, device), self.host, self.port
            )
        self.port = self._server.sockets[0].getsockname()[1]

    async def shut(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for client in tuple(self._clients):
            client.abort()
        await self._server.wait_closed()
        self._server = None
        if self._clients:  # connection_lost follows some loop iterations after abort
            self._ended = asyncio.get_running_loop().create_future()
            await self._ended

    def joined(self, client: TcpWire) -> None:
        self._clients.add(client)

    def left(self, client: TcpWire) -> None:
        self._clients.discard(client)
        if not self._clients and self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
