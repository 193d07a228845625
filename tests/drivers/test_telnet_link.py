"""Telnet: options refused politely, text whole however it is cut, against a scripted peer and
against an independent server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import telnetlib3
from hypothesis import given, settings
from hypothesis import strategies as st

from drivers.link import Dropped, Link, open_link
from drivers.link.telnet import IAC, MOST_ANSWERS, SB, SE, Negotiation, escaped
from optics import TimedOut, Unreachable
from tests.drivers.scripted import serving

DO, DONT, WILL, WONT = 253, 254, 251, 252
ECHO, SGA, TERMINAL = 1, 3, 24


def heard(*pieces: bytes) -> tuple[bytes, bytes]:
    negotiation = Negotiation()
    found = [negotiation.feed(piece) for piece in pieces]
    return b"".join(text for text, _ in found), b"".join(answer for _, answer in found)


def send(*numbers: int) -> bytes:
    return bytes((IAC, *numbers))


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ((DO, TERMINAL), send(WONT, TERMINAL)),
        ((WILL, ECHO), send(DONT, ECHO)),
        ((WILL, SGA), send(DO, SGA)),
        ((DO, SGA), send(WILL, SGA)),
        ((WONT, ECHO), b""),
        ((DONT, SGA), b""),
        ((241,), b""),  # NOP
        ((249,), b""),  # go ahead
    ],
)
def test_an_option_is_refused_unless_it_is_worth_having(
    asked: tuple[int, ...], answered: bytes
) -> None:
    assert heard(b"a" + send(*asked) + b"b") == (b"ab", answered)


def test_an_option_agreed_to_is_not_agreed_to_again_and_may_be_given_up() -> None:
    script = send(WILL, SGA) + send(WILL, SGA) + send(WONT, SGA) + send(WONT, SGA) + send(WILL, SGA)
    assert heard(script) == (b"", send(DO, SGA) + send(DONT, SGA) + send(DO, SGA))


def test_a_doubled_escape_is_one_byte_of_text() -> None:
    assert heard(b"a" + bytes((IAC, IAC)) + b"b") == (b"a\xffb", b"")


def test_a_subnegotiation_is_skipped_with_whatever_is_in_it() -> None:
    script = (
        b"a"
        + send(SB, TERMINAL, 1)
        + b"M  1 COMPLD;"
        + bytes((IAC, IAC, IAC, DO))
        + send(SE)
        + b"b"
    )
    assert heard(script) == (b"ab", b"")


def test_a_return_with_its_nul_is_a_return() -> None:
    assert heard(b"a\r\0b\r\nc\r", b"\0d\0") == (b"a\rb\r\nc\rd\0", b"")


def test_a_peer_that_never_stops_asking_is_not_answered_for_ever() -> None:
    _, answer = heard(send(DO, TERMINAL) * 10_000)
    assert len(answer) == 3 * MOST_ANSWERS


STREAM = (
    send(WILL, ECHO)
    + b"agent> "
    + send(DO, TERMINAL)
    + send(SB, TERMINAL, 1, IAC, IAC, 7)
    + send(SE)
    + bytes((IAC, IAC))
    + b"\r\0x\r\n"
    + send(DO, SGA)
    + b"M  1 COMPLD\r\n;"
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=10))
def test_a_stream_cut_anywhere_says_the_same(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    assert heard(*[STREAM[a:b] for a, b in pairwise(edges)]) == heard(STREAM)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.integers(1, 5))
def test_no_bytes_confuse_it_and_what_it_keeps_is_bounded(noise: bytes, piece: int) -> None:
    negotiation = Negotiation()
    total = 0
    for at in range(0, len(noise), piece):
        text, answer = negotiation.feed(noise[at : at + piece])
        total += len(text)
        assert len(answer) <= 3 * (piece + 2)
        assert len(negotiation._command) <= 2
    assert total <= len(noise)


@given(st.binary(max_size=100).filter(lambda data: b"\r" not in data and b"\n" not in data))
def test_what_is_written_is_read_as_it_was(data: bytes) -> None:
    assert heard(escaped(data)) == (data, b"")


def test_line_ends_are_written_as_the_network_terminal_wants_them() -> None:
    assert escaped(b"A;\nB\r\nC\rD\xff") == b"A;\r\nB\r\nC\r\0D\xff\xff"


# over sockets


@asynccontextmanager
async def scripted(
    *sent: bytes, pause_s: float = 0.0, timeout_s: float = 1.0
) -> AsyncIterator[tuple[Link, bytearray]]:
    """A peer that sends each of `sent` once it is connected; the second value is what it
    receives.
    """
    got = bytearray()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in sent:
            writer.write(piece)
            await asyncio.sleep(pause_s)
        while data := await reader.read(100):
            got.extend(data)

    async with serving(talk) as port:
        link = open_link(f"telnet://127.0.0.1:{port}", timeout_s, "ocs1")
        await link.open()
        try:
            yield link, got
        finally:
            await link.close()


async def until(got: bytearray, wanted: bytes) -> None:
    for _ in range(400):
        if wanted in got:
            return
        await asyncio.sleep(0.005)
    pytest.fail(f"heard {bytes(got)!r}")


async def test_options_are_answered_before_any_question_is_asked() -> None:
    async with scripted(send(DO, TERMINAL) + send(WILL, ECHO)) as (_, got):
        await until(got, send(WONT, TERMINAL) + send(DONT, ECHO))


async def test_text_comes_through_one_byte_at_a_time() -> None:
    async with scripted(*[STREAM[at : at + 1] for at in range(len(STREAM))], pause_s=0.001) as (
        link,
        _,
    ):
        found = bytearray()

        def complete(chunk: bytes) -> bool:
            found.extend(chunk)
            return found.endswith(b";")

        await link.exchange(b"RTRV-HDR;\n", complete, question="RTRV-HDR")
        assert bytes(found) == b"agent> \xff\rx\r\nM  1 COMPLD\r\n;"


async def test_a_peer_that_only_negotiates_is_silent() -> None:
    async with scripted(*[send(DO, TERMINAL)] * 60, pause_s=0.01, timeout_s=0.2) as (link, _):
        with pytest.raises(TimedOut, match=r'no answer to "map"'):
            await link.exchange(b"map\n", lambda chunk: True, question="map")


async def test_a_telnet_peer_that_hangs_up_is_dropped() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)

    async with serving(hang_up) as port:
        link = open_link(f"telnet://127.0.0.1:{port}", 1.0, "ocs1")
        await link.open()
        with pytest.raises(Dropped, match="ocs1"):
            await link.exchange(b"map\n", lambda chunk: True, question="map")
        await link.close()
    with pytest.raises(Unreachable, match="telnet://"):
        await link.open()


async def test_an_independent_telnet_server_understands_the_link() -> None:
    seen: list[str] = []

    async def shell(reader: telnetlib3.TelnetReader, writer: telnetlib3.TelnetWriter) -> None:
        writer.write("agent> ")
        while line := (await reader.readline()).strip():
            seen.append(line)
            writer.write(f"you said {line}\r\nagent> ")
        writer.close()

    server = await telnetlib3.create_server(
        host="127.0.0.1",
        port=0,
        shell=shell,
        connect_maxwait=0.3,
        encoding="ascii",
        force_binary=True,
    )
    port = server.sockets[0].getsockname()[1]
    link = open_link(f"telnet://127.0.0.1:{port}", 3.0, "ocs1")
    await link.open()
    try:
        for question in ("RTRV-HDR:::1;", "RTRV-CRS:::2;"):
            found = bytearray()

            def complete(chunk: bytes, found: bytearray = found, question: str = question) -> bool:
                found.extend(chunk)
                return f"you said {question}".encode() in found

            await link.exchange(question.encode() + b"\n", complete, question=question)
            assert b"\xff" not in found
        assert seen == ["RTRV-HDR:::1;", "RTRV-CRS:::2;"]
    finally:
        await link.close()
        server.close()
        await server.wait_closed()
