"""A group's ring collectives, in the order in which they were issued, carried by a thread of its
own beside the program.

Up to DEPTH are under way at once: a ring sends its part of the next while the last of the one
before is still coming in. Between two of them the group may change over to other rings (see
ring_changes.py), for which those that no rank can finish before all have begun are counted:
all-reduce, all-gather, reduce-scatter, barrier. A broadcast's root, for one, may be done before
others have begun.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from ..progress.heartbeat import Heartbeat
from ..transport.loop import Loop
from .passes import Lap, Pass, split
from .work import Work

DEPTH = 2
"""Collectives of a group under way at once. A change is agreed so many less one ahead of time."""
LEAVE_S = 10.0
"""How long (s) a group that is left waits for what was issued: other ranks may never come to it."""


class Boundary(Protocol):
    """Where a group's rings may change (ring_changes)."""

    @property
    # none may begin after this one before `after` was called for it
    def limit(self) -> int | None: ...
    def before(self, iteration: int) -> None: ...
    def after(self, iteration: int) -> bool: ...
    def close(self) -> None: ...


class Collective:
    """One collective: what is done on each ring, over so many elements of each buffer, and what is
    to be done at the end.
    """

    def __init__(
        self,
        name: str,
        work: Work,
        passes: Iterable[tuple[Pass, int, int]],
        *,
        finish: Callable[[], None] | None = None,
        counted: bool = True,
    ) -> None:
        """`passes`: each with the elements of a buffer and the bytes of all of them. counted: see
        above.
        """
        self.name, self.work, self.counted = name, work, counted
        self.left = 0
        self._passes, self._finish = list(passes), finish

    def begin(self, laps: Sequence[Lap], loop: Loop) -> None:
        used = []
        for queue, elements, total_bytes in self._passes:
            parts = split(elements, total_bytes, len(laps))
            self.left += len(parts)
            for lap, (first, last) in zip(laps, parts, strict=False):
                queue(lap, first, last, self)
                if lap.ring not in used:
                    used.append(lap.ring)
        self._passes.clear()
        for ring in used:
            loop.add(ring)

    def part_done(self) -> None:
        self.left -= 1

    def end(self) -> None:
        if self._finish is not None:
            self._finish()
        self.work.succeed()


class Channel:
    """The thread of a group. It begins with the first collective."""

    def __init__(
        self,
        name: str,
        laps: Callable[[], Sequence[Lap]],
        boundary: Boundary,
        timeout_s: float,
        heartbeat: Heartbeat,
        *,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        """`laps`: the rings in use, asked for each collective. lost: called when an error has ended
        this channel.
        """
        self._laps, self._boundary, self._timeout_s, self._beat, self._lost = (
            laps,
            boundary,
            timeout_s,
            heartbeat,
            lost,
        )
        self._lock = threading.Lock()
        self._queue: deque[Collective] = deque()
        self._in_progress: deque[Collective] = deque()
        self._error: Exception | None = None
        self.closing = self._given_up = False
        self._begun = 0
        self._finished = 0
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name=f"testbed {name}", daemon=True)

    def issue(self, collective: Collective) -> Work:
        """Take a collective; all ranks of the group in the same order."""
        with self._lock:
            error = self._error
            if error is None:
                self._queue.append(collective)
                self._beat.exchange()
                if not self._thread.ident:
                    self._thread.start()
        if error is not None:
            collective.work.fail(
                RuntimeError(
                    f"{collective.name}: not begun, as an earlier collective failed: {error}"
                )
            )
        else:
            os.eventfd_write(self._wake, 1)
        return collective.work

    def close(self, within_s: float = LEAVE_S) -> None:
        """End the thread, once what was issued is done, or fails after this time (s)."""
        if self.closing:
            return
        self.closing = True
        if self._thread.ident:
            os.eventfd_write(self._wake, 1)
            self._thread.join(within_s)
            self._given_up = True
            os.eventfd_write(self._wake, 1)
            self._thread.join()
        os.close(self._wake)

    def _run(self) -> None:
        loop = Loop(self._timeout_s, self._beat.stall)
        loop.watch(self._wake)
        try:
            while self._advance(loop):
                if loop.step():
                    self._drain()
        # a thread: a collective that nobody carries would be waited for without end
        except Exception as error:
            self._fail(error)
        finally:
            loop.close()
            self._close_boundary()

    def _drain(self) -> None:
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            pass

    def _advance(self, loop: Loop) -> bool:
        """End what is done and begin what may begin; False: to end. Raises: RuntimeError - this was
        given up.
        """
        if self._given_up:
            raise RuntimeError("the process group was destroyed")
        while self._end_first() or self._begin_next(loop):
            pass
        return bool(self._queue or self._in_progress or not self.closing)

    def _end_first(self) -> bool:
        if not self._in_progress or self._in_progress[0].left:
            return False
        done = self._in_progress.popleft()
        done.end()
        self._idle()
        if done.counted:
            self._finished += 1
            self._beat.counted()
            self._boundary.after(self._finished)
            self._idle()  # after a pause
        return True

    def _idle(self) -> None:
        """With nothing under way the program computes, as far as is known here."""
        with self._lock:
            if not self._queue and not self._in_progress:
                self._beat.exchanged()

    def _begin_next(self, loop: Loop) -> bool:
        limit = self._boundary.limit
        if (
            not self._queue
            or len(self._in_progress) >= DEPTH
            or (limit is not None and self._begun >= limit > self._finished)
        ):
            return False
        with self._lock:
            collective = self._queue.popleft()
            self._in_progress.append(collective)
        if collective.counted:
            self._boundary.before(self._begun + 1)
            self._begun += 1
        collective.begin(self._laps(), loop)
        return True

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self._error = (
                error
                if isinstance(error, RuntimeError)
                else RuntimeError(f"{type(error).__name__}: {error}")
            )
            ended = [*self._in_progress, *self._queue]
            self._in_progress.clear()
            self._queue.clear()
        self._lost()
        for collective in ended:
            if not collective.work.is_completed():
                collective.work.fail(RuntimeError(f"{collective.name}: {self._error}"))

    def _close_boundary(self) -> None:
        try:
            self._boundary.close()
        except RuntimeError:
            pass  # the store is gone, with the rank that kept it


def describe(name: str, tensors: Sequence[Any]) -> str:
    """A collective's name and size, for messages."""
    return f"{name} of {sum(tensor.numel() for tensor in tensors)} x {str(tensors[0].dtype).removeprefix('torch.')}"
