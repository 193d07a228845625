"""Addresses of the same kind as a device's, with no server behind them, or with one that sends
nonsense.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import socket
import tty
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

NONSENSE = b"\r\n\n   X 26-01-01 00:00:00\r\nHTTP/1.1 400 Bad Request\r\n;\r\n"


@contextlib.asynccontextmanager
async def unreachable(address: str) -> AsyncIterator[str]:
    """Yield an address where a connection is refused."""
    if address.startswith("serial:"):
        yield "serial:///dev/no-such-line"
        return
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused
        yield _moved(address, taken.getsockname()[1])


@contextlib.asynccontextmanager
async def nonsense(address: str) -> AsyncIterator[str]:
    """Yield an address where every request is answered with nonsense."""
    if address.startswith("serial:"):
        async with _nonsense_line() as path:
            yield f"serial://{path}"
        return
    talks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talks.add(task)
        try:
            while await reader.read(4096):
                writer.write(NONSENSE)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield _moved(address, server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in talks:
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        await server.wait_closed()


@contextlib.asynccontextmanager
async def _nonsense_line() -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    master, slave = pty.openpty()
    tty.setraw(slave)

    def answer() -> None:
        with contextlib.suppress(OSError):
            os.read(master, 4096)
            os.write(master, NONSENSE)

    loop.add_reader(master, answer)
    try:
        yield os.ttyname(slave)
    finally:
        loop.remove_reader(master)
        os.close(slave)
        os.close(master)


def _moved(address: str, port: int) -> str:
    """The same kind of address at a port of this machine."""
    if address.startswith("visa:"):
        return f"visa://TCPIP::127.0.0.1::{port}::SOCKET"
    parts = urlsplit(address)
    return parts._replace(netloc=f"127.0.0.1:{port}").geturl()
