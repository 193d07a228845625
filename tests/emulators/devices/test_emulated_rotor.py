"""The rotor: what docs/reference/rotor-dialect.md says of it, sentence by sentence."""

from __future__ import annotations

import zlib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emulators.devices.bench import Bench


def send(rotor: Bench, command: str, **more: Any) -> list[str]:
    return rotor.send(command, end="\n", **more).splitlines()


def done(rotor: Bench, *commands: str) -> list[str]:
    """Say commands that succeed; return the data lines of the last."""
    for command in commands:
        *data, end = send(rotor, command)
        assert end == "OK", f"{command}: {end}"
    return data


def load(rotor: Bench, dwell_us: int, dark_window_us: int, *slots: str) -> None:
    begin = f"LOAD BEGIN {len(slots)} {dwell_us} {dark_window_us}"
    done(
        rotor,
        begin,
        *(f"LOAD SLOT {number} {slot}" for number, slot in enumerate(slots)),
        "LOAD END",
    )


def position(rotor: Bench) -> tuple[str, str, str, int]:
    _, state, slot, phase, cycle, _, _ = done(rotor, "POS?")[0].split()
    return state, slot, phase, int(cycle)


@pytest.fixture
def rotor() -> Bench:
    return Bench("rotor", size="4x4", transport="tcp")


def test_it_says_what_it_is(rotor: Bench) -> None:
    assert done(rotor, "ID?") == ["ID assumed,rotor,R0001,1.0"]
    assert done(rotor, "ports?") == ["PORTS 4 4"]
    assert done(rotor, "LIMITS?") == [
        "LIMITS slots=64 dwell_us=100-3600000000 dark_window_us=20-3600000000 settle_us=10000"
    ]


def test_circuits_made_by_hand_settle_and_break_at_once(rotor: Bench) -> None:
    done(rotor, "SET 1>5 2>6")
    assert done(rotor, "MAP?") == ["MAP -", "MOVING 1>5 2>6"]
    rotor.wait(0.011)
    assert done(rotor, "MAP?") == ["MAP 1>5 2>6", "MOVING -"]
    done(rotor, "SET 1>5 3>7")
    assert rotor.light() == {("1", "5"), ("2", "6")}
    done(rotor, "CLEAR 2>6 4>8")
    assert rotor.light() == {("1", "5")}
    done(rotor, "CLEAR *")
    assert done(rotor, "MAP?") == ["MAP -", "MOVING -"]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("FROB", 10), ("SET", 11), ("SET 1-5", 11), ("SET 01>5", 11), ("SET 5>1", 12), ("SET 1>9", 12), ("SET 1>6 1>7", 31),
        ("SET 2>5", 30), ("LOAD", 11), ("LOAD BEGIN 2 450000", 11), ("LOAD BEGIN 65 1000 100", 14), ("LOAD BEGIN 2 99 100", 14),
        ("LOAD BEGIN 2 1000 19", 14), ("LOAD SLOT 0 1>5", 22), ("LOAD END", 22), ("GOTO 0", 21), ("START", 21), ("STEP", 21),
        ("STOP", 23), ("POWER? 9", 12), ("START 0 AT soon", 11), ("#1234567890 ID?", 10),
    ],
)  # fmt: skip
def test_a_mistake_has_its_code_and_changes_nothing(rotor: Bench, command: str, code: int) -> None:
    done(rotor, "SET 1>5")
    rotor.wait(0.02)
    (reply,) = send(rotor, command)
    assert reply.startswith(f"ERR {code} ")
    assert rotor.light() == {("1", "5")}
    assert rotor.plant.writes == 1


def test_a_tag_is_on_every_line_of_the_reply_and_pipelined_commands_are_answered_in_order(
    rotor: Bench,
) -> None:
    assert send(rotor, "#7 MAP?\n#8 nonsense\nPORTS?") == [
        "#7 MAP -", "#7 MOVING -", "#7 OK", "#8 ERR 10 unknown command nonsense", "PORTS 4 4", "OK",
    ]  # fmt: skip


