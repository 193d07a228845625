"""A session in SCPI: one line out, one line back; no tags, so a session that lost count is closed,
never resynchronised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from drivers.link import Dropped, Link
from drivers.wire import scpi
from optics import Garbled

T = TypeVar("T")
QUEUE_LENGTH = 64  # an error queue that never empties is not one


class ScpiSession:
    """Query one device; connects when needed.

    pace_s: least time (s) between two lines, and between an answer and the next line. R. Polster's
    Polatis client waits 0.1 s "because the firmware on the switch is not stable enough to support
    commands executed at high-speeds"; newer units need none. end: what ends a line that is sent.
    """

    def __init__(self, link: Link, pace_s: float = 0.0, end: str = "\n") -> None:
        self._link = link
        self._end = end
        self._pace_s = pace_s
        self._free_at = 0.0

    async def ask(
        self, line: str, parse: Callable[[str], T], *, command: str = "", again: bool = True
    ) -> T:
        """Send the unanswered `command`, if any, and the question `line` in one write; return the
        answer read by `parse`.

        Two lines rather than one joined by `;`: a device may drop the rest of a line it refuses
        (IEEE 488.2), question included. `again`: nothing is changed, so it may be sent once more,
        on a new connection, if the old one ends meanwhile (for example an idle session) or the
        answer cannot be read (a repeated or late one, in pieces). Raises: Unreachable, TimedOut,
        Garbled. After any of them the connection is closed, because a late answer would be taken
        for the next one.
        """
        try:
            return (await self._once([line], [parse], command))[0]
        except (Dropped, Garbled):
            if not again:
                raise
        return (await self._once([line], [parse], command))[0]

    async def ask_all(self, questions: Mapping[str, Callable[[str], T]]) -> list[T]:
        """Send several questions in one write; return the answers, each read by its question's own
        reader, in their order.

        Only for questions that change nothing and whose answers say which of them they belong to.
        Raises: as `ask`.
        """
        lines, readers = list(questions), list(questions.values())
        try:
            return await self._once(lines, readers, "")
        except (Dropped, Garbled):
            return await self._once(lines, readers, "")

    async def order(
        self, command: str, question: str, parse: Callable[[str], scpi.QueuedError]
    ) -> str:
        """Send an unanswered command with the `question` for its errors; return them, empty when
        there are none.
        """
        first = await self.ask(question, parse, command=command, again=False)
        return (
            f'refused "{command}": ' + "; ".join([str(first), *await self.drain(question, parse)])
            if first.code
            else ""
        )

    async def drain(self, question: str, parse: Callable[[str], scpi.QueuedError]) -> list[str]:
        """Empty the error queue and return it."""
        errors: list[str] = []
        for _ in range(QUEUE_LENGTH):
            error = await self.ask(question, parse)
            if not error.code:
                break
            errors.append(str(error))
        return errors

    async def _once(
        self, questions: Sequence[str], readers: Sequence[Callable[[str], T]], command: str
    ) -> list[T]:
        if not self._link.alive:
            await self._link.open()
        await self._pace()
        lines = scpi.Lines()
        answers: list[str] = []
        name = command or questions[0] + (
            f" (and {len(questions) - 1} more)" if len(questions) > 1 else ""
        )

        def complete(data: bytes) -> bool:
            answers.extend(lines.feed(data))
            return len(answers) >= len(questions)

        try:
            if command and self._pace_s:
                await self._link.send(f"{command}{self._end}".encode("ascii"), command)
                self._reported()
                await self._pace()
            lead = "" if self._pace_s or not command else f"{command}{self._end}"
            data = lead + "".join(f"{line}{self._end}" for line in questions)
            try:
                await self._link.exchange(
                    data.encode("ascii"), complete, question=name, discard=True
                )
            finally:
                self._reported()
            # more answers than questions: late ones
            return [read(answer) for read, answer in zip(readers, answers, strict=False)]
        except Garbled as error:
            await self._link.close()
            raise Garbled(f'{self._link.who}: answer to "{name}": {error}') from error
        except BaseException:
            await self._link.close()
            raise

    async def _pace(self) -> None:
        """Wait until the next line may be sent to the device."""
        if (wait_s := self._free_at - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(wait_s)

    def _reported(self) -> None:
        """Count the pause from here: a line that was sent late does not shorten it."""
        self._free_at = asyncio.get_running_loop().time() + self._pace_s

    async def close(self) -> None:
        await self._link.close()
