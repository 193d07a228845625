"""Connections and changes that are cancelled midway: the loop is not blocked, nothing is left
behind, the next query works.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from drivers.link.netconf import LOGIN_S, NetconfLink
from drivers.link.ssh import Login, SshCommands, SshShell

OpenAndClose = tuple[Callable[[], Awaitable[object]], Callable[[], Awaitable[None]]]
"""What begins a connection, and what ends it."""

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@contextmanager
def silent(backlog: int) -> Iterator[int]:
    """A port where nothing answers; with a backlog of 0 the connection is not even established."""
    with socket.socket() as server, socket.socket() as taken:
        server.bind(("127.0.0.1", 0))
        server.listen(backlog)
        if not backlog:
            taken.connect(server.getsockname())
        yield server.getsockname()[1]


async def others_run(task: asyncio.Future[object]) -> None:
    """Raises: AssertionError - nothing else could run until it had ended."""
    for _ in range(20):
        await asyncio.sleep(0.005)
    assert not task.done()


def by_netconf(port: int, within_s: float) -> OpenAndClose:
    link = NetconfLink(
        "ocs1", f"netconf://127.0.0.1:{port}", within_s, username="admin", password="secret"
    )
    return link.open, link.close


def by_ssh(port: int, within_s: float) -> OpenAndClose:
    login = Login("admin", "secret")
    shell = SshCommands(
        "ocs1", f"ssh://127.0.0.1:{port}", within_s, host="127.0.0.1", port=port, login=login
    )
    return lambda: shell.run("show version"), shell.close


def by_shell(port: int, within_s: float) -> OpenAndClose:
    login = Login("admin", "secret")
    link = SshShell(
        "ocs1", f"ssh://127.0.0.1:{port}", within_s, host="127.0.0.1", port=port, login=login
    )
    return link.open, link.close


@pytest.mark.parametrize("backlog", [0, 8], ids=["no-connection", "no-greeting"])
@pytest.mark.parametrize("by", [by_netconf, by_ssh, by_shell])
async def test_a_connection_given_up_holds_nobody_up_and_leaves_nothing(
    by: Callable[[int, float], OpenAndClose], backlog: int
) -> None:
    with silent(backlog) as port:
        begin, close = by(port, 600.0 if backlog else 2.0)
        begun = asyncio.ensure_future(begin())
        await others_run(begun)
        begun.cancel()
        if not backlog:  # an attempt to connect cannot be hurried; an established connection is cut
            await others_run(begun)
        done, _ = await asyncio.wait({begun}, timeout=LOGIN_S / 2)
        assert done and begun.cancelled()
        await close()