def test_a_program_is_read_back_with_the_checksum_of_its_text(rotor: Bench) -> None:
    assert done(rotor, "PROGRAM?") == ["PROGRAM -"]
    done(
        rotor,
        "LOAD BEGIN 3 450000 50000",
        "LOAD SLOT 0 2>5 1>6",
        "LOAD SLOT 2 4>8",
        "LOAD SLOT 2 3>7",
    )
    crc = f"{zlib.crc32(b'3 450000 50000%c0 1>6 2>5%c1 -%c2 3>7%c' % (10, 10, 10, 10)):08x}"
    assert done(rotor, "LOAD END") == [f"LOADED {crc}"]
    assert done(rotor, "PROGRAM?") == [
        f"PROGRAM 3 450000 50000 {crc}",
        "SLOT 0 1>6 2>5",
        "SLOT 1 -",
        "SLOT 2 3>7",
    ]


def test_a_program_half_loaded_goes_with_its_connection(rotor: Bench) -> None:
    done(rotor, "LOAD BEGIN 1 1000 100")
    assert send(rotor, "LOAD END", session=rotor.open())[0].startswith("ERR 22")
    rotor.dialect.close(rotor.session)
    rotor.session = rotor.open()
    assert send(rotor, "LOAD END")[0].startswith("ERR 22")
    done(rotor, "LOAD BEGIN 1 1000 100", "LOAD ABORT")
    assert send(rotor, "LOAD END")[0].startswith("ERR 22")
    assert done(rotor, "PROGRAM?") == ["PROGRAM -"]


def test_it_goes_to_a_slot_and_steps_to_the_next_through_a_night(rotor: Bench) -> None:
    load(rotor, 450_000, 50_000, "1>5 2>6", "1>7 2>6")
    done(rotor, "STEP")
    assert position(rotor) == ("STOPPED", "0", "NIGHT", 0)
    rotor.wait(0.051)
    assert position(rotor) == ("STOPPED", "0", "DAY", 0)
    assert rotor.light() == {("1", "5"), ("2", "6")}
    done(rotor, "STEP")
    assert rotor.light() == {("2", "6")}  # in both slots: lit through the dark window
    rotor.wait(0.051)
    assert rotor.light() == {("1", "7"), ("2", "6")}
    done(rotor, "GOTO 0", "STEP")
    assert position(rotor) == ("STOPPED", "1", "NIGHT", 0)
    assert send(rotor, "GOTO 2")[0].startswith("ERR 13")


def test_it_turns_by_its_clock_and_its_light_follows_to_the_microsecond(rotor: Bench) -> None:
    load(rotor, 450_000, 50_000, "1>5", "1>6", "1>7")
    at = int(done(rotor, "CLOCK?")[0].split()[1]) + 1_000_000
    assert done(rotor, f"START 1 AT {at}") == [f"STARTED {at}"]
    assert position(rotor) == ("WAITING", "1", "DAY", 0)
    rotor.wait(0.951)
    assert position(rotor) == ("TURNING", "1", "NIGHT", 0)
    rotor.wait(0.05 + 4 * 0.5)
    assert done(rotor, "POS?") == [f"POS TURNING 2 DAY 1 {at + 2_000_000} {at + 2_450_000}"]
    lit = [(event.pair[1], event.at_s) for event in rotor.plant.history if event.what == "lit"]
    assert [egress for egress, _ in lit] == ["6", "7", "5", "6", "7"]
    gaps = [after - before for (_, before), (_, after) in pairwise(lit)]
    assert gaps == pytest.approx([0.5] * 4, abs=1e-9)
    assert done(rotor, "STATS?") == ["STATS turns=5 late=0 worst_us=0"]


def test_while_it_turns_nothing_is_changed_by_hand(rotor: Bench) -> None:
    load(rotor, 450_000, 50_000, "1>5")
    done(rotor, "START")
    for command in ("SET 2>6", "CLEAR *", "GOTO 0", "STEP", "START", "LOAD BEGIN 1 1000 100"):
        assert send(rotor, command)[0].startswith("ERR 20"), command


def test_stopped_by_day_it_stays_and_by_night_it_goes_on_to_the_next_slot(rotor: Bench) -> None:
    load(rotor, 450_000, 50_000, "1>5", "1>6")
    done(rotor, "START")
    rotor.wait(0.1)
    done(rotor, "STOP")
    assert position(rotor) == ("STOPPED", "0", "DAY", 0)
    rotor.wait(5.0)
    assert rotor.light() == {("1", "5")}
    (started,) = done(rotor, "START")
    # it rests lit in its slot: no dark window first
    assert started.split()[1] == done(rotor, "CLOCK?")[0].split()[1]
    rotor.wait(0.46)
    assert position(rotor) == ("TURNING", "1", "NIGHT", 0)
    (rests,) = done(rotor, "STOP")
    assert int(rests.split()[1]) - int(done(rotor, "CLOCK?")[0].split()[1]) == pytest.approx(
        40_000, abs=5
    )
    assert position(rotor) == ("STOPPED", "1", "NIGHT", 0)
    rotor.wait(0.05)
    assert position(rotor) == ("STOPPED", "1", "DAY", 0)
    assert rotor.light() == {("1", "6")}


