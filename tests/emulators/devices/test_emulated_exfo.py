"""EXFO FTBx-9160 in an LTB-8: the manual's words, OPEN and CLOSe the other way round, light that is
not where SCAN? says.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulators.devices.families import device_from_config
from tests.emulators.devices.bench import Bench


def ltb(**overrides: Any) -> Bench:
    return Bench("exfo-scpi", transport="tcp", **{"size": "2x12", **overrides})


def ask(box: Bench, text: str) -> str:
    return box.send(text, end="\n").rstrip("\n")


def test_the_platform_says_who_it_is_and_where_its_modules_are() -> None:
    box = ltb()
    assert ask(box, "*IDN?") == "EXFO Inc.,LTB-8,1234567,8.0.0"
    assert ask(box, ":INSTrument:CATalog:FULL?") == '"FTBx-9160",1,"FTBx-9160",2'
    assert ask(box, "LINS2:SNUM?") == '"100002-9160"'
    assert ask(box, "LINStrument1:ROUTe:PATH:CATalog?") == '"1x12"'
    assert ask(box, "LINS1:STAT?") == "READY"
    assert ask(box, ":SYSTem:ERRor:NEXT?") == '0,"No error"'
    box.dialect.receive(box.session, b"LINS1:ROUT:SCAN?\n", box.now)
    assert [data for _, _, data in box.dialect.drain()] == [b"1\n"]


def test_open_brings_light_and_close_takes_it() -> None:
    box = ltb()
    assert box.light() == set() and ask(box, "LINS1:ROUT:OPEN:STAT?") == "0"
    ask(box, "LINS1:ROUT:SCAN 7")
    box.wait(0.2)
    assert box.light() == set() and ask(box, "LINS1:ROUT:SCAN?") == "7"
    ask(box, "LINS1:ROUT:OPEN")
    assert ask(box, "LINS1:ROUT:OPEN:STAT?;:LINS1:STAT?;:LINS2:STAT?") == "0;BUSY;READY"
    box.wait(0.11)
    assert (
        box.light() == {("1.in", "1.7")}
        and ask(box, "LINS1:ROUT:OPEN:STAT?;:LINS1:STAT?") == "1;READY"
    )
    ask(box, "LINS1:ROUT:CLOSe")
    assert box.light() == set() and ask(box, "LINS1:ROUT:SCAN?;OPEN:STAT?") == "7;0"
    assert box.plant.writes == 3


def test_a_switch_whose_scan_brings_light_can_be_had() -> None:
    box = ltb(scan_opens=True)
    ask(box, "LINS1:ROUT:SCAN 7")
    box.wait(0.11)
    assert box.light() == {("1.in", "1.7")}


def test_an_open_switch_goes_from_channel_to_channel_by_the_dark() -> None:
    box = ltb(preset=[["2.in", "2.3"]])
    assert box.light() == {("2.in", "2.3")}
    ask(box, "LINS2:ROUT:SCAN 4")
    assert ask(box, "LINS2:ROUT:SCAN?;OPEN:STAT?") == "4;0" and box.light() == set()
    box.wait(0.11)
    assert box.light() == {("2.in", "2.4")}
    assert [
        ask(box, f"LINS2:ROUT:SCAN:{word};:LINS2:ROUT:SCAN?")
        for word in ("NEXT", "PREV", "PREVIOUS")
    ] == ["5", "4", "3"]
    assert ask(box, "LINS1:ROUT:SCAN:PREV;:LINS1:ROUT:SCAN?;SCAN:NEXT;:LINS1:ROUT:SCAN?") == "12;1"


def test_the_next_command_waits_in_synchronous_mode_and_an_operation_complete_query_always() -> (
    None
):
    box = ltb(preset=[["1.in", "1.1"]])
    assert ask(box, "LINS1:ROUT:SCAN 2\n*OPC?") == ""
    assert box.wait(0.09) == "" and box.wait(0.02) == "1\n"
    ask(box, "LINS1:ROUT:SCAN:SYNC 1")
    assert ask(box, "LINS1:ROUT:SCAN:SYNC?") == "1"
    assert ask(box, "LINS1:ROUT:SCAN 3\nLINS1:ROUT:OPEN:STAT?") == ""
    assert box.wait(0.09) == "" and box.wait(0.02) == "1\n"


def test_an_adjustment_goes_by_the_reference_position() -> None:
    box = ltb(preset=[["1.in", "1.1"]])
    ask(box, "LINS1:ROUT:SCAN:ADJ:AUTO ON")
    assert ask(box, "LINS1:ROUT:SCAN:ADJ:AUTO?") == "1" and box.light() == {("1.in", "1.1")}
    ask(box, "LINS1:ROUT:SCAN:ADJ")
    assert box.light() == set()
    box.wait(0.11)
    assert box.light() == {("1.in", "1.1")}


def test_a_locked_module_is_moved_by_its_holder_alone_until_it_hangs_up() -> None:
    box = ltb(preset=[["1.in", "1.1"]])
    other = box.open()
    ask(box, "LINS1:LOCK:STATe ON")
    output = box.send(
        "LINS1:LOCK:STAT?;:LINS1:ROUT:CLOS;:LINS1:LOCK:STAT OFF;:SYST:ERR?;:SYST:ERR?",
        other,
        end="\n",
    )
    assert output.startswith("1;-200,") and output.count("-200,") == 2
    assert box.light() == {("1.in", "1.1")}
    ask(box, "LINS1:ROUT:SCAN 2")
    box.wait(0.11)
    assert box.light() == {("1.in", "1.2")}
    box.dialect.close(box.session)
    box.send("LINS1:ROUT:CLOS", other, end="\n")
    assert box.light() == set()


@pytest.mark.parametrize("reset", ["*RST", "LINS1:RST"])
def test_reset_is_the_first_channel_and_no_light(reset: str) -> None:
    box = ltb(preset=[["1.in", "1.5"]])
    assert ask(box, f"{reset};:LINS1:ROUT:SCAN?") == "1"
    box.wait(0.2)
    assert box.light() == set()


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("LINS1:ROUT:SCAN 0", -222),
        ("LINS1:ROUT:SCAN 13", -222),
        ("LINS1:ROUT:SCAN", -109),
        ("LINS1:ROUT:SCAN x", -104),
        ("LINS3:ROUT:SCAN 1", -114),
        ("LINS0:STAT?", -114),
        ("ROUT:SCAN 1", -113),
        ("LINS1:ROUT:SCAN:SYNC 2", -104),
        ("LINS1::ROUTe:SCAN 3", -113),
    ],
)
def test_a_wrong_message_is_silent_and_leaves_an_error(message: str, code: int) -> None:
    box = ltb()
    assert ask(box, message) == ""
    assert ask(box, ":SYST:ERR?").startswith(f'{code},"')
    assert ask(box, ":SYST:ERR?") == '0,"No error"' and box.plant.writes == 0


def test_what_fails_is_not_said_to_be_done() -> None:
    box = ltb(preset=[["1.in", "1.1"]])
    box.dialect.inject(box.now, "silent-failure", match="SCAN 2", count=1)
    box.dialect.inject(box.now, "refuse", match="SCAN 3", count=1)
    box.dialect.inject(box.now, "failed-port", port="1.4")
    for channel, (reported, lit) in {2: ("1", True), 3: ("1", True), 4: ("4", False)}.items():
        ask(box, f"LINS1:ROUT:SCAN {channel}")
        box.wait(0.11)
        assert (ask(box, "LINS1:ROUT:SCAN?"), bool(box.light())) == (reported, lit), channel


def test_an_open_that_is_not_carried_out_leaves_the_dark() -> None:
    box = ltb()
    box.dialect.inject(box.now, "silent-failure", match="OPEN$", count=1)
    ask(box, "LINS1:ROUT:OPEN")
    box.wait(0.11)
    assert box.light() == set() and ask(box, "LINS1:ROUT:OPEN:STAT?") == "0"
    ask(box, "LINS1:ROUT:OPEN")
    box.wait(0.11)
    assert box.light() == {("1.in", "1.1")}


@pytest.mark.parametrize(
    ("kind", "lit"), [("reboot-keep", {("1.in", "1.5")}), ("reboot-lose", set())]
)
def test_a_power_cut_keeps_the_channels_or_ends_in_the_dark(
    kind: str, lit: set[tuple[str, str]]
) -> None:
    box = ltb(preset=[["1.in", "1.5"]], boot_s=0.5)
    box.dialect.inject(box.now, kind)
    assert box.light() == set()
    box.wait(0.7)
    assert box.light() == lit


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"size": "9x4"}, "at most 8 modules"),
        ({"preset": [["1.in", "2.1"]]}, "no module has that"),
        ({"ports": {"in": ["0.in"], "out": ["0.1"]}}, "ports: wanted such as 1.in"),
        ({"size": "2x4", "serials": ["1"]}, "wanted one of each of 2 modules"),
    ],
)
def test_a_platform_that_cannot_be_is_refused(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        device_from_config("ltb1", "exfo-scpi", overrides)


TEXTS = [
    "ROUT:SCAN 2",
    "ROUT:SCAN 9",
    "ROUT:OPEN",
    "ROUT:CLOSE",
    "ROUT:SCAN:NEXT",
    "RST",
    "ROUT:SCAN:ADJ",
    "LOCK:STAT 1",
    "ROUT:SCAN?",
]
MESSAGE = st.builds("LINS{}:{};:SYST:ERR?\n".format, st.integers(0, 3), st.sampled_from(TEXTS)).map(
    str.encode
)


@given(
    texts=st.lists(
        st.one_of(MESSAGE, st.binary(max_size=40).map(lambda data: data + b"\n:SYST:ERR?\n")),
        max_size=20,
    )
)
def test_no_bytes_upset_it_and_a_module_has_one_circuit_at_most(texts: list[bytes]) -> None:
    plant, dialect = device_from_config("ltb1", "exfo-scpi", {"size": "2x3"})
    session = dialect.open(0.0)
    assert session is not None
    for step, text in enumerate(texts):
        dialect.receive(session, text, 1.0 + step * 0.2)
    replies = [data for _, _, data in dialect.drain() if data]
    assert len(replies) >= len(texts) and all(
        reply.endswith(b"\n") and reply.count(b"\n") == 1 for reply in replies
    )
    lit = plant.lit(100.0)
    assert len({pair[0] for pair in lit}) == len(lit) <= 2
    for module in ("1", "2"):
        dialect.receive(session, f"LINS{module}:ROUT:OPEN:STAT?\n".encode(), 100.0)
    lines = b"".join(data for _, _, data in dialect.drain() if data).decode().split()
    assert [word == "1" for word in lines] == [
        any(pair[0] == f"{module}.in" for pair in lit) for module in ("1", "2")
    ]
