"""NETCONF as emulated devices serve it: framings, operations, errors, locks. Referees: ncclient,
paramiko with bare bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import paramiko
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree
from ncclient import manager
from ncclient.operations import RPCError

from emulators.devices.dialects.base import Session
from emulators.devices.dialects.netconf import BASE_1_0, BASE_1_1, NetconfDialect, Schema
from emulators.devices.dialects.netconf_data import edited, selected
from emulators.devices.dialects.netconf_framing import MAX_MESSAGE, Decoder, Unframed, encode
from emulators.devices.dialects.xml import NETCONF
from emulators.devices.server import Access, DeviceServer
from emulators.optics.plant import Plant

NS = "urn:shelf"
SHELF = Schema.of(
    "shelf", Schema.of("row", Schema("name"), Schema("level"), key="name"), Schema("owner")
)


class ShelfDevice(NetconfDialect[None]):
    """Keeps rows."""

    schemas: ClassVar[Mapping[str, Schema]] = {f"{{{NS}}}shelf": SHELF}
    validates = True

    def __init__(self, **keys: Any) -> None:
        super().__init__(Plant("d", ["1"], ["2"]), **keys)
        self.kept: list[etree._Element] = [rows("a=1", "b=2")]

    def capabilities(self) -> Sequence[str]:
        return (f"{NS}?module=shelf&revision=2020-01-01",)

    def configuration(self, now: float) -> list[etree._Element]:
        return self.kept

    def configure(self, config: list[etree._Element], now: float) -> None:
        self.kept = config

    def snapshot(self, now: float) -> None:
        return None


def rows(*pairs: str) -> etree._Element:
    listed = "".join(
        "<row><name>{}</name><level>{}</level></row>".format(*pair.split("=")) for pair in pairs
    )
    return etree.fromstring(f'<shelf xmlns="{NS}">{listed}</shelf>')


def shown(nodes: Sequence[etree._Element]) -> list[str]:
    return [f"{row[0].text}={row[1].text}" for node in nodes for row in node.iter(f"{{{NS}}}row")]


def hello(*bases: str) -> bytes:
    listed = "".join(f"<capability>{base}</capability>" for base in bases)
    return (
        f'<hello xmlns="{NETCONF}"><capabilities>{listed}</capabilities></hello>'.encode()
        + b"]]>]]>"
    )


def rpc(inside: str, attributes: str = 'message-id="7"') -> str:
    return f'<rpc xmlns="{NETCONF}" {attributes}>{inside}</rpc>'


def edit(inside: str, options: str = "") -> str:
    return (
        f"<edit-config><target><running/></target>{options}<config>{inside}</config></edit-config>"
    )


def talk(
    dialect: ShelfDevice, *messages: str, bases: Sequence[str] = (BASE_1_0, BASE_1_1)
) -> tuple[Session, list[etree._Element]]:
    """Say the messages in the framing agreed on; return what was answered, without the hello."""
    session = dialect.open(0.0)
    assert session is not None
    dialect.receive(session, hello(*bases), 1.0)
    chunked = BASE_1_1 in bases and dialect.base_1_1
    for message in messages:
        dialect.receive(session, encode(message.encode(), chunked), 1.0)
    decoder = Decoder()
    decoder.feed(b"".join(data for whose, _, data in dialect.drain() if data and whose is session))
    assert decoder.next()
    decoder.chunked = chunked
    replies = []
    while (reply := decoder.next()) is not None:
        replies.append(etree.fromstring(reply))
    return session, replies


def error(reply: etree._Element) -> tuple[str | None, str | None]:
    found = reply.find(f"{{{NETCONF}}}rpc-error")
    assert found is not None and found.findtext(f"{{{NETCONF}}}error-severity") == "error", (
        etree.tostring(reply)
    )
    return found.findtext(f"{{{NETCONF}}}error-type"), found.findtext(f"{{{NETCONF}}}error-tag")


def ok(reply: etree._Element) -> bool:
    return len(reply) == 1 and reply[0].tag == f"{{{NETCONF}}}ok"


# framing


@given(
    messages=st.lists(st.binary(min_size=1, max_size=9000), max_size=4), size=st.integers(1, 5000)
)
@settings(deadline=None)
def test_what_is_framed_comes_out_however_it_is_cut(messages: list[bytes], size: int) -> None:
    for chunked in (True, False):
        whole = [m.replace(b"]]>]]>", b"") or b"x" for m in messages]
        stream = b"".join(encode(message, chunked) for message in whole)
        decoder = Decoder()
        decoder.chunked = chunked
        found = []
        for start in range(0, len(stream), size):
            decoder.feed(stream[start : start + size])
            while (message := decoder.next()) is not None:
                found.append(message)
        if chunked or not any(m.endswith((b"]", b">")) for m in whole):
            assert found == whole


@pytest.mark.parametrize(
    "message",
    [
        b"<rpc/>",
        b"\n#0\n",
        b"\n#01\n",
        b"\n#x",
        b"\n##\n",
        b"\n#99999999999\n",
        b"\n#5000000\n",
        b"]]>]]>",
    ],
)
def test_what_is_no_chunk_is_no_framing(message: bytes) -> None:
    decoder = Decoder()
    decoder.chunked = True
    decoder.feed(message + b"              ")
    with pytest.raises(Unframed):
        decoder.next()


def test_a_message_may_be_so_long_and_no_longer() -> None:
    decoder = Decoder()
    decoder.feed(b"x" * (MAX_MESSAGE + 1))
    with pytest.raises(Unframed):
        decoder.next()


def test_a_long_reply_comes_in_several_chunks() -> None:
    assert (
        encode(b"x" * 5000, True)
        == b"\n#4096\n" + b"x" * 4096 + b"\n#904\n" + b"x" * 904 + b"\n##\n"
    )


# hello


@pytest.mark.parametrize(
    ("bases", "device", "chunked"),
    [
        ((BASE_1_0,), True, False),
        ((BASE_1_0, BASE_1_1), True, True),
        ((BASE_1_1,), True, True),
        ((BASE_1_0, BASE_1_1), False, False),
    ],
)
def test_both_must_know_base_1_1_to_speak_in_chunks(
    bases: tuple[str, ...], device: bool, chunked: bool
) -> None:
    dialect = ShelfDevice(base_1_1=device)
    session = dialect.open(0.0)
    assert session is not None
    dialect.receive(session, hello(*bases) + encode(rpc("<get/>").encode(), chunked), 1.0)
    *_, reply = [data for _, _, data in dialect.drain()]
    assert (
        reply
        and reply.startswith(b"\n#") is chunked
        and reply.endswith(b"\n##\n" if chunked else b"]]>]]>")
    )


@pytest.mark.parametrize(
    "message",
    [
        hello("urn:other"),
        hello(BASE_1_0).replace(b"</hello>", b"<session-id>4</session-id></hello>"),
        rpc("<get/>").encode() + b"]]>]]>",
        b"<hello]]>]]>",
        b'<!DOCTYPE x [<!ENTITY a "b">]>' + hello(BASE_1_0),
    ],
)
def test_another_hello_ends_the_session(message: bytes) -> None:
    dialect = ShelfDevice()
    session = dialect.open(0.0)
    assert session is not None
    dialect.receive(session, message, 1.0)
    assert [data is None for _, _, data in dialect.drain()] == [False, True] and session.cut


def test_the_hello_names_bases_modules_and_a_session() -> None:
    dialect = ShelfDevice()
    for number in ("1", "2"):
        dialect.open(0.0)
        ((_, _, output),) = dialect.drain()
        assert output and output.endswith(b"]]>]]>")
        root = etree.fromstring(output.removesuffix(b"]]>]]>"))
        assert root.findtext(f"{{{NETCONF}}}session-id") == number
        named = [e.text for e in root.iter(f"{{{NETCONF}}}capability")]
        assert (
            named[:2] == [BASE_1_0, BASE_1_1]
            and named[-1] == f"{NS}?module=shelf&revision=2020-01-01"
        )


# messages


def test_all_attributes_of_a_request_come_back() -> None:
    _, (reply,) = talk(
        ShelfDevice(), rpc("<get/>", 'message-id="&lt;1&gt; x" user="fred" xmlns:e="urn:e" e:f="g"')
    )
    assert dict(reply.attrib) == {"message-id": "<1> x", "user": "fred", "{urn:e}f": "g"}


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (rpc("<reboot/>"), ("protocol", "operation-not-supported")),
        (rpc('<reboot xmlns="urn:x"/>'), ("protocol", "operation-not-supported")),
        (rpc("<copy-config/>"), ("protocol", "operation-not-supported")),
        (rpc("<commit/>"), ("protocol", "operation-not-supported")),
        (rpc("<get/>", ""), ("rpc", "missing-attribute")),
        (rpc(""), ("rpc", "missing-element")),
        (f'<call xmlns="{NETCONF}" message-id="1"/>', ("rpc", "unknown-element")),
        (rpc("<get-config/>"), ("protocol", "missing-element")),
        (
            rpc("<get-config><source><candidate/></source></get-config>"),
            ("protocol", "operation-not-supported"),
        ),
        (
            rpc("<get-config><source><walking/></source></get-config>"),
            ("protocol", "unknown-element"),
        ),
        (
            rpc('<get><filter type="xpath" select="/x"/></get>'),
            ("protocol", "operation-not-supported"),
        ),
        (rpc("<get><filter>" + "<x/>" * 3000 + "</filter></get>"), ("protocol", "too-big")),
        (
            rpc("<edit-config><target><running/></target></edit-config>"),
            ("protocol", "missing-element"),
        ),
        (
            rpc(edit("", "<default-operation>create</default-operation>")),
            ("protocol", "bad-element"),
        ),
        (rpc(edit('<table xmlns="urn:x"/>')), ("application", "unknown-element")),
        (
            rpc(edit(f'<shelf xmlns="{NS}"><row><level>1</level></row></shelf>')),
            ("application", "missing-element"),
        ),
        (
            rpc(edit(f'<shelf xmlns="{NS}"><row><name>a</name><size/></row></shelf>')),
            ("application", "unknown-element"),
        ),
        (
            rpc(edit(f'<shelf xmlns="{NS}"><row><name>a</name><level><x/></level></row></shelf>')),
            ("application", "unknown-element"),
        ),
        (rpc(edit(f'<shelf xmlns="{NS}" operation="burn"/>')), ("application", "bad-attribute")),
        (
            rpc("<kill-session><session-id>99</session-id></kill-session>"),
            ("protocol", "invalid-value"),
        ),
        (rpc("<unlock><target><running/></target></unlock>"), ("protocol", "operation-failed")),
        ("<rpc", ("rpc", "malformed-message")),
        ('<!DOCTYPE rpc [<!ENTITY x "y">]>' + rpc("<get/>"), ("rpc", "malformed-message")),
        ("<a>" * 300 + "</a>" * 300, ("rpc", "malformed-message")),
    ],
)
def test_what_cannot_be_done_is_told_by_type_and_tag(message: str, wanted: tuple[str, str]) -> None:
    dialect = ShelfDevice()
    session, (reply, after) = talk(dialect, message, rpc("<get/>"))
    assert error(reply) == wanted
    assert shown(after) == ["a=1", "b=2"] and not session.closed


def test_a_client_of_base_1_0_that_sends_no_xml_is_hung_up_on() -> None:
    """RFC 6241 appendix A: malformed-message must not be sent to it; section 3: the session ends
    then.
    """
    session, replies = talk(ShelfDevice(), "<rpc", rpc("<get/>"), bases=(BASE_1_0,))
    assert session.cut and replies == []


def test_bytes_that_are_no_utf8_are_malformed() -> None:
    dialect = ShelfDevice()
    session, _ = talk(dialect)
    dialect.receive(session, encode(rpc("<get/>").encode().replace(b"7", b"\xff"), True), 1.0)
    ((_, _, reported),) = dialect.drain()
    assert reported and b"malformed-message" in reported


# filters


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        ("<shelf/>", ["a=1", "b=2", "c=1"]),
        (f'<shelf xmlns="{NS}"/>', ["a=1", "b=2", "c=1"]),
        ('<shelf xmlns="urn:x"/>', []),
        ("", []),
        ("<shelf><row><name>b</name></row></shelf>", ["b=2"]),
        ("<shelf><row><level> 1 </level></row></shelf>", ["a=1", "c=1"]),
        ("<shelf><row><name>a</name><level>1</level></row></shelf>", ["a=1"]),
        ("<shelf><row><name>a</name><level>2</level></row></shelf>", []),
        ("<shelf><row><name/><level/></row></shelf>", ["a=1", "b=2", "c=1"]),
        ("<shelf><row><name>a</name><level/></row></shelf>", ["a=1"]),
        ("<shelf><owner/></shelf>", []),
        ("<shelf><row><name>a</name></row><row><name>c</name></row></shelf>", ["a=1", "c=1"]),
    ],
)
def test_a_subtree_filter_leaves_what_it_selects(wanted: str, left: list[str]) -> None:
    found = selected(
        [rows("a=1", "b=2", "c=1")],
        etree.fromstring(f'<filter xmlns="{NETCONF}">{wanted}</filter>'),
    )
    assert shown(found) == left


def test_a_selection_keeps_only_what_is_named() -> None:
    (found,) = selected(
        [rows("a=1")],
        etree.fromstring("<filter><shelf><row><name>a</name><name/></row></shelf></filter>"),
    )
    assert [child.tag for child in found[0]] == [f"{{{NS}}}name"]


# edits


def changed(inside: str, default: str = "merge") -> list[str]:
    config = etree.fromstring(
        f'<config xmlns:nc="{NETCONF}"><shelf xmlns="{NS}">{inside}</shelf></config>'
    )
    return shown(edited([rows("a=1", "b=2")], config, default, ShelfDevice.schemas))


@pytest.mark.parametrize(
    ("inside", "default", "after"),
    [
        ("<row><name>c</name><level>3</level></row>", "merge", ["a=1", "b=2", "c=3"]),
        ("<row><name>a</name><level>3</level></row>", "merge", ["a=3", "b=2"]),
        ("<row><level>3</level><name> a </name></row>", "merge", ["a=3", "b=2"]),
        ('<row nc:operation="delete"><name>a</name></row>', "merge", ["b=2"]),
        ('<row operation="delete"><name>a</name></row>', "merge", ["b=2"]),
        ('<row nc:operation="remove"><name>z</name></row>', "merge", ["a=1", "b=2"]),
        (
            '<row nc:operation="create"><name>c</name><level>3</level></row>',
            "none",
            ["a=1", "b=2", "c=3"],
        ),
        (
            '<row nc:operation="replace"><name>a</name><level>3</level></row>',
            "merge",
            ["b=2", "a=3"],
        ),
        (
            '<row><name>a</name><level nc:operation="replace">9</level></row>',
            "none",
            ["a=9", "b=2"],
        ),
        ("<row><name>a</name><level>9</level></row>", "none", ["a=1", "b=2"]),
    ],
)
def test_an_edit_does_what_its_operations_say(inside: str, default: str, after: list[str]) -> None:
    assert changed(inside, default) == after


@pytest.mark.parametrize(
    ("inside", "default", "tag"),
    [
        ('<row nc:operation="create"><name>a</name></row>', "merge", "data-exists"),
        ('<row nc:operation="delete"><name>z</name></row>', "merge", "data-missing"),
        ("<row><name>z</name></row>", "none", "data-missing"),
        ('<owner nc:operation="delete"/>', "merge", "data-missing"),
    ],
)
def test_an_edit_that_cannot_be_is_refused_and_changes_nothing(
    inside: str, default: str, tag: str
) -> None:
    dialect = ShelfDevice()
    options = f"<default-operation>{default}</default-operation>"
    body = f'<shelf xmlns="{NS}" xmlns:nc="{NETCONF}"><row><name>new</name><level>1</level></row>{inside}</shelf>'
    good = (
        body
        if default == "merge"
        else body.replace("<row><name>new</name><level>1</level></row>", "")
    )
    _, (reply,) = talk(dialect, rpc(edit(good, options)))
    assert error(reply)[1] == tag
    assert shown(dialect.kept) == ["a=1", "b=2"] and dialect.plant.writes == 0


def test_a_container_is_replaced_and_deleted_whole() -> None:
    dialect = ShelfDevice()
    one = f'<shelf xmlns="{NS}" xmlns:nc="{NETCONF}" nc:operation="replace"><row><name>z</name><level>0</level></row></shelf>'
    _, (reply,) = talk(dialect, rpc(edit(one)))
    assert ok(reply) and shown(dialect.kept) == ["z=0"]
    _, (reply, again) = talk(dialect, *[rpc(edit(f'<shelf xmlns="{NS}" operation="delete"/>'))] * 2)
    assert ok(reply) and dialect.kept == [] and error(again)[1] == "data-missing"
    assert dialect.plant.writes == 2


def test_a_test_only_edit_and_a_validation_change_nothing() -> None:
    dialect = ShelfDevice()
    row = f'<shelf xmlns="{NS}"><row><name>z</name><level>0</level></row></shelf>'
    asked = rpc(edit(row, "<test-option>test-only</test-option>"))
    _, replies = talk(
        dialect, asked, rpc(f"<validate><source><config>{row}</config></source></validate>")
    )
    assert all(map(ok, replies)) and shown(dialect.kept) == ["a=1", "b=2"]
    _, (reply,) = talk(dialect, rpc("<validate><source><config><x/></config></source></validate>"))
    assert error(reply)[1] == "unknown-element"


# sessions


def test_a_lock_keeps_others_out_until_it_is_given_back_or_its_session_ends() -> None:
    dialect = ShelfDevice()
    lock, unlock = (
        rpc(f"<{word}><target><running/></target></{word}>") for word in ("lock", "unlock")
    )
    change = rpc(edit(f'<shelf xmlns="{NS}"><owner>me</owner></shelf>'))
    holder, (taken, again, mine) = talk(dialect, lock, lock, change)
    assert ok(taken) and error(again) == ("protocol", "lock-denied") and ok(mine)
    assert again.findtext(f".//{{{NETCONF}}}session-id") == str(holder.number)
    _, (other, theirs, freed) = talk(dialect, lock, change, unlock)
    assert (
        error(other)[1] == "lock-denied"
        and error(theirs)[1] == "in-use"
        and error(freed)[1] == "operation-failed"
    )
    dialect.close(holder)
    _, replies = talk(dialect, lock, change, unlock)
    assert all(map(ok, replies))


def test_a_session_is_closed_by_itself_or_killed_by_another() -> None:
    dialect = ShelfDevice()
    victim, _ = talk(dialect)
    killer, (killed, closed) = talk(dialect, rpc(f"<kill-session><session-id>{victim.number}</session-id></kill-session>"),
                                    rpc("<close-session/>"))  # fmt: skip
    assert ok(killed) and ok(closed) and victim.cut and killer.cut


@pytest.mark.parametrize(
    ("kind", "message"),
    [("refuse", b"operation-failed"), ("unsolicited-before", b"<notification"), ("swallow", b"")],
)
def test_faults_strike_messages(kind: str, message: bytes) -> None:
    dialect = ShelfDevice()
    session, _ = talk(dialect)
    dialect.inject(1.0, kind, match="<get")
    dialect.receive(session, encode(rpc("<get/>").encode(), True), 1.0)
    out = b"".join(data for _, _, data in dialect.drain() if data)
    assert message in out and bool(out) is bool(message)


OPEN = st.sampled_from(
    [
        "<get>",
        "<edit-config>",
        "<config>",
        f'<shelf xmlns="{NS}">',
        "<row>",
        "<name>",
        "<target>",
        "<running/>",
        "a",
    ]
)
MESSAGE = st.lists(OPEN, max_size=6).map(
    lambda tags: rpc(
        "".join(tags)
        + "".join(
            f"</{t[1:].split()[0].rstrip('>')}>"
            for t in reversed(tags)
            if t[-2:-1] != "/" and t != "a"
        )
    )
)


PIECE = st.one_of(
    st.binary(max_size=40).map(lambda b: (b, False)), MESSAGE.map(lambda m: (m.encode(), True))
)


@given(
    pieces=st.lists(PIECE, max_size=6),
    bases=st.sampled_from([(BASE_1_0,), (BASE_1_0, BASE_1_1), ()]),
)
@settings(deadline=None)
def test_no_bytes_upset_a_netconf_device(
    pieces: list[tuple[bytes, bool]], bases: tuple[str, ...]
) -> None:
    dialect = ShelfDevice()
    session = dialect.open(0.0)
    assert session is not None
    if bases:
        dialect.receive(session, hello(*bases), 1.0)
    for data, framed in pieces:
        dialect.receive(session, encode(data, BASE_1_1 in bases) if framed else data, 1.0)
    out = [data for _, _, data in dialect.drain()]
    assert out.count(None) <= 1 and all(
        data is None or data.endswith((b"]]>]]>", b"\n##\n")) for data in out
    )
    assert session.buffer == b""


# the wire


@pytest.fixture
async def served() -> Any:
    server = DeviceServer(
        "d", ShelfDevice(), scheme="netconf", access=Access("admin", "root"), chunking="split"
    )
    await server.start()
    yield server
    await server.stop()


async def test_ncclient_reads_writes_locks_and_understands_errors(served: DeviceServer) -> None:
    def client() -> None:
        where = {"host": "127.0.0.1", "port": served.port, "username": "admin", "password": "root"}
        with manager.connect(
            **where, hostkey_verify=False, allow_agent=False, look_for_keys=False, timeout=5
        ) as m:
            assert f"{NS}?module=shelf&revision=2020-01-01" in list(m.server_capabilities)
            config = f'<nc:config xmlns:nc="{NETCONF}"><shelf xmlns="{NS}"><row><name>c</name><level>3</level></row></shelf></nc:config>'
            with m.locked("running"):
                assert m.edit_config(target="running", config=config).ok
            data = m.get(
                filter=("subtree", f'<shelf xmlns="{NS}"><row><name>c</name></row></shelf>')
            ).data_ele
            assert shown([data]) == ["c=3"]
            assert shown([m.get_config("running").data_ele]) == ["a=1", "b=2", "c=3"]
            with pytest.raises(RPCError) as no:
                m.edit_config(
                    target="running", config=config.replace("<row>", '<row nc:operation="create">')
                )
            assert (no.value.tag, no.value.type, no.value.severity) == (
                "data-exists",
                "application",
                "error",
            )

    await asyncio.to_thread(client)


async def test_a_bare_client_of_base_1_0_gets_its_answer_and_the_end(served: DeviceServer) -> None:
    def client() -> bytes:
        with paramiko.Transport(("127.0.0.1", served.port)) as transport:
            transport.connect(username="admin", password="root")
            channel = transport.open_session(timeout=5)
            channel.settimeout(5)
            channel.invoke_subsystem("netconf")
            channel.sendall(
                hello(BASE_1_0)
                + rpc("<get/>").encode()
                + b"]]>]]>"
                + rpc("<close-session/>").encode()
                + b"]]>]]>"
            )
            output = b""
            while data := channel.recv(1000):
                output += data
            return output

    greeting, answer, farewell, rest = (await asyncio.to_thread(client)).split(b"]]>]]>")
    assert (
        b"<hello" in greeting
        and b"<level>1</level>" in answer
        and b"<ok/>" in farewell
        and rest == b""
    )


async def test_there_is_netconf_and_no_shell(served: DeviceServer) -> None:
    def client() -> None:
        with paramiko.Transport(("127.0.0.1", served.port)) as transport:
            transport.connect(username="admin", password="root")
            for ask in ("invoke_shell", "get_pty"):
                channel = transport.open_session(timeout=5)
                with pytest.raises(paramiko.SSHException):
                    getattr(channel, ask)()

    await asyncio.to_thread(client)
