"""The NETCONF link, against an SSH server of its own: framing, host keys, lost and malformed
replies, no thread left.
"""

from __future__ import annotations

from pathlib import Path

import asyncssh
import pytest

from drivers.link import Dropped
from drivers.link.netconf import NetconfLink
from drivers.session.netconf import NetconfSession
from drivers.wire import netconf
from drivers.wire.netconf import tree
from optics import BadFile, Garbled, Refused, TimedOut, Unreachable
from tests.drivers.scripted import NC, Netconf, netconf_device

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def linked(device: Netconf, timeout_s: float = 1.0, **more: str) -> NetconfLink:
    options = {
        "username": "admin",
        "password": "secret",
        "known_hosts": str(device.known_hosts),
        **more,
    }
    return NetconfLink("ocs1", device.address, timeout_s, **options)


@pytest.mark.parametrize("chunked", [True, False])
async def test_questions_are_answered_in_both_framings(tmp_path: Path, chunked: bool) -> None:
    async with netconf_device(
        lambda _: f"<data><a>{'x' * 3000}</a></data>",
        tmp_path,
        chunked=chunked,
        capabilities=("urn:x?a=1",),
    ) as d:
        link = linked(d)
        await link.open()
        assert "urn:x?a=1" in link.capabilities
        for _ in range(3):
            assert "xxx</a></data>" in await link.ask("<get/>", question="get")
        await link.close()
        await link.close()
        assert d.heard == ["<get/>"] * 3 + ["<close-session/>"]


async def test_a_question_does_not_wait_until_ncclient_looks_for_one_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ncclient.transport.session.TICK", 3600.0)
    async with netconf_device(lambda _: "<ok/>", tmp_path) as device:
        link = linked(device, 30.0)
        await link.open()
        for _ in range(10):
            await link.ask("<get/>", question="get")
        await link.close()


async def test_an_unknown_or_changed_host_key_is_refused_before_the_password_is_sent(
    tmp_path: Path,
) -> None:
    async with netconf_device(lambda _: "<ok/>", tmp_path) as device:
        port = device.address.rpartition(":")[2]
        empty = tmp_path / "empty"
        empty.write_text("")
        with pytest.raises(
            Unreachable, match=r"host key of .* \(ssh-ed25519 SHA256:.* is not known"
        ) as raised:
            await linked(device, known_hosts=str(empty)).open()
        assert f"ssh-keyscan -p {port}" in raised.value.hint
        other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
        empty.write_text(f"[127.0.0.1]:{port} {other}")
        with pytest.raises(Unreachable, match="is another than the known one"):
            await linked(device, known_hosts=str(empty)).open()
        with pytest.raises(Unreachable, match="No such file"):
            await linked(device, known_hosts=str(tmp_path / "none")).open()
        assert device.sessions == 0


async def test_a_wrong_password_is_refused_and_never_shown(tmp_path: Path) -> None:
    async with netconf_device(lambda _: "<ok/>", tmp_path) as device:
        with pytest.raises(Refused, match="refused the login of user 'admin'") as raised:
            await linked(device, password="hush").open()
        assert "hush" not in str(raised.value)
        with pytest.raises(Unreachable, match="no key file"):
            await linked(device, key_file=str(tmp_path / "none")).open()


