"""SSH: logins, shells, single commands, and how connections end. Referees: asyncssh, paramiko and
OpenSSH as clients.
"""

from __future__ import annotations

import asyncio
import base64
import io
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncssh
import paramiko
import pytest

from emulators.devices.server import Access
from tests.emulators.emulated import Device, Start, until

KEY = asyncssh.generate_private_key("ssh-ed25519")
STRANGER = asyncssh.generate_private_key("ssh-ed25519")
ACCESS = Access("admin", "root", (KEY.export_public_key().decode(),))
SSH = {"scheme": "ssh", "access": ACCESS}


@asynccontextmanager
async def login(device: Device, **how: Any) -> AsyncIterator[asyncssh.SSHClientConnection]:
    known = asyncssh.import_known_hosts(device.server.listener.known_hosts)  # type: ignore[attr-defined]
    how = {"username": "admin", "password": "root", "client_keys": None, **how}
    async with asyncssh.connect(
        "127.0.0.1", device.server.port, known_hosts=known, config=None, **how
    ) as connection:
        yield connection


async def line(stream: Any) -> bytes:
    async with asyncio.timeout(3):
        answer: bytes = await stream.readline()
        return answer


@pytest.mark.parametrize("chunking", ["whole", "split", "byte"])
async def test_a_shell_carries_the_bytes_of_the_dialect(start: Start, chunking: str) -> None:
    device = await start("polatis-scpi", served=SSH, chunking=chunking)
    async with login(device) as connection:
        process = await connection.create_process(encoding=None)
        for byte in b"*IDN?\n:oxc:swit:conn:add (@1),(@17)\n:oxc:swit:size?\n":
            process.stdin.write(bytes((byte,)))
        assert (await line(process.stdout)).startswith(b"Polatis,")
        assert await line(process.stdout) == b"16,16\r\n"
        await device.settle()
        assert device.lit() == {("1", "17")}


async def test_a_password_or_a_key_lets_in_and_nothing_else_does(start: Start) -> None:
    device = await start("polatis-scpi", served=SSH)
    async with login(device, password=None, client_keys=[KEY]):
        pass
    for wrong in (
        {"password": "toor"},
        {"username": "root"},
        {"password": None, "client_keys": [STRANGER]},
    ):
        with pytest.raises(asyncssh.PermissionDenied):
            async with login(device, **wrong):
                pass
    nobody = await start("polatis-scpi", served={"scheme": "ssh", "access": Access("admin", None)})
    with pytest.raises(asyncssh.PermissionDenied):
        async with login(nobody, password=""):
            pass


async def test_one_command_is_answered_with_its_output_alone_and_its_exit_status(
    start: Start,
) -> None:
    device = await start("sonic-ocs", served=SSH, chunking="split")
    async with login(device) as connection:
        for _ in range(2):  # several commands over one connection
            done = await connection.run("show ocs cross-connect config", timeout=3)
            assert re.match(r"\s*id\s+a_side\s+b_side", str(done.stdout))
            assert done.exit_status == 0
        shell = await connection.create_process(term_type="vt100", encoding=None)
        async with asyncio.timeout(3):
            assert await shell.stdout.readuntil(b"$ ")
    await until(lambda: not device.server.dialect.sessions)


async def test_a_device_that_says_so_runs_no_commands_or_no_shell(start: Start) -> None:
    device = await start("sonic-ocs", served=SSH)
    device.server.dialect.channels = frozenset({"shell"})
    async with login(device) as connection:
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.run("show version", timeout=3)
        device.server.dialect.channels = frozenset({"exec"})
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.create_process()
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.open_session(subsystem="netconf")


async def test_a_client_that_says_no_more_is_answered_and_let_go(start: Start) -> None:
    device = await start("polatis-scpi", served=SSH)
    device.server.add_fault("late", seconds=0.05)
    async with login(device) as connection:
        async with asyncio.timeout(3):
            done = await connection.run(input="*IDN?\n")
    assert str(done.stdout).startswith("Polatis,")


