"""Wait for the device's own word: poll, tightly where the change is expected, never past a
deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from optics import Traits

T = TypeVar("T")

LEAST_PATIENCE_S = 2.0
"""A device is given this long (s) to report even when its datasheet promises milliseconds, also one
that runs faster than life.
"""
PATIENCE_S = 10.0
"""Patience (s) with a family that has no figure of its own: the Phosphorus Calient plugin checks
ten times, a second apart, before it takes a circuit down again (CODE). No public client of a mirror
switch gives up later."""
FARTHEST = 30
"""A report that goes on changing is waited for, but no longer than this many patiences in all."""
_TIGHT_S = 0.004  # a shorter pause only takes processor time
_SPARSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """The last report, whether it was the wanted one, when it came (ns, monotonic) and how long (s)
    was watched.
    """

    report: T
    done: bool
    at_ns: int
    watched_s: float


def patience_s(traits: Traits, option: str | None = None, family_s: float = PATIENCE_S) -> float:
    """How long (s) a device may report no change before it is given up.

    The option `patience_s` where given, else what clients of the family wait (`family_s`), and ten
    times the promised settling where that is more.
    """
    return (
        float(option)
        if option is not None
        else max(LEAST_PATIENCE_S, family_s, 10 * traits.settle_s)
    )


def soon_s(traits: Traits, patience_s: float) -> float:
    """When (s) a change that was neither made nor refused becomes suspicious: five times the
    promised settling.
    """
    return min(patience_s, max(5 * traits.settle_s, 0.25))


def patience_option(family_s: float = PATIENCE_S) -> str:
    """What drivers say of their option `patience_s`."""
    return f"longest time (s) that the device may report no change; default {family_s:g}, or ten times settle_s if that is more"


def late_s(traits: Traits) -> float:
    """How long (s) what a lost answer or a refused list left open may still come before it is asked
    for again.
    """
    return max(2 * traits.settle_s, 0.25)


async def watch(
    read: Callable[[], Awaitable[T]],
    done: Callable[[T], bool],
    *,
    expected_s: float,
    patience_s: float,
    extends: bool = True,
) -> Seen[T]:
    """Poll `read` until `done` holds or the report has not changed for `patience_s` (s).

    The deadline is not an error here, the caller knows the words. A device that makes one circuit
    after the other is alive as long as new ones appear: each change of the report extends the
    deadline, to at most FARTHEST times `patience_s`. extends: False for readings, which never stop
    changing.

    The pause between polls is the smaller of an eighth of the time waited (so a device faster or
    slower than promised is noticed within 13 %) and a quarter of the distance to `expected_s`, and
    at least as long as the last answer took (a slow dump is not asked for back to back). Where such
    a pause and the next answer would end after `expected_s`, that question waits for it.
    """
    began = moved = time.monotonic()
    before: T | None = None
    while True:
        asked = time.monotonic()
        report = await read()
        now = time.monotonic()
        waited = now - began
        if done(report):
            return Seen(report, True, time.monotonic_ns(), waited)
        if extends and before is not None and report != before:
            moved = asked
        before = report
        left = min(moved + patience_s, began + FARTHEST * patience_s) - asked
        if left <= 0:  # an answer that took long is of the time when it was asked for
            return Seen(report, False, time.monotonic_ns(), waited)
        took = now - asked
        pause = max(min(waited / 8, abs(expected_s - waited) / 4, _SPARSE_S), _TIGHT_S, took)
        if waited < expected_s < waited + pause + took and took > _TIGHT_S:
            pause = expected_s - waited + _TIGHT_S / 4
        await asyncio.sleep(max(0.0, min(pause, left - took)))
