"""Processes of this machine that carry out the pieces of a search, for as long as it lasts."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from planner.workers import Workers

Made = TypeVar("Made")


@contextmanager
def workers(count: int) -> Iterator[Workers | None]:
    """So many processes; None for one: this process itself. Pieces that are not finished end with
    the context. Main thread only.
    """
    import multiprocessing
    import signal

    if count == 1:
        yield None
        return
    spawn = multiprocessing.get_context("spawn")  # this process may have threads
    pipes = [spawn.Pipe() for _ in range(count)]
    processes = [
        spawn.Process(target=_carry_out, args=(existing,), daemon=True) for _, existing in pipes
    ]
    # which they inherit: what Ctrl-C means is decided here
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        for process, (_, existing) in zip(processes, pipes, strict=True):
            process.start()
            existing.close()
    finally:
        signal.signal(signal.SIGINT, before)
    try:
        yield _Processes([here for here, _ in pipes])
    finally:
        for process in processes:
            process.kill()
        for process, (here, _) in zip(processes, pipes, strict=True):
            process.join()
            here.close()


class _Processes:
    """A pipe for each process: nothing is shared, so whichever is killed, the others and this one
    do not wait for it.
    """

    def __init__(self, pipes: list[Connection]) -> None:
        self._idle, self._count = pipes, len(pipes)
        self._busy: dict[Connection, int] = {}
        self._last = 0

    def map(self, fn: Callable[..., Made], /, *iterables: Iterable[Any]) -> Iterator[Made]:
        """Raises: TestbedError - a process was killed from outside, for instance for its memory."""
        pieces = zip(*iterables, strict=False)
        handed: deque[int] = deque()
        made: dict[int, tuple[Made, Exception | None]] = {}
        while True:
            while self._idle and (given := next(pieces, None)) is not None:
                self._hand(pickle.dumps((fn, given), pickle.HIGHEST_PROTOCOL))
                handed.append(self._last)
            if not handed:
                return
            if handed[0] not in made:
                # also pieces of a call before, whose results nobody wanted
                made |= self._finished()
                continue
            value, error = made.pop(handed.popleft())
            if error is not None:
                raise error
            yield value

    def _hand(self, piece: bytes) -> None:
        to = self._idle.pop()
        self._last += 1
        self._busy[to] = self._last
        try:
            to.send_bytes(piece)
        except OSError as error:
            raise self._killed() from error

    def _finished(self) -> dict[int, tuple[Any, Exception | None]]:
        from multiprocessing.connection import wait

        found = {}
        for pipe in cast("list[Connection]", wait(self._busy)):
            try:
                answer = pickle.loads(pipe.recv_bytes())
            except (EOFError, OSError) as error:
                raise self._killed() from error
            found[self._busy.pop(pipe)] = answer
            self._idle.append(pipe)
        return found

    def _killed(self) -> Exception:
        from optics.errors import TestbedError

        return TestbedError(
            f"one of {self._count} processes of the search was killed, perhaps for its memory",
            hint="the same with fewer --workers finds the same",
        )


def _carry_out(pieces: Connection) -> None:
    while True:
        try:
            piece = pieces.recv_bytes()
        except EOFError:  # the process that wanted them has ended
            return
        try:
            function, given = pickle.loads(piece)
            answer = pickle.dumps((function(*given), None), pickle.HIGHEST_PROTOCOL)
        except Exception as error:
            answer = _pickled(error)
        try:
            pieces.send_bytes(answer)
        except OSError:
            return


def _pickled(error: Exception) -> bytes:
    try:
        answer = pickle.dumps((None, error))
        pickle.loads(answer)
    except Exception:  # not every exception can be made again from its bytes
        return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))
    return answer
