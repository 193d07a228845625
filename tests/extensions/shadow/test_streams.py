"""Captured packets become streams again: whatever their order, cut, repeated, lost or invented."""

from __future__ import annotations

import random
import re
import struct

import pytest

from extensions.shadow.rank.segments import BLOCK, PACKET, segments
from extensions.shadow.rank.streams import ALIKE, FLOWS, HOLES, Budget, Stream, Streams

NAME = re.compile(r"set/[0-9]+:[0-9]+/[0-9]+")
FLOW = b"\x0a\0\0\1\x0a\0\0\2" + struct.pack("!HH", 5000, 6000)


def packet(
    sequence: int,
    payload: bytes,
    flags: int = 16,
    *,
    flow: bytes = FLOW,
    options: int = 0,
    protocol: int = 6,
) -> bytes:
    """An IPv4 packet with a TCP segment."""
    tcp = (
        flow[8:]
        + struct.pack("!IIBBHHH", sequence & 0xFFFFFFFF, 0, (5 + options) << 4, flags, 0, 0, 0)
        + bytes(4 * options)
    )
    return (
        struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp) + len(payload), 0, 0x4000, 64, protocol, 0)
        + flow[:8]
        + tcp
        + payload
    )


def block(*packets: bytes, cut: int = 0) -> bytes:
    """A block as the kernel fills it: each packet after its header, 16 bytes further."""
    body = b""
    for n, each in enumerate(packets):
        size = PACKET.size + 20 + len(each)
        size += -size % 16
        onward = size if n + 1 < len(packets) else 0
        held = (
            PACKET.pack(
                onward, 0, 0, len(each) - cut, len(each), 1, PACKET.size + 20, PACKET.size + 20
            )
            + bytes(20)
            + each
        )
        body += held.ljust(size, b"\0")
    return BLOCK.pack(2, 0, 1, len(packets), 48, 48 + len(body), 1).ljust(48, b"\0") + body


def taken(*blocks: bytes) -> Streams:
    streams = Streams(NAME)
    for each in blocks:
        for segment in segments(memoryview(each)):
            streams.take(segment)
    return streams


def text(stream: Stream, begin: int, end: int) -> bytes:
    assert stream.has(begin, end)
    found = bytearray(end - begin)
    stream.copy(begin, end, memoryview(found))
    return bytes(found)


def test_segments_come_out_of_a_block_whatever_their_headers_and_padding_are() -> None:
    found = [
        (key, sequence, flags, bytes(payload))
        for key, sequence, flags, payload in segments(
            memoryview(
                block(
                    packet(7, b"abc") + bytes(17),
                    packet(10, b"de", 24, options=3),
                    packet(0, b"x", protocol=17),
                )
            )
        )
    ]
    assert found == [(FLOW, 7, 16, b"abc"), (FLOW, 10, 24, b"de")]
    assert [bytes(s[3]) for s in segments(memoryview(block(packet(1, b"abcdef"), cut=2)))] == [
        b"abcd"
    ], "cut off by the ring"
    fragment = bytearray(packet(1, b"abc"))
    fragment[6:8] = b"\x20\x01"
    assert not list(segments(memoryview(block(bytes(fragment)))))


def test_nothing_that_a_packet_says_leads_out_of_its_block() -> None:
    draw = random.Random(1)
    whole = block(packet(7, b"abc"), packet(10, bytes(100)), packet(200, b"z" * 30, options=10))
    for _ in range(3000):
        wrong = bytearray(whole)
        for _ in range(draw.randrange(1, 6)):
            wrong[draw.randrange(len(wrong))] = draw.randrange(256)
        for _, sequence, _, payload in segments(
            memoryview(wrong[: draw.randrange(len(wrong) + 1)])
        ):
            assert 0 <= sequence < 1 << 32 and len(payload) <= len(wrong)


@pytest.mark.parametrize("initial", [0, 1000, 0xFFFFFF00, 0xFFFFFFFF])
def test_a_stream_is_whole_again_in_any_order_with_repetitions_and_beyond_the_end_of_its_numbers(
    initial: int,
) -> None:
    draw = random.Random(initial)
    content = bytes(draw.randrange(256) for _ in range(5000))
    pieces, at = [], 0
    while at < len(content):
        size = draw.randrange(1, 300)
        pieces.append((at, content[at : at + size]))
        at += size
    # sent again, cut otherwise
    pieces += [(begin, content[begin : begin + 400]) for begin in draw.sample(range(4500), 20)]
    draw.shuffle(pieces)
    budget = Budget()
    stream = Stream(initial, budget)
    for begin, piece in pieces:
        stream.feed((initial + 1 + begin) & 0xFFFFFFFF, memoryview(piece))
    assert text(stream, 0, 5000) == content and stream.missing(0, 6000) == 1000
    stream.drop(4000)
    assert (stream.has(3999, 4001), text(stream, 4000, 5000), budget.used) == (
        False,
        content[4000:],
        1000,
    )
    stream.feed((initial + 1 + 3990) & 0xFFFFFFFF, memoryview(content[3990:4010]))
    assert stream.start == 4000 and budget.used == 1000, "what was dropped does not come back"


