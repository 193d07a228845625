"""The SSH link against a server of its own: host keys, logins, silence, connections that end,
endless output; no thread is left.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncssh
import pytest

from drivers.link import Dropped, open_link
from drivers.link import ssh as ssh_link
from drivers.link.ssh import Login, SshCommands, SshShell
from optics import BadFile, Garbled, TimedOut, Unreachable
from tests.drivers.ssh_device import Printed, SshDevice, ssh_device

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def commands(device: SshDevice, timeout_s: float = 1.0, **more: str) -> SshCommands:
    login = Login(
        **{
            "username": "admin",
            "password": "secret",
            "known_hosts": str(device.known_hosts),
            **more,
        }
    )
    return SshCommands(
        "ocs1", device.address, timeout_s, host="127.0.0.1", port=device.port, login=login
    )


async def echo(command: str) -> Printed:
    return f"ran {command}\n", 3 if command == "false" else 0


async def test_commands_are_run_one_after_the_other_over_one_connection(tmp_path: Path) -> None:
    async with ssh_device(tmp_path, echo) as device:
        shell = commands(device)
        reported = await asyncio.gather(
            *(shell.run(f"show {n}") for n in range(5)), shell.run("false")
        )
        assert reported == [*((f"ran show {n}\n", 0) for n in range(5)), ("ran false\n", 3)]
        assert len(device.connections) == 1
        await shell.close()
        await shell.close()


async def test_an_unknown_host_key_ends_the_attempt_before_the_password(tmp_path: Path) -> None:
    async with ssh_device(tmp_path, echo) as device:
        device.known_hosts.write_text("")
        with pytest.raises(
            Unreachable, match=r"is not in .*known_hosts: ssh-ed25519 SHA256:"
        ) as caught:
            await commands(device).run("x")
        assert "ssh-keyscan" in caught.value.hint
        assert device.heard == []


async def test_a_changed_host_key_is_not_believed(tmp_path: Path) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
    async with ssh_device(tmp_path, echo) as device:
        device.known_hosts.write_text(f"[127.0.0.1]:{device.port} {other}\n")
        with pytest.raises(Unreachable, match="shows another host key") as caught:
            await commands(device).run("x")
        assert "ssh-keygen -R" in caught.value.hint


async def test_a_file_of_host_keys_that_is_missing_is_named(tmp_path: Path) -> None:
    async with ssh_device(tmp_path, echo) as device:
        with pytest.raises(Unreachable, match=r"there is no file .*nowhere"):
            await commands(device, known_hosts=str(tmp_path / "nowhere")).run("x")


async def test_a_wrong_password_is_unreachable_and_not_repeated(tmp_path: Path) -> None:
    async with ssh_device(tmp_path, echo) as device:
        with pytest.raises(Unreachable, match="login as 'admin' denied") as caught:
            await commands(device, password="wr0ng-word").run("x")
        assert "wr0ng" not in str(caught.value) and "wr0ng" not in repr(Login("a", "wr0ng"))


async def test_a_key_file_that_is_missing_is_unreachable(tmp_path: Path) -> None:
    async with ssh_device(tmp_path, echo) as device:
        with pytest.raises(Unreachable, match="no-key"):
            await commands(device, key_file=str(tmp_path / "no-key")).run("x")


async def test_a_command_that_hangs_is_a_time_out(tmp_path: Path) -> None:
    async def hang(_: str) -> Printed:
        await asyncio.sleep(30)
        return "", 0

    async with ssh_device(tmp_path, hang) as device:
        shell = commands(device, timeout_s=0.3)
        with pytest.raises(TimedOut, match='no end of "show version"'):
            await shell.run("show version")
        with pytest.raises(TimedOut):
            await shell.run("connect", 0.1)
        await shell.close()


async def test_a_connection_that_ends_under_a_command_leaves_open_what_it_did(
    tmp_path: Path,
) -> None:
    async def once(command: str) -> Printed:
        return None if command == "die" else ("ok\n", 0)

    async with ssh_device(tmp_path, once) as device:
        shell = commands(device)
        with pytest.raises(Dropped, match='before the answer to "die"'):
            await shell.run("die")
        assert await shell.run("live") == ("ok\n", 0)
        await shell.close()


async def test_endless_output_is_garbled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_link, "MOST_OUTPUT", 100_000)

    async def flood(_: str) -> Printed:
        return "x" * 300_000, 0

    async with ssh_device(tmp_path, flood) as device:
        with pytest.raises(Garbled, match="more than 100000 bytes"):
            await commands(device).run("show everything")


async def test_a_long_table_is_taken_whole(tmp_path: Path) -> None:
    table = "".join(f"{n}A-{n}B {n}A {n}B tuned tuned\n" for n in range(20_000))

    async def send(_: str) -> Printed:
        return table, 0

    async with ssh_device(tmp_path, send) as device:
        shell = commands(device, timeout_s=5.0)
        assert (await shell.run("show"))[0] == table
        await shell.close()


async def talk(process: asyncssh.SSHServerProcess[bytes]) -> None:
    """A shell that greets, echoes lines, dies at `die` and falls silent at `quiet`."""
    process.stdout.write(b"BOX[OPER]# ")
    while line := await process.stdin.readline():
        if line == b"die\n":
            return
        if line != b"hush\n":
            process.stdout.write(line.replace(b"\n", b"\r\n") + b"BOX[OPER]# ")


async def test_a_shell_carries_bytes_both_ways_on_a_wide_terminal(tmp_path: Path) -> None:
    sizes: list[tuple[int, ...]] = []

    async def wide(process: asyncssh.SSHServerProcess[bytes]) -> None:
        sizes.append(process.term_size)
        await talk(process)

    async with ssh_device(tmp_path, shell=wide) as device:
        login = Login("admin", "secret", known_hosts=str(device.known_hosts))
        link = open_link(device.address, 1.0, "ocs1", login)
        assert isinstance(link, SshShell)
        await link.open()
        heard = b""

        def complete(data: bytes) -> bool:
            nonlocal heard
            heard += data
            return heard.count(b"#") == 2

        await link.exchange(b"port show\n", complete, question="port show")
        assert b"port show\r\nBOX[OPER]# " in heard
        assert sizes[0][0] >= 200  # a table is not folded
        with pytest.raises(TimedOut, match="hush"):
            await link.exchange(b"hush\n", lambda _: False, question="hush", timeout_s=0.2)
        with pytest.raises(Dropped):
            await link.exchange(b"die\n", lambda _: False, question="die")
        assert not link.alive
        await link.close()


@pytest.mark.parametrize(
    "address", ["ssh://", "ssh://user@host", "ssh://host/path", "ssh://host?x=1", "ssh://host:port"]
)
def test_an_address_of_another_form_is_refused(address: str) -> None:
    with pytest.raises(BadFile, match="ocs1: address"):
        open_link(address, 1.0, "ocs1")
