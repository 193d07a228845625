"""A rotor: tagged replies, late ones and events; stored maps are checked by their checksum and
never set under a turning device.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from drivers.api import Presets
from drivers.rotor import Rotor
from drivers.wire import rotor
from optics import Change, CrossConnect, Garbled, Refused, TimedOut
from tests.drivers.scripted import cross, spoken_to

Answer = Callable[[str], str | None]


@asynccontextmanager
async def speaking(answer: Answer) -> AsyncIterator[tuple[Rotor, list[str]]]:
    """The driver of a device that answers each command (without its tag) so; and the commands."""
    lines: list[str] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := (await reader.readline()).decode().strip():
            tag, _, command = line.partition(" ")
            lines.append(command)
            if (reply := answer(command)) is not None:
                for part in reply.split("\n"):
                    writer.write((part if part[:1] in "!#" else f"{tag} {part}").encode() + b"\n")
        writer.close()

    async with spoken_to(talk, "rotor") as device:
        assert isinstance(device, Rotor) and isinstance(device, Presets)
        yield device, lines


async def test_events_and_replies_to_questions_that_were_given_up_are_left_out() -> None:
    late = "! fan 2 is slow\n#999 MAP 1>17\n#999 OK\nMAP 3>19\n! and fast\nMOVING 4>20\nOK"
    async with speaking(lambda command: late) as (device, _):
        assert await device.read() == {cross(3, 19)}


async def test_a_reply_without_its_tag_is_garbled() -> None:
    async with speaking(lambda command: "#1x MAP -\nMOVING -\nOK") as (device, _):
        with pytest.raises(Garbled, match="tag"):
            await device.read()


async def test_a_turning_device_is_not_changed_and_the_way_out_is_named() -> None:
    replies = {"POS?": "POS TURNING 3 DAY 12 8123000 8573000\nOK"}
    async with speaking(replies.get) as (device, reported):
        with pytest.raises(Refused, match="it turns") as caught:
            await device.apply(Change("ocs1", frozenset(), frozenset({cross(3, 19)})))
    assert caught.value.hint == "testbed service stop schedule" and reported == ["POS?"]


async def test_maps_are_loaded_as_a_whole_and_their_checksum_must_match() -> None:
    slots = [frozenset({cross(1, 18), cross(2, 17)}), frozenset[CrossConnect]()]
    crc = "5836d5d3"

    def answer(command: str) -> str:
        return f"LOADED {crc}\nOK" if command == "LOAD END" else "OK"

    async with speaking(answer) as (device, reported):
        await device.load(slots, 0.45, 0.05)
        assert reported == [
            "LOAD BEGIN 2 450000 50000",
            "LOAD SLOT 0 1>18 2>17",
            "LOAD SLOT 1 -",
            "LOAD END",
        ]
        crc = "00000000"
        with pytest.raises(Garbled, match="5836d5d3"):
            await device.load(slots, 0.45, 0.05)


async def test_a_start_whose_answer_is_lost_is_not_sent_again() -> None:
    async with speaking(lambda command: None) as (device, reported):
        with pytest.raises(TimedOut):
            await device.start(2)
    assert reported == ["START 2"]


async def test_the_light_of_a_start_is_told_in_seconds_from_now_by_the_devices_own_clock() -> None:
    replies = {"START 2": "STARTED 1312345\nOK", "CLOCK?": "CLOCK 1262345\nOK"}
    async with speaking(replies.get) as (device, _):
        assert await device.start(2) == pytest.approx(0.05)


async def test_stopping_a_device_that_rests_sends_nothing_that_changes_it() -> None:
    async with speaking({"POS?": "POS STOPPED 1 DAY 0 5 -\nOK"}.get) as (device, reported):
        await device.stop()
    assert reported == ["POS?"]


@pytest.mark.parametrize("text", ["", "3>", "3>19 3>20", "3>19 4>19", "03>19", "3>19,4>20"])
def test_a_map_that_no_switch_can_hold_is_garbled(text: str) -> None:
    with pytest.raises(Garbled):
        rotor.parse_pairs(text)
