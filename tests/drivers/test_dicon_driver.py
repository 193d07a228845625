"""A DiCon reports one input per query: which queries a change sends, and how often."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from drivers.api import CircuitSwitch
from drivers.registry import open_device
from optics import BadFile, Change, DeviceConfig, TimedOut
from tests.drivers.scripted import cross, spoken_to

INPUTS = 12
SETTLE_S = 0.05


@dataclass
class Matrix:
    """Inputs that report their output `SETTLE_S` after the command. hasty: of lines that arrive at
    once only the first is read.
    """

    hasty: bool = False
    dumb: bool = False
    trips: int = 0
    outputs: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(1, INPUTS + 1), 0))
    asked: Counter[int] = field(default_factory=Counter)

    def answer(self, line: str) -> str | None:
        if line == "X1 DIM?":
            return f"{INPUTS},{INPUTS}"
        if line == "SYST:ERR?":
            return "+0, No Error"
        if question := re.fullmatch(r"X1 CH (\d+)\?", line):
            self.asked[int(question[1])] += 1
            return f"{question[1]},{self.outputs[int(question[1])]}"
        if command := re.fullmatch(r"X1 CH (\d+) (\d+)", line):
            asyncio.get_running_loop().call_later(
                SETTLE_S, self.outputs.__setitem__, int(command[1]), int(command[2])
            )
        return None


@asynccontextmanager
async def matrix(
    hasty: bool = False, **options: str
) -> AsyncIterator[tuple[Matrix, CircuitSwitch]]:
    """A matrix on loopback, and its driver."""
    held = Matrix(hasty)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            held.trips += 1
            for line in data.decode().splitlines()[: 1 if held.hasty else None]:
                if (output := held.answer(line.strip())) is not None and not (
                    held.dumb and " CH " in line
                ):
                    writer.write(f"{output}\n".encode())
        writer.close()

    async with spoken_to(
        talk, "dicon-scpi", traits={"settle_s": SETTLE_S}, options=options
    ) as device:
        yield held, device


async def test_inputs_that_were_not_set_are_asked_once_before_a_change_and_once_after_it() -> None:
    async with matrix() as (held, device):
        wanted = frozenset({cross(3, 7), cross(4, 8)})
        outcome = await device.apply(Change("ocs1", frozenset(), wanted))
    assert outcome.observed == wanted and not outcome.failed
    assert {held.asked[n] for n in held.outputs if n not in (3, 4)} == {2}
    assert held.asked[3] > 2


async def test_a_change_right_after_another_sees_what_somebody_did_meanwhile() -> None:
    async with matrix() as (held, device):
        await device.apply(Change("ocs1", frozenset(), frozenset({cross(3, 7)})))
        held.outputs[3], held.outputs[5] = 0, 9
        assert await device.read() == {cross(5, 9)}
        held.outputs[6] = 10
        outcome = await device.apply(Change("ocs1", frozenset(), frozenset({cross(1, 2)})))
    assert outcome.observed == {cross(1, 2), cross(5, 9), cross(6, 10)}


async def test_a_circuit_that_is_made_by_nobody_is_not_reported_from_memory() -> None:
    async with matrix() as (held, device):
        held.outputs[9] = 9

        async def behind_its_back() -> None:
            held.outputs[9] = 0

        change = Change("ocs1", frozenset(), frozenset({cross(1, 2)}))
        outcome = await device.apply(change, behind_its_back)
    assert outcome.observed == {cross(1, 2)}


@pytest.mark.parametrize(
    ("options", "trips"),
    [
        ({}, 2),
        ({"window": "5"}, 4),
        ({"window": "1"}, 1 + INPUTS),
        ({"pace_s": "0.001"}, 1 + INPUTS),
    ],
)
async def test_the_map_is_read_in_as_few_round_trips_as_the_window_allows(
    options: dict[str, str], trips: int
) -> None:
    async with matrix(**options) as (held, device):
        held.outputs[12] = 1
        assert await device.read() == {cross(12, 1)}
    assert held.trips == trips


async def test_a_matrix_that_hears_one_line_at_a_time_is_asked_one_by_one_from_then_on() -> None:
    async with matrix(hasty=True) as (held, device):
        held.outputs[5] = 9
        assert await device.read() == {cross(5, 9)}
        held.trips = 0
        assert await device.read() == {cross(5, 9)}
    assert held.trips == 1 + INPUTS


async def test_a_matrix_that_was_silent_for_a_while_is_not_taken_for_one_that_hears_one_line_at_a_time() -> (
    None
):
    async with matrix() as (held, device):
        held.dumb = True
        with pytest.raises(TimedOut):
            await device.read()
        held.dumb, held.trips = False, 0
        assert await device.read() == frozenset()
    assert held.trips == 2


def test_a_window_that_makes_no_sense_is_refused() -> None:
    for options in ({"window": "0"}, {"window": "4", "pace_s": "0.1"}):
        with pytest.raises(BadFile, match="window"):
            open_device(DeviceConfig("ocs1", "dicon-scpi", "tcp://127.0.0.1:9", options=options))
