"""The robots' tables and log lines: what was captured, tables torn at every byte, and nothing but
Garbled for anything else.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.transcript import read_transcript
from drivers.wire import joblog
from drivers.wire.joblog import Board, PortRow, Queue
from optics import Garbled

CLI = Path(__file__).parent.parent / "transcripts" / "cli"
LOG = "02-03-2031 04:05 CONNECTION OPERATION SUCCEEDED:E11[1AE11]<->W12[1AW12] OP:connect"


def captured(name: str, question: str) -> list[str]:
    """What was answered, prompts included."""
    exchanges = [
        exchange
        for exchange in read_transcript(CLI / f"{name}.txt").exchanges
        if exchange.question == question
    ]
    return [
        "\n".join(line for _, lines in exchange.answer for line in lines) + "\n"
        for exchange in exchanges
    ]


def body(text: str) -> str:
    """An answer as the session hands it on: up to the last prompt."""
    return text[: text.rindex("[") - len("ROME")] if "[" in text.splitlines()[-1] else text


TABLE = body(captured("rome-move", "port show")[1])


def rows_of(table: str) -> list[PortRow]:
    """The ports of a table, every row of which is understood."""
    found = joblog.port_table(table)
    assert not found.strange
    return [*found.rows.values()]


ROWS = rows_of(TABLE)


def test_the_captured_port_table_is_read() -> None:
    rows = rows_of(body(captured("rome-answers", "port show")[0]))
    # 1AE129 has no logical number
    assert [row.port for row in rows] == ["E1", "E2", "E3", "E128", "E129", "E141"]
    assert rows[0] == PortRow("E1", False, True, False, "W2", "A1")
    assert rows[4].logical == "B129"
    assert joblog.connected(rows) == frozenset()  # disconnected rows may still name a peer


def test_the_captured_table_of_an_older_panel_is_read() -> None:
    text = captured("afm-answers", "port show")[0]
    rows = rows_of(text[: text.rindex("s53")])
    assert joblog.connected(rows) == {("E5", "W6"), ("E6", "W5")}
    assert [row.port for row in rows if not row.enabled] == ["E109"]


def test_boards_say_who_they_are() -> None:
    assert joblog.board(captured("rome-answers", "show board")[0]) == Board(
        "Wave2Wave", "ROME500", "9727-4733-2222", "1.10.2.10", True
    )
    assert joblog.board(captured("afm-answers", "show board")[0]) == Board(
        "FiberZone", "AFM type 2", "9727-4733-2222", "1.6.2.1", True
    )


def test_a_queue_at_work_asks_for_homing_and_is_not_stuck() -> None:
    busy, empty = (
        joblog.pending(body(text)) for text in captured("rome-answers", "connection show pending")
    )
    assert busy == Queue((("E3", "W4"),), True, True, False)
    assert empty == Queue((), False, False, False)


def test_waiting_requests_are_listed_behind_the_one_in_process() -> None:
    text = captured("rome-answers", "connection show pending")[0]
    text = text.replace(
        "\n\nROME[TECH]# \n",
        "\n772     A1        A2        connect            CLI     admin              \n\n",
    )
    assert joblog.pending(text).moves == (("E3", "W4"), ("A1", "A2"))


@pytest.mark.parametrize(
    "text", ["", "Connection execution status: enabled", "no request in process"]
)
def test_half_a_queue_is_garbled(text: str) -> None:
    with pytest.raises(Garbled):
        joblog.pending(text)


def test_what_log_lines_say_of_moves() -> None:
    (created,) = captured("rome-answers", "connection create A1 to A2")
    ends = [end for line in joblog.without_logs(created)[1] if (end := joblog.ended(line))]
    assert [(end.pair, end.how, end.op) for end in ends] == [
        (("E1", "W2"), "skipped", "connect"),
        (("E2", "W1"), "succeeded", "connect"),
    ]
    # A label that does not fit its port, as one kept log line has it: the port counts.
    strange = joblog.ended(
        "02-03-2031 04:05 CONNECTION OPERATION FAILED:E14[1AE12]<->W13[1AW13] OP:connect"
    )
    assert strange and (strange.pair, strange.how, strange.op) == (
        ("E14", "W13"),
        "failed",
        "connect",
    )
    refused = joblog.ended(
        "02-03-2031 04:09 OPERATION VALIDATION FAILED:E31-W7 requestType=connect"
    )
    assert refused and (refused.pair, refused.how) == (("E31", "W7"), "invalid")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("logs", [1, 2])
def test_a_table_torn_at_any_byte_joins_to_what_it_was(end: str, logs: int) -> None:
    table = TABLE.replace("\n", end)
    tear = end + (LOG + end) * logs + end
    for at in range(len(table) + 1):
        text = table[:at] + tear + table[at:]
        clean, heard = joblog.without_logs(text)
        if at and table[at - 1] == "\r":
            continue  # between the two bytes of one line end nothing can be determined
        assert rows_of(clean) == ROWS, at
        assert heard == [LOG] * logs


@given(st.lists(st.integers(0, len(TABLE)), max_size=6))
def test_a_table_torn_in_several_places_joins_to_what_it_was(places: list[int]) -> None:
    text = TABLE
    for at in sorted(places, reverse=True):
        text = f"{text[:at]}\n{LOG}\n\n{text[at:]}"
    clean, heard = joblog.without_logs(text)
    assert rows_of(clean) == ROWS
    assert len(heard) == len(places)


def test_a_log_line_of_its_own_leaves_the_table_whole() -> None:
    first, _, rest = TABLE.partition("E2[1AE2]")
    assert rows_of(joblog.without_logs(f"{first}{LOG}\nE2[1AE2]{rest}")[0]) == ROWS


@pytest.mark.parametrize("width", [8, 9])
def test_the_last_column_may_be_eight_or_nine_wide(width: int) -> None:
    table = "\n".join(
        line[:79] + line[79:].strip().ljust(width) if line.startswith(("E", "W")) else line
        for line in TABLE.split("\n")
    )
    assert rows_of(table) == ROWS


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Unlocked", "Unl0cked"),
        ("Disconnected", "Disconn"),
        ("0       ", "x       "),
        ("=", "-"),
    ],
)
def test_a_table_without_a_row_that_is_understood_is_garbled(old: str, new: str) -> None:
    with pytest.raises(Garbled):
        joblog.port_table(TABLE.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "ports"),
    [
        # no row begins there: it is more of E2's
        ("E3[1AE3]         Unlocked", "E3[1AE3]         Unl0cked", {"E2", "E3"}),
        ("[1AE3]", "[1AE3", {"E2", "E3"}),
        ("A4 ", "A4 A6 ", {"E4"}),
    ],
)
def test_a_malformed_row_makes_its_ports_unknown_and_leaves_the_others(
    old: str, new: str, ports: set[str]
) -> None:
    table = joblog.port_table(TABLE.replace(old, new, 1))
    assert {port for row in table.strange for port in row.ports} >= ports
    assert [row for row in ROWS if row.port not in table.unread] == [*table.rows.values()]


def test_a_line_that_names_no_port_is_garbled() -> None:
    with pytest.raises(Garbled, match="not a row"):
        joblog.port_table(TABLE.replace("E1[1AE1]", "something else\nE1[1AE1]", 1))


def test_a_port_with_two_peers_is_garbled() -> None:
    rows = [
        PortRow("E1", False, True, True, "W1", "A1"),
        PortRow("E2", False, True, True, "W1", "A2"),
    ]
    with pytest.raises(Garbled, match="two peers"):
        joblog.connected(rows)


@given(st.text(alphabet="EW[]1A =\n\rUnlockedEbasCtiv0-:", max_size=120))
def test_anything_is_a_table_or_garbled(text: str) -> None:
    try:
        joblog.port_table(text)
    except Garbled:
        pass
    try:
        joblog.pending(text)
    except Garbled:
        pass


def test_a_table_of_128_ports_torn_in_the_middle_of_a_row_keeps_them_all() -> None:
    head = TABLE[: TABLE.index("E1[1AE1]")]
    rows = "".join(
        f"{f'W{n}[1AW{n}]':<17}Unlocked     Enabled     Disconnected  4                      {f'P{n}':<8}\n"
        for n in range(1, 129)
    )
    at = rows.index("W27[1AW27]") + len("W27[1AW27] ")
    torn = (
        head
        + rows[:at]
        + "\n02-03-2031 04:05 Connection P119<->P24 completed successfully\n\n"
        + rows[at:]
    )
    clean, logs = joblog.without_logs(torn)
    found = rows_of(clean)
    assert [row.port for row in found] == [f"W{n}" for n in range(1, 129)]
    assert [row.logical for row in found] == [f"P{n}" for n in range(1, 129)] and len(logs) == 1
