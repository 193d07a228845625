"""Waiting for what other processes bring about."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(question: Callable[[], T], within_s: float = 120.0, why: str = "waited in vain") -> T:
    """The first true answer. Raises: AssertionError - there is none in time."""
    give_up = time.monotonic() + within_s
    while not (found := question()):
        assert time.monotonic() < give_up, why
        time.sleep(0.005)
    return found
