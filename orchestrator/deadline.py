"""How long a verb may take: a limit set by the caller, extended for devices that are known to need
longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

from optics.errors import Interrupted, TestbedError, TimedOut
from optics.plain import seconds_text

OUTER: ContextVar[asyncio.Timeout | None] = ContextVar("outer", default=None)
"""The limit of the caller that runs the verb; it is extended together with the verb's own."""
SLACK = 2.0
"""Devices get this many times what their data sheets promise: drivers wait with limits of their
own.
"""


def endless() -> None:
    """Let the verb take as long as it takes: its caller's limit is for verbs that end by
    themselves.
    """
    if (outer := OUTER.get()) is not None:
        outer.reschedule(None)


class Limit:
    """The deadline of a verb. firm: the operator gave it, so it is kept, and work that cannot
    finish within it is not begun.
    """

    def __init__(self, timer: asyncio.Timeout, verb: str, timeout_s: float, *, firm: bool) -> None:
        self._timer, self._verb, self.timeout_s, self._firm = timer, verb, timeout_s, firm

    @property
    def passed(self) -> bool:
        """Whether this limit or the caller's has expired."""
        outer = OUTER.get()
        return self._timer.expired() or (outer is not None and outer.expired())

    @property
    def left_s(self) -> float:
        """Seconds until it expires; 0 where it never does."""
        when = self._timer.when()
        return 0.0 if when is None else max(when - asyncio.get_running_loop().time(), 0.0)

    def text(self) -> str:
        return f"{self._verb}: not finished after {self.timeout_s:g} s"

    def grant(self, seconds: float) -> None:
        """Allow `seconds` (s) from now for recovery, whatever the limit."""
        end = asyncio.get_running_loop().time() + seconds
        for timer in (self._timer, OUTER.get()):
            if (
                timer is not None
                and not timer.expired()
                and (when := timer.when()) is not None
                and when < end
            ):
                timer.reschedule(end)

    def need(self, seconds: float, what: str) -> None:
        """Extend for work known to take `seconds` (s). Raises: TimedOut - a firm limit has less
        left; nothing was begun.
        """
        when = self._timer.when()
        if when is None:
            return
        left = self.left_s
        if self._firm:
            if seconds > left:
                raise TimedOut(
                    f"{self._verb}: {what} takes about {seconds_text(seconds)}, {seconds_text(left)} are left of the "
                    f"{self.timeout_s:g} s allowed; nothing was changed",
                    hint=f"leave --timeout out, or allow more: --timeout {int(SLACK * seconds + self.timeout_s - left) + 1}s",
                )
            return
        more = SLACK * seconds
        self.timeout_s += more
        self._timer.reschedule(when + more)
        outer = OUTER.get()
        if outer is not None and (end := outer.when()) is not None:
            outer.reschedule(end + more)


@asynccontextmanager
async def deadline(timeout_s: float, verb: str, *, firm: bool = True) -> AsyncIterator[Limit]:
    """Bound the body. Raises: TimedOut - names the verb; the body was cancelled and has ended."""
    limit: Limit | None = None
    try:
        async with asyncio.timeout(timeout_s) as timer:
            limit = Limit(timer, verb, timeout_s, firm=firm)
            yield limit
    except TimeoutError as error:
        if isinstance(error, TestbedError):
            raise
        allowed = limit.timeout_s if limit is not None else timeout_s
        raise TimedOut(
            f"{verb}: not finished after {allowed:g} s",
            hint="testbed status shows the present state; --timeout 10m allows more",
        ) from error


def unless_stopped(error: TestbedError) -> None:
    """Return unless the task was cancelled: a change makes errors of its own of an interrupt and of
    an expired limit.

    Raises: CancelledError, Interrupted.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError from error
    if isinstance(error, Interrupted):
        raise error
