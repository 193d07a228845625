"""A session in TL1: login, correlation tags, batches, retries of what was certainly not done,
keep-alive.

Raw TCP and telnet, with or without echo and prompt: what is not an answer is skipped. A device that
echoes may print the echo of one command into the answer to another: query such a device one command
at a time (`window=1`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from drivers.link import Dropped, Link, open_link
from drivers.link.base import discreet
from drivers.wire import tl1
from optics import DeviceConfig, Garbled, Refused, TestbedError, TimedOut

NOT_YET = frozenset({"PLNA", "SARB"})
"""Denials that mean "not executed, try later": login not active (also for some 100 ms after
ACT-USER: pynt's Calient driver sleeps 0.5 s there) and all resources busy."""
NO_SUCH_COMMAND = frozenset({"IICM", "ICNV"})
"""Denials of ACT-USER that mean that the device knows no logins; one that does need one says PLNA
to the next question.
"""
TRIES = 8
FIRST_WAIT_S = 0.02
"""Waits between tries double: 2.5 s in all."""
KEEP_ALIVE_S = 30.0
"""MonALISA asks after 60 s of idleness, "otherwise the connection will be lost"; half of that
leaves room for a slow answer.
"""


OPTIONS = {
    "window": "commands pending at once, 1 to send strictly one by one; default 16",
    "keep_alive_s": "idle time after which the session is refreshed (s), 0 for never; default 30",
    "tid": "target identifier of every command, auto for the switch's own name; default none",
}


@dataclass(frozen=True, slots=True)
class Command:
    """A TL1 command without its tag; `again` marks one that changes nothing and may be repeated
    after a lost connection.

    general: see `drivers.wire.tl1.command`.
    """

    verb: str
    aid: str = ""
    blocks: tuple[str, ...] = field(default=(), repr=False)
    again: bool = False
    general: str | None = None

    def __str__(self) -> str:
        """Its name in error messages; payload blocks of user commands hold the password and are
        left out.
        """
        shown = () if self.verb.endswith("-USER") else self.blocks
        return tl1.command(self.verb, self.aid, "", *shown, general=self.general)


def retrieve(verb: str, aid: str = "", *blocks: str) -> Command:
    return Command(verb, aid, blocks, again=True)


def _denial(reply: tl1.Reply | None) -> str:
    return "" if reply is None or reply.completed else reply.error


def open_tl1(
    config: DeviceConfig, *, opening: Sequence[Command] = (), window: int = 16
) -> Tl1Session:
    """The session with a TL1 device of the inventory. Raises: ValueError - an option that is no
    number, or a window below 1.
    """
    window = int(config.options.get("window", str(window)))
    if window < 1:
        raise ValueError(f"window {window}: at least 1")
    return Tl1Session(
        open_link(config.address, config.timeout_s, config.name),
        config.username,
        config.password,
        window=window,
        keep_alive_s=float(config.options.get("keep_alive_s", KEEP_ALIVE_S)),
        tid=config.options.get("tid", ""),
        opening=opening,
    )


class Tl1Session:
    """Query one device; connects and logs in when needed, again after an idle session was dropped.

    window: how many commands may be pending at once. Answers are matched to commands by tag,
    whatever comes between them. user: without one there is no login. tid: target identifier of
    every command, "auto" for the name the device gives itself in its answers, empty for the device
    at the other end. opening: sent after each login; a device may deny them.
    """

    def __init__(
        self,
        link: Link,
        user: str,
        password: str,
        *,
        window: int = 16,
        keep_alive_s: float = KEEP_ALIVE_S,
        tid: str = "",
        opening: Sequence[Command] = (),
    ) -> None:
        self._link = link
        self._user = user
        self._password = password
        self._window = window
        self._keep_alive_s = keep_alive_s
        self._auto_tid = tid == "auto"
        self._tid = "" if self._auto_tid else tl1.target(tid)
        self._opening = tuple(opening)
        self._logged_in = False
        self._parser = tl1.Parser()
        self._tag = 0
        self._lock = asyncio.Lock()
        self._used_at = 0.0
        self._keeper: asyncio.Task[None] | None = None

    async def ask(self, command: Command, *, timeout_s: float | None = None) -> tl1.Reply:
        """Return the completed answer. Raises: Refused - denied, in the device's words; and as
        `batch`.
        """
        (reply,) = await self.batch([command], timeout_s=timeout_s)
        if not reply.completed:
            raise Refused(f'{self._link.who} refused "{command}": {reply.message}')
        return reply

    async def refusals(self, commands: Sequence[Command]) -> list[str]:
        """As `batch`, but return for each command the reason of its refusal, empty if it was
        completed.
        """
        replies = await self.batch(commands)
        pairs = zip(commands, replies, strict=True)
        return [
            "" if reply.completed else f'refused "{command}": {reply.message}'
            for command, reply in pairs
        ]

    async def batch(
        self, commands: Sequence[Command], *, timeout_s: float | None = None
    ) -> list[tl1.Reply]:
        """Send commands that do not depend on each other, return their answers in the order of the
        commands, denied ones too.

        timeout_s: longest silence (s) where it is not the link's usual one. A command denied with
        "not now" was not executed and is sent again, for at most about 2.5 s. Raises: Unreachable,
        TimedOut, Garbled - then any of the commands may have been executed; Refused - the login
        was.
        """
        try:
            return await self._batch(commands, timeout_s)
        except (Dropped, Garbled):  # repeating queries on a new connection changes nothing
            if not all(command.again for command in commands):
                raise
        return await self._batch(commands, timeout_s)

    async def _batch(self, commands: Sequence[Command], timeout_s: float | None) -> list[tl1.Reply]:
        async with self._lock:
            if not self._link.alive:
                await self._start()
            return await self._patient(commands, timeout_s)

    async def _patient(
        self, commands: Sequence[Command], timeout_s: float | None = None
    ) -> list[tl1.Reply]:
        replies: list[tl1.Reply | None] = [None] * len(commands)
        waiting = list(range(len(commands)))
        wait_s = FIRST_WAIT_S
        for attempt in range(TRIES):
            for at in range(0, len(waiting), self._window):
                part = waiting[at : at + self._window]
                for i, reply in zip(
                    part, await self._exchange([commands[i] for i in part], timeout_s), strict=True
                ):
                    replies[i] = reply
            waiting = [i for i in waiting if _denial(replies[i]) in NOT_YET]
            if not waiting or attempt == TRIES - 1:
                break
            await asyncio.sleep(wait_s)
            wait_s *= 2
            if attempt >= 2 and any(_denial(replies[i]) == "PLNA" for i in waiting):
                await self._log_in()  # the session itself was taken away
        return [reply for reply in replies if reply is not None]

    async def _exchange(
        self, commands: Sequence[Command], timeout_s: float | None = None
    ) -> list[tl1.Reply]:
        """One write with all `commands`, their answers by tag. A TimedOut names tags that no
        question had.
        """
        tags = [self._next_tag() for _ in commands]
        data = "".join(
            tl1.command(c.verb, c.aid, tag, *c.blocks, tid=self._tid, general=c.general) + "\n"
            for c, tag in zip(commands, tags, strict=True)
        )
        question = str(commands[0]) + (
            f" (and {len(commands) - 1} more)" if len(commands) > 1 else ""
        )
        missing = set(tags)
        answers: dict[str, tl1.Reply] = {}
        strange: list[str] = []
        received = self._parser.in_progress

        def complete(chunk: bytes) -> bool | None:
            nonlocal received
            before, came = received, len(answers)
            for message in self._parser.feed(chunk):
                if isinstance(message, tl1.Unreadable):
                    raise Garbled(f"not a TL1 message: {message.text[:160]!r}")
                if isinstance(message, tl1.Reply):
                    # Tag 0 means that the device could not read the tag; with one command pending
                    # it can only mean that one.
                    tag = tags[0] if message.ctag == "0" and len(tags) == 1 else message.ctag
                    if tag in missing:
                        missing.discard(tag)
                        answers[tag] = message
                    elif message.ctag == "0":
                        raise Garbled(f"one of {len(tags)} answers has no tag: {message.message}")
                    else:
                        strange.append(message.ctag)
            received = self._parser.in_progress
            # Unsolicited messages are no sign that an answer will come.
            return not missing if not missing or received > before or len(answers) > came else None

        try:
            await self._link.exchange(
                data.encode("ascii"), complete, question=question, timeout_s=timeout_s
            )
        except Garbled as error:
            await self._link.close()
            raise Garbled(f'{self._link.who}: answer to "{question}": {error}') from error
        except TimedOut as error:
            await self._link.close()
            if not strange or isinstance(error, Dropped):
                raise
            text, last, received_last = str(error).partition("; last received")
            under = f"under tag {strange[0][:20]!r}, not {tags[0]!r}"
            raise TimedOut(
                f"{text}; one came {under}{last}{received_last}", hint=error.hint
            ) from error
        except BaseException:
            await self._link.close()  # whatever is still pending must not meet the next question
            raise
        self._used_at = asyncio.get_running_loop().time()
        if self._auto_tid:
            # a name that cannot be quoted: the device at the other end, then
            with suppress(ValueError):
                self._tid = tl1.target(answers[tags[-1]].sid)
        return [answers[tag] for tag in tags]

    def _next_tag(self) -> str:
        self._tag = self._tag % 999_999 + 1  # six digits: the longest tag every TL1 agent takes
        return str(self._tag)

    async def _start(self) -> None:
        await self._link.open()
        self._parser = tl1.Parser()
        self._used_at = asyncio.get_running_loop().time()  # idle from now on, also without a login
        if self._auto_tid:
            self._tid = ""  # before the login a device may call itself ( nil )
        await self._log_in()
        if self._opening:
            await self._patient(self._opening)
        if self._keeper is None and self._keep_alive_s > 0:
            self._keeper = asyncio.create_task(self._keep(), name=f"keep-alive {self._link.who}")

    async def _log_in(self) -> None:
        self._logged_in = False
        if not self._user:
            return
        try:
            login = Command("ACT-USER", tl1.quoted(self._user), (tl1.quoted(self._password),))
        except ValueError as error:
            await self._link.close()
            raise Refused(
                f"{self._link.who}: user name or password cannot be sent over TL1: {error}"
            ) from None
        lost: TestbedError | None = None
        try:
            (reply,) = await self._exchange([login])
        except (TimedOut, Garbled) as error:
            lost = discreet(error, self._password)
        if lost is not None:
            raise lost  # raised here: the original error may show the password
        # A denial with this text is how Calient switches greet a user they still know (Quali
        # cloudshell-L1-calient).
        known = any(
            "already logged in" in text.lower()
            for text in (*reply.comments, *reply.stray, *reply.rows)
        )
        self._logged_in = reply.completed or known
        if not self._logged_in and reply.error not in NO_SUCH_COMMAND:
            await self._link.close()
            raise Refused(
                f'{self._link.who} refused "ACT-USER" of user {self._user!r}: {reply.message}'
            )

    async def _keep(self) -> None:
        """Ask for a header whenever the session has been idle; a session lost meanwhile is made
        again by the next question.
        """
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(max(0.01, self._used_at + self._keep_alive_s - loop.time()))
            if self._link.alive and loop.time() >= self._used_at + self._keep_alive_s:
                with suppress(TestbedError):
                    async with self._lock:
                        await self._exchange([Command("RTRV-HDR")])
            elif not self._link.alive:
                self._used_at = loop.time()

    async def close(self) -> None:
        """Log out, without waiting long for the answer, and close."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            with suppress(asyncio.CancelledError):
                await keeper
        async with self._lock:
            if self._link.alive and self._logged_in:
                with suppress(TestbedError, TimeoutError):
                    async with asyncio.timeout(1.0):
                        await self._exchange([Command("CANC-USER", tl1.quoted(self._user))])
            await self._link.close()
