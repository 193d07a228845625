"""The robots and SONiC as a client meets them: over SSH and telnet, whole and one byte at a
time.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncssh
import pytest

from emulators.devices.families import device_from_config
from emulators.devices.server import DeviceServer
from emulators.devices.transports.base import Access

Serve = Callable[..., Awaitable[DeviceServer]]


@pytest.fixture(params=["whole", "byte"])
async def serve(request: pytest.FixtureRequest) -> AsyncIterator[Serve]:
    servers: list[DeviceServer] = []

    async def begin(driver: str, scheme: str, **overrides: Any) -> DeviceServer:
        plant, dialect = device_from_config("box1", driver, overrides, 1)
        server = DeviceServer(
            "box1",
            dialect,
            plant,
            scheme=scheme,
            access=Access("admin", "admin"),
            chunking=request.param,
        )
        await server.start()
        servers.append(server)
        return server

    yield begin
    for server in servers:
        await server.stop()


def log_in(server: DeviceServer) -> Any:
    return asyncssh.connect(
        "127.0.0.1",
        server.port,
        username="admin",
        password="admin",
        known_hosts=None,
        config=(),
        client_keys=[],
    )


async def hear(reader: Any, what: bytes) -> bytes:
    async with asyncio.timeout(5):
        heard: bytes = await reader.readuntil(what)
    return heard


async def test_sonic_runs_one_command_per_channel_and_returns_its_status(serve: Serve) -> None:
    server = await serve("sonic-ocs", "ssh", apply_s=0.0, settle_s=0.01)
    async with log_in(server) as connection:
        added = await connection.run("config ocs cross-connect add 1A-2B update")
        assert "cross-connect succeeded" in added.stdout
        assert added.exit_status == 0
        assert (await connection.run("config ocs cross-connect add 1-1 update")).exit_status == 2
        for _ in range(100):
            if (
                (await connection.run("show ocs cross-connect status"))
                .stdout.rstrip()
                .endswith("tuned")
            ):
                break
    assert server.plant.lit(server.loop.time()) == {("1A", "2B")}


async def test_a_rome_talks_in_an_ssh_shell_without_asking_for_a_name_again(serve: Serve) -> None:
    server = await serve(
        "rome-cli", "ssh", username="admin", password="admin", settle_s=0.05, torn=0.0
    )
    async with (
        log_in(server) as connection,
        connection.create_process(term_type="vt100", encoding=None) as shell,
    ):
        assert b"Login" not in await hear(shell.stdout, b"ROME[TECH]# ")
        shell.stdin.write(b"connection create A1 to A2\r")
        assert b"OK - request added to pending queue (A1-A2)\r\n" in await hear(
            shell.stdout, b"ROME[TECH]# "
        )
        await hear(shell.stdout, b"Connection A1<->A2 completed successfully\r\n")
        assert server.plant.lit(server.loop.time()) == {("E1", "W2"), ("E2", "W1")}


async def test_a_rome_asks_for_name_and_password_on_telnet(serve: Serve) -> None:
    server = await serve(
        "rome-cli", "telnet", username="admin", password="admin", settle_s=0.05, torn=0.0
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await hear(reader, b"Login:")
    writer.write(b"admin\r\0")
    await hear(reader, b"Password:")
    writer.write(b"admin\r\n")
    await hear(reader, b"ROME[TECH]# ")
    writer.write(b"connection create E3 to W4\r\n")
    await hear(reader, b"SUCCEEDED:E3[1AE3]<->W4[1AW4] OP:connect\r\n")
    writer.write(b"exit\r\n")
    async with asyncio.timeout(5):
        await reader.read()
    writer.close()
    await writer.wait_closed()


async def test_a_telescent_that_waits_prompts_when_the_fibre_is_there(serve: Serve) -> None:
    server = await serve("telescent-cli", "ssh", settle_s=0.1, waits=True)
    async with (
        log_in(server) as connection,
        connection.create_process(term_type="vt100", encoding=None) as shell,
    ):
        await hear(shell.stdout, b"telescent> ")
        shell.stdin.write(b"connect --force 3 4\r")
        assert b"done" in await hear(shell.stdout, b"telescent> ")
        assert server.plant.lit(server.loop.time()) == {("3", "4"), ("4", "3")}
        waited = await connection.run("connect --force -in 1 -out 2")
        assert "done" in waited.stdout
