"""A seeded event loop with a virtual clock, whose callbacks belong to processes that may be killed
or stopped anywhere.

A context variable names the process (`Actor`) of a callback; tasks, timers and connections inherit
it. Within a process callbacks run in asyncio's order; between processes the seed chooses. Of a
killed process nothing runs any more: no `finally`, no `except`.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import heapq
import random
import struct
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

MOST_STEPS = 400_000
"""Callbacks of one seed; the longest of ten thousand seeds has a tenth of it."""
STEP = struct.Struct("<Id")


class Deadlock(AssertionError):
    """Nothing can run and nothing is due, or it never ends."""


class Killed(BaseException):
    """The process got SIGKILL here, in the middle of a callback."""


class SimHandle(asyncio.Handle):
    """A callback that is due; asyncio's own asks twice whether it is debugged."""

    __slots__ = ()

    def __init__(
        self, callback: Any, args: Any, loop: SimLoop, context: contextvars.Context | None
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop, self._callback, self._args = loop, callback, args
        self._cancelled, self._repr, self._source_traceback = False, None, None


class SimTimer(asyncio.TimerHandle):
    """As `SimHandle`, at a time."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Any,
        args: Any,
        loop: SimLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop, self._callback, self._args = loop, callback, args
        self._cancelled, self._repr, self._source_traceback = False, None, None
        self._when, self._scheduled = when, True

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None


class Machine:
    """What a power loss takes down at once: processes, and the clocks that count from its start."""

    def __init__(self, name: str) -> None:
        self.name, self.boots, self.booted = name, 1, 0.0
        self.wall_s = 1_780_000_000.0
        """What its wall clock is ahead of the loop's (s)."""

    @property
    def boot(self) -> str:
        """The boot id."""
        return f"{self.name}-boot-{self.boots}"


class Actor:
    """One process. doom: ("step" or "point", n), the callback before which, or the point at which,
    it is killed.
    """

    def __init__(self, loop: SimLoop, name: str, machine: Machine, number: int) -> None:
        self.loop, self.name, self.machine, self.number = loop, name, machine, number
        self.pid, self.began = 0, loop.now
        self.dead = self.paused = self.ended = False
        self.ready: deque[asyncio.Handle] = deque()
        self.on_death: list[Callable[[], object]] = []
        self.steps = self.points = 0
        self.doom: tuple[str, int] = ("", 0)
        self.watchers: tuple[Callable[[Actor], None], ...] | None = None
        """Called after each of its callbacks; None: not yet known."""
        self.mortal = False
        """Whether `point` may kill it: the commands of operators."""

    def __repr__(self) -> str:
        return self.name


ACTOR: contextvars.ContextVar[Actor] = contextvars.ContextVar("actor")


def point(name: str) -> None:
    """A place inside a callback where a command may die: just before or after an effect. Raises:
    Killed.
    """
    actor = ACTOR.get(None)
    if actor is None or not actor.mortal:
        return
    if not actor.dead:
        actor.points += 1
        if actor.doom == ("point", actor.points):
            actor.loop.note(f"at {name}")
            actor.loop.kill(actor)
    if actor.dead:
        raise Killed(name)


class SimTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address."""

    def __hash__(self) -> int:
        return self.number

    number = 0


class SimFuture(asyncio.Future[Any]):
    """As `SimTask`."""

    def __hash__(self) -> int:
        return self.number

    number = 0


class SimLoop(asyncio.BaseEventLoop):
    """Runs until the main task ends. `note` adds to the trace, whose hash says whether two runs
    were the same.
    """

    def __init__(self, seed: str, *, trace: bool = False) -> None:
        super().__init__()
        self.rng = random.Random(f"loop/{seed}")
        self.now = self.paused = 0.0
        self.stalled_at = 0.0
        """The time (s), how long a process stood still in a wait that is not asyncio's, and when
        last: all others did, too.
        """
        self.heap: list[tuple[float, int, asyncio.TimerHandle]] = []
        self.runnable: list[Actor] = []
        self.actors: list[Actor] = []
        self.steps = self.order = self.made = 0
        self.sea = self.actor("world", Machine("world"))
        self.kept: list[object] = []
        """What killed processes were about to do: collected, a coroutine would run its
        `finally`.
        """
        self.net: Any = None
        self.watch: Callable[[Actor], tuple[Callable[[Actor], None], ...]] | None = None
        """Who watches a process; None: nobody yet."""
        self.failure: Exception | None = None
        """Raised after the callback that set it."""
        self.trace: list[str] | None = [] if trace else None
        self._hash = hashlib.blake2b(digest_size=8)
        self._log = bytearray()
        self.set_task_factory(self._task)

    # ---- what asyncio asks for

    def time(self) -> float:
        return self.now

    def _task(
        self, loop: asyncio.AbstractEventLoop, work: Any, context: contextvars.Context | None = None
    ) -> SimTask:
        self.made = SimTask.number = self.made + 1  # the constructor hashes it
        task = SimTask(work, loop=loop, context=context)
        task.number = self.made
        self.kept.append(task)
        return task

    def create_future(self) -> asyncio.Future[Any]:
        future = SimFuture(loop=self)
        self.made += 1
        future.number = self.made
        return future

    def _put(self, handle: asyncio.Handle) -> None:
        actor = handle._context.get(ACTOR, self.sea)  # type: ignore[attr-defined]
        if actor.dead:
            self.kept.append(handle)
            return
        if not actor.ready and not actor.paused:
            self.runnable.append(actor)
        actor.ready.append(handle)

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        handle = SimHandle(callback, args, self, context)
        self._put(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:  # type: ignore[override]
        timer = SimTimer(when, callback, args, self, context)
        self.order += 1
        heapq.heappush(self.heap, (when, self.order, timer))
        return timer

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:  # type: ignore[override]
        timer = SimTimer(self.now + delay, callback, args, self, context)
        self.order += 1
        heapq.heappush(self.heap, (timer._when, self.order, timer))  # type: ignore[attr-defined]
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def set_default_executor(self, executor: Any) -> None:
        pass

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """A thread: its work happens at one moment, which the seed chooses; if it returns a future,
        it takes as long.
        """
        future = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:
                future.set_exception(error)
                return
            if isinstance(result, asyncio.Future):
                result.add_done_callback(passed)
            else:
                future.set_result(result)

        def passed(done: asyncio.Future[Any]) -> None:
            # it is looked at, even if nobody waits any more
            error = None if done.cancelled() else done.exception()
            if future.cancelled() or done.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(done.result())

        self.call_later(self.rng.uniform(1e-5, 2e-3), work)
        return future

    async def create_connection(
        self, factory: Any, host: Any = None, port: Any = None, **more: Any
    ) -> Any:  # type: ignore[override]
        return await self.net.connect(factory, port)

    async def create_server(
        self, factory: Any, host: Any = None, port: Any = None, **more: Any
    ) -> Any:  # type: ignore[override]
        return self.net.listen(factory, port)

    # ---- the scheduler

    def _run_once(self) -> None:
        """Run until the main task ends."""
        heap, runnable, random, pack, pop = (
            self.heap,
            self.runnable,
            self.rng.random,
            STEP.pack,
            heapq.heappop,
        )
        steps, log = self.steps, self._log
        try:
            while not self._stopping:  # type: ignore[attr-defined]
                now = self.now
                while heap and (heap[0][0] <= now or heap[0][2]._cancelled):
                    timer = pop(heap)[2]
                    if not timer._cancelled:
                        self._put(timer)
                if not runnable:
                    if not heap:
                        raise Deadlock(f"nothing to do at {now:.3f}")
                    self.now = heap[0][0]
                    continue
                place = random() * len(runnable)  # which, and by its fraction how long it takes
                index = int(place)
                actor = runnable[index]
                handle = actor.ready.popleft()
                if not actor.ready:
                    runnable[index] = runnable[-1]
                    runnable.pop()
                if handle._cancelled:
                    continue
                steps += 1
                actor.steps += 1
                if actor.steps == actor.doom[1] and actor.doom[0] == "step":
                    self.kept.append(handle)
                    self.kill(actor)
                    continue
                self.now = now = now + 2e-6 + 2e-5 * (place - index)
                log += pack(actor.number, now)
                try:
                    handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler(
                        {"message": f"in {handle!r}", "exception": error, "handle": handle}
                    )
                watchers = actor.watchers
                if watchers is None and self.watch is not None:
                    watchers = actor.watchers = self.watch(actor)
                for watcher in watchers or ():
                    watcher(actor)
                if self.failure is not None:
                    raise self.failure
                if steps > MOST_STEPS:
                    raise Deadlock(f"{steps} steps and no end at {now:.3f}: a livelock")
        finally:
            self.steps = steps

    def note(self, text: str) -> None:
        """Add an event to the trace."""
        self._log += text.encode()
        if len(self._log) > 1 << 16:
            self._hash.update(self._log)
            self._log.clear()
        if self.trace is not None:
            self.trace.append(f"{self.now:11.6f} {text}")

    def digest(self) -> str:
        """The hash of the trace."""
        self._hash.update(self._log)
        self._log.clear()
        return self._hash.hexdigest()

    # ---- processes

    def actor(self, name: str, machine: Machine) -> Actor:
        """A process that has nothing to do yet."""
        made = Actor(self, name, machine, len(self.actors))
        self.actors.append(made)
        return made

    def context(self, actor: Actor) -> contextvars.Context:
        """A context in which what is scheduled is the actor's, and in which nothing else is set."""
        context = contextvars.Context()
        context.run(ACTOR.set, actor)
        return context

    def start(self, actor: Actor, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task of `actor`."""
        return self.create_task(work, context=self.context(actor))

    def later(self, seconds: float, act: Callable[..., object], *argv: Any) -> asyncio.TimerHandle:
        """Have the world do something."""
        return self.call_later(seconds, act, *argv, context=self.context(self.sea))

    def kill(self, actor: Actor) -> None:
        """SIGKILL: nothing of it runs any more, and the kernel closes what it had open."""
        if actor.dead:
            return
        self.note(f"KILL {actor}")
        actor.dead = True
        if actor in self.runnable:
            self.runnable.remove(actor)
        self.kept.extend(actor.ready)
        actor.ready.clear()
        for act in actor.on_death:
            act()

    def pause(self, actor: Actor, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after so long."""
        if actor.dead or actor.paused:
            return
        self.note(f"PAUSE {actor} {seconds:.3f}")
        actor.paused = True
        if actor in self.runnable:
            self.runnable.remove(actor)
        self.later(seconds, self.go_on, actor)

    def go_on(self, actor: Actor) -> None:
        """SIGCONT."""
        if actor.paused:
            actor.paused = False
            if actor.ready and not actor.dead:
                self.runnable.append(actor)
