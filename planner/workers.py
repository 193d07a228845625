"""Who carries out pieces of a search: this process, or whatever maps a function over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

Made = TypeVar("Made")


class Workers(Protocol):
    """Carries out pieces of work that know nothing of each other, anywhere, and returns what they
    made in the order of the pieces.

    A `concurrent.futures` executor is one, and so is what `distributed.Client.get_executor()`
    returns. Functions given to it belong to modules and take values only, so that other processes
    can run them.
    """

    def map(self, fn: Callable[..., Made], /, *iterables: Iterable[Any]) -> Iterator[Made]:
        """As the builtin `map`; it is given lists, as Dask wants them."""


def spread(
    workers: Workers | None, fn: Callable[..., Made], pieces: Iterable[tuple[Any, ...]]
) -> Iterator[Made]:
    """What a function makes of each piece, its arguments, in their order. None: here, each only
    when its result is asked for.
    """
    if workers is not None and not hasattr(workers, "map"):
        raise TypeError(
            f"workers is an executor, such as concurrent.futures.ProcessPoolExecutor(4), not {workers!r}"
        )
    if workers is None:
        return (fn(*piece) for piece in pieces)
    return workers.map(fn, *map(list, zip(*pieces, strict=True)))
