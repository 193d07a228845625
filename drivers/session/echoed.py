"""A session of echoed lines: the device repeats the command, may answer with data, and ends with
`OK`.
"""

from __future__ import annotations

from drivers.link import Dropped, Link
from drivers.wire.scpi import Lines
from optics import Garbled, Refused

OK = "OK"


class EchoedSession:
    """Query one device over a line that echoes; connects when needed.

    The echo is the tag of an answer: anything before it belongs to an older question and is
    discarded.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    async def ask(self, command: str) -> str:
        """Ask for one line of data. Raises: Unreachable, TimedOut, Garbled, Refused - other text in
        place of data and OK.
        """
        try:
            return await self._query(command)
        except (Dropped, Garbled):  # repeating a query changes nothing
            await self._link.close()
        return await self._query(command)

    async def send(self, command: str) -> None:
        """Send a command that is answered by OK alone. Raises: as `ask`; never sends twice."""
        answer = await self._exchange(command, 1)
        if answer[0] != OK:
            raise Refused(f'{self._link.who} refused "{_short(command)}": {answer[0][:120]}')

    async def close(self) -> None:
        await self._link.close()

    async def _query(self, command: str) -> str:
        answer = await self._exchange(command, 2)
        if answer[0] == OK or len(answer) < 2:
            raise Garbled(
                f'{self._link.who}: answer to "{_short(command)}": {answer[0][:80]!r} and no data'
            )
        if answer[1] != OK:
            raise Refused(f'{self._link.who} refused "{_short(command)}": {answer[1][:120]}')
        return answer[0]

    async def _exchange(self, command: str, wanted: int) -> list[str]:
        """The first `wanted` lines after the echo, fewer where OK comes sooner."""
        if not self._link.alive:
            await self._link.open()
        lines = Lines()
        received: list[str] = []
        echoed = False

        def complete(data: bytes) -> bool:
            nonlocal echoed
            for line in lines.feed(data):
                if not echoed:
                    echoed = line == command
                else:
                    received.append(line)
            return OK in received or len(received) >= wanted

        try:
            await self._link.exchange(
                command.encode("ascii") + b"\r\n", complete, question=_short(command), discard=True
            )
        except Garbled as error:
            await self._link.close()
            raise Garbled(f'{self._link.who}: answer to "{_short(command)}": {error}') from error
        except BaseException:
            await self._link.close()
            raise
        return received


def _short(command: str) -> str:
    return command if len(command) <= 60 else command[:57] + "..."
