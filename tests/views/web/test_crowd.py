"""Peers that take all places, or take their time: the page's server goes on for everybody else."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest

from orchestrator.views.web import crowd, server
from orchestrator.views.web.crowd import Places, owners
from tests.views.web.conftest import LabWriter
from tests.views.web.serving import Served, served, stream

STREAMS = """
import os, socket, sys
"".encode("idna")  # read while it may be
os.setuid(65534)
port, count = int(sys.argv[1]), int(sys.argv[2])
held = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
for one in held:
    one.sendall(f"GET /events HTTP/1.1\\r\\nHost: 127.0.0.1:{port}\\r\\n\\r\\n".encode())
    one.recv(1)
print("held", flush=True)
sys.stdin.read()
"""


@asynccontextmanager
async def held(
    at: Served, text: str, count: int = 1, source: str = "127.0.0.2"
) -> AsyncIterator[list[asyncio.StreamReader]]:
    """Connections that said `text` and say nothing more."""
    opened = [
        await asyncio.open_connection("127.0.0.1", at.port, local_addr=(source, 0))
        for _ in range(count)
    ]
    try:
        for _, writer in opened:
            writer.write(text.replace("HOST", f"127.0.0.1:{at.port}").encode())
        yield [reader for reader, _ in opened]
    finally:
        for _, writer in opened:
            writer.transport.abort()


async def test_idle_streams_on_every_place_shut_nobody_out(lab_writer: LabWriter) -> None:
    lab_writer.up()
    async with (
        served(lab_writer) as at,
        held(at, "GET /events HTTP/1.1\r\nHost: HOST\r\n\r\n", server.PAGES) as readers,
    ):
        for reader in readers:
            assert await reader.read(1)
        for _ in range(3):
            async with stream(at.url) as events:
                name, whole = await asyncio.wait_for(anext(events), 10)
                assert name == "whole" and len(whole["circuits"]) == 48
        assert len(at.page.hub) <= server.PAGES


async def test_who_makes_room_is_told_so_and_when_to_come_back(
    lab_writer: LabWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PAGES", 1)
    async with served(lab_writer) as at, stream(at.url) as first, stream(at.url) as second:
        assert (await anext(first))[0] == "whole"
        assert (await anext(second))[0] == "whole"
        seen = [name async for name, _ in first]
        assert seen[-1] == "crowded", "its stream ends, its browser comes back"


@pytest.mark.skipif(
    os.geteuid() != 0,
    reason="only root may act as another user: that users do not displace each other was not tried",
)
async def test_streams_of_another_user_of_this_machine_take_no_place_of_mine(
    lab_writer: LabWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEARTBEAT_S", 0.05)
    async with served(lab_writer) as at, stream(at.url) as mine:
        assert (await anext(mine))[0] == "whole"
        argv = ["-c", STREAMS, str(at.port), str(server.PAGES + 8)]
        pipe = asyncio.subprocess.PIPE
        attacker = await asyncio.create_subprocess_exec(
            sys.executable, *argv, stdin=pipe, stdout=pipe
        )
        try:
            assert attacker.stdout is not None
            assert await asyncio.wait_for(attacker.stdout.readline(), 60) == b"held\n"
            for _ in range(10):
                assert (await asyncio.wait_for(anext(mine), 10))[0] in ("heartbeat", "change")
        finally:
            attacker.kill()
            await attacker.communicate()


SLOW = {
    "nothing at all": "",
    "half a request line": "GET /pic",
    "headers without end": "GET /picture HTTP/1.1\r\nHost: HOST\r\nx-one: 1\r\n",
    "a second request that stops": "GET /style.css HTTP/1.1\r\nHost: HOST\r\n\r\nGET /picture HTTP/1.1\r\n",
}


@pytest.mark.parametrize("how", SLOW)
async def test_a_request_that_is_never_finished_is_hung_up_on(
    lab_writer: LabWriter, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(crowd, "HEAD_S", 0.3)
    async with served(lab_writer) as at, held(at, SLOW[how]) as (reader,):
        await asyncio.wait_for(reader.read(), 20)


async def test_a_trickle_of_bytes_is_no_reason_to_wait_longer(
    lab_writer: LabWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowd, "HEAD_S", 0.3)
    async with served(lab_writer) as at:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)

        async def trickle() -> None:
            while not writer.is_closing():
                writer.write(b"x")
                await asyncio.sleep(0.02)

        trickling = asyncio.create_task(trickle())
        try:
            await asyncio.wait_for(_end(reader), 20)
        finally:
            trickling.cancel()
            writer.transport.abort()


async def _end(reader: asyncio.StreamReader) -> None:
    try:
        await reader.read()
    except ConnectionError:
        pass


async def test_a_body_that_never_comes_is_not_waited_for(
    lab_writer: LabWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "BODY_S", 0.2)
    text = (
        "POST /enter HTTP/1.1\r\nHost: HOST\r\nOrigin: http://HOST\r\nContent-Length: 20\r\n\r\n{"
    )
    async with served(lab_writer) as at, held(at, text, source="127.0.0.1") as (reader,):
        assert b"403" in await asyncio.wait_for(reader.readline(), 20)


async def test_who_reads_nothing_of_what_he_asked_for_is_hung_up_on(
    lab_writer: LabWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowd, "READ_S", 0.3)
    async with served(lab_writer) as at:
        _, writer = await asyncio.open_connection("127.0.0.1", at.port, limit=1)
        try:
            writer.write(f"GET /events HTTP/1.1\r\nHost: 127.0.0.1:{at.port}\r\n\r\n".encode())
            async with asyncio.timeout(30):
                joined = False
                while len(at.page.hub) or not joined:
                    joined = joined or len(at.page.hub) > 0
                    at.page.hub.publish(f"event: change\ndata: {{}}\n\n:{' ' * 100_000}\n\n")
                    await asyncio.sleep(0.005)
        finally:
            writer.transport.abort()


async def test_connections_that_ask_for_nothing_shut_nobody_out(
    lab_writer: LabWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowd, "CONNECTIONS", 20)
    async with AsyncExitStack() as stack:
        at = await stack.enter_async_context(served(lab_writer))
        await stack.enter_async_context(held(at, "", 60))
        async with httpx.AsyncClient(base_url=at.url) as client:
            assert (await client.get("picture")).status_code == 200
        assert len(at.page.connections) <= 20


def test_room_is_made_by_whom_holds_most_and_there_by_the_oldest() -> None:
    places: Places[str] = Places(lambda: 4)
    owner = {"a1": "a", "b1": "b", "b2": "b", "b3": "b", "a2": "a", "c1": "c"}

    def who(items: list[str]) -> dict[str, str]:
        return {item: owner[item] for item in items}

    assert [places.take(item, who) for item in ("a1", "b1", "b2", "b3")] == [None] * 4
    assert places.take("a2", who) == "b1"
    assert places.take("c1", who) in ("a1", "b2"), "both hold two"
    places.leave("c1")
    places.leave("c1")
    assert len(places) == 3


async def test_the_user_behind_a_connection_of_this_machine_is_known_by_the_kernel() -> None:
    async with await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.7", 0))
        client = writer.get_extra_info("sockname")[:2]
        assert owners([client, ("10.1.2.3", 99), ("fe80::1:2", 7)]) == {
            client: f"user {os.geteuid()}",
            ("10.1.2.3", 99): "10.1.2.3",
            ("fe80::1:2", 7): "fe80::/64",
        }
        writer.close()
