"""Telescent: the public commands, locks and allocations, and a map that can be read from
`switchstate`.
"""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emulators.devices.bench import Bench

# The pattern of the one public client (CODE): row, state, twelve cells of letters and a number.
ROW = re.compile(r"R(\d+)#([a-zA-Z])" + r"\s+([a-zA-Z]+)(\d+)" * 12)


def telescent(**overrides: object) -> Bench:
    return Bench("telescent-cli", **({"settle_s": 60.0} | overrides))  # type: ignore[arg-type]


def cells(box: Bench) -> dict[str, tuple[str, str]]:
    """Return egress -> (status, number), read as that client reads it."""
    found = {}
    for line in re.sub(r".\[\d+m", "", box.send("switchstate")).splitlines():
        if match := ROW.search(line.strip()):
            row, _, *rest = match.groups()
            for column in range(12):
                found[str(int(row) * 12 + column)] = (rest[2 * column], rest[2 * column + 1])
    return found


def mapped(box: Bench) -> set[tuple[str, str]]:
    return {
        (number, egress)
        for egress, (status, number) in cells(box).items()
        if status.startswith("A")
    }


def test_the_whole_map_can_be_read() -> None:
    box = telescent(size="40x40", preset=[["1", "40"], ["40", "11"], ["7", "12"]])
    assert "\x1b[" in box.send("switchstate")
    assert mapped(box) == {("1", "40"), ("40", "11"), ("7", "12")} == box.light()
    state = cells(box)
    assert len(state) == 48
    assert state["0"] == ("N", "0")
    assert state["41"][0] == "N"
    assert state["13"] == ("F", "13")


def test_eight_rows_are_a_module() -> None:
    box = telescent(size="191x191")
    blocks = box.send("switchstate").replace("switchstate\n", "").split("\n\n")
    # the second ends with the prompt
    assert [len(block.strip().splitlines()) for block in blocks] == [8, 9]


def test_a_connection_is_accepted_and_made_a_move_later() -> None:
    box = telescent()
    output = box.send("connect --force -in 3 -out 5")
    assert output.endswith("\ntelescent> ")
    assert "ERROR" not in output
    assert cells(box)["5"] == ("M", "3")
    box.wait(59)
    assert box.light() == mapped(box) == set()
    box.wait(2)
    assert box.light() == mapped(box) == {("3", "5")}
    assert box.plant.writes == 1


def test_a_duplex_connection_is_two_moves() -> None:
    box = telescent()
    box.send("connect --force 3 5")
    box.wait(61)
    assert box.light() == {("3", "5")}
    box.wait(60)
    assert box.light() == {("3", "5"), ("5", "3")}


def test_a_locked_port_is_refused_until_it_is_unlocked() -> None:
    box = telescent(preset=[["1", "2"]])
    assert "ERROR" in box.send("connect --force -in 1 -out 3")
    assert "ERROR" in box.send("connect --force -in 4 -out 2")
    box.send("unlock --force -in 1")
    assert "ERROR" in box.send("connect -in 1 -out 3")
    assert box.plant.writes == 1
    assert "ERROR" not in box.send("connect --force -in 1 -out 3")
    assert box.light() == set()
    box.wait(121)
    assert box.light() == {("1", "3")}
    assert not box.plant.violations


def test_what_the_public_client_sends_moves_a_circuit() -> None:
    """CODE: unlock both ends, connect; and unlock both ends in both directions, unallocate."""
    box = telescent(preset=[["1", "2"]])
    output = "".join(
        box.send(line)
        for line in (
            "unlock --force -in 1",
            "unlock --force -out 4",
            "connect --force -in 1 -out 4",
        )
    )
    box.wait(121)
    assert box.light() == {("1", "4")}
    lines = (
        "unlock --force 1",
        "unlock --force 4",
        "unallocate --force -in 1",
        "unallocate --force -out 4",
    )
    output += "".join(box.send(line) for line in lines)
    assert "ERROR" not in output
    assert "Exception" not in output
    box.wait(61)
    assert box.light() == set()


