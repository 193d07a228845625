"""SCPI answers carry no tag: one that comes late or twice must never be taken for the next one.
VISA has traps of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from drivers.link import Dropped, open_link
from drivers.link.recorder import listening
from drivers.session.scpi import ScpiSession
from tests.drivers.scripted import serving

Answer = Callable[[str, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[int]:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            await answer(line.decode().strip(), writer)

    async with serving(talk) as port:
        yield port


async def test_old_firmware_gets_its_pause_between_lines() -> None:
    times: list[tuple[str, float]] = []

    async def note(question: str, writer: asyncio.StreamWriter) -> None:
        if question.endswith("?"):
            writer.write(b'0,"No error"\n')

    async with answering(note) as port:
        session = ScpiSession(open_link(f"tcp://127.0.0.1:{port}", 5.0, "ocs1"), pace_s=0.05)
        with listening("ocs1", lambda direction, data: times.append((direction, time.monotonic()))):
            await session.ask(":syst:err?", str, command="set")
            await session.ask("map?", str)
        await session.close()
    lines = [at for direction, at in times if direction == ">"]
    assert len(lines) == 3
    # however late each is: by our own clock
    assert all(later - earlier > 0.049 for earlier, later in itertools.pairwise(lines))


async def test_a_closed_visa_connection_is_noticed_before_the_time_out() -> None:
    async def hang_up(question: str, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with answering(hang_up) as port:
        link = open_link(f"visa://TCPIP::127.0.0.1::{port}::SOCKET", 5.0)
        await link.open()
        with pytest.raises(Dropped):
            await link.exchange(b"map?\n", lambda data: True, question="map?")
        await link.close()


async def test_a_line_with_a_long_pause_inside_is_whole_over_visa() -> None:
    async def halting(question: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"(@1),")
        await asyncio.sleep(0.5)
        writer.write(b"(@17)\n")

    async with answering(halting) as port:
        session = ScpiSession(open_link(f"visa://TCPIP::127.0.0.1::{port}::SOCKET", 3.0))
        assert await session.ask("map?", str) == "(@1),(@17)"
        await session.close()


@pytest.mark.parametrize(
    "address", ["tcp://127.0.0.1:{port}", "visa://TCPIP::127.0.0.1::{port}::SOCKET"]
)
@pytest.mark.parametrize("end", ["\r", "\r\n"])
async def test_answers_may_end_with_a_carriage_return(address: str, end: str) -> None:
    async def answer(line: str, writer: asyncio.StreamWriter) -> None:
        writer.write(f"answer to {line}{end}".encode())

    async with answering(answer) as port:
        session = ScpiSession(open_link(address.format(port=port), 2.0, "ocs1"))
        try:
            for question in ("CF?", "X1 CH 1?", "*IDN?"):
                assert await session.ask(question, str) == f"answer to {question}"
        finally:
            await session.close()