@pytest.mark.parametrize(
    "hello",
    [
        b"",
        b"nonsense]]>]]>",
        b'<!DOCTYPE x [<!ENTITY a "b">]><hello>&a;</hello>]]>]]>',
        b"<rpc-reply/>]]>]]>",
    ],
    ids=["silence", "nonsense", "entity", "reply"],
)
async def test_a_hello_that_is_none_is_unreachable(
    tmp_path: Path, hello: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drivers.link.netconf.LOGIN_S", 1.0)
    async with netconf_device(lambda _: "<ok/>", tmp_path, hello=hello) as device:
        with pytest.raises(Unreachable, match="no NETCONF session"):
            await linked(device).open()


async def test_a_session_that_ends_before_the_answer_is_dropped(tmp_path: Path) -> None:
    async with netconf_device(lambda _: b"", tmp_path) as device:
        link = linked(device)
        await link.open()
        with pytest.raises(Dropped, match='ended before the answer to "edit pair"'):
            await link.ask("<edit-config/>", question="edit pair")
        assert not link.alive
        await link.close()


BOMB = b'<!DOCTYPE r [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]><rpc-reply message-id="{id}">&b;</rpc-reply>'


@pytest.mark.parametrize(
    "reply",
    [
        b"<html><body>503</body></html>]]>]]>",
        b"<rpc-reply><ok/></rpc-reply>]]>]]>",
        BOMB + b"]]>]]>",
        b'<rpc-reply message-id="{id}"><data>]]>]]>',
        b"\xff\xfe\xff]]>]]>",
        b'<rpc-reply message-id="{id}"/>]]>]]>',
        b'<rpc-reply message-id="{id}">&undefined;</rpc-reply>]]>]]>',
        b'<rpc-reply message-id="{id}">' + b"<a>" * 5000 + b"]]>]]>",
    ],
    ids=[
        "html",
        "no id",
        "entity bomb",
        "truncated",
        "no utf-8",
        "neither ok nor error",
        "entity",
        "deep",
    ],
)
async def test_a_malformed_reply_is_garbled_and_quoted(tmp_path: Path, reply: bytes) -> None:
    async with netconf_device(lambda _: reply, tmp_path, chunked=False) as device:
        session = NetconfSession(linked(device))
        with pytest.raises(Garbled, match='ocs1: answer to "edit pair"'):
            await session.edit(tree("x", ns="urn:x"), question="edit pair")
        await session.close()
        assert len([each for each in device.heard if "edit-config" in each]) == 1


@pytest.mark.parametrize("reply", [b"\n#12\nab\n##\n", b"nonsense", b"\n#0x5\n<a/>\n##\n"])
async def test_broken_chunks_are_garbled_or_a_time_out_never_a_hang(
    tmp_path: Path, reply: bytes
) -> None:
    async with netconf_device(lambda _: reply, tmp_path) as device:
        link = linked(device, 0.2)
        await link.open()
        with pytest.raises((Garbled, TimedOut)):
            await link.ask("<get/>", question="get")
        await link.close()


async def test_a_reply_without_end_is_not_taken_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drivers.link.netconf.LONGEST_REPLY", 100_000)
    async with netconf_device(
        lambda _: b"<rpc-reply>" + b"x" * 400_000, tmp_path, chunked=False
    ) as device:
        link = linked(device, 5.0)
        await link.open()
        with pytest.raises(Garbled, match="more than 100000 bytes"):
            await link.ask("<get/>", question="get")
        await link.close()


@pytest.mark.parametrize("before", [True, False])
async def test_a_reply_to_nobody_and_a_notification_are_let_pass(
    tmp_path: Path, before: bool
) -> None:
    noise = (
        f'<rpc-reply xmlns="{NC}" message-id="77"><ok/></rpc-reply>]]>]]>'
        '<notification xmlns="urn:ietf:params:xml:ns:netconf:notification:1.0"><eventTime>0</eventTime></notification>]]>]]>'
    ).encode()
    reply = f'<rpc-reply xmlns="{NC}" message-id="{{id}}"><ok/></rpc-reply>]]>]]>'.encode()
    async with netconf_device(
        lambda _: noise + reply if before else reply + noise, tmp_path, chunked=False
    ) as device:
        link = linked(device)
        await link.open()
        for _ in range(3):
            assert "<ok/>" in await link.ask("<get/>", question="get")
        await link.close()
        assert device.sessions == 1


ERROR = "<rpc-error><error-type>application</error-type><error-tag>{}</error-tag><error-severity>{}</error-severity>{}</rpc-error>"


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (
            ERROR.format(
                "in-use", "error", '<error-message xml:lang="en">port 9 is in use</error-message>'
            ),
            "in-use: port 9 is in use",
        ),
        (ERROR.format("a", "error", "") + ERROR.format("b", "error", ""), "a; b"),
        (
            ERROR.format(
                "bad-element", "error", "<error-info><bad-element>egress</bad-element></error-info>"
            ),
            "bad-element: egress",
        ),
        ("<rpc-error/>", "an error without words"),
        ('<rpc-error xmlns=""><error-tag>lock-denied</error-tag></rpc-error>', "lock-denied"),
        (
            ERROR.format("w", "warning", "") + ERROR.format("e", "error", "") + "<ok/>",
            '"edit pair": e',
        ),
    ],
)
async def test_an_rpc_error_is_refused_in_the_devices_words(
    tmp_path: Path, reply: str, text: str
) -> None:
    async with netconf_device(lambda _: reply, tmp_path) as device:
        session = NetconfSession(linked(device))
        with pytest.raises(Refused) as raised:
            await session.edit(tree("x", ns="urn:x"), question="edit pair")
        assert text in str(raised.value)
        assert str(raised.value).startswith('ocs1 refused "edit pair": ')
        await session.close()


async def test_a_warning_is_no_refusal(tmp_path: Path) -> None:
    async with netconf_device(
        lambda _: ERROR.format("w", "warning", "") + "<ok/>", tmp_path
    ) as device:
        session = NetconfSession(linked(device))
        await session.edit(tree("x", ns="urn:x"), question="edit pair")
        await session.close()


async def test_a_key_file_logs_in(tmp_path: Path) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    (tmp_path / "id").write_bytes(key.export_private_key())
    (tmp_path / "id").chmod(0o600)

    class Server(asyncssh.SSHServer):
        def public_key_auth_supported(self) -> bool:
            return True

        def validate_public_key(self, username: str, given: asyncssh.SSHKey) -> bool:
            return given.public_data == key.public_data

    async def serve(process: asyncssh.SSHServerProcess[bytes]) -> None:
        hello = f'<hello xmlns="{NC}"><capabilities><capability>urn:x</capability></capabilities></hello>]]>]]>'
        process.stdout.write(hello.encode())
        await process.stdin.read()
        process.exit(0)

    host = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=Server,
        server_host_keys=[host],
        process_factory=serve,
        encoding=None,
    )
    known = tmp_path / "known"
    known.write_text(f"[127.0.0.1]:{server.get_port()} {host.export_public_key().decode()}")
    address = f"netconf://127.0.0.1:{server.get_port()}"
    link = NetconfLink(
        "ocs1", address, 1.0, username="x", key_file=str(tmp_path / "id"), known_hosts=str(known)
    )
    await link.open()
    assert link.capabilities == ("urn:x",)
    await link.close()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(
    "address", ["tcp://h:830", "netconf://", "netconf://u@h", "netconf://h/x", "netconf://h:99999"]
)
def test_an_address_of_another_form_is_refused(address: str) -> None:
    with pytest.raises(BadFile, match="ocs1: address"):
        NetconfLink("ocs1", address, 1.0)


def test_what_is_written_into_xml_is_escaped() -> None:
    assert "<custom-name>a&lt;b&amp;c</custom-name>" in netconf.show(
        tree("x", tree("custom-name", "a<b&c"), ns="urn:x")
    )
