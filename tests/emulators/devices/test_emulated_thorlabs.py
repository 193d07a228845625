"""Thorlabs OSW12 and OSW22: bar and cross, silence for all but questions, and a first answer that
is old.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import serial
from hypothesis import given
from hypothesis import strategies as st

from emulators.devices.families import device_from_config, family
from emulators.devices.server import DeviceServer, Line
from tests.emulators.devices.bench import Bench

BAR, CROSS = {("1", "1"), ("2", "2")}, {("1", "2"), ("2", "1")}


def osw(**overrides: Any) -> Bench:
    return Bench("thorlabs-osw", transport="serial", **overrides)


def ask(box: Bench, text: str) -> str:
    return box.send(text, end="\n").rstrip("\n")


def test_an_answer_ends_with_cr_lf_and_a_change_has_none() -> None:
    box = osw()
    assert box.greeting == "" and box.light() == BAR
    box.dialect.receive(box.session, b"S?\n", box.now)
    assert [data for _, _, data in box.dialect.drain()] == [b"1\r\n"]
    assert ask(box, "S 2") == ""
    assert (ask(box, "I?"), ask(box, "T?")) == ("OSW22-1310E v1.0", "2")


@pytest.mark.parametrize("waited_s", [0.0, 0.1, 5.0])
def test_the_first_answer_after_a_change_is_the_state_before_it_however_long_the_client_waits(
    waited_s: float,
) -> None:
    box = osw()
    ask(box, "S 2")
    box.wait(waited_s)
    assert [ask(box, "S?") for _ in range(3)] == ["1", "2", "2"]
    ask(box, "S 1")
    assert [ask(box, "S?") for _ in range(3)] == ["2", "1", "1"]


def test_light_comes_after_the_state_is_said() -> None:
    box = osw()
    ask(box, "S 2")
    assert [ask(box, "S?") for _ in range(2)] == ["1", "2"] and box.light() == set()
    box.wait(0.06)
    assert box.light() == CROSS and box.plant.writes == 1


def test_the_state_it_is_in_is_no_change() -> None:
    box = osw()
    ask(box, "S 1")
    assert ask(box, "S?") == "1" and box.light() == BAR


def test_a_1x2_leads_its_one_input_to_either_output() -> None:
    box = osw(size="1x2", preset=[["1", "2"]])
    assert (
        box.light() == {("1", "2")}
        and ask(box, "S?") == "2"
        and ask(box, "I?") == "OSW12-1310E v1.0"
    )
    ask(box, "S 1")
    box.wait(0.06)
    assert box.light() == {("1", "1")}


@pytest.mark.parametrize("text", ["S 0", "S 3", "S", "S x", "S 1 2", "*IDN?", "S? 1", "HELLO"])
def test_nothing_is_said_about_what_it_does_not_know(text: str) -> None:
    box = osw()
    assert ask(box, text) == "" and ask(box, "S?") == "1"
    assert box.light() == BAR and box.plant.writes == 0


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "silent-failure"},
        {"kind": "refuse"},
        {"kind": "swallow"},
        {"kind": "stuck-port", "port": "1"},
    ],
)
def test_a_change_that_does_not_happen_shows_in_the_state_alone(fault: dict[str, str]) -> None:
    box = osw()
    box.dialect.inject(box.now, **fault)
    ask(box, "S 2")
    box.wait(0.06)
    box.dialect.lift(box.now, 1)
    assert [ask(box, "S?") for _ in range(2)] == ["1", "1"] and box.light() == BAR


@pytest.mark.parametrize(
    ("kind", "message", "lit"), [("reboot-keep", "2", CROSS), ("reboot-lose", "1", BAR)]
)
def test_a_power_cut_keeps_the_state_or_ends_in_bar(
    kind: str, message: str, lit: set[tuple[str, str]]
) -> None:
    box = osw(preset=[["1", "2"]], boot_s=0.5)
    box.dialect.inject(box.now, kind)
    assert box.light() == set()
    box.wait(0.6)
    box.session = box.open()
    assert ask(box, "S?") == message and box.light() == lit


@pytest.mark.parametrize(
    ("overrides", "message"),
    [({"size": "2x3"}, "a 1x2 or a 2x2"), ({"size": "1x2", "preset": [["2", "1"]]}, "no such way")],
)
def test_a_switch_that_cannot_be_is_refused(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        device_from_config("osw1", "thorlabs-osw", overrides)


async def test_a_client_on_a_terminal_turns_it_as_public_programs_do(tmp_path: Path) -> None:
    """QPnP's way: set, then ask until the answer is right."""
    path = tmp_path / "osw1"
    _, dialect = device_from_config("osw1", "thorlabs-osw", {"settle_s": 0.01})
    server = DeviceServer(
        "osw1", dialect, scheme="serial", sock=Line(str(path), family("thorlabs-osw").baud)
    )
    await server.start()

    def advance() -> list[bytes]:
        with serial.Serial(str(path), 115_200, timeout=2.0) as line:
            line.write(b"S 2\n")
            lines = []
            for _ in range(2):
                line.write(b"S?\n")
                lines.append(line.read_until(b"\r\n"))
            return lines

    try:
        assert await asyncio.to_thread(advance) == [b"1\r\n", b"2\r\n"]
    finally:
        await server.stop()


@given(
    texts=st.lists(
        st.one_of(
            st.sampled_from([b"S 1\n", b"S 2\n", b"S?\n", b"I?\r\n"]), st.binary(max_size=20)
        ),
        max_size=20,
    )
)
def test_no_bytes_upset_it_and_its_second_answer_is_the_glass(texts: list[bytes]) -> None:
    plant, dialect = device_from_config("osw1", "thorlabs-osw", {})
    session = dialect.open(0.0)
    assert session is not None
    for step, text in enumerate(texts):
        dialect.receive(session, text, 1.0 + step * 0.02)
    dialect.receive(session, b"\nS?\nS?\n", 100.0)
    reported = [data for _, _, data in dialect.drain() if data][-1]
    assert plant.lit(200.0) == {b"1\r\n": BAR, b"2\r\n": CROSS}[reported]
