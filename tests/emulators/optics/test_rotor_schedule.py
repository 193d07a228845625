"""Turning through matchings by the clock: the arithmetic, and the filter that the kernel runs,
against each other.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulators.fabric import gate
from emulators.fabric.fibre_plant import FibrePlant, HostPort, Strand
from emulators.fabric.gate import (
    MOST_SLOTS,
    PASSAGE_NS,
    Gates,
    LightPath,
    instructions,
    light_path_of,
)
from emulators.fabric.netlink import DELTFILTER, NEWLINK, NEWTFILTER, Message
from emulators.optics.rotor_schedule import Map, RotorSchedule

A, B, C = ("1", "17"), ("1", "18"), ("2", "19")
WORD = 1 << 64


def signed(number: int, bits: int = 64) -> int:
    return (number + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))


def carried_out(code: bytes, now_ns: int) -> int:
    """Run a gate as the kernel does; return the interface it redirects to, 0 if it drops."""
    steps = [struct.unpack_from("=BBhi", code, at) for at in range(0, len(code), 8)]
    registers, at = [0] * 4, 0
    while True:
        operation, both, jump, number = steps[at]
        target, source = both & 15, both >> 4
        value = (
            number
            if operation & 0x0F in (0x07, 0x05) and not operation & 0x08
            else registers[source]
        )
        match operation:
            case 0x18:
                registers[target] = (number & 0xFFFFFFFF) | (steps[at + 1][3] & 0xFFFFFFFF) << 32
                at += 1
            case 0x85 if number == 5:
                registers[0] = now_ns
            case 0x85 if number == 23:
                assert registers[2] == 0
                return registers[1]
            case 0x95:
                assert registers[0] == 2
                return 0
            case 0x7D | 0x75 | 0xAD | 0x55:
                here = registers[target]
                taken = {
                    0x7D: signed(here) >= signed(value),
                    0x75: signed(here) >= value,
                    0xAD: here < value % WORD,
                    0x55: here != value,
                }[operation]
                at += jump if taken else 0
            case 0xB7 | 0xBF:
                registers[target] = value % WORD
            case 0x1F:
                registers[target] = (registers[target] - value) % WORD
            case 0x3F:
                registers[target] //= value
            case 0x2F:
                registers[target] = registers[target] * value % WORD
            case 0x97:
                registers[target] %= value
            case 0x67:
                registers[target] <<= value
            case 0x07:
                registers[target] += value
            case _:
                raise AssertionError(f"the kernel knows it, this test does not: {operation:#x}")
        at += 1


MAPS = st.frozensets(st.sampled_from([A, C])) | st.frozensets(st.sampled_from([B, C]))


@given(
    slots=st.lists(MAPS, min_size=1, max_size=5),
    before=MAPS,
    first=st.integers(0, 4),
    dwell_ns=st.integers(PASSAGE_NS + 1, 2 * PASSAGE_NS),
    dark_window_ns=st.integers(1, PASSAGE_NS),
    late_ns=st.integers(-3 * PASSAGE_NS, 20 * PASSAGE_NS),
)
def test_the_filter_sends_a_packet_where_the_arithmetic_says(
    slots: list[Map], before: Map, first: int, dwell_ns: int, dark_window_ns: int, late_ns: int
) -> None:
    schedule = RotorSchedule(
        100_000, dwell_ns, dark_window_ns, tuple(slots), first % len(slots), before
    )
    now_ns = 100_000 + late_ns
    found = carried_out(instructions(light_path_of(schedule, {A: 7, B: 8})), now_ns)
    here, soon = (
        next((end for pair, end in ((A, 7), (B, 8)) if pair in schedule.lit(at)), 0)
        for at in (now_ns, now_ns + PASSAGE_NS)
    )
    moment = schedule.moment(now_ns)
    if moment.day and now_ns >= moment.until_ns - PASSAGE_NS:
        # its packet would arrive in the dark window
        assert found in (0, here) and (found == here) == (here == soon or not here)
    else:
        assert found == here


def test_times_of_years_and_hours_fit_the_filter() -> None:
    start_ns, day_ns = 10**17, 3600 * 10**9
    code = instructions(LightPath(start_ns, day_ns, day_ns, 5, 0, ((6, 0), (7, 0))))
    hours = {-1.5: 5, -0.5: 0, 0.5: 6, 1.5: 0, 2.5: 7, 4.5: 6}
    assert {hour: carried_out(code, start_ns + round(hour * day_ns)) for hour in hours} == hours


def test_a_filter_has_no_more_slots_than_the_kernel_was_tried_with() -> None:
    assert (
        len(instructions(LightPath(0, 1, 1, 1, 1, ((1, 2),) * MOST_SLOTS))) // 8 < 4096
    )  # instructions of the smallest kernel limit
    with pytest.raises(ValueError, match="65 slots; a gate has 1 to 64"):
        instructions(LightPath(0, 1, 1, 1, 1, ((1, 2),) * 65))


def test_a_circuit_in_two_slots_in_a_row_stays_lit_through_the_night() -> None:
    schedule = RotorSchedule(
        1000, 90, 10, (frozenset({A, C}), frozenset({B, C})), before=frozenset({A})
    )
    assert schedule.lit(0) == {A} == schedule.lit(995)
    assert schedule.lit(1089) == {A, C}
    assert schedule.lit(1090) == {C} == schedule.lit(1099)
    assert schedule.lit(1100) == {B, C}
    assert [schedule.moment(at).step for at in (989, 990, 1000, 1089, 1090, 1100)] == [
        -1,
        0,
        0,
        0,
        1,
        1,
    ]


class Kernel:
    """Notes what it is given: kind of message, interface."""

    def __init__(self) -> None:
        self.shown: list[tuple[int, int]] = []

    def send(self, messages: Iterable[Message]) -> None:
        self.shown += [
            (message.kind, struct.unpack_from("=4xi", message.body)[0]) for message in messages
        ]

    def reported(self) -> set[tuple[int, int]]:
        reported, self.shown = set(self.shown), []
        return reported


def test_gates_change_with_fibres_and_only_where_something_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "program", lambda _: os.open("/dev/null", os.O_RDONLY))
    one, two, three = (HostPort(f"gpu0{n}", 1) for n in (1, 2, 3))
    light = FibrePlant(
        Strand(f"f{n}", port, "ocs1", str(n), str(16 + n))
        for n, port in enumerate((one, two, three), 1)
    )
    kernel: Any = Kernel()
    gates = Gates(kernel, light, {one: 11, two: 12, three: 13}, {one: 21, two: 22, three: 23})
    schedule = RotorSchedule(
        0,
        10_000,
        1000,
        (frozenset({("1", "18"), ("2", "17")}), frozenset({("1", "19"), ("3", "17")})),
    )
    gates.show("ocs1", schedule)
    assert kernel.reported() == {(NEWTFILTER, n) for n in (11, 12, 13)} | {
        (NEWLINK, n) for n in (21, 22, 23)
    }
    gates.refresh()
    assert kernel.reported() == set()
    light.sever("f3", True)
    gates.refresh()
    assert kernel.reported() == {(NEWTFILTER, 11), (DELTFILTER, 13), (NEWLINK, 23)}
    assert gates.receivers == {one, two}
    light.kill(two, True)
    gates.refresh()
    assert kernel.reported() == {(DELTFILTER, 11), (NEWLINK, 22)}
    light.show("ocs1", frozenset({("2", "17")}))
    gates.show("ocs1", None)
    assert kernel.reported() == {(DELTFILTER, 12)}  # what has light keeps its carrier
