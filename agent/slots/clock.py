"""When a slot of a schedule ends, by this host's own carrier edges and its monotonic clock; no
clock is ever compared with another.

Slots are counted from 0 on and all last one period. The scheduler them may be late, never early,
and so may what reports an edge: the earliest of the latest edges is the one nearest to the truth.
"""

from __future__ import annotations

EDGES = 16
"""Edges that count. At half a second a slot they span 8 s: two clocks that differ by 100 parts per
million (quartz: 20 to 50) drift apart by 0.8 ms meanwhile."""


class SlotClock:
    """Expects the end of slot n at phase + n * period. Times in nanoseconds of CLOCK_MONOTONIC."""

    def __init__(self, period_ns: int, edges: list[int] | None = None, coarse: bool = True) -> None:
        self.period_ns = period_ns
        self.edges = list(edges or [])[-EDGES:]  # end - n * period, of each end that was seen
        # known only from what the operator's side said, which comes late by a message's way
        self.coarse = coarse

    @property
    def known(self) -> bool:
        return bool(self.edges)

    def end_ns(self, count: int) -> int:
        """When slot `count` is expected to end."""
        return min(self.edges) + count * self.period_ns

    def edge(self, count: int, at_ns: int, apart_ns: int) -> int:
        """Slot `count` ended at `at_ns`; return how much later than expected (ns).

        An end that is whole periods late is of a slot change that was left out: the phase moves on
        by them. One that is otherwise more than `apart_ns` late was late itself, and tells nothing
        of the next: the phase never changes while a schedule is loaded.
        """
        phase = at_ns - count * self.period_ns
        if self.coarse or not self.edges:
            error = phase - min(self.edges) if self.edges else 0
            self.edges, self.coarse = [phase], False
            return error
        left_out = self.left_out(phase)
        error = phase - min(self.edges) - left_out * self.period_ns
        if error <= apart_ns:
            self.skip(left_out)
            self.edges = [*self.edges[1 - EDGES :], phase]
        return error

    def shown(self, count: int, end_ns: int) -> None:
        """The scheduler says that slot `count` ends at `end_ns`, late by a message's way: where
        edges were seen, they count.
        """
        phase = end_ns - count * self.period_ns
        if self.edges:
            self.skip(self.left_out(phase))
        if self.coarse:
            self.edges = [*self.edges[1 - EDGES :], phase]

    def left_out(self, phase_ns: int) -> int:
        """How many periods later than expected this is."""
        return max(0, (phase_ns - min(self.edges) + self.period_ns // 2) // self.period_ns)

    def skip(self, periods: int = 1) -> None:
        """The present slot lasts so many periods more."""
        self.edges = [e + periods * self.period_ns for e in self.edges]
