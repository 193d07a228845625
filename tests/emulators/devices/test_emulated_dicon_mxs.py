"""DiCon MXS-9100: the examples of its manual, what it remembers of a header, and a queue of eight
errors.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulators.devices.families import device_from_config
from tests.emulators.devices.bench import Bench


def mxs(**overrides: Any) -> Bench:
    return Bench("dicon-mxs", transport="tcp", **{"size": "8x8", **overrides})


def ask(box: Bench, text: str) -> list[str]:
    """Return the lines of the answer; a line ends with CR and nothing else."""
    box.dialect.receive(box.session, f"{text}\r".encode(), box.now)
    box._collect()
    return lines(box)


def lines(box: Bench) -> list[str]:
    *whole, rest = box.take(box.session).decode().split("\r")
    assert rest == "" and not any("\n" in line for line in whole)
    return whole


def test_it_says_who_it_is_and_how_it_does() -> None:
    box = mxs()
    assert ask(box, "*IDN?") == ["DiCon Fiberoptics Inc, MG4, 19B0M10D0042, 1.05"]
    assert ask(box, "STAT?") == ask(box, "STATUS?") == ["READY"]
    assert ask(box, "SYST:ERR?") == ["0, No error"]
    assert ask(box, "WEN?") == ["0"] and ask(box, "QCT?") == ["0"]
    assert ask(box, ":ROUT:PATH:CAT?") == ["8x8"]


@pytest.mark.parametrize(
    "text", ["ROUTE2:OPEN:STATE?", "ROUT2:OPEN:STAT?", "ROUTE2:OPEN:STAT?", "ROUT2:OPEN:STATE?"]
)
def test_the_lower_case_of_a_word_may_be_left_out(text: str) -> None:
    assert ask(mxs(preset=[["2", "5"]]), text) == ["1"]


def test_the_example_of_the_manual_goes_as_it_says() -> None:
    box = mxs()
    assert ask(box, "ROUT6:SCAN 2") == []
    assert ask(box, "SCAN?") == ["2"]
    assert ask(box, "SCAN:NEXT") == ask(box, "NEXT") == ask(box, "NEXT") == []
    assert ask(box, "ROUT7:SCAN 1") == []
    box.wait(0.06)
    assert box.light() == {("6", "5"), ("7", "1")}
    ask(box, "ROUT6:SCAN 2;ROUT7:SCAN 3")
    ask(box, "ROUT7:SCAN:NEXT;ROUT6:SCAN:NEXT")
    box.wait(0.06)
    assert box.light() == {("6", "3"), ("7", "4")}


def test_a_bare_word_goes_on_where_the_last_header_was_even_another_clients() -> None:
    box = mxs(preset=[["2", "5"]])
    assert ask(box, "ROUT2:OPEN:STAT?") == ["1"]
    assert ask(box, "STAT?") == ["1"]
    other = box.open()
    assert box.send("STAT?", other) == "1"
    assert ask(box, ":STAT?") == ["READY"]
    assert ask(box, "STAT?") == ["READY"]


def test_the_new_output_is_said_at_once_and_light_comes_later() -> None:
    box = mxs()
    ask(box, "ROUT1:SCAN 4")
    assert (
        ask(box, ":ROUT1:SCAN?;:ROUT1:OPEN:STAT?;:STAT?") == ["4", "0", "BUSY"]
        and box.light() == set()
    )
    assert ask(box, "*OPC?") == []
    assert box.wait(0.06) == "1"
    assert ask(box, ":ROUT1:OPEN:STAT?;:STAT?") == ["1", "READY"] and box.light() == {("1", "4")}


def test_output_zero_is_dark_and_so_is_close_and_open_goes_back() -> None:
    box = mxs(preset=[["1", "4"], ["2", "5"]])
    ask(box, ":ROUT1:SCAN 0")
    ask(box, ":ROUT2:CLOSE")
    assert box.light() == set() and ask(box, ":ROUT1:SCAN?;:ROUT2:SCAN?") == ["0", "0"]
    ask(box, ":ROUT2:OPEN")
    box.wait(0.06)
    assert box.light() == {("2", "5")}


def test_an_output_that_is_taken_is_left_alone_and_only_the_queue_says_so() -> None:
    box = mxs(preset=[["1", "4"], ["2", "5"]])
    assert ask(box, ":ROUT2:SCAN 4") == []
    box.wait(0.06)
    assert box.light() == {("1", "4"), ("2", "5")} and len(box.plant.violations) == 1
    assert ask(box, ":SYST:ERR?") == ["-221, Settings conflict;port 2 in use"]


def test_registers_keep_states_and_register_zero_parks_all() -> None:
    box = mxs(preset=[["1", "4"], ["2", "5"]])
    ask(box, "*SAV 3")
    ask(box, "*RST")
    assert box.light() == set()
    ask(box, ":ROUT1:SCAN 5")
    ask(box, "*RCL 3")
    box.wait(0.06)
    assert box.light() == {("1", "4"), ("2", "5")}
    ask(box, "*RCL 0")
    assert box.light() == set()


def test_a_full_queue_of_errors_records_nothing_and_clear_status_does_not_empty_it() -> None:
    box = mxs()
    for number in range(9, 19):
        ask(box, f":ROUT1:SCAN {number}")
    ask(box, "*CLS")
    reports = [ask(box, ":SYST:ERR?")[0] for _ in range(9)]
    assert reports == [
        *(f"-222, Data out of range;{number}" for number in range(9, 17)),
        "0, No error",
    ]


def test_events_are_kept_until_they_are_read() -> None:
    box = mxs()
    assert ask(box, "*ESR?") == ["128"]
    ask(box, ":NOT:A:WORD")
    ask(box, "*ESE 32;*SRE 32")
    assert (
        ask(box, "*STB?") == ["96"] and ask(box, "*ESR?") == ["32"] and ask(box, "*STB?") == ["0"]
    )
    ask(box, ":ROUT1:SCAN 1;*OPC")
    assert ask(box, "*ESR?") == ["0"]
    box.wait(0.06)
    assert ask(box, "*ESR?") == ["1"]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (":ROUT9:SCAN 1", -114),
        (":ROUT0:SCAN?", -114),
        (":ROUT1:SCAN 9", -222),
        (":ROUT1:SCAN", -109),
        (":ROUT1:SCAN x", -104),
        (":ROUT:SCAN 1", -113),
        ("*SAV 0", -222),
        ("*RCL 10", -222),
        ("WEN 2", -104),
    ],
)
def test_a_wrong_message_is_silent_and_leaves_an_error(message: str, code: int) -> None:
    box = mxs()
    assert ask(box, message) == []
    assert ask(box, ":SYST:ERR?")[0].startswith(f"{code}, ")
    assert box.plant.writes == 0


@pytest.mark.parametrize(("autosave", "back"), [("1", {("1", "2")}), ("0", set())])
def test_autosave_decides_what_a_power_cut_keeps(autosave: str, back: set[tuple[str, str]]) -> None:
    box = mxs(boot_s=0.5)
    ask(box, f"WEN {autosave}")
    ask(box, ":ROUT1:SCAN 2")
    assert ask(box, "QCT?") == [str(2 * int(autosave))]
    box.wait(0.06)
    box.dialect.inject(box.now, "reboot-keep")
    assert box.light() == set()
    box.wait(0.7)
    assert box.light() == back


def test_what_fails_is_not_said_to_be_done() -> None:
    box = mxs(preset=[["1", "1"]])
    box.dialect.inject(box.now, "silent-failure", match="SCAN 2", count=1)
    box.dialect.inject(box.now, "refuse", match="SCAN 3", count=1)
    box.dialect.inject(box.now, "stuck-port", port="4/out")
    for output, error in {
        2: "0, No error",
        3: "-200, Execution error;:ROUT1:SCAN 3",
        4: "-240, Hardware error;port 4 stuck",
    }.items():
        ask(box, f":ROUT1:SCAN {output}")
        box.wait(0.06)
        assert (ask(box, ":ROUT1:SCAN?;:SYST:ERR?"), box.light()) == (["1", error], {("1", "1")})


TEXTS = [
    "ROUT1:SCAN 2",
    "ROUT2:SCAN 2",
    "ROUT3:SCAN 0",
    "SCAN?",
    "NEXT",
    "ROUT2:CLOSE",
    "OPEN",
    "*RST",
    "*SAV 1",
    "*RCL 1",
]
MESSAGE = st.builds("{}\r:SYST:ERR?\r".format, st.sampled_from(TEXTS)).map(str.encode)


@given(
    texts=st.lists(
        st.one_of(MESSAGE, st.binary(max_size=40).map(lambda data: data + b"\r:SYST:ERR?\r")),
        max_size=20,
    )
)
def test_no_bytes_upset_it_and_its_map_is_the_glass(texts: list[bytes]) -> None:
    plant, dialect = device_from_config("mxs1", "dicon-mxs", {"size": "3x3"})
    session = dialect.open(0.0)
    assert session is not None
    for step, text in enumerate(texts):
        dialect.receive(session, text, 1.0 + step * 0.2)
    replies = [data for _, _, data in dialect.drain() if data]
    assert len(replies) >= len(texts) and all(reply.endswith(b"\r") for reply in replies)
    dialect.receive(session, b";".join(b":ROUT%d:SCAN?" % n for n in (1, 2, 3)) + b"\r", 100.0)
    reports = b"".join(data for _, _, data in dialect.drain() if data).decode().split("\r")[:-1]
    assert {(str(n), out) for n, out in enumerate(reports, 1) if out != "0"} == set(
        plant.lit(100.0)
    )