def test_a_start_called_off_leaves_the_map_and_one_too_soon_is_refused(rotor: Bench) -> None:
    load(rotor, 450_000, 50_000, "1>5")
    done(rotor, "SET 3>8")
    rotor.wait(0.02)
    clock = int(done(rotor, "CLOCK?")[0].split()[1])
    assert send(rotor, f"START AT {clock + 49_000}")[0].startswith("ERR 24")
    for far in (clock + 3_600_100_000, 10**18 - 1):
        assert (
            send(rotor, f"START AT {far}")[0].startswith("ERR 14")
            and position(rotor)[0] == "MANUAL"
        )
    done(rotor, f"START AT {clock + 9_000_000}", "STOP")
    rotor.wait(20.0)
    assert position(rotor) == ("MANUAL", "-", "DAY", 0)
    assert rotor.light() == {("3", "8")}


def test_short_slots_are_one_schedule_and_every_question_sees_the_moment(rotor: Bench) -> None:
    load(rotor, 900, 100, "1>5 4>8", "1>6 4>8")
    done(rotor, "GOTO 0")
    rotor.wait(0.001)
    done(rotor, "START")
    events = len(rotor.plant.history)
    gate = rotor.plant.gate(rotor.now)
    assert (gate.dwell_ns, gate.dark_window_ns) == (900_000, 100_000)
    assert rotor.light() == {("4", "8")}  # what is lit all the time
    assert rotor.dialect.next_event(rotor.now) is None
    rotor.wait(0.00095)
    assert done(rotor, "MAP?") == ["MAP 4>8", "MOVING 1>6"]
    rotor.wait(0.0005)
    assert done(rotor, "MAP?") == ["MAP 1>6 4>8", "MOVING -"]
    assert float(done(rotor, "POWER? 5")[0].split()[2]) == -60.0
    assert float(done(rotor, "POWER? 6")[0].split()[2]) > -6.0
    done(rotor, "STOP")
    assert rotor.plant.gate(rotor.now) is None
    assert rotor.light() == {("1", "6"), ("4", "8")}
    assert len(rotor.plant.history) == events


def test_short_slots_stopped_in_the_night_come_to_light(rotor: Bench) -> None:
    load(rotor, 60_000, 30_000, "1>5", "1>6")
    done(rotor, "START")
    rotor.wait(0.03 + 0.06 + 0.01)
    done(rotor, "STOP")
    assert rotor.light() == set()
    rotor.wait(0.02)
    assert rotor.light() == {("1", "6")}


def test_a_port_that_is_broken_is_dark_in_the_schedule_too(rotor: Bench) -> None:
    load(rotor, 900, 100, "1>5 2>6", "1>6 2>5")
    done(rotor, "START")
    rotor.dialect.inject(rotor.now, "failed-port", port="1")
    assert rotor.plant.gate(rotor.now).slots == (frozenset({("2", "6")}), frozenset({("2", "5")}))
    rotor.dialect.inject(rotor.now, "dark-port", port="5")
    assert rotor.plant.gate(rotor.now).slots == (frozenset({("2", "6")}), frozenset())


def test_a_stuck_mirror_fails_alone_and_an_event_says_what_is_missing(rotor: Bench) -> None:
    load(rotor, 450_000, 50_000, "1>5 2>6", "1>6 2>5")
    done(rotor, "GOTO 0")
    rotor.wait(0.06)
    number = rotor.dialect.inject(rotor.now, "stuck-port", port="1")
    assert send(rotor, "CLEAR *") == ["FAILED 1>5 40 mirror stuck", "ERR 40 partly done"]
    done(rotor, "GOTO 1")
    assert rotor.wait(0.06) == "! 1>6 not made: port 1 in use\n! 2>5 not made: port 5 in use\n"
    assert rotor.light() == {("1", "5")}
    assert rotor.plant.violations == []  # the client asked for nothing that cannot be
    rotor.dialect.lift(rotor.now, number)
    done(rotor, "GOTO 1")
    rotor.wait(0.06)
    assert rotor.light() == {("1", "6"), ("2", "5")}


