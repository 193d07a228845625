"""One call of the engine, in a thread and an event loop of its own.

So a call works where an event loop runs already (a notebook), its timing does not depend on what
else that loop does, and several threads may call at once. The first interrupt has the engine finish
or revert its current step, as Ctrl-C does at the command line.
"""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import wraps
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from optical_testbed.progress import SHOW, Event

if TYPE_CHECKING:
    from optical_testbed.opened import Opened

LOOK_S = 0.5
P = ParamSpec("P")
T = TypeVar("T")


class Running(Generic[T]):
    """A coroutine at work in a thread. show: takes its events, in that thread. ended: is called
    there at the end.
    """

    def __init__(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        show: Callable[[Event], None],
        ended: Callable[[], None],
    ) -> None:
        self._work, self._show, self._ended = work, show, ended
        self._outcome: Future[T] = Future()
        self._lock = threading.Lock()
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False
        # A daemon: after a second interrupt a script ends at once, and its journal says how far it
        # got.
        threading.Thread(target=self._run, name="testbed", daemon=True).start()

    def _run(self) -> None:
        SHOW.set(self._show)
        try:
            try:
                found = asyncio.run(self._stoppable())
            except BaseException as error:
                self._outcome.set_exception(error)
            else:
                self._outcome.set_result(found)
        finally:
            self._ended()

    async def _stoppable(self) -> T:
        with self._lock:
            self._task = asyncio.current_task()
            cancelled = self._cancelled
        if cancelled:
            raise asyncio.CancelledError
        try:
            return await self._work()
        finally:
            with self._lock:
                self._task = None

    def cancel(self) -> None:
        """Have the engine finish or revert its current step and end."""
        with self._lock:
            self._cancelled = True
            if self._task is not None:
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    def result(self) -> T:
        """What the call returned, after its end. Raises: what it raised."""
        return self._outcome.result()

    def error(self) -> BaseException | None:
        """What the call raised, after its end."""
        return self._outcome.exception()


async def _begun(opened: Opened, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    from orchestrator.files.reading import ALLOWED_S

    ALLOWED_S.set(opened.settings.timeout_s)  # for reading and checking a file
    return await work()


def finished(opened: Opened, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Do the work and return its result; events are shown in the calling thread.

    Raises: what the work raises. KeyboardInterrupt - after the engine has finished or reverted its
    current step, with its words; a second interrupt does not wait for that.
    """
    events: SimpleQueue[Event | None] = SimpleQueue()
    shown = _Shown(opened.progress)
    running = Running(lambda: _begun(opened, work), events.put, lambda: events.put(None))
    try:
        for event in _until_end(events):
            shown(event)
    except KeyboardInterrupt:
        running.cancel()
        for event in _until_end(events):
            shown(event)
        error = running.error()
        raise KeyboardInterrupt(str(error or "")) from error
    return running.result()


def _until_end(events: SimpleQueue[Event | None]) -> Iterator[Event]:
    """The events up to None. An interrupt whose signal another thread receives does not wake this
    one, so it looks from time to time.
    """
    while True:
        try:
            event = events.get(timeout=LOOK_S)
        except Empty:
            continue
        if event is None:
            return
        yield event


async def awaited(opened: Opened, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """As `finished` without blocking the event loop, in which events are shown; a cancellation
    counts as the interrupt.
    """
    loop = asyncio.get_running_loop()
    shown = _Shown(opened.progress)
    end: asyncio.Future[None] = loop.create_future()

    def later(what: Callable[..., object], *argv: object) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(what, *argv)

    running = Running(
        lambda: _begun(opened, work),
        lambda event: later(shown, event),
        lambda: later(end.set_result, None),
    )
    try:
        await asyncio.shield(end)
    except asyncio.CancelledError:
        running.cancel()
        await asyncio.shield(end)
        raise
    return running.result()


class _Shown:
    """Passes events on to the user's function; one that fails is reported once and not called
    again: the change goes on.
    """

    def __init__(self, show: Callable[[Event], object] | None) -> None:
        self._show = show

    def __call__(self, event: Event) -> None:
        if self._show is None:
            return
        try:
            self._show(event)
        except Exception as error:
            self._show = None
            warnings.warn(
                f"progress: {type(error).__name__}: {error}; it is not called again",
                RuntimeWarning,
                stacklevel=2,
            )


class Handle:
    """What the classes of the API have in common: the lab that they work on."""

    __slots__ = ("_opened",)

    def __init__(self, opened: Opened) -> None:
        self._opened = opened


def blocking(
    verb: Callable[Concatenate[Opened, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Handle, P], T]:
    """A verb as a method that waits for its result."""

    @wraps(verb)
    def method(self: Handle, /, *argv: P.args, **options: P.kwargs) -> T:
        opened = self._opened.usable()
        return finished(opened, lambda: verb(opened, *argv, **options))

    return method


def awaiting(
    verb: Callable[Concatenate[Opened, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Handle, P], Coroutine[Any, Any, T]]:
    """A verb as a method that is awaited."""

    @wraps(verb)
    async def method(self: Handle, /, *argv: P.args, **options: P.kwargs) -> T:
        opened = self._opened.usable()
        return await awaited(opened, lambda: verb(opened, *argv, **options))

    return method
