from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.kit.waiting import until


def _threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if not each.name.startswith("asyncio")}


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """Raises: AssertionError - a thread that began in the test goes on after it."""
    before = _threads()
    yield
    until(lambda: _threads() <= before, 30.0, "a thread is left")


class Clock:
    """The time and the sleep of `drivers.watch`, which passes no time: `now` (s) is stepped."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return round(self.now * 1e9)

    async def sleep(self, for_s: float) -> None:
        self.now += max(for_s, 1e-9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("drivers.watch.time", found)
    monkeypatch.setattr("drivers.watch.asyncio", found)
    return found
