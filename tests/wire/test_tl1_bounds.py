"""The TL1 parser under bad will: no input takes more than its length in time or memory, none raises
anything but Garbled.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drivers.wire import tl1
from drivers.wire.tl1 import (
    DEEPEST,
    LONGEST_LINE,
    MOST_TAGS,
    Autonomous,
    Message,
    Parser,
    Reply,
    Unreadable,
)
from optics import Garbled

HEADER = b"\r\n\n   SID 26-01-01 12:00:00\r\n"


def fed(data: bytes, piece: int) -> list[Message]:
    parser = Parser()
    return [
        message
        for at in range(0, len(data), piece)
        for message in parser.feed(data[at : at + piece])
    ]


@pytest.mark.parametrize(
    "line",
    [
        b" " * 399,
        b" 26-01-01" * 40,
        b"A 1 " + b"A " * 190,
        b"M" + b" " * 390 + b"1",
        b"\t " * 199 + b"26-01-01",
        b'"' + b"x" * 60_000,
        b"   " + b'"a' * 20_000,
    ],
    ids=["blanks", "dates", "alarm", "M", "tabs", "open quote", "many quotes"],
)
@pytest.mark.parametrize("before", [b"", HEADER, HEADER + b"M  1 COMPLD\r\n"])
def test_no_line_takes_for_ever_to_tell_from_a_header(line: bytes, before: bytes) -> None:
    fed(before + line + b"\r\n", 1 << 16)


@pytest.mark.parametrize("character", [b";", b'";', b"/*", b"/", b"\\", b'"\\";'])
def test_a_long_last_line_is_searched_once_in_one_byte_pieces(character: bytes) -> None:
    start = HEADER + b'M  1 COMPLD\r\n   "'
    # searched again with every byte it takes minutes, more than a test may
    fed(start + (character * LONGEST_LINE)[: LONGEST_LINE - 100], 1)


def test_a_long_dump_has_all_of_its_rows_whatever_the_pieces() -> None:
    rows = b"".join(b'   "1.1.%d:WX,NONE,NONE:INAS=IS,OUTAS=IS"\r\n' % n for n in range(4000))
    for piece in (1, 7, 1500, 1 << 20):
        found = fed(HEADER + b"M  1 COMPLD\r\n" + rows + b";", piece)
        assert [len(m.rows) for m in found if isinstance(m, Reply)] == [4000]


def test_messages_inside_messages_are_not_kept_for_ever() -> None:
    parser = Parser()
    found = parser.feed((HEADER + b"A  1 REPT EVT X\r\n   note\r\n") * 1000)
    assert len(parser._stack) <= DEEPEST
    assert sum(isinstance(m, Unreadable) for m in found) >= 1000 - DEEPEST


def test_answers_begun_in_blocks_and_never_ended_are_not_kept_for_ever() -> None:
    parser = Parser()
    found = [
        m
        for n in range(1000)
        for m in parser.feed(HEADER + b'M  %d COMPLD\r\n   "row"\r\n>\r\n<' % n)
    ]
    assert len(parser._parts) == MOST_TAGS
    assert len(found) == 1000 - MOST_TAGS
    assert parser._held < MOST_TAGS * 100


@pytest.mark.parametrize("piece", [1, 1000])
def test_an_answer_that_goes_on_and_ends_at_once_has_ended(piece: int) -> None:
    (reply,) = fed(HEADER + b"M  7 COMPLD\r\n>;", piece)
    assert isinstance(reply, Reply) and (reply.ctag, reply.stray) == ("7", (">",))
    (reply,) = fed(HEADER + b"M  7 COMPLD\r\n>;\r\n", piece)
    assert isinstance(reply, Reply) and reply.completed


def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tl1, "LARGEST", 100_000)
    parser = Parser()
    parser.feed(HEADER + b"M  1 COMPLD\r\n")
    with pytest.raises(Garbled, match="unfinished"):
        for _ in range(10_000):
            parser.feed(b'   "row after row after row"\r\n')


def test_a_comment_without_end_counts_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tl1, "LARGEST", 100_000)
    parser = Parser()
    parser.feed(HEADER + b"M  1 COMPLD\r\n/* NOTICE\r\n")
    with pytest.raises(Garbled, match="unfinished"):
        for _ in range(10_000):
            parser.feed(b"   you are watched\r\n")


def test_what_was_held_is_let_go_with_its_message() -> None:
    parser = Parser()
    for n in range(50):
        block = b'M  %d COMPLD\r\n   "row"\r\n   /* a\r\n b */\r\n' % n
        parser.feed(
            HEADER + block + b">\r\n<" + HEADER + block + b";" + HEADER + b"A  1 REPT EVT\r\n;"
        )
    assert parser._held == 0


lines = st.sampled_from(
    [
        b"",
        b"   SID 26-01-01 12:00:00",
        b"M  1 COMPLD",
        b"M  2 DENY",
        b"*C  7 REPT ALM CRS",
        b'   "a:K=1"',
        b'   "b:K=\\"x;y\\""',
        b"   /* one ; */",
        b"   /* open",
        b"   shut */",
        b"   PLNA",
        b";",
        b">",
        b"<",
        b"agent> ",
        b"<RTRV-CRS:::1;",
        b'   "open',
        b";agent>    SID 26-01-01 12:00:00",
    ]
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(lines, max_size=25),
    st.sampled_from([b"\r\n", b"\n"]),
    st.lists(st.integers(0, 600), max_size=6),
)
def test_any_order_of_real_lines_cut_anywhere_gives_the_same_messages(
    parts: list[bytes], eol: bytes, cuts: list[int]
) -> None:
    stream = eol.join(parts)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    whole, bytewise, cut = Parser(), Parser(), Parser()
    found = whole.feed(stream)
    assert [m for at in range(len(stream)) for m in bytewise.feed(stream[at : at + 1])] == found
    assert [m for a, b in pairwise(edges) for m in cut.feed(stream[a:b])] == found
    assert whole._held == bytewise._held == cut._held >= 0
    assert all(isinstance(m, Reply | Autonomous | Unreadable) for m in found)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=120))
def test_no_row_makes_the_reader_raise_anything_but_garbled(row: str) -> None:
    found = tl1.parse_row(row)
    assert all(key and key == key.upper() for key in found.fields)
    with pytest.raises(Garbled):
        found["NO SUCH KEY"]


@pytest.mark.parametrize(
    ("stream", "rows"),
    [
        (b'\n\n   SID 26-01-01 12:00:00\nM  5 COMPLD\n   "a"\n;', ("a",)),
        (
            b'<RTRV-X:::5;RTRV-X:::5;\r\n\r\n\n   SID 26-01-01 12:00:00\r\nM  5 COMPLD\r\n   "a"\r\n;\r\n<',
            ("a",),
        ),
        (b'\x1b[62;1"p >  [?4l   SID 26-01-01 12:00:00\r\nM  5 COMPLD\r\n   "a"\r\n;', ("a",)),
        (
            b'agent> RTRV-X:::5;\r\n\r\n\n   ( nil ) 26-01-01 12:00:00\r\nM  5 COMPLD\r\n   "a"\r\n;agent> ',
            ("a",),
        ),
    ],
    ids=["line feeds only", "echo twice behind a prompt", "terminal noise", "prompt and echo"],
)
@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_answers_of_every_manner_are_read(stream: bytes, rows: tuple[str, ...], piece: int) -> None:
    (reply,) = fed(stream, piece)
    assert isinstance(reply, Reply)
    assert (reply.ctag, reply.rows) == ("5", rows)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("LAB-1", '"LAB-1"'),
        ("Switch Room 4", '"Switch Room 4"'),
        ("( nil )", ""),
        ("(nil)", ""),
        ("", ""),
    ],
)
def test_a_target_is_quoted_and_no_name_is_none(name: str, written: str) -> None:
    assert tl1.target(name) == written


def test_a_target_no_string_can_carry_is_refused() -> None:
    with pytest.raises(ValueError, match="printable"):
        tl1.target('a"b')


@given(st.sets(st.integers(1, 9999), max_size=60), st.integers(1, 64))
def test_lists_of_ports_name_every_port_once(numbers: set[int], longest: int) -> None:
    found: list[int] = []
    for part, text in tl1.port_lists(numbers, longest):
        assert len(part) <= longest
        first, both, last = text.partition("&&")
        found += range(int(first), int(last) + 1) if both else map(int, text.split("&"))
    assert found == sorted(numbers)
