"""A switch that steps through stored matchings by the clock: which circuits are lit when. Pure
arithmetic in integer nanoseconds.

Slot j (counted from the start, for ever) is lit from start + j * period for `dwell`; then it is
dark window until slot j + 1. Circuits that are in two consecutive slots stay lit through the dark
window between them.
"""

from __future__ import annotations

from dataclasses import dataclass

from emulators.optics.light import Pair

Map = frozenset[Pair]


@dataclass(frozen=True, slots=True)
class Moment:
    """A time seen from a schedule. step: slots begun or about to begin, -1 before the first dark
    window; day: whether it is lit.

    since_ns, until_ns: when this day or dark window began and will end; before the first dark
    window: 0, and when that dark window begins.
    """

    step: int
    day: bool
    since_ns: int
    until_ns: int


@dataclass(frozen=True, slots=True)
class RotorSchedule:
    """One run through `slots`, for ever: the light of slots[first] begins at `start_ns`
    (CLOCK_MONOTONIC).

    before: what is lit until the first dark window, which begins `dark_window_ns` before the start.
    """

    start_ns: int
    dwell_ns: int
    dark_window_ns: int
    slots: tuple[Map, ...]
    first: int = 0
    before: Map = frozenset()

    @property
    def period_ns(self) -> int:
        """From the light of one slot to the light of the next."""
        return self.dwell_ns + self.dark_window_ns

    def slot(self, step: int) -> int:
        """Return the number of the slot that is lit after `step` others."""
        return (self.first + step) % len(self.slots)

    def map(self, step: int) -> Map:
        """Return the circuits of the day after `step` others; before the first, those lit
        before.
        """
        return self.slots[self.slot(step)] if step >= 0 else self.before

    def through(self, step: int) -> Map:
        """Return the circuits that stay lit through the dark window before the day `step`."""
        return self.map(step - 1) & self.map(step)

    def moment(self, now_ns: int) -> Moment:
        """Return where `now_ns` lies."""
        since_start = now_ns - self.start_ns
        if since_start < -self.dark_window_ns:
            return Moment(-1, True, 0, self.start_ns - self.dark_window_ns)
        step = (since_start + self.dark_window_ns) // self.period_ns
        day_ns = self.start_ns + step * self.period_ns
        if now_ns < day_ns:
            return Moment(step, False, day_ns - self.dark_window_ns, day_ns)
        return Moment(step, True, day_ns, day_ns + self.dwell_ns)

    def lit(self, now_ns: int) -> Map:
        """Return the circuits that pass light at `now_ns`."""
        moment = self.moment(now_ns)
        return self.map(moment.step) if moment.day else self.through(moment.step)
