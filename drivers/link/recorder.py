"""Taps on a link: the data sent and received, as it passes, for a transcript."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Ear = Callable[[str, bytes], None]
"""Called with ">" for data sent or "<" for data received, and the bytes."""

_ears: dict[str, Ear] = {}


def pass_on(who: str, direction: str, data: bytes) -> None:
    """Pass data on to the listeners of device `who`; links call it for everything that passes."""
    if _ears and (ear := _ears.get(who)) is not None:
        ear(direction, data)


@contextmanager
def listening(who: str, ear: Ear) -> Iterator[None]:
    """Listen in on every link of device `who` while the body runs."""
    _ears[who] = ear
    try:
        yield
    finally:
        del _ears[who]
