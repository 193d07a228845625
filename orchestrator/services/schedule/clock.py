"""Where a schedule is: which slot, when it ends, and for which share of the time there was
light.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from orchestrator.services.schedule.goals import Times

LATEST = 100
"""Slots whose light is counted for the duty that is reported."""


@dataclass
class SlotClock:
    """count: slots since the first of the first cycle, of `slots` each; slot n ends at origin_ns +
    n * period_ns (monotonic).
    """

    times: Times
    slots: int
    count: int
    origin_ns: int = 0

    def __post_init__(self) -> None:
        self.period_ns = int(self.times.period_s * 1e9)

    @property
    def slot(self) -> int:
        return self.count % self.slots

    @property
    def cycle(self) -> int:
        return self.count // self.slots

    @property
    def end_ns(self) -> int:
        """When the present slot ends."""
        return self.origin_ns + self.count * self.period_ns

    def end_at(self, at_ns: int) -> None:
        """The present slot ends at this time."""
        self.origin_ns = at_ns - self.count * self.period_ns

    def realign(self, least_ns: int = 0) -> None:
        """The present slot ends whole periods later than expected, as hosts take it; in `least_ns`
        at the earliest.
        """
        behind = time.monotonic_ns() + (least_ns or int(self.times.dwell_s * 0.5e9)) - self.end_ns
        self.origin_ns += max(0, -(-behind // self.period_ns)) * self.period_ns


@dataclass
class Duty:
    """planned: the share of time with light if nothing is late. lit: light and length (ns) of the
    latest slots, by devices.
    """

    planned: float
    lit: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=LATEST))

    @property
    def share(self) -> float:
        """The share of the latest slots in which there was light; 0 before there were two."""
        lit, whole = (sum(pair[i] for pair in self.lit) for i in (0, 1))
        return lit / whole if whole else 0.0