async def test_a_lost_connection_is_lost_whole_and_no_empty_answer(start: Start) -> None:
    device = await start("sonic-ocs", served=SSH)
    device.server.add_fault("drop-after", match="show")
    async with login(device) as connection:
        done = await connection.run("show ocs cross-connect config", timeout=3)
        assert (done.exit_status, done.stdout) == (None, "")
        async with asyncio.timeout(3):
            await connection.wait_closed()


async def test_no_more_than_so_many_log_in(start: Start) -> None:
    device = await start("polatis-scpi", served=SSH)
    device.server.add_fault("login-limit", limit=1)
    async with login(device) as first:
        with pytest.raises((asyncssh.DisconnectError, asyncssh.ChannelOpenError)):
            async with login(device) as second:
                await second.create_process()
                await second.wait_closed()
                raise asyncssh.ConnectionLost("sent away")
        process = await first.create_process(encoding=None)
        process.stdin.write(b"*IDN?\n")
        assert await line(process.stdout)


async def test_a_second_login_may_end_the_first(start: Start) -> None:
    device = await start("polatis-scpi", served=SSH)
    device.server.add_fault("session-stolen")
    async with login(device) as first, login(device) as second:
        async with asyncio.timeout(3):
            await first.wait_closed()
        process = await second.create_process(encoding=None)
        process.stdin.write(b"*IDN?\n")
        assert await line(process.stdout)


async def test_a_silent_session_and_a_connection_without_one_are_dropped(start: Start) -> None:
    device = await start("polatis-scpi", served=SSH)
    device.server.add_fault("idle-drop", seconds=0.05)
    async with login(device) as busy, login(device) as bare:
        await busy.create_process()
        async with asyncio.timeout(4):
            await busy.wait_closed()
            await bare.wait_closed()


async def test_a_booting_device_takes_nobody(start: Start) -> None:
    device = await start("polatis-scpi", served=SSH, boot_s=0.3)
    async with login(device) as connection:
        await connection.create_process()
        device.server.add_fault("reboot-keep")
        async with asyncio.timeout(3):
            await connection.wait_closed()
        with pytest.raises((OSError, asyncssh.Error)):
            async with login(device):
                pass


async def test_paramiko_and_openssh_get_in(start: Start, tmp_path: Path) -> None:
    device = await start("sonic-ocs", served=SSH)
    port = device.server.port

    def by_paramiko() -> bytes:
        client = paramiko.SSHClient()
        kind, data = device.server.listener.known_hosts.split()[1:3]  # type: ignore[attr-defined]
        client.get_host_keys().add(
            f"[127.0.0.1]:{port}", kind, paramiko.Ed25519Key(data=base64.b64decode(data))
        )
        key = paramiko.Ed25519Key.from_private_key(io.StringIO(KEY.export_private_key().decode()))
        client.connect(
            "127.0.0.1", port, "admin", pkey=key, allow_agent=False, look_for_keys=False, timeout=3
        )
        try:
            _, out, _ = client.exec_command("show ocs cross-connect config", timeout=3)
            return bytes(out.read())
        finally:
            client.close()

    assert b"a_side" in await asyncio.to_thread(by_paramiko)
    (tmp_path / "known").write_text(device.server.listener.known_hosts)  # type: ignore[attr-defined]
    KEY.write_private_key(tmp_path / "key")
    (tmp_path / "key").chmod(0o600)
    options = (
        "-F",
        "none",
        "-i",
        str(tmp_path / "key"),
        "-o",
        f"UserKnownHostsFile={tmp_path / 'known'}",
        "-o",
        "BatchMode=yes",
    )
    ssh = await asyncio.create_subprocess_exec(
        "ssh",
        *options,
        "-p",
        str(port),
        "admin@127.0.0.1",
        "show ocs cross-connect config",
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(ssh.communicate(), 10)
    assert (ssh.returncode, b"a_side" in out) == (0, True)


async def test_strange_bytes_instead_of_ssh_leave_the_server_well(start: Start) -> None:
    device = await start("polatis-scpi", served=SSH)
    for noise in (
        b"\0" * 5000,
        b"GET / HTTP/1.1\r\n\r\n",
        b"SSH-2.0-x\r\n" + bytes(range(256)) * 20,
    ):
        client = await device.connect()
        client.writer.write(noise)
        await client.reader.read(100)
        client.writer.close()
    async with login(device) as connection:
        assert await connection.create_process()
