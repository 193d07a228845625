"""Connections and changes that are cancelled midway: the loop is not blocked, nothing is left
behind, the next query works.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from drivers.link.netconf import NetconfLink
from drivers.link.ssh import Login, SshCommands, SshShell

SLOW_S = 2.0


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    ends = time.monotonic() + 2 * SLOW_S
    while left := [
        thread
        for thread in set(threading.enumerate()) - before
        if not thread.name.startswith("asyncio")
    ]:
        assert time.monotonic() < ends, left
        time.sleep(0.005)


@contextmanager
def silent(backlog: int) -> Iterator[int]:
    """A port where nothing answers; with a backlog of 0 the connection is not even established."""
    with socket.socket() as server, socket.socket() as taken:
        server.bind(("127.0.0.1", 0))
        server.listen(backlog)
        if not backlog:
            taken.connect(server.getsockname())
        yield server.getsockname()[1]


@asynccontextmanager
async def a_loop_that_is_never_held_up() -> AsyncIterator[None]:
    """Raises: AssertionError - something else could not run for 0.3 s."""
    longest_s = 0.0

    async def heartbeat() -> None:
        nonlocal longest_s
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.005)
            longest_s = max(longest_s, time.monotonic() - began)

    task = asyncio.create_task(heartbeat())
    try:
        yield
        await asyncio.sleep(0.02)
    finally:
        task.cancel()
    assert longest_s < 0.3, f"nothing else could run for {longest_s:.2f} s"


def by_netconf(port: int) -> tuple[Callable[[], Awaitable[object]], Callable[[], Awaitable[None]]]:
    link = NetconfLink(
        "ocs1", f"netconf://127.0.0.1:{port}", SLOW_S, username="admin", password="secret"
    )
    return link.open, link.close


def by_ssh(port: int) -> tuple[Callable[[], Awaitable[object]], Callable[[], Awaitable[None]]]:
    login = Login("admin", "secret")
    shell = SshCommands(
        "ocs1", f"ssh://127.0.0.1:{port}", SLOW_S, host="127.0.0.1", port=port, login=login
    )
    return lambda: shell.run("show version"), shell.close


def by_shell(port: int) -> tuple[Callable[[], Awaitable[object]], Callable[[], Awaitable[None]]]:
    login = Login("admin", "secret")
    link = SshShell(
        "ocs1", f"ssh://127.0.0.1:{port}", SLOW_S, host="127.0.0.1", port=port, login=login
    )
    return link.open, link.close


@pytest.mark.parametrize("backlog", [0, 8], ids=["no-connection", "no-greeting"])
@pytest.mark.parametrize("by", [by_netconf, by_ssh, by_shell])
async def test_a_connection_given_up_holds_nobody_up_and_leaves_nothing(
    by: Callable[[int], tuple[Callable[[], Awaitable[object]], Callable[[], Awaitable[None]]]],
    backlog: int,
) -> None:
    with silent(backlog) as port:
        begin, close = by(port)
        async with a_loop_that_is_never_held_up():
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    began = time.monotonic()
                    await begin()
            # An attempt to connect cannot be hurried; an established connection is cut.
            assert time.monotonic() - began < (SLOW_S / 2 if backlog else 2 * SLOW_S)
        await close()
