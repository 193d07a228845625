"""A session with a command line that echoes, prompts, and prints log lines at any time."""

from __future__ import annotations

import re
from collections.abc import Callable

from drivers.link import Dropped, Link
from drivers.link.base import discreet
from drivers.wire.joblog import PROMPT, without_logs
from optics import Garbled, Refused, TestbedError, TimedOut, Unreachable

LONGEST = 1 << 20  # bytes of one answer; a table of 300 rows has 30 kB
_LOGIN = re.compile(r"(?:Login|User|Username)\s*:\s*$", re.IGNORECASE)
_PASSWORD = re.compile(r"Password\s*:\s*$", re.IGNORECASE)

Cleaned = Callable[[str], tuple[str, list[str]]]


class JobCliSession:
    """Query one device; logs in when needed. `logs` collects the log lines received, oldest first,
    until `take_logs`.

    The echo is the tag of an answer, the prompt its end. A prompt is not the end of a job: that
    comes later, as log lines. prompt: what ends an answer. clean: takes the log lines out of a
    text. unechoed: what an answer may begin with instead of the echo (a ROME prints its refusal
    over it in a capture).
    """

    def __init__(
        self,
        link: Link,
        username: str,
        password: str,
        *,
        prompt: re.Pattern[str] = PROMPT,
        clean: Cleaned = without_logs,
        unechoed: str = "Ports details:",
    ) -> None:
        self._link = link
        self._username, self._password = username, password
        self._prompt, self._clean, self._unechoed = prompt, clean, unechoed
        self._logs: list[str] = []
        self._rest = ""

    async def ask(self, command: str, *, again: bool = True) -> str:
        """Send `command`, return what is printed between its echo and the next prompt, log lines
        taken out.

        `again`: the command changes nothing, so it may be sent once more if the connection ends
        meanwhile. Raises: Unreachable, TimedOut, Garbled, Refused - login denied.
        """
        try:
            return await self._once(command)
        except (Dropped, Garbled):
            if not again:
                raise
        return await self._once(command)

    def take_logs(self) -> list[str]:
        """The log lines received since the last call."""
        logs, self._logs = self._logs, []
        return logs

    async def close(self) -> None:
        self._rest = ""
        await self._link.close()

    async def _once(self, command: str) -> str:
        if not self._link.alive:
            await self._open()
        text, self._rest = self._rest, ""
        seen = len(text)
        answer: str | None = None

        def complete(data: bytes) -> bool:
            nonlocal text, answer, seen
            text += data.decode("ascii", "backslashreplace")
            if len(text) > LONGEST:
                raise Garbled(f"no prompt in {len(text)} bytes, beginning {text[:60]!r}")
            # Searching everything again for each byte of a long table would take minutes: only
            # where a prompt may have ended.
            if not self._prompt.search(text, max(0, seen - 80)) and not (
                "\n" in text[seen:] and self._prompt.search(text)
            ):
                seen = len(text)
                return False
            seen = len(text)
            clean, _ = self._clean(text)
            begun = self._begun(clean, command)
            end = self._prompt.search(clean, begun) if begun >= 0 else None
            if not end:
                return False
            answer = clean[begun : end.start()]
            self._rest = clean[end.end() :]
            return True

        try:
            await self._link.exchange(command.encode("ascii") + b"\n", complete, question=command)
        except Garbled as error:
            await self.close()
            raise Garbled(f'{self._link.who}: answer to "{command}": {error}') from error
        except BaseException:
            self._logs += self._clean(text)[1]
            await self.close()
            raise
        self._logs += self._clean(text)[1]
        assert answer is not None
        return answer

    def _begun(self, clean: str, command: str) -> int:
        """Where the answer to `command` begins, -1 while it has not."""
        if (at := clean.find(command)) >= 0:
            return at + len(command)
        return clean.find(self._unechoed) if self._unechoed else -1

    async def _open(self) -> None:
        """Connect and get to the first prompt, through the login if the line demands one."""
        self._rest = ""
        if not (self._username + self._password).isprintable():
            raise Refused(
                f"{self._link.who}: user name or password cannot be sent: it has a character that ends a line"
            )
        await self._link.open()
        lost: TestbedError | None = None
        try:
            received = await self._until(b"", "connect")
            if _LOGIN.search(received):
                received = await self._until(self._username.encode() + b"\n", "login")
            if _PASSWORD.search(received):
                received = await self._until(self._password.encode() + b"\n", "password")
            if not self._prompt.search(received):
                last = received.strip().splitlines()[-1:] or [""]
                raise Refused(f"{self._link.who}: login as {self._username!r} denied: {last[0]!r}")
        except Dropped as error:
            lost = Unreachable(f"{self._link.who}: login as {self._username!r}: {error}")
        except (TimedOut, Garbled, Refused) as error:
            lost = error
        except BaseException:
            await self.close()
            raise
        if lost is not None:
            await self.close()
            # raised here: the original error may show the password
            raise discreet(lost, self._password)

    async def _until(self, data: bytes, question: str) -> str:
        """Send `data` and read until a prompt or another login prompt."""
        received = ""

        def complete(more: bytes) -> bool:
            nonlocal received
            received += more.decode("ascii", "backslashreplace")
            if len(received) > LONGEST:
                raise Garbled(
                    f"{self._link.who}: no prompt in {len(received)} bytes after {question}"
                )
            return bool(
                self._prompt.search(received)
                or _LOGIN.search(received)
                or _PASSWORD.search(received)
            )

        await self._link.exchange(data, complete, question=question)
        self._logs += self._clean(received)[1]
        return received