@pytest.mark.parametrize(("quirk", "freed"), [(True, False), (False, True)])
def test_a_port_unlocked_on_one_side_only_cannot_be_unallocated(quirk: bool, freed: bool) -> None:
    box = telescent(preset=[["1", "2"]], unlock_quirk=quirk)
    box.send("unlock --force -in 1")
    box.send("unlock --force -out 2")
    assert ("ERROR" not in box.send("unallocate --force -in 1")) is freed


def test_the_other_end_must_be_unlocked_too() -> None:
    box = telescent(preset=[["1", "2"]])
    box.send("unlock --force 1")
    assert "ERROR" in box.send("unallocate --force 1")
    assert box.light() == {("1", "2")}


def test_a_panel_that_waits_answers_when_the_fibre_is_there() -> None:
    box = telescent(waits=True)
    assert box.send("connect --force -in 3 -out 5") == "connect --force -in 3 -out 5\n"
    box.send("switchstate")
    assert "R0" not in box.wait(59)
    reported = box.wait(2)
    assert reported.index("done\ntelescent> ") < reported.index("R0#")
    assert box.light() == {("3", "5")}
    box.dialect.inject(box.now, "stuck-port", port="7")
    box.send("connect --force -in 7 -out 8")
    assert "ERROR" in box.wait(61)


def test_half_of_a_duplex_fails() -> None:
    box = telescent()
    box.dialect.inject(box.now, "half-duplex", count=1)
    box.send("connect --force 3 5")
    box.wait(200)
    assert box.light() == mapped(box) == {("3", "5")}


def test_a_stalled_robot_stands_still_until_it_boots() -> None:
    box = telescent(preset=[["1", "2"]])
    box.dialect.inject(box.now, "robot-stalled", count=1)
    box.send("connect --force -in 3 -out 5")
    box.wait(3600)
    assert box.light() == {("1", "2")}
    box.dialect.inject(box.now, "reboot-keep")
    assert box.light() == {("1", "2")}
    box.wait(2)
    box.session = box.open()
    box.send("unlock --force 3")
    box.send("unlock --force 5")
    box.send("connect --force -in 3 -out 5")
    box.wait(61)
    assert box.light() == {("1", "2"), ("3", "5")}


def test_a_port_locked_by_somebody_else_is_refused() -> None:
    box = telescent()
    box.dialect.inject(box.now, "port-locked", port="3")
    assert "ERROR" in box.send("connect --force -in 3 -out 5")
    assert box.plant.writes == 0


@pytest.mark.parametrize(
    "wrong",
    ["connect", "connect -in 3", "connect --force -in 99 -out 1", "unlock", "hello", "connect 3 3"],
)
def test_a_senseless_command_is_refused(wrong: str) -> None:
    box = telescent()
    assert re.search("Exception|ERROR", box.send(wrong))
    assert box.plant.writes == 0


PORT = st.sampled_from(["1", "2", "3", "99", "x"])
COMMAND = st.one_of(
    st.builds("connect --force -in {} -out {}\r".format, PORT, PORT),
    st.builds("connect --force {} {}\r".format, PORT, PORT),
    st.builds("{} --force {}\r".format, st.sampled_from(["unlock", "unallocate"]), PORT),
    st.just("switchstate\r"),
)


@given(
    texts=st.lists(st.one_of(st.binary(max_size=40), COMMAND.map(str.encode)), max_size=15),
    waits=st.booleans(),
)
@settings(deadline=None)
def test_no_bytes_upset_it_and_its_map_is_the_glass(texts: list[bytes], waits: bool) -> None:
    box = telescent(size="3x3", settle_s=1.0, waits=waits)
    for text in texts:
        if box.session.closed:
            box.session = box.open()
        box.dialect.receive(box.session, text, box.now)
        box.wait(0.6)
    if box.session.closed:
        box.session = box.open()
    box.wait(60)
    box.send("")
    assert mapped(box) == set(box.plant.light(box.now))
    assert not box.plant.violations
