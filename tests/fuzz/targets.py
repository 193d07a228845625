"""Every fuzz target by name. A target is a plain function of bytes that raises when a reader breaks
its promise.

The promise: only the reader's own error, within `MOST_S` of processor time for an input of at most
`LONGEST` bytes, no hang.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import wraps
from importlib import import_module

Fuzz = Callable[[bytes], None]

LONGEST = 2048
MOST_S = 1.0
"""Far more than any reader needs for so little, and far less than a person waits."""
MARK = b"\x1e"
"""Between the parts of an input that has several: answers of a device, files."""
MODULES = ("line_codecs", "tree_codecs", "whole_drivers", "files", "emulated", "functions")
INSTRUMENTED = ("drivers", "optics", "conformance", "orchestrator", "emulators")

_TARGETS: dict[str, Fuzz] = {}


class Slow(AssertionError):
    """A reader took longer than it may."""


def target(name: str) -> Callable[[Fuzz], Fuzz]:
    """Enter a function as target `name`, with an eye on the time it takes."""

    def enter(fuzz: Fuzz) -> Fuzz:
        @wraps(fuzz)
        def timed(data: bytes) -> None:
            took_s = 0.0
            for _ in range(3):  # a busy machine makes one time long, not three
                began = time.thread_time()
                fuzz(data)
                took_s = time.thread_time() - began
                if took_s <= MOST_S:
                    return
            raise Slow(f"{name}: {took_s:.2f} s for {len(data)} bytes, beginning {data[:60]!r}")

        assert name not in _TARGETS
        _TARGETS[name] = timed
        return timed

    return enter


def targets() -> dict[str, Fuzz]:
    """All targets."""
    for module in MODULES:
        import_module(f"tests.fuzz.{module}")
    return _TARGETS


def pieces(data: bytes) -> Iterator[bytes]:
    """The parts of an input."""
    return iter(data.split(MARK))
