"""Santec OSX and JGR SX1: what public programs say to them, and that only the condition tells when
light is there.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulators.devices.families import device_from_config
from tests.emulators.devices.bench import Bench

CONDITION = ":STAT:OPER:COND?"
TWO_INPUTS = {"ports": {"in": ["0.in", "0.in2"], "out": ["0.1", "0.2", "0.3"]}}
SYNCHRONOUS = {"ports": {"in": ["0.in", "0.in2"], "out": ["0.1", "0.2", "0.b1", "0.b2"]}}


def osx(**overrides: Any) -> Bench:
    return Bench("santec-scpi", transport="tcp", **overrides)


def ask(box: Bench, text: str) -> str:
    return box.send(text, end="\n").rstrip("\n")


def test_it_says_who_it_is_and_which_modules_it_holds() -> None:
    box = osx(size="2x24")
    assert box.greeting == ""
    assert ask(box, "*IDN?") == "Santec,OSX-100,21040117,1.0.0"
    assert ask(box, "MODule:NUMber?") == "2"
    assert ask(box, "MODule:CATalog?") == '"SX 1Ax24","SX 1Ax24"'
    assert ask(box, "CFG:SWT:END?") == "24"
    assert ask(box, ":SYST:ERR?") == '0,"No error"'
    box.dialect.receive(box.session, b"CLOSe?\r\n", box.now)
    assert [data for _, _, data in box.dialect.drain()] == [b"1\n"]


def test_a_maker_and_a_model_can_be_given() -> None:
    assert ask(osx(make="JGR Optics", model="SX1"), "*IDN?") == "JGR Optics,SX1,21040117,1.0.0"


def test_every_module_is_at_its_first_channel_and_lit_before_anybody_speaks() -> None:
    box = osx(size="2x4")
    assert box.light() == {("0.in", "0.1"), ("1.in", "1.1")}


def test_the_new_channel_is_said_at_once_and_only_the_condition_tells_that_light_is_there() -> None:
    box = osx(size="1x4")
    assert ask(box, "CLOSe 3") == ""
    assert (ask(box, "CLOSe?"), ask(box, CONDITION), ask(box, "*OPC?")) == ("3", "1", "1")
    assert box.light() == set()
    box.wait(0.29)
    assert (ask(box, CONDITION), box.light()) == ("1", set())
    box.wait(0.02)
    assert (ask(box, CONDITION), box.light()) == ("0", {("0.in", "0.3")})
    assert box.plant.writes == 1


def test_a_module_sent_to_where_it_is_stays_lit() -> None:
    box = osx(size="1x4")
    ask(box, "CLOSe 1")
    assert (ask(box, CONDITION), box.light()) == ("0", {("0.in", "0.1")})


def test_close_alone_goes_to_the_next_channel_and_from_the_last_to_the_first() -> None:
    box = osx(size="1x3")
    assert [ask(box, "CLOSe;CLOSe?") for _ in range(3)] == ["2", "3", "1"]


def test_the_selected_module_is_the_devices_and_another_client_may_have_moved_it() -> None:
    box = osx(size="3x4")
    other = box.open()
    ask(box, "MODule:SELect 1")
    assert box.send("MODule:SELect?", other, end="\n") == "1\n"
    box.send("MOD:SEL", other, end="\n")
    ask(box, "CLOSe 4")
    assert [ask(box, f"ROUTe{n}:CHANnel?") for n in range(3)] == ["1", "1", "4"]
    assert ask(box, "MODule:SELect 3;SELect?;:SYST:ERR?") == '2;-222,"Data out of range;3"'


def test_a_header_goes_on_where_the_last_one_was_unless_a_colon_leads_it() -> None:
    box = osx(size="2x4")
    assert ask(box, "ROUTe1:CHANnel 3;CHANnel?;:ROUTe0:CHANnel?") == "3;1"
    assert ask(box, "ROUTe1:CHANnel 2;ROUTe1:CHANnel?") == ""
    assert ask(box, "SYST:ERR?").startswith("-113,")


def test_a_module_is_turned_by_its_number_and_all_of_them_together() -> None:
    box = osx(size="2x4")
    ask(box, "ROUTe1:CHANnel 4")
    box.wait(0.31)
    assert box.light() == {("0.in", "0.1"), ("1.in", "1.4")}
    ask(box, "ROUTe:CHANnel:ALL 2")
    box.wait(0.31)
    assert box.light() == {("0.in", "0.2"), ("1.in", "1.2")}
    ask(box, "ROUTe0:HOMe")
    box.wait(0.31)
    assert box.light() == {("0.in", "0.1"), ("1.in", "1.2")}
    assert ask(box, "MODule1:INFO?") == "SX 1Ax4,channels=4,current=2,common=1"


def test_reset_brings_every_module_home() -> None:
    box = osx(size="2x4", preset=[["0.in", "0.2"], ["1.in", "1.3"]])
    assert box.light() == {("0.in", "0.2"), ("1.in", "1.3")}
    ask(box, "MODule:SELect 1;*RST")
    box.wait(0.31)
    assert box.light() == {("0.in", "0.1"), ("1.in", "1.1")} and ask(box, "MODule:SELect?") == "0"


def test_one_of_two_inputs_goes_to_any_output() -> None:
    box = osx(**TWO_INPUTS)
    assert (ask(box, "MODule:CATalog?"), ask(box, "ROUTe0:COMMon?")) == ('"SX 2Ax3"', "1")
    ask(box, "ROUTe0:COMMon 2")
    box.wait(0.31)
    assert box.light() == {("0.in2", "0.1")}
    ask(box, "CLOSe 3")
    box.wait(0.31)
    assert box.light() == {("0.in2", "0.3")} and ask(box, "ROUTe0:COMMon?") == "2"


def test_two_inputs_at_outputs_of_their_own_move_together() -> None:
    box = osx(**SYNCHRONOUS)
    assert ask(box, "MODule:CATalog?") == '"SX 2Bx2"'
    ask(box, "CLOSe 2")
    box.wait(0.31)
    assert box.light() == {("0.in", "0.2"), ("0.in2", "0.b2")}
    assert ask(box, "ROUTe0:COMMon 2;:SYST:ERR?").startswith('-100,"Command error;')


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("CLOSe 0", -222),
        ("CLOSe 5", -222),
        ("CLOSe x", -104),
        ("CLOSe -1", -104),
        ("ROUTe2:CHANnel 1", -222),
        ("ROUTe2:CHANnel?", -222),
        ("ROUTe0:CHANnel", -109),
        ("ROUTe0:COMMon 1", -100),
        ("ROUTe:CHANnel:ALL 9", -222),
        ("MODule:SELect 2", -222),
        ("ROUTe0:OPEN", -113),
        ("LCL 7", -104),
    ],
)
def test_a_wrong_message_is_silent_and_leaves_an_error(message: str, code: int) -> None:
    box = osx(size="2x4")
    assert ask(box, message) == ""
    assert ask(box, "SYST:ERR?").startswith(f'{code},"')
    assert ask(box, "SYST:ERR?") == '0,"No error"'
    assert box.light() == {("0.in", "0.1"), ("1.in", "1.1")} and box.plant.writes == 0


def test_a_failed_port_costs_the_light_and_not_the_position_and_a_stuck_one_the_position() -> None:
    box = osx(size="1x4")
    box.dialect.inject(box.now, "failed-port", port="0.2")
    ask(box, "CLOSe 2")
    box.wait(0.31)
    assert (ask(box, "CLOSe?"), ask(box, CONDITION), box.light()) == ("2", "0", set())
    box.dialect.inject(box.now, "stuck-port", port="0.in")
    assert ask(box, "CLOSe 3;SYST:ERR?;:CLOSe?") == '-240,"Hardware error;port 0.in stuck";2'


@pytest.mark.parametrize(
    ("kind", "message", "lit"),
    [("silent-failure", "1", {("0.in", "0.1")}), ("refuse", "1", {("0.in", "0.1")})],
)
def test_what_is_not_done_is_not_said_to_be_done(
    kind: str, message: str, lit: set[tuple[str, str]]
) -> None:
    box = osx(size="1x4")
    box.dialect.inject(box.now, kind, match="CLOSe 3", count=1)
    ask(box, "CLOSe 3")
    box.wait(0.31)
    assert (ask(box, "CLOSe?"), box.light()) == (message, lit)
    assert ask(box, "SYST:ERR?").startswith("-200" if kind == "refuse" else "0,")


@pytest.mark.parametrize(
    ("kind", "lit"), [("reboot-keep", {("0.in", "0.3")}), ("reboot-lose", {("0.in", "0.1")})]
)
def test_after_a_power_cut_a_channel_is_lit_again_the_last_or_the_first(
    kind: str, lit: set[tuple[str, str]]
) -> None:
    box = osx(size="1x4", preset=[["0.in", "0.3"]], boot_s=0.5)
    box.dialect.inject(box.now, kind)
    assert box.light() == set()
    box.wait(0.9)
    assert box.light() == lit


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"size": "17x4"}, "at most 16 modules"),
        ({"preset": [["0.in", "1.1"]]}, "no module has that"),
        ({"ports": ["1", "2"]}, "port '1'"),
        ({"ports": {"in": ["0.in"], "out": ["0.2"]}}, "no 0.in or no 0.1"),
        ({"ports": {"in": ["0.in"], "out": ["0.1", "0.b1"]}}, "module 0 is no switch"),
        ({"ports": {"in": "0.in", "out": ["0.1"]}}, "wanted labels"),
    ],
)
def test_a_chassis_that_cannot_be_is_refused(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        device_from_config("osx1", "santec-scpi", overrides)


TEXTS = st.sampled_from(
    [
        "CLOSe",
        "ROUTe0:CHANnel",
        "ROUTe1:CHAN",
        "ROUT:CHAN:ALL",
        "ROUTe9:HOMe",
        "ROUTe1:HOMe",
        "*RST",
        "CLOS?",
        "MOD:SEL",
    ]
)
MESSAGE = st.builds(
    "{} {};:SYST:ERR?\n".format, TEXTS, st.sampled_from(["", "0", "1", "3", "4", "99999999", "x"])
).map(str.encode)


@given(
    texts=st.lists(
        st.one_of(MESSAGE, st.binary(max_size=40).map(lambda data: data + b"\n:SYST:ERR?\n")),
        max_size=20,
    )
)
def test_no_bytes_upset_it_and_every_module_has_one_circuit(texts: list[bytes]) -> None:
    plant, dialect = device_from_config("osx1", "santec-scpi", {"size": "2x3"})
    session = dialect.open(0.0)
    assert session is not None
    for step, text in enumerate(texts):
        dialect.receive(session, text, 1.0 + step * 0.02)
    replies = [data for _, _, data in dialect.drain() if data]
    assert len(replies) >= len(texts)
    assert all(reply.endswith(b"\n") and reply.count(b"\n") == 1 for reply in replies)
    assert {pair[0] for pair in plant.lit(100.0)} == {"0.in", "1.in"} and len(plant.lit(100.0)) == 2
