"""A command that was given up does not reach the device later: its connection ends so that nothing
is sent again.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
import sys
import tty
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncssh
import pytest

from drivers.link import open_link
from drivers.link.http import HttpLink
from drivers.link.netconf import NetconfLink
from drivers.link.serial import SerialLink
from drivers.link.ssh import Login, SshCommands, SshShell
from emulators.fabric import linux
from optics import TimedOut
from tests.drivers.scripted import http, http_device, netconf_device
from tests.drivers.ssh_device import Printed, ssh_device
from tests.emulators.emulated import until

HERE, DEVICE = "192.0.2.1", "192.0.2.2"


def ip(net: int, *argv: str) -> None:
    with linux.inside(net):
        subprocess.run(["ip", *argv], check=True, capture_output=True, timeout=10)


class Cable:
    """Two network namespaces and a cable between them; the device is in the second one."""

    def __init__(self) -> None:
        self.near, self.far = linux.new_network(), linux.new_network()
        ip(
            self.near,
            "link",
            "add",
            "near",
            "type",
            "veth",
            "peer",
            "name",
            "far",
            "netns",
            f"/proc/{os.getpid()}/fd/{self.far}",
        )
        for net, name, address in ((self.near, "near", HERE), (self.far, "far", DEVICE)):
            ip(net, "address", "add", f"{address}/24", "dev", name)
            ip(net, "link", "set", name, "up")
        with linux.inside(self.far):
            self.device = socket.create_server((DEVICE, 5025))
        self.device.settimeout(5.0)

    def plugged(self, yes: bool) -> None:
        ip(self.far, "link", "set", "far", "up" if yes else "down")

    def kept_by_the_kernel(self) -> list[str]:
        """The connections of this side that the kernel still has something to do for."""
        with linux.inside(self.near):
            rows = Path("/proc/thread-self/net/tcp").read_text().splitlines()[1:]
        return [row for row in rows if row.split()[3] != "06"]  # TIME_WAIT sends nothing


@pytest.fixture
def cable() -> Iterator[Cable]:
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    made = Cable()
    yield made
    made.device.close()
    for net in (made.near, made.far):
        os.close(net)


def received(sock: socket.socket) -> bytes:
    """All that has come over a connection, until it ended or now."""
    found = b""
    sock.setblocking(False)
    with suppress(BlockingIOError, ConnectionResetError):
        while data := sock.recv(4096):
            found += data
    return found


@pytest.mark.parametrize("scheme", ["tcp", "telnet"])
async def test_a_command_given_up_while_the_cable_was_out_does_not_arrive_when_it_is_in_again(
    cable: Cable, scheme: str
) -> None:
    link = open_link(f"{scheme}://{DEVICE}:5025", 0.3, "ocs1")
    with linux.inside(cable.near):
        await link.open()
    with cable.device.accept()[0] as peer:
        cable.plugged(False)
        with pytest.raises(TimedOut):
            await link.exchange(
                b":oxc:swit:conn:add (@1),(@17)\n", lambda _: True, question="add", timeout_s=0.1
            )
        await link.close()
        given_up = cable.kept_by_the_kernel()
        cable.plugged(True)
        with suppress(AssertionError):
            # as long as it can still be sent
            await until(lambda: not cable.kept_by_the_kernel(), 3.0)
        assert (received(peer), given_up) == (b"", [])


class Relay:
    """Stands between a link and its device, and notes how the link ended each connection: with a
    reset, or with a farewell.
    """

    def __init__(self, device: int | None) -> None:
        self.device, self.ends, self.heard, self.silent = device, list[str](), b"", device is None
        self.tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        back = out = None
        if self.device is not None:
            back, out = await asyncio.open_connection("127.0.0.1", self.device)
            answers = asyncio.ensure_future(self.pass_on(back, writer))
        try:
            while data := await reader.read(4096):
                self.heard += data
                if out is not None and not self.silent:
                    out.write(data)
            self.ends.append("farewell")
        except ConnectionResetError:
            self.ends.append("reset")
        finally:
            if out is not None:
                out.transport.abort()
                await asyncio.gather(answers, return_exceptions=True)
            writer.transport.abort()

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(4096):
                writer.write(data)

    async def ended(self, count: int = 1) -> list[str]:
        await until(lambda: len(self.ends) >= count)
        return self.ends


@asynccontextmanager
async def relayed(device: int | None = None) -> AsyncIterator[tuple[Relay, int]]:
    relay = Relay(device)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    try:
        yield relay, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*relay.tasks)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.readline():
        writer.write(b"yes\n")
    writer.close()


@pytest.mark.parametrize("scheme", ["tcp", "telnet"])
async def test_only_a_connection_that_owes_an_answer_is_reset(scheme: str) -> None:
    device = await asyncio.start_server(answering, "127.0.0.1", 0)
    async with relayed(device.sockets[0].getsockname()[1]) as (relay, port):
        link = open_link(f"{scheme}://127.0.0.1:{port}", 1.0, "ocs1")
        await link.open()
        await link.close()
        await link.open()
        await link.exchange(b"?\n", lambda data: b"yes" in data, question="?")
        await link.close()
        assert await relay.ended(2) == ["farewell", "farewell"]
        await link.open()
        relay.silent = True
        with pytest.raises(TimedOut):
            await link.exchange(b"!\n", lambda data: b"yes" in data, question="!", timeout_s=0.05)
        await link.close()
        await link.open()
        await link.send(b"!\n", "!")
        await link.close()
        assert await relay.ended(4) == ["farewell", "farewell", "reset", "reset"]
    device.close()


async def test_a_request_over_http_that_is_given_up_is_reset_and_an_answered_one_is_not() -> None:
    async with (
        http_device(lambda _: http(200, "[]")) as (address, _),
        relayed(port_of(address)) as (relay, port),
    ):
        link = HttpLink("ocs1", f"http://127.0.0.1:{port}", 1.0)
        await link.exchange("PUT", "/x", question="PUT /x", body=b"{}")
        assert await relay.ended() == ["farewell"]
        relay.silent = True
        with pytest.raises(TimedOut):
            await link.exchange("PUT", "/x", question="PUT /x", body=b"{}", timeout_s=0.05)
        assert await relay.ended(2) == ["farewell", "reset"]
        await link.close()


async def ran(command: str) -> Printed:
    if command == "connect":
        await asyncio.sleep(30)
    return "ran\n", 0


async def prompting(process: asyncssh.SSHServerProcess[bytes]) -> None:
    async for _ in process.stdin:
        process.stdout.write(b"yes\n")


def trusted(known_hosts: Path, port: int) -> Login:
    """The device's key is believed at the relay's port, too."""
    known_hosts.write_text(f"[127.0.0.1]:{port} {known_hosts.read_text().partition(' ')[2]}")
    return Login("admin", "secret", known_hosts=str(known_hosts))


def lingers(sock: socket.socket) -> tuple[int, ...]:
    return struct.unpack("ii", sock.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8))


async def test_an_ssh_command_that_is_given_up_is_reset(tmp_path: Path) -> None:
    async with ssh_device(tmp_path, ran) as device, relayed(device.port) as (relay, port):
        shell = SshCommands(
            "ocs1", "ssh", 1.0, host="127.0.0.1", port=port, login=trusted(device.known_hosts, port)
        )
        assert await shell.run("show") == ("ran\n", 0)
        assert lingers(shell._dialled[0]) == (0, 0)
        with pytest.raises(TimedOut):
            await shell.run("connect", 0.1)
        assert await relay.ended() == ["reset"]
        await shell.close()


async def test_an_ssh_shell_that_owes_an_answer_is_reset(tmp_path: Path) -> None:
    async with (
        ssh_device(tmp_path, shell=prompting) as device,
        relayed(device.port) as (relay, port),
    ):
        login = trusted(device.known_hosts, port)
        link = SshShell("ocs1", "ssh", 1.0, host="127.0.0.1", port=port, login=login)
        await link.open()
        await link.exchange(b"show\n", lambda data: b"yes" in data, question="show")
        assert lingers(link._dialled[0]) == (0, 0)
        relay.silent = True
        with pytest.raises(TimedOut):
            await link.exchange(
                b"connect\n", lambda data: b"yes" in data, question="connect", timeout_s=0.1
            )
        await link.close()
        assert await relay.ended() == ["reset"]


async def test_a_netconf_operation_that_is_given_up_is_reset(tmp_path: Path) -> None:
    async with (
        netconf_device(lambda _: "<ok/>", tmp_path) as device,
        relayed(port_of(device.address)) as (relay, port),
    ):
        login = trusted(device.known_hosts, port)
        more = {"username": "admin", "password": "secret", "known_hosts": login.known_hosts}
        link = NetconfLink("roadm", f"netconf://127.0.0.1:{port}", 1.0, **more)
        await link.open()
        await link.ask("<get/>", question="get")
        assert link._sock is not None and lingers(link._sock) == (0, 0)
        relay.silent = True
        with pytest.raises(TimedOut):
            await link.ask("<edit-config/>", question="edit-config", timeout_s=0.1)
        assert await relay.ended() == ["reset"]
        await link.close()


KILLED = """
import asyncio, sys
from drivers.link import open_link

