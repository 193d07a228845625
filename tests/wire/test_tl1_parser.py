"""The TL1 parser against the grammar, the table of malformed streams, and every way a stream can be
cut.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from drivers.wire import tl1
from drivers.wire.tl1 import Autonomous, Parser, Reply, Unreadable
from optics import Garbled

HEADER = "\r\n\n   SID 26-01-01 12:00:00\r\n"
ALARM = HEADER + '*C  123 REPT ALM CRS\r\n   "1.1.1-1.1.2:CR,LOS,SA"\r\n;'


def reply(ctag: str, *lines: str, code: str = "COMPLD", end: str = ";") -> str:
    return HEADER + f"M  {ctag} {code}\r\n" + "".join(f"   {line}\r\n" for line in lines) + end


def parse(*pieces: str) -> list[tl1.Message]:
    parser = Parser()
    return [message for piece in pieces for message in parser.feed(piece.encode("latin-1"))]


def test_a_completed_answer_has_rows_without_quotes() -> None:
    assert parse(reply("7", '"a:K=1"', '"b:K=2"')) == [
        Reply("7", "COMPLD", "SID", rows=("a:K=1", "b:K=2"))
    ]


def test_an_answer_ends_at_its_semicolon_without_a_line_end() -> None:
    assert len(parse(reply("7"))) == 1


def test_a_denial_has_its_code_and_its_text() -> None:
    (denial,) = parse(reply("7", "PLNA", "/* Login Not Active */", code="DENY"))
    assert isinstance(denial, Reply)
    assert not denial.completed
    assert (denial.error, denial.comments) == ("PLNA", ("Login Not Active",))
    assert denial.message == "PLNA, Login Not Active"


def test_alarming_words_in_a_comment_change_nothing() -> None:
    notice = "/* NOTICE unauthorized access is denied; failed logins */"
    (message,) = parse(reply("1", '"u:u,2"', notice))
    assert isinstance(message, Reply)
    assert message.completed
    assert message.error == ""


def test_a_comment_may_run_over_several_lines_with_semicolons_and_codes_inside() -> None:
    (message,) = parse(reply("1", "/* NOTICE", "M  1 DENY", ";", "PLNA", "end */", '"row:K=1"'))
    assert isinstance(message, Reply)
    assert message.completed
    assert message.rows == ("row:K=1",)


def test_continuation_blocks_become_one_answer() -> None:
    stream = (
        reply("mon", '"1"', '"2"', end=">\r\n<")
        + reply("mon", '"3"', end=">\r\n<")
        + reply("mon", '"4"')
    )
    assert parse(stream) == [Reply("mon", "COMPLD", "SID", rows=("1", "2", "3", "4"))]


def test_an_autonomous_message_between_continuation_blocks_is_kept_apart() -> None:
    stream = reply("9", '"1"', end=">\r\n<") + ALARM + reply("9", '"2"')
    alarm, answer = parse(stream)
    assert alarm == Autonomous("*C", "123", ("REPT", "ALM", "CRS"), ("1.1.1-1.1.2:CR,LOS,SA",))
    assert answer == Reply("9", "COMPLD", "SID", rows=("1", "2"))


@pytest.mark.parametrize("lines", [0, 1, 2, 3, 4])
def test_an_autonomous_message_may_stand_anywhere_inside_an_answer(lines: int) -> None:
    body = reply("9", '"1"', '"2"').removesuffix(";").split("\r\n")
    cut = (
        "\r\n".join(body[: lines + 1])
        + "\r\n"
        + ALARM
        + "\r\n"
        + "\r\n".join(body[lines + 1 :])
        + ";"
    )
    messages = parse(cut)
    assert Reply("9", "COMPLD", "SID", rows=("1", "2")) in [
        Reply(m.ctag, m.code, "SID", rows=m.rows) for m in messages if isinstance(m, Reply)
    ]
    assert [m for m in messages if isinstance(m, Autonomous)]
    assert not [m for m in messages if isinstance(m, Unreadable)]


@pytest.mark.parametrize("prompt", ["agent> ", "<", "agent> \r\n", "<\r\n"])
@pytest.mark.parametrize("lines", [0, 1, 2, 3, 4, 5])
def test_the_prompt_after_a_message_inside_an_answer_is_not_part_of_the_answer(
    lines: int, prompt: str
) -> None:
    body = reply("9", '"1"', '"2"', "/* c */").removesuffix(";").split("\r\n")
    cut = (
        "\r\n".join(body[: lines + 1])
        + "\r\n"
        + ALARM
        + "\r\n"
        + prompt
        + "\r\n".join(body[lines + 1 :])
        + ";"
        + prompt
    )
    (found,) = [message for message in parse(cut) if isinstance(message, Reply)]
    assert (found.ctag, found.rows, found.stray, found.completed) == ("9", ("1", "2"), (), True)


@pytest.mark.parametrize(
    ("line", "alarm", "verb"),
    [
        ("A  123 REPT DBCHG EVT SECU IDVN", "A", ("REPT", "DBCHG", "EVT", "SECU", "IDVN")),
        ("*C  123 REPT ALM CRS", "*C", ("REPT", "ALM", "CRS")),
        (
            "**  123 REPT ALM ENV DBCHG EVT SECU",
            "**",
            ("REPT", "ALM", "ENV", "DBCHG", "EVT", "SECU"),
        ),
        ("*^  123 REPT ALM", "*^", ("REPT", "ALM")),
        ("* 123 REPT ALM", "*", ("REPT", "ALM")),
    ],
)
def test_every_alarm_code_is_known(line: str, alarm: str, verb: tuple[str, ...]) -> None:
    assert parse(HEADER + line + "\r\n;") == [Autonomous(alarm, "123", verb)]


@pytest.mark.parametrize(
    "sid", ["SID", "( nil )", "host-1.lab.example", "Switch Room 4", "CALIENT01TS"]
)
def test_the_source_identifier_may_hold_blanks_dots_and_brackets(sid: str) -> None:
    assert parse(f"\r\n\n   {sid} 16-10-31 15:03:06\r\nM  0 COMPLD\r\n;") == [
        Reply("0", "COMPLD", sid)
    ]


@pytest.mark.parametrize(
    "noise",
    [
        "agent> ",
        "<",
        "<RTRV-NE:::5;\r\n",
        "\xff\xfd\x18\xff\xfb\x01",
        '\x1b[62;1"p >  [?4l',
        "Welcome; please log in;\r\n",
        ";;;",
    ],
)
def test_prompts_echoes_and_noise_around_answers_are_ignored(noise: str) -> None:
    stream = noise + reply("5", '"a"') + noise + reply("6", '"b"') + noise
    assert [m.rows for m in parse(stream) if isinstance(m, Reply)] == [("a",), ("b",)]


def test_a_prompt_glued_to_the_header_does_not_hide_it() -> None:
    stream = "agent>    SID 26-01-01 12:00:00\r\nM  5 COMPLD\r\n;agent> "
    assert parse(stream) == [Reply("5", "COMPLD", "SID")]


def test_an_answer_whose_header_is_damaged_is_still_an_answer() -> None:
    assert parse('\r\n\n   SID 26-0?-01 12:0\r\nM  5 COMPLD\r\n   "a"\r\n;') == [
        Reply("5", "COMPLD", rows=("a",))
    ]


def test_semicolons_in_quotes_do_not_end_an_answer() -> None:
    (message,) = parse(reply("5", '"name; with; dots:K=\\"a;b\\""'))
    assert isinstance(message, Reply)
    assert message.rows == ('name; with; dots:K=\\"a;b\\"',)


MALFORMED = {
    "no identification line": (HEADER + "what is this\r\n;", Unreadable),
    "completion code in lower case": (HEADER + "M  5 compld\r\n;", Unreadable),
    "no ctag": (HEADER + "M COMPLD\r\n;", Unreadable),
    "alarm without a verb": (HEADER + "*C  123\r\n;", Unreadable),
    "an answer inside an answer": (reply("5", '"a"', end="") + reply("6", '"b"'), Unreadable),
    "a row that never closes": (reply("5", '"a:K=1'), Reply),
    "text that is no row": (reply("5", "a:K=1"), Reply),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_messages_never_pass_as_rows(name: str) -> None:
    stream, kind = MALFORMED[name]
    first = parse(stream)[0]
    assert isinstance(first, kind)
    if isinstance(first, Reply):
        assert first.rows == ()
        assert first.stray


def test_a_stream_without_line_ends_is_given_up() -> None:
    parser = Parser()
    with pytest.raises(Garbled, match="no line end"):
        for _ in range(100):
            parser.feed(b"x" * 1000)


STREAM = (
    "agent> "
    + ALARM
    + reply("1", '"admin:admin,2"', "/* NOTICE", "   ;denied */")
    + "\r\nagent> "
    + reply("2", '"a:K=1"', end=">\r\n<")
    + ALARM
    + reply("2", '"b:K=2"')
    + reply("3", "SROF", "/* Invalid Connection */", code="DENY")
    + reply("0", '"x:K=\\"1;2\\""')
)


def test_one_byte_at_a_time_gives_the_same_messages() -> None:
    assert parse(*STREAM) == parse(STREAM)
    assert len(parse(STREAM)) == 6


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_a_stream_cut_anywhere_gives_the_same_messages(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    assert parse(*[STREAM[a:b] for a, b in pairwise(edges)]) == parse(STREAM)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_no_bytes_make_the_parser_raise_anything_but_garbled(noise: bytes) -> None:
    parser = Parser()
    for piece in (noise, HEADER.encode(), noise, STREAM.encode()):
        try:
            parser.feed(piece)
        except Garbled:
            return


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_damaged_byte_never_changes_another_answer(data: st.DataObject) -> None:
    """Whatever happens to the answer with tag 1, the answer with tag 2 behind it is whole or
    missing, never different.
    """
    first, second = reply("1", '"a:K=1"'), reply("2", '"b:K=2"', '"c:K=3"')
    at = data.draw(st.integers(0, len(first) - 1))
    damaged = (
        first[:at] + data.draw(st.characters(min_codepoint=0, max_codepoint=255)) + first[at + 1 :]
    )
    assume("M  2 " not in damaged)  # the damage hit the tag itself: nothing can tell then
    answers = [m for m in parse(damaged + second) if isinstance(m, Reply) and m.ctag == "2"]
    assert [m.rows for m in answers if m.completed] in ([], [("b:K=2", "c:K=3")])


def test_rows_are_read_by_key_whatever_their_order() -> None:
    text = "uplink_7:WX,NONE,NONE:DSTPORT=0.7b.6,SRCPORT=0.7b.4,AS=UMA,MATRIXUSED=12.3"
    row = tl1.parse_row(text)
    assert (row.name, row.positional, row["SRCPORT"], row["MATRIXUSED"]) == (
        "uplink_7",
        ("WX", "NONE", "NONE"),
        "0.7b.4",
        "12.3",
    )
    with pytest.raises(Garbled, match="has no OS"):
        row["OS"]


def test_escaped_quotes_protect_punctuation_in_a_row() -> None:
    assert tl1.parse_row('1.1.1:ALIAS=\\"a,b:c=d\\",INPWR=-3.10').fields == {
        "ALIAS": "a,b:c=d",
        "INPWR": "-3.10",
    }


@pytest.mark.parametrize("bad", ['a"b', "a\nb", "é", "a\\b"])
def test_a_password_no_tl1_string_can_carry_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        tl1.quoted(bad)


def test_a_password_with_punctuation_is_quoted() -> None:
    assert tl1.command("ACT-USER", "u", "1", tl1.quoted("p;w:1")) == 'ACT-USER::u:1::"p;w:1";'
