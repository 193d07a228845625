"""A device on a free loopback port, and a client that knows no more than bytes."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

from emulators.devices.server import DeviceServer
from emulators.optics.plant import Pair

PATIENCE_S = 2.0


async def until(true: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.005)


class Client:
    """One connection. TL1 answers are found by their ctag, autonomous messages are kept apart."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.unasked: list[str] = []

    def send(self, text: str) -> None:
        self.writer.write(text.encode("latin-1"))

    async def line(self, text: str | None = None, within_s: float = PATIENCE_S) -> str:
        """Send a SCPI message, return one line of answer."""
        if text is not None:
            self.send(text + "\n")
        async with asyncio.timeout(within_s):
            return (await self.reader.readline()).decode("latin-1").rstrip("\r\n")

    async def block(self, within_s: float = PATIENCE_S) -> str:
        """Return one TL1 output block, without carriage returns."""
        async with asyncio.timeout(within_s):
            return (
                (await self.reader.readuntil(b"\r\n;"))
                .decode("latin-1")
                .replace("\r", "")
                .lstrip("\n")
            )

    async def ask(self, text: str, within_s: float = PATIENCE_S) -> str:
        """Send a TL1 command, return the block that answers its ctag."""
        parts = text.strip().rstrip(";").split(":")
        ctag = (parts[3] if len(parts) > 3 else "") or "0"
        self.send(text)
        while True:
            block = await self.block(within_s)
            if re.search(rf"^M  {ctag} ", block, re.M):
                return block
            self.unasked.append(block)

    async def silent(self, for_s: float = 0.05) -> bool:
        """Return whether nothing arrives for so long."""
        try:
            async with asyncio.timeout(for_s):
                return not await self.reader.read(1)
        except TimeoutError:
            return True

    async def ended(self, within_s: float = PATIENCE_S) -> bytes:
        """Return what still comes until the device closes the connection."""
        async with asyncio.timeout(within_s):
            return await self.reader.read()


class Device:
    """A served device and the light it showed."""

    def __init__(self, server: DeviceServer) -> None:
        self.server = server
        self.light: list[tuple[float, frozenset[Pair]]] = []
        server.on_light_change = lambda name, lit, now: self.light.append((now, lit))
        self.clients: list[Client] = []

    @property
    def plant(self) -> Any:
        return self.server.plant

    def lit(self) -> set[Pair]:
        return set(self.plant.lit(self.server.loop.time()))

    async def connect(self, *, login: bool = False) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.server.port))
        self.clients.append(client)
        if login:
            assert "COMPLD" in await client.ask("ACT-USER::admin:in::emulated;")
        return client

    async def settle(self) -> None:
        await asyncio.sleep(self.plant.settle_s + 0.01)


Start = Callable[..., Awaitable[Device]]