async def ask():
    link = open_link(sys.argv[1], 60.0, "ocs1")
    await link.open()
    await link.exchange(b"!\\n", lambda data: True, question="!")

asyncio.run(ask())
"""


async def test_the_command_of_a_driver_that_is_killed_is_not_sent_again_either() -> None:
    async with relayed() as (relay, port):
        driver = await asyncio.create_subprocess_exec(
            sys.executable, "-c", KILLED, f"tcp://127.0.0.1:{port}"
        )
        await until(lambda: bool(relay.heard))
        driver.kill()
        await driver.wait()
        assert await relay.ended() == ["reset"]


async def test_what_a_serial_line_has_not_sent_when_its_command_is_given_up_is_not_sent() -> None:
    device, line = os.openpty()
    tty.setraw(line)
    os.set_blocking(device, False)
    try:
        link = SerialLink("ocs1", "serial", 1.0, path=os.ttyname(line), baud=38400)
        await link.open()
        os.write(device, b"yes\n")
        # more than the other end takes unread
        await link.exchange(b"?" * 8192, lambda data: b"yes" in data, question="?")
        with pytest.raises(TimedOut):
            await link.exchange(b"add 1 17\n", lambda _: True, question="add", timeout_s=0.05)
        await link.close()
        came = b""
        with suppress(BlockingIOError):
            while data := os.read(device, 4096):
                came += data
        assert came.startswith(b"???") and b"add" not in came
    finally:
        os.close(line)
        os.close(device)
