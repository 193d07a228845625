"""The behaviour every transport shares: deadlines, dropped connections, rounds that begin by
reading, watching.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from drivers.link import Dropped, Link, open_link
from drivers.rounds import Marks, in_rounds
from drivers.watch import watch
from optics import Garbled, Refused, TimedOut, Unreachable
from tests.drivers.conftest import Clock
from tests.drivers.scripted import Talk, serving


@asynccontextmanager
async def linked(talk: Talk, timeout_s: float = 0.3) -> AsyncIterator[Link]:
    async with serving(talk) as port:
        link = open_link(f"tcp://127.0.0.1:{port}", timeout_s, "ocs1")
        await link.open()
        try:
            yield link
        finally:
            await link.close()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def chatty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"x\n")
        await asyncio.sleep(0.01)


async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()


async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    for _ in range(8):
        writer.write(b"row\n")
        await asyncio.sleep(0.05)
    writer.write(b"end\n")
    await reader.read()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        await asyncio.sleep(0.01)
        writer.write(line)


async def test_silence_is_a_time_out_that_names_device_question_and_duration() -> None:
    async with linked(silent, 0.1) as link:
        with pytest.raises(
            TimedOut, match=r'ocs1: no answer to "map\?" from tcp://127.0.0.1:\d+ in 0.1 s'
        ):
            await link.exchange(b"map?\n", lambda data: True, question="map?")


async def test_talk_that_never_answers_is_not_listened_to_for_ever() -> None:
    async with linked(chatty, 0.05) as link:
        with pytest.raises(TimedOut, match="last received"):
            await link.exchange(b"map?\n", lambda data: None, question="map?")


async def test_a_slow_answer_that_keeps_coming_is_let_finish() -> None:
    async with linked(slow, 0.2) as link:
        heard: list[bytes] = []
        await link.exchange(
            b"dump\n", lambda data: heard.append(data) or b"end" in data, question="dump"
        )  # type: ignore[func-returns-value]
        assert b"".join(heard).count(b"row") == 8


async def test_a_connection_that_ends_under_a_question_is_dropped() -> None:
    async with linked(rude) as link:
        with pytest.raises(Dropped, match='ended before the answer to "set"'):
            await link.exchange(b"set\n", lambda data: True, question="set")
        assert not link.alive
        with pytest.raises(Unreachable, match="not connected"):
            await link.exchange(b"again\n", lambda data: True, question="again")


async def test_two_questions_at_once_are_asked_one_after_the_other() -> None:
    async with linked(echo) as link:
        answers: dict[str, bytes] = {}

        async def ask(text: str) -> None:
            def take(data: bytes) -> bool:
                answers[text] = answers.get(text, b"") + data
                return data.endswith(b"\n")

            await link.exchange(text.encode() + b"\n", take, question=text)

        await asyncio.gather(*(ask(str(n)) for n in range(5)))
        assert answers == {str(n): f"{n}\n".encode() for n in range(5)}


async def test_a_host_that_does_not_exist_is_unreachable() -> None:
    link = open_link("tcp://no-such-host.invalid:1", 2.0, "ocs9")
    with pytest.raises(Unreachable, match=r"ocs9: cannot connect to tcp://no-such-host\.invalid:1"):
        await link.open()


def lost(marks: Marks[str], *ends: Exception | str) -> Callable[[], Awaitable[str]]:
    """An attempt that writes once and ends as given, one end per round."""
    rest = list(ends)

    async def attempt() -> str:
        marks.write()
        end = rest.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    return attempt


async def test_a_lost_answer_begins_another_round() -> None:
    marks = Marks[str]()
    assert await in_rounds(marks, lost(marks, TimedOut("a"), Garbled("b"), "done")) == "done"
    assert marks.writes == 3


async def test_three_lost_answers_are_enough() -> None:
    marks = Marks[str]()
    with pytest.raises(TimedOut, match="third"):
        await in_rounds(
            marks, lost(marks, TimedOut("first"), TimedOut("second"), TimedOut("third"), "never")
        )


async def test_a_device_gone_after_a_write_is_not_called_untouched() -> None:
    marks = Marks[str]()
    rest = [Dropped("lost"), Unreachable("cannot connect")]

    async def attempt() -> None:
        if len(rest) == 2:
            marks.write()
        raise rest.pop(0)

    with pytest.raises(
        TimedOut, match="cannot connect; commands were sent before, what they did is not known"
    ):
        await in_rounds(marks, attempt)


async def test_a_round_that_wrote_nothing_is_not_repeated() -> None:
    calls: list[int] = []

    async def attempt() -> None:
        calls.append(1)
        raise TimedOut("silent")

    with pytest.raises(TimedOut):
        await in_rounds(Marks[str](), attempt)
    assert len(calls) == 1


async def test_a_refusal_is_no_lost_answer() -> None:
    marks = Marks[str]()
    with pytest.raises(Refused):
        await in_rounds(marks, lost(marks, Refused("no"), "never"))


async def test_a_change_is_noticed_soon_whether_faster_or_slower_than_promised(
    clock: Clock,
) -> None:
    takes_s, polls = 0.0, 0

    async def read() -> bool:
        nonlocal polls
        polls += 1
        return clock.now >= takes_s

    for takes_s in (n / 200 for n in range(100)):
        clock.now, polls = 0.0, 0
        seen = await watch(read, bool, expected_s=0.05, patience_s=5.0)
        assert seen.done
        assert polls < 60
        assert takes_s <= seen.watched_s < takes_s * 1.13 + 0.004


async def test_the_last_report_is_returned_when_patience_ends(clock: Clock) -> None:
    async def read() -> str:
        return "still dark"

    seen = await watch(read, lambda report: False, expected_s=0.01, patience_s=0.1)
    assert (seen.report, seen.done, seen.watched_s) == ("still dark", False, pytest.approx(0.1))


async def test_the_last_report_was_asked_for_when_patience_ended_however_long_answers_take(
    clock: Clock,
) -> None:
    asked: list[float] = []

    async def read() -> bool:
        asked.append(clock.now)
        clock.now += 0.07
        return asked[-1] >= 0.1

    seen = await watch(read, bool, expected_s=0.05, patience_s=0.1)
    assert seen.done
