"""A conversation with a command line that echoes, prompts, and prints log lines whenever it likes."""

from __future__ import annotations

import re

from drivers.link import Dropped, Link
from drivers.wire.joblog import PROMPT, without_logs
from optics import Garbled, Refused, Unreachable

LONGEST = 1 << 20  # bytes of one answer; a table of 300 rows has 30 kB
_LOGIN = re.compile(r"(?:Login|User|Username)\s*:\s*$", re.IGNORECASE)
_PASSWORD = re.compile(r"Password\s*:\s*$", re.IGNORECASE)


class JobCliSession:
    """Ask one device questions; logs in when needed. `logs` collects the log lines heard, oldest first, until `take_logs`.

    The echo is the tag of an answer, the prompt its end. A prompt is not the end of a job: that comes later, as log lines.
    """

    def __init__(self, link: Link, username: str, password: str) -> None:
        self._link = link
        self._username, self._password = username, password
        self._logs: list[str] = []
        self._rest = ""

    async def ask(self, command: str, *, again: bool = True) -> str:
        """Send `command`, return what stands between its echo and the next prompt, log lines taken out.

        `again`: nothing is changed, so it may be asked once more when the connection ends under it.
        Raises: Unreachable, TimedOut, Garbled, Refused - login denied.
        """
        try:
            return await self._once(command)
        except (Dropped, Garbled):
            if not again:
                raise
        return await self._once(command)

    def take_logs(self) -> list[str]:
        """The log lines heard since the last call."""
        logs, self._logs = self._logs, []
        return logs

    async def close(self) -> None:
        self._rest = ""
        await self._link.close()

    async def _once(self, command: str) -> str:
        if not self._link.alive:
            await self._open()
        text, self._rest = self._rest, ""
        answer: str | None = None

        def complete(data: bytes) -> bool:
            nonlocal text, answer
            text += data.decode("ascii", "backslashreplace")
            if len(text) > LONGEST:
                raise Garbled(f"no prompt in {len(text)} bytes, beginning {text[:60]!r}")
            clean, _ = without_logs(text)
            at = clean.find(command)
            if at < 0:
                return False
            end = PROMPT.search(clean, at + len(command))
            if not end:
                return False
            answer = clean[at + len(command) : end.start()]
            self._rest = clean[end.end() :]
            return True

        try:
            await self._link.exchange(command.encode("ascii") + b"\n", complete, question=command)
        except Garbled as error:
            await self.close()
            raise Garbled(f'{self._link.who}: answer to "{command}": {error}') from error
        except BaseException:
            self._logs += without_logs(text)[1]
            await self.close()
            raise
        self._logs += without_logs(text)[1]
        assert answer is not None
        return answer

    async def _open(self) -> None:
        """Connect and get to the first prompt, through the login where the line asks for one."""
        self._rest = ""
        await self._link.open()
        try:
            heard = await self._until(b"", "connect")
            if _LOGIN.search(heard):
                heard = await self._until(self._username.encode() + b"\n", "login")
            if _PASSWORD.search(heard):
                heard = await self._until(self._password.encode() + b"\n", "password")
            if not PROMPT.search(heard):
                last = heard.strip().splitlines()[-1:] or [""]
                raise Refused(f"{self._link.who}: login as {self._username!r} denied: {last[0][:80]!r}")
        except Dropped as error:
            await self.close()
            raise Unreachable(f"{self._link.who}: login as {self._username!r}: {error}") from error
        except BaseException:
            await self.close()
            raise

    async def _until(self, data: bytes, question: str) -> str:
        """Send `data` and listen until a prompt or another question of the login."""
        heard = ""

        def complete(more: bytes) -> bool:
            nonlocal heard
            heard += more.decode("ascii", "backslashreplace")
            if len(heard) > LONGEST:
                raise Garbled(f"{self._link.who}: no prompt in {len(heard)} bytes after {question}")
            return bool(PROMPT.search(heard) or _LOGIN.search(heard) or _PASSWORD.search(heard))

        await self._link.exchange(data, complete, question=question)
        self._logs += without_logs(heard)[1]
        return heard
