"""Processes of this machine that carry out the pieces of a search, for as long as it lasts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from multiprocessing.pool import Pool
    from multiprocessing.process import BaseProcess

    from planner.workers import Workers

Made = TypeVar("Made")
LOOK_S = 0.5
"""How often processes are looked at while a piece is waited for: the library replaces one that was killed, its piece is lost."""


@contextmanager
def workers(count: int) -> Iterator[Workers | None]:
    """So many processes; None for one: this process itself. Pieces that are not finished end with the context."""
    import multiprocessing
    import signal

    if count == 1:
        yield None
        return
    others = multiprocessing.active_children()
    # Spawned: this process may have threads. SIGINT goes to all processes of a terminal; what to do about it is decided here.
    pool = multiprocessing.get_context("spawn").Pool(count, signal.signal, (signal.SIGINT, signal.SIG_IGN))
    try:
        yield _Processes(pool, [process for process in multiprocessing.active_children() if process not in others])
    finally:
        pool.terminate()
        pool.join()


class _Processes:
    def __init__(self, pool: Pool, processes: list[BaseProcess]) -> None:
        self._pool, self._processes = pool, processes

    def map(self, fn: Callable[..., Made], /, *iterables: Iterable[Any]) -> Iterator[Made]:
        """Raises: TestbedError - a process was killed from outside, for instance for its memory."""
        from multiprocessing import TimeoutError as NotYet

        from optics.errors import TestbedError

        found = self._pool.imap(_made, zip(repeat(fn), zip(*iterables, strict=False), strict=False))
        while True:
            try:
                yield found.next(LOOK_S)
            except StopIteration:
                return
            except NotYet:
                if not all(process.is_alive() for process in self._processes):
                    raise TestbedError(
                        f"one of {len(self._processes)} processes of the search was killed, perhaps for its memory",
                        hint="the same with fewer --workers finds the same",
                    ) from None


def _made(piece: tuple[Callable[..., Made], tuple[Any, ...]]) -> Made:
    import pickle

    function, given = piece
    try:
        return function(*given)
    except Exception as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # the pool would wait for ever for what it cannot read
            raise RuntimeError(f"{type(error).__name__}: {error}") from None
        raise
