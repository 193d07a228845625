"""Telnet: what the device offers and answers, and that its dialect sees none of it. Referees:
telnetlib3 and bare bytes.
"""

import asyncio

import pytest
import telnetlib3
from hypothesis import given
from hypothesis import strategies as st

from emulators.devices.transports.telnet import DO, DONT, IAC, SB, SE, WILL, WONT, Telnet
from tests.emulators.emulated import Start

TELNET = {"scheme": "telnet"}
OFFERS = bytes((IAC, WILL, 1, IAC, WILL, 3, IAC, DO, 24, IAC, DO, 31))


async def test_a_device_offers_its_options_before_it_says_anything(start: Start) -> None:
    device = await start("calient-tl1", served=TELNET)
    client = await device.connect()
    assert await client.reader.readexactly(len(OFFERS)) == OFFERS
    assert await client.reader.readexactly(9) == b"\r\nagent> "


@pytest.mark.parametrize("chunking", ["whole", "split", "byte"])
async def test_a_telnet_library_reads_what_the_device_says(start: Start, chunking: str) -> None:
    device = await start("polatis-scpi", served=TELNET, chunking=chunking)
    reader, writer = await telnetlib3.open_connection(
        "127.0.0.1", device.server.port, encoding=False, connect_minwait=0.05, connect_maxwait=0.2
    )
    try:
        async with asyncio.timeout(3):
            writer.write(b"*IDN?\r\n")
            assert (await reader.readuntil(b"\n")).startswith(b"Polatis,N-VST-16x16")
            writer.write(b":oxc:swit:conn:add (@1),(@17)\r\n:oxc:swit:size?\r\n")
            assert (await reader.readuntil(b"\n")).strip() == b"16,16"
        await device.settle()
        assert device.lit() == {("1", "17")}
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ((DO, 1), ()),  # the device offered it: no answer to an acknowledgement
        ((DO, 3), ()),
        ((DO, 0), (WILL, 0)),
        ((DO, 34), (WONT, 34)),
        ((DO, 6), (WONT, 6)),
        ((WILL, 24), (SB, 24, 1, IAC, SE)),
        ((WILL, 31), ()),
        ((WILL, 3), (DO, 3)),
        ((WILL, 39), (DONT, 39)),
        ((WONT, 39), ()),
        ((DONT, 34), ()),
    ],
)
def test_a_request_is_answered_and_an_acknowledgement_is_not(
    asked: tuple[int, ...], answered: tuple[int, ...]
) -> None:
    telnet = Telnet()
    assert telnet.offers() == OFFERS
    for byte in (IAC, asked[0]):
        assert telnet.receive(bytes((byte,))) == (b"", b"")
    assert telnet.receive(bytes((asked[1],))) == (b"", bytes((IAC, *answered)) if answered else b"")
    assert telnet.receive(bytes((IAC, *asked))) == (
        b"",
        b"" if answered[:1] not in ((WONT,), (DONT,)) else bytes((IAC, *answered)),
    )


def test_options_may_be_switched_off_again() -> None:
    telnet = Telnet()
    telnet.offers()
    telnet.receive(bytes((IAC, DO, 1)))
    assert telnet.receive(bytes((IAC, DONT, 1))) == (b"", bytes((IAC, WONT, 1)))
    assert telnet.receive(bytes((IAC, DO, 1))) == (b"", bytes((IAC, WILL, 1)))


def test_text_is_what_is_left_without_sequences_however_it_is_cut() -> None:
    notice = (
        b"*ID"
        + bytes((IAC, SB, 31, 0, 80, IAC, IAC, 24, IAC, SE))
        + b"N?"
        + bytes((IAC, IAC, IAC, 241))
        + b"\r\0x\r\n"
    )
    wanted = b"*IDN?\xff\rx\r\n"
    for cut in range(len(notice) + 1):
        telnet = Telnet()
        assert telnet.receive(notice[:cut])[0] + telnet.receive(notice[cut:])[0] == wanted
    assert Telnet().encode(b"a\xffb") == b"a\xff\xffb"


def test_are_you_there_is_answered_and_a_break_is_control_c() -> None:
    assert Telnet().receive(bytes((IAC, 246))) == (b"", b"\r\n[Yes]\r\n")
    assert Telnet().receive(b"rm" + bytes((IAC, 244))) == (b"rm\x03", b"")


@given(pieces=st.lists(st.binary(max_size=30), max_size=20))
def test_no_bytes_upset_telnet_and_it_keeps_nothing_that_grows(pieces: list[bytes]) -> None:
    telnet = Telnet()
    for piece in pieces:
        text, answers = telnet.receive(piece)
        assert len(text) <= len(piece) and len(answers) <= 9 * len(piece)
    assert len(telnet._mine | telnet._yours) <= 6 and len(telnet._asked) <= 4


@given(data=st.binary(max_size=60))
def test_doubled_bytes_come_through(data: bytes) -> None:
    clean = data.replace(b"\0", b"")
    assert Telnet().receive(Telnet().encode(clean))[0] == clean


async def test_the_answers_of_telnet_never_fall_between_the_halves_of_a_doubled_byte(
    start: Start,
) -> None:
    device = await start("polatis-scpi", served=TELNET, chunking="byte")
    client = await device.connect()
    await client.reader.readexactly(len(OFFERS))
    session = device.server.dialect.sessions[0]
    device.server.dialect.send(session, device.server.loop.time(), b"\xff" * 50)
    device.server.changed()
    client.writer.write(bytes((IAC, DO, 6)) * 20)
    seen = Telnet()
    text, refusals = b"", b""
    async with asyncio.timeout(3):
        while len(text) < 50 or refusals.count(bytes((WONT,))) < 20:
            data = await client.reader.read(1)
            before = seen._state
            clean, _ = seen.receive(data)
            text += clean
            refusals += data if before == "command" and data == bytes((WONT,)) else b""
    assert text == b"\xff" * 50


async def test_a_hang_up_and_too_many_logins_end_the_connection(start: Start) -> None:
    device = await start("polatis-scpi", served=TELNET)
    device.server.add_fault("login-limit", limit=1)
    first = await device.connect()
    await first.reader.readexactly(len(OFFERS))
    second = await device.connect()
    assert await second.ended() in (OFFERS, b"")
    device.server.add_fault("drop-after", match="IDN")
    first.send("*IDN?\n")
    assert await first.ended() == b""


async def test_a_silent_session_is_dropped(start: Start) -> None:
    device = await start("polatis-scpi", served=TELNET, idle_s=0.05)
    client = await device.connect()
    assert await client.ended() == OFFERS
