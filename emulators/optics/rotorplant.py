"""The optics of a switch that stores matchings and steps through them: a cross-connect
switch with a clock.

Slots at least `carriers_from_s` long are moves of light like any other, one event each. Shorter
ones would be too many for events: the circuits are computed when somebody asks, and the fabric gets
the whole schedule at once (`gate`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Unpack

from emulators.optics.circuits import Circuit, Circuits
from emulators.optics.light import FOREVER_S, Figures, Pair, Side
from emulators.optics.plant import Plant
from emulators.optics.rotor_schedule import Map, RotorSchedule

NS = 1_000_000_000
LATE_S = 0.001  # a dark window that begins so much late is counted


class RotorPlant(Plant):
    """One such switch. carriers_from_s: the shortest dwell (s) at which hosts' ports lose and get
    carrier.
    """

    def __init__(
        self,
        name: str,
        ingress: Iterable[str],
        egress: Iterable[str],
        settle_s: float = 0.01,
        seed: int = 0,
        **figures: Unpack[Figures],
    ) -> None:
        super().__init__(name, ingress, egress, settle_s, seed, **figures)
        self.carriers_from_s = 0.1
        # why this machine has no gate, and so no shorter slots; the lab sets it
        self.cannot_gate = ""
        self.schedule: RotorSchedule | None = None
        self.missing: list[
            tuple[Pair, str]
        ] = []  # circuits that could not be made while it turned, and why; whoever reads empties it
        self.steps = self.late = 0
        self.worst_s = 0.0
        self._advanced = -1  # dark windows begun
        self._started_s = 0.0
        self._synced: tuple[int, bool] = (-1, True)

    @property
    def fast(self) -> bool:
        """Whether it turns faster than carriers follow."""
        return self.schedule is not None and self.schedule.dwell_ns < self.carriers_from_s * NS

    def rotate_to(self, wanted: Map, now: float, lit_s: float) -> None:
        """Let what is not in `wanted` go dark at `now`, its light come at `lit_s`. What cannot be
        moved stays as it is.
        """
        if self.deaf:
            return
        self.advance(now)
        self._advance(wanted, now, lit_s)

    def start(self, schedule: RotorSchedule, now: float) -> None:
        """Turn from now on."""
        if self.deaf:
            return
        self.advance(now)
        self.schedule = dataclasses.replace(schedule, before=frozenset(self.pairs()))
        self.steps = self.late = 0
        self.worst_s, self._advanced, self._synced, self._started_s = 0.0, -1, (-1, True), now
        self.version += 1
        self.advance(now)

    def stop(self, now: float) -> None:
        """Stay in the slot that is lit; in a dark window, go on to the next."""
        if self.deaf:
            return
        self.advance(now)
        if self.fast:
            self._circuits.settle_all(now)
        self.schedule = None
        self.version += 1

    def power_cycle(self, now: float) -> None:
        super().power_cycle(now)
        self.schedule = None
        self.version += 1

    def advance(self, now: float) -> None:
        """Carry out the dark windows that are due; in short slots, look where the clock stands."""
        if self.fast:
            self._look(now)
        elif self.schedule is not None:
            while (due := self._next_dark_window_s()) <= now:
                super().advance(due)
                self._advanced += 1
                lit_s = (self.schedule.start_ns + self._advanced * self.schedule.period_ns) / NS
                self._advance(self.schedule.map(self._advanced), due, lit_s)
                self.steps += 1
                late_s = now - max(due, self._started_s)
                self.late += late_s > LATE_S
                self.worst_s = max(self.worst_s, late_s)
        super().advance(now)

    def next_event(self, now: float) -> float | None:
        """Return when light changes next by itself (s), None when nothing moves that events
        follow.
        """
        due = super().next_event(now)
        if self.schedule is None or self.fast:
            return due
        return min(self._next_dark_window_s(), self._next_dark_window_s() if due is None else due)

    def lit(self, now: float) -> Map:
        """As Plant; while it turns fast, what is lit all the time."""
        if not self.fast:
            return super().lit(now)
        gate = self.gate(now)
        assert gate is not None
        return gate.before.intersection(*gate.slots)

    def gate(self, now: float) -> RotorSchedule | None:
        """The schedule with the circuits that pass light in it; None when the fabric shall follow
        `lit` alone.
        """
        if not self.fast or self.schedule is None:
            return None
        stuck, whole = self.wrong.stuck, self.schedule

        def passing(lit: Map) -> Map:
            return frozenset(
                pair
                for pair in lit
                if not {("in", pair[0]), ("out", pair[1])} & stuck
                and self.passes(Circuit(*pair, FOREVER_S, FOREVER_S, self._draw_known(pair)), now)
            )

        return dataclasses.replace(
            whole, slots=tuple(map(passing, whole.slots)), before=passing(whole.before)
        )

    # ---- inside

    def _next_dark_window_s(self) -> float:
        assert self.schedule is not None
        return (
            self.schedule.start_ns
            + (self._advanced + 1) * self.schedule.period_ns
            - self.schedule.dark_window_ns
        ) / NS

    def _advance(self, wanted: Map, now: float, lit_s: float) -> None:
        for pair in self.pairs():
            if pair not in wanted and not self._held(pair):
                self._break(pair, now)
        made: list[Pair] = []
        for pair in sorted(wanted):
            if self.since(pair) is not None:
                continue
            if why := self.why_not(pair) or self.wrong.lock(pair):
                self.missing.append((pair, why))
                continue
            self._circuits.hold(Circuit(*pair, now, now, self._draw_loss(pair)))
            made.append(pair)
        self._settle(made, now, lit_s - now)

    def _held(self, pair: Pair) -> bool:
        sides: set[Side] = {("in", pair[0]), ("out", pair[1])}
        return bool(sides & self.wrong.stuck or self.wrong.lock(pair))

    def _look(self, now: float) -> None:
        """Put the circuits of this moment in place; nothing is reported of it, for the next moment
        they are others.
        """
        assert self.schedule is not None
        moment = self.schedule.moment(round(now * NS))
        self.steps = moment.step + 1
        if (moment.step, moment.day) == self._synced:
            return
        self._synced = (moment.step, moment.day)
        wanted, through = self.schedule.map(moment.step), self.schedule.through(moment.step)
        self._circuits = Circuits()
        since_s, lit_s = (
            moment.since_ns / NS,
            (moment.since_ns if moment.day else moment.until_ns) / NS,
        )
        for pair in sorted(wanted):
            at_s = FOREVER_S if moment.step < 0 or pair in through else lit_s
            self._circuits.hold(Circuit(*pair, since_s, at_s, self._draw_known(pair)))

    def _draw_known(self, pair: Pair) -> float:
        """The loss of a path made again and again: its first."""
        return self._loss[pair] if pair in self._loss else self._draw_loss(pair)
