"""SCPI answers: what is read, what is refused, and every place where a line can be cut."""

from __future__ import annotations

import doctest
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers.wire import calient_rows, scpi, tl1
from optics import Garbled


@pytest.mark.parametrize("module", [scpi, tl1, calient_rows])
def test_the_examples_in_the_docstrings_are_true(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "lists"),
    [
        ("(@1,2,3),(@19,18,22)", [(1, 2, 3), (19, 18, 22)]),
        ("(@),(@)", [(), ()]),
        ("( @ 1, 2 ) , (@ 17:19)", [(1, 2), (17, 18, 19)]),
        ("(@3:1)", [(3, 2, 1)]),
    ],
)
def test_channel_lists_are_read(text: str, lists: list[tuple[int, ...]]) -> None:
    assert scpi.parse_channels(text) == lists


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        "(@1,2",
        "(@1,,2)",
        "(@1,2),",
        "(@1)(@2)",
        "(@1,x)",
        "(1,2)",
        "(@1);(@2)",
        "(@1:2:3)",
        "(@1:99999)",
        "(@1234567)",
        '-200,"no"',
        "(@-1)",
    ],
)
def test_malformed_channel_lists_are_garbled(text: str) -> None:
    with pytest.raises(Garbled):
        scpi.parse_channels(text)


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ('0,"No error"', 0, "No error"),
        ('-200,"Execution error; port in use"', -200, "Execution error; port in use"),
        ('+0, "No Error"', 0, "No Error"),
        ('-109,"Missing ""parameter"" here"', -109, 'Missing "parameter" here'),
        ("+0, No Error", 0, "No Error"),
    ],
)
def test_error_queue_entries_are_read(text: str, code: int, message: str) -> None:
    assert scpi.parse_error(text) == scpi.QueuedError(code, message)


@pytest.mark.parametrize(
    "text", ["", "0", "No error", '"0",No error', '0,"No error', "(@1),(@2)", '0,"a",1']
)
def test_malformed_error_entries_are_garbled(text: str) -> None:
    with pytest.raises(Garbled):
        scpi.parse_error(text)


@pytest.mark.parametrize(
    "text",
    ["(-29.55)", "(-29.55,)", "(-29.55,x)", "(-29.55,-30", "", "(nan,1)", "(1,2,3)", "(@1,2)"],
)
def test_malformed_power_readings_are_garbled(text: str) -> None:
    with pytest.raises(Garbled):
        scpi.parse_numbers(text, 2)


@pytest.mark.parametrize("text", ["", "a,b,c", "a,b,c,d,e", ",,,", "Polatis"])
def test_malformed_identities_are_garbled(text: str) -> None:
    with pytest.raises(Garbled):
        scpi.parse_identity(text)


@pytest.mark.parametrize("text", ["16", "16,16,16", "16,x", ""])
def test_malformed_sizes_are_garbled(text: str) -> None:
    with pytest.raises(Garbled):
        scpi.parse_integers(text, 2)


def test_a_quoted_string_loses_its_quotes() -> None:
    assert (scpi.parse_string('"18"'), scpi.parse_string('""')) == ("18", "")
    with pytest.raises(Garbled):
        scpi.parse_string('"18')


LINES = b'(@1,2),(@17,18)\r\n\r\n0,"No error"\nPolatis,I-OST-24x24-LU1-DMHNS,002414,6.5.2.18\n'


@given(st.lists(st.integers(0, len(LINES)), max_size=6))
def test_lines_cut_anywhere_are_the_same(cuts: list[int]) -> None:
    lines, edges = scpi.Lines(), [0, *sorted(cuts), len(LINES)]
    found = [line for a, b in pairwise(edges) for line in lines.feed(LINES[a:b])]
    assert found == [
        "(@1,2),(@17,18)",
        '0,"No error"',
        "Polatis,I-OST-24x24-LU1-DMHNS,002414,6.5.2.18",
    ]


def test_one_byte_at_a_time_gives_the_same_lines() -> None:
    lines = scpi.Lines()
    assert len([line for i in range(len(LINES)) for line in lines.feed(LINES[i : i + 1])]) == 3


@pytest.mark.parametrize("end", [b"\r", b"\n", b"\r\n", b"\n\r"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_line_ends_with_either_end_or_both(end: bytes, whole: bool) -> None:
    lines, stream = scpi.Lines(), b"X1" + end + b"1,2" + end
    pieces = [stream] if whole else [stream[i : i + 1] for i in range(len(stream))]
    assert [line for piece in pieces for line in lines.feed(piece)] == ["X1", "1,2"]


def test_an_answer_without_end_is_given_up() -> None:
    lines = scpi.Lines()
    with pytest.raises(Garbled, match="no line end"):
        for _ in range(20):
            lines.feed(b"x" * 100_000)


@given(st.text(max_size=60))
def test_no_text_makes_a_parser_raise_anything_but_garbled(text: str) -> None:
    for parse in (scpi.parse_channels, scpi.parse_error, scpi.parse_string, scpi.parse_identity):
        try:
            parse(text)
        except Garbled:
            pass


@given(st.lists(st.integers(1, 576), max_size=40))
def test_a_channel_list_is_read_back_as_written(numbers: list[int]) -> None:
    assert scpi.parse_channels(scpi.channels(numbers)) == [tuple(numbers)]