def test_a_locked_port_is_refused_and_says_by_whom(rotor: Bench) -> None:
    rotor.dialect.inject(rotor.now, "port-locked", port="5", user="carol")
    assert send(rotor, "SET 1>5 2>6") == ["ERR 32 port 5 locked by carol"]
    assert rotor.light() == set()


def test_what_is_accepted_and_not_done_shows_when_asked(rotor: Bench) -> None:
    load(rotor, 450_000, 50_000, "1>5")
    rotor.dialect.inject(rotor.now, "silent-failure", on="write")
    done(rotor, "SET 2>6", "GOTO 0", "START", "LOAD BEGIN 1 1000 100", "LOAD END")
    rotor.wait(1.0)
    assert position(rotor)[0] == "MANUAL"
    assert done(rotor, "PROGRAM?")[0].startswith("PROGRAM 1 450000 ")
    assert rotor.light() == set()


@pytest.mark.parametrize(
    ("fault", "first"), [("reboot-keep", "PROGRAM 1 900 "), ("reboot-lose", "PROGRAM -")]
)
def test_after_a_power_cut_it_is_dark_and_at_rest_and_the_program_is_stored(
    rotor: Bench, fault: str, first: str
) -> None:
    load(rotor, 900, 100, "1>5")
    done(rotor, "START")
    rotor.dialect.inject(rotor.now, fault)
    rotor.wait(2.0)
    rotor.session = rotor.open()
    assert position(rotor)[0] == "MANUAL"
    assert done(rotor, "PROGRAM?")[0].startswith(first)
    assert rotor.light() == set() and rotor.plant.gate(rotor.now) is None


def test_its_clock_may_jump_and_it_turns_as_it_turned(rotor: Bench) -> None:
    load(rotor, 450_000, 50_000, "1>5", "1>6")
    done(rotor, "START")
    before = int(done(rotor, "CLOCK?")[0].split()[1])
    rotor.dialect.inject(rotor.now, "clock-step", seconds=100.0)
    assert int(done(rotor, "CLOCK?")[0].split()[1]) - before == 100_000_000
    rotor.wait(0.06)
    assert position(rotor) == ("TURNING", "0", "DAY", 0)


def test_a_machine_without_a_gate_turns_slowly_only(rotor: Bench) -> None:
    rotor.plant.cannot_gate = "it needs BPF"
    load(rotor, 99_000, 1000, "1>5")
    assert send(rotor, "START") == ["ERR 50 this lab cannot turn so fast: it needs BPF"]
    load(rotor, 100_000, 1000, "1>5")
    done(rotor, "START")


VERBS = "SET CLEAR LOAD BEGIN SLOT END GOTO STEP START STOP AT POS? MAP? POWER? PROGRAM?"
TEXTS = st.sampled_from(
    [
        *VERBS.split(),
        "*",
        "-",
        "0",
        "1",
        "2",
        "900",
        "450000",
        "100",
        "1>5",
        "2>6",
        "1>6",
        "#3",
        "99999999",
    ]
)
LINES = st.lists(TEXTS, max_size=6).map(" ".join)


@given(texts=st.lists(st.one_of(st.binary(max_size=30), LINES.map(str.encode)), max_size=20))
@settings(deadline=None)
def test_no_bytes_upset_it_and_the_glass_is_a_matching(texts: list[bytes]) -> None:
    rotor = Bench("rotor", size="4x4", transport="tcp")
    load(rotor, 900, 100, "1>5 2>6", "1>6")
    for text in texts:
        rotor.dialect.receive(rotor.session, text + b"\n", rotor.now)
        rotor.now += 0.013
        rotor.dialect.tick(rotor.now)
        pairs = [*rotor.plant.light(rotor.now)]
        assert len({i for i, _ in pairs}) == len({e for _, e in pairs}) == len(pairs)
    rotor._collect()
    rotor.take(rotor.session)
    reply = send(rotor, "#99 MAP?")
    assert [line.split()[1] for line in reply if line.startswith("#99")] == ["MAP", "MOVING", "OK"]