def test_more_than_four_gigabytes_pass_through_one_stream() -> None:
    stream = Stream(0xFFFFFFF0, Budget(), most=1 << 40)
    for at in range(0, 9 << 30, 1 << 30):
        stream.drop(at)
        stream.feed((0xFFFFFFF1 + at) & 0xFFFFFFFF, memoryview(b"here"))
        assert text(stream, at, at + 4) == b"here"


def test_what_is_missing_is_known_and_can_still_come() -> None:
    stream = Stream(0, Budget())
    stream.feed(1, memoryview(b"abc"))
    stream.feed(8, memoryview(b"hij"))
    assert stream.has(0, 3) and stream.has(7, 10) and not stream.has(2, 8)
    assert (stream.missing(0, 10), stream.missing(4, 6), stream.missing(9, 12)) == (4, 2, 2)
    stream.feed(5, memoryview(b"ef"))
    assert stream.missing(0, 10) == 2 and not stream.has(3, 5)
    stream.feed(2, memoryview(b"XXdXXgXX"))
    assert text(stream, 0, 10) == b"abcdefghij", "what was seen first counts"


def test_memory_is_bounded_by_the_stream_and_by_all_of_them() -> None:
    budget = Budget(most=100)
    one, other = Stream(0, budget, most=60), Stream(0, budget, most=60)
    one.feed(1, memoryview(bytes(50)))
    one.feed(51, memoryview(bytes(20)))
    one.feed(2_000_000, memoryview(b"far ahead"))
    assert one.end == 50
    other.feed(1, memoryview(bytes(50)))
    other.feed(51, memoryview(bytes(1)))
    assert (other.end, budget.used) == (50, 100)
    one.drop(10)
    other.feed(51, memoryview(bytes(1)))
    assert (other.end, budget.used) == (51, 91)
    many = Stream(0, Budget(), most=1 << 20)
    for n in range(2 * HOLES):
        many.feed(2 + 2 * n, memoryview(b"x"))
    assert many.end == 2 * HOLES


def greeting(name: str) -> bytes:
    return struct.pack("!H", len(name)) + name.encode()


def test_a_connection_is_known_by_the_name_it_says_first() -> None:
    hello = greeting("set/0:1/2")
    streams = taken(
        block(packet(99, b"", 2), packet(100 + 4, hello[4:] + b"data"), packet(100, hello[:4])),
        block(packet(100 + len(hello) + 4, b"more")),
    )
    [(stream, at)] = streams.named["set/0:1/2"]
    assert at == len(hello) and text(stream, at, at + 8) == b"datamore"


def test_other_connections_and_such_whose_beginning_was_not_seen_are_left_out() -> None:
    other, third = FLOW[:-1] + b"\7", FLOW[:-1] + b"\x08"
    streams = taken(
        block(packet(5, greeting("set/0:1/2"))),
        block(
            packet(9, b"", 2, flow=other),
            packet(10, greeting("GET /"), flow=other),
            packet(17, b"and more", flow=other),
        ),
        block(packet(9, b"", 2, flow=third), packet(10, b"\xff\xff" + bytes(300), flow=third)),
    )
    assert streams.named == {}


def test_a_stranger_who_says_the_same_name_replaces_nothing_and_strangers_are_forgotten_first() -> (
    None
):
    hello = greeting("set/0:1/2")
    streams = taken(block(packet(99, b"", 2), packet(100, hello + b"mine")))
    for n in range(2 * FLOWS):
        flow = FLOW[:8] + struct.pack("!HH", 7 + n % 60000, n // 60000)
        streams.take((flow, 50, 2, memoryview(b"")))
    assert len(streams._flows) <= FLOWS
    streams.take((FLOW, 100 + len(hello) + 4, 16, memoryview(b"!")))
    for n in range(ALIKE - 1):
        flow = FLOW[:8] + struct.pack("!HH", 9, n)
        streams.take((flow, 50, 2, memoryview(b"")))
        streams.take((flow, 51, 16, memoryview(hello + b"evil")))
    alike = streams.named["set/0:1/2"]
    assert len(alike) == ALIKE and text(alike[0][0], len(hello), len(hello) + 5) == b"mine!"
    streams.take((FLOW, 99, 2, memoryview(b"")))
    streams.take((FLOW, 100, 4, memoryview(b"")))
    assert text(alike[0][0], len(hello), len(hello) + 5) == b"mine!", (
        "neither its SYN again nor a forged reset harms it"
    )
    streams.forget("set/0:")
    assert streams.named == {}


def test_names_that_never_carried_anything_make_room_for_new_ones() -> None:
    streams = Streams(NAME)
    for n in range(FLOWS + 5):
        flow = FLOW[:8] + struct.pack("!HH", 1 + n % 60000, 2)
        hello = greeting(f"set/{n}:0/0")
        streams.take((flow, 50, 2, memoryview(b"")))
        streams.take((flow, 51, 16, memoryview(hello + b"data" * (n == 0))))
    assert (
        len(streams.named) == FLOWS
        and "set/0:0/0" in streams.named
        and f"set/{FLOWS + 4}:0/0" in streams.named
    )
    assert "set/1:0/0" not in streams.named
