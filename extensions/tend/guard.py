"""The guard of a trial, which no proposer can exchange: nothing moves beyond a budget or before a
rehearsal, and a plan stays only if iterations measured on it are shorter by more than noise.

Whatever happens in between, the lab goes back: by this process, and if it dies by the deadline of
`up --confirm-within`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol, TypeVar

from extensions.tend.budget import Budget, Spent
from optics import (
    BadFile,
    BadPlugin,
    HandsNeeded,
    Infeasible,
    Interlock,
    Locked,
    TestbedError,
    Unreachable,
)
from orchestrator.deadline import unless_stopped
from orchestrator.results import JsonReport
from orchestrator.store.confirmations import MOST_S

T = TypeVar("T")

OVER = "over budget"
KEPT, BACK, REFUSED, FAILED = "kept", "taken back", "refused", "failed"
"""How trials end: refused ones have moved nothing."""
UNCHANGED = (BadFile, BadPlugin, Infeasible, Interlock, Locked, Unreachable)
"""Errors of `up` after which nothing was changed."""
SLOWEST = 1.5
"""A window may take this many times as long as it did before; then its iterations are not shorter."""
BEGIN_S = 10.0
"""Until the first whole iteration after a change (s)."""
BACK_S = 60.0
"""After the window, until it is confirmed or rolled back (s); then the lab goes back by itself."""
LEAST = 0.01
"""Shorter by less than this share is no gain, however quiet the lab is."""
ERRORS = 3.0
"""Standard errors that count as noise."""


@dataclass(frozen=True, slots=True)
class Priced:
    """A plan that was read like any file, and what it costs, one way. place: the fingerprint of
    the lab for which this holds. sha: of the plan.
    """

    name: str
    text: str
    sha: str
    watts: float
    moves: int
    dark_ms: float
    place: str = ""


@dataclass(frozen=True, slots=True)
class Trial(JsonReport):
    """One trial. over: the plan that was up. before_ms, after_ms: medians of the windows; None:
    there was none; of a refused one before_ms is of the window before it was proposed. moves,
    dark_ms: what it cost, its way back included.
    """

    number: int
    name: str
    ended: str
    why: str
    sha: str = ""
    over: str = ""
    before_ms: float | None = None
    after_ms: float | None = None
    watts: float | None = None
    moves: int = 0
    dark_ms: float = 0.0


class Bench(Protocol):
    """The lab, as guard and loop use it. Every method raises TestbedError. longest_s: a change that
    moves nothing slow takes so long (s) at most.
    """

    longest_s: float

    def now(self) -> float:
        """Wall time (s)."""

    def at(self) -> tuple[str, str, Mapping[str, Any]]:
        """Hash, name and content of the plan that is up."""

    async def rest(self, seconds: float) -> None:
        """Wait."""

    async def price(self, name: str, text: str) -> Priced:
        """Read a plan and compute its change; writes nothing."""

    async def rehearse(self, priced: Priced) -> Priced:
        """Make the change on a twin of the lab and go back there; with the longer dark time."""

    async def up(self, priced: Priced, within_s: float) -> float:
        """Bring it up, to be confirmed within this time (s); dark for so long (ms)."""

    async def iterations(self, count: int, limit_s: float) -> Sequence[float]:
        """The times (ms) of so many iterations that begin from now on; fewer if there were not
        more within this time (s). Raises: Missing - the job runs no more.
        """

    async def confirm(self) -> None:
        """Keep what is up."""

    def back(self, priced: Priced) -> Coroutine[Any, Any, float | None]:
        """Go back from this plan if it waits to be confirmed; dark for so long (ms). None: it does
        not, though another command's change may.
        """


Say = Callable[..., None]
"""Called with an event, a text and fields, for the journal."""


def error_ms(times: Sequence[float]) -> float:
    """Standard error of a median, of the deviations that are usual: a few outliers do not count."""
    middle = median(times)
    spread = 1.4826 * median(abs(each - middle) for each in times)
    return 1.2533 * spread / math.sqrt(len(times))


def verdict(before: Sequence[float], after: Sequence[float], window: int) -> tuple[bool, str]:
    """Whether the plan stays, and why."""
    if len(after) < window:
        return False, f"only {len(after)} of {window} iterations in time"
    was, now = median(before), median(after)
    noise = max(LEAST * was, ERRORS * math.hypot(error_ms(before), error_ms(after)))
    text = f"{was:.4g} ms before, {now:.4g} ms on it, noise {noise:.3g} ms"
    return was - now > noise, text


async def whole(work: Coroutine[Any, Any, T]) -> T:
    """What it returns, however often this task is stopped meanwhile: that counts after it."""
    task = asyncio.create_task(work)
    stopped: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            stopped = error
    found = task.result()
    if stopped is not None:
        raise stopped
    return found


class Guard:
    """watts: of a plan's network, 0: any. window: iterations. save: called with what was spent
    before anything moves, so that it counts even if this process dies.
    """

    def __init__(
        self,
        bench: Bench,
        budget: Budget,
        *,
        watts: float,
        window: int,
        say: Say,
        save: Callable[[Sequence[Spent]], None],
    ) -> None:
        self.bench, self.budget, self.watts, self.window = bench, budget, watts, window
        self.say, self.save = say, save

    async def trial(self, number: int, name: str, text: str) -> Trial:
        """Try one plan. Raises: TestbedError - the lab is not as before, or that is not known;
        CancelledError.
        """
        try:
            priced = self.allowed(await self.bench.price(name, text))
            priced = self.allowed(await self.bench.rehearse(priced))
            before = await self.before()  # not sooner: a twin takes processors from the lab's hosts
            limit_s = BEGIN_S + SLOWEST * self.window * median(before) / 1e3
            if limit_s + BACK_S > MOST_S:
                raise Infeasible(
                    f"a window of it may take {limit_s:.0f} s, and a change waits {MOST_S:.0f} s at most to be confirmed",
                    hint="testbed service start tend with a smaller --window",
                )
        except HandsNeeded:
            raise
        except TestbedError as error:
            unless_stopped(error)
            return Trial(number, name, REFUSED, error.line)
        self.say("rehearsed", f"{name}: {priced.moves} moves, {priced.dark_ms:.0f} ms dark")
        return await self._tried(number, priced, before, limit_s)

    async def before(self) -> Sequence[float]:
        """A window of the plan that is up."""
        return await self.bench.iterations(self.window, math.inf)

    def allowed(self, priced: Priced) -> Priced:
        """The same. Raises: Infeasible - it is beyond a budget, or `up` would leave nothing to be
        confirmed.
        """
        if not priced.moves:
            raise Infeasible("it moves no circuit, so nothing would take it back")
        if self.watts and priced.watts > self.watts:
            raise Infeasible(
                f"its network takes {priced.watts:.4g} W, {self.watts:g} W are allowed"
            )
        if why := self.budget.why_not(self.bench.now(), priced.moves, priced.dark_ms):
            raise Infeasible(f"{OVER}: {why}")
        return priced

    async def _tried(
        self, number: int, priced: Priced, before: Sequence[float], limit_s: float
    ) -> Trial:
        bench, was, within_s = self.bench, median(before), limit_s + BACK_S
        _, dark_ms = self.budget.there_and_back(priced.moves, priced.dark_ms)
        # the deadline counts from the end of `up`, and the way back from the deadline
        until = bench.now() + within_s + 2 * bench.longest_s + dark_ms / 1e3 + BACK_S
        booked = self.budget.book(until, priced.moves, priced.dark_ms)
        self.save(self.budget.spent)
        dark: list[float] = []
        after: Sequence[float] = ()
        kept, ended, why, unchanged = False, BACK, "", False
        try:
            dark.append(await bench.up(priced, within_s))
            self.say("up", f"{priced.name}: dark for {dark[0]:.0f} ms")
            after = await bench.iterations(self.window, limit_s)
            good, why = verdict(before, after, self.window)
            if good:
                await bench.confirm()
                kept, ended = True, KEPT
        except HandsNeeded:
            raise
        except TestbedError as error:
            unless_stopped(error)
            ended, why, unchanged = FAILED, error.line, isinstance(error, UNCHANGED)
        finally:
            if not kept and (ms := await whole(bench.back(priced))) is not None:
                dark.append(ms)
        ended = REFUSED if unchanged and not dark else ended
        moves, dark_ms = (1 if kept else 2) * priced.moves, sum(dark)
        if ended == REFUSED:
            moves = 0
        elif not kept and len(dark) < 2:  # the deadline, or `up` itself, went back
            dark_ms = max(dark_ms, booked.dark_ms)
        slower = max(dark) / priced.dark_ms if dark and priced.dark_ms else 1.0
        self.budget.settle(booked, Spent(bench.now(), moves, dark_ms, slower))
        self.save(self.budget.spent)
        return Trial(
            number,
            priced.name,
            ended,
            why,
            priced.sha,
            before_ms=was,
            after_ms=median(after) if after else None,
            watts=priced.watts,
            moves=moves,
            dark_ms=dark_ms,
        )
