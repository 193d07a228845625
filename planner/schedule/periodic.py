"""A periodic schedule of matchings in which every pair meets in turn: the time of an iteration on
it. A calculation only.

Between two slots the fabric is dark while circuits move: duty = dwell / (dwell + dark). A pair's
bytes wait for the slots in which it has a link. Sums go pair by pair, too: each member sends each
other its part to reduce, then its sum to gather; both phases, and transfers before them, take whole
cycles (`Periodic`), or as long as it takes from the slot in which they begin (`RoutedSlots`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from planner.model.demand import Demand, Infeasible
from planner.model.shape import Lab, Shape
from planner.schedule.round_robin import round_robin_slots


@dataclass(frozen=True, eq=False)
class Periodic:
    """Topologies in turn, each for `dwell_s`, then `dark_s` without any."""

    slots: tuple[Shape, ...]
    dwell_s: float
    dark_s: float

    def __post_init__(self) -> None:
        for name, value, least in (
            ("a dwell", self.dwell_s, "above 0"),
            ("dark time", self.dark_s, "0 or more"),
        ):
            if not np.isfinite(value) or value < 0 or (value == 0 and least == "above 0"):
                raise Infeasible(f"{name} of {value} s", f"give a finite time, {least} s")

    @property
    def duty(self) -> float:
        """Share of the time there is light."""
        return self.dwell_s / (self.dwell_s + self.dark_s)

    @property
    def cycle_s(self) -> float:
        return len(self.slots) * (self.dwell_s + self.dark_s)

    def phase_s(self, loads: NDArray[np.float64], bytes_per_s: float) -> float:
        """Most time to carry bytes from row to column: in whole cycles, each pair over its own
        links alone.
        """
        links = self.links
        if (links[loads > 0] == 0).any():
            src, dst = map(int, np.argwhere((loads > 0) & (links == 0))[0])
            raise Infeasible(
                f"rank {src} never meets rank {dst}", "take a schedule in which every pair meets"
            )
        needs = float((loads[loads > 0] / links[loads > 0]).max(initial=0.0)) / bytes_per_s
        return ceil(round(needs / self.dwell_s, 9)) * self.cycle_s

    @property
    def links(self) -> NDArray[np.int64]:
        """Links from row to column, those of all slots together."""
        return sum((slot.adjacency for slot in self.slots), np.zeros_like(self.slots[0].adjacency))

    def iteration_s(self, demand: Demand, lab: Lab) -> float:
        """Compute, then transfers, then reducing and gathering, each in whole cycles."""
        each = parts(demand)
        return (
            demand.compute_s
            + self.phase_s(demand.mp, lab.port_bytes_per_s)
            + 2 * self.phase_s(each, lab.port_bytes_per_s)
        )


@dataclass(frozen=True, eq=False)
class RoutedSlots:
    """Slots in turn with the routes of each, over several links where hosts forward.

    shares: for each slot an array (links, n, n), the share of the bytes from row to column that
    takes a link; a pair with none has no path in that slot, and waits. dwell_s: that hosts send in
    each slot; dark_s: before the next. dark_shares: as `shares`, over the links that stay lit in
    the dark after each slot; none: nobody sends then.
    """

    shares: tuple[NDArray[np.float64], ...]
    dwell_s: float
    dark_s: float
    dark_shares: tuple[NDArray[np.float64], ...] = ()

    @property
    def period_s(self) -> float:
        return self.dwell_s + self.dark_s

    @property
    def spans(self) -> tuple[tuple[NDArray[np.float64], float, float], ...]:
        """The times of a cycle in which anybody may send: shares, begin, end (s)."""
        found = []
        for slot, shares in enumerate(self.shares):
            begin_s = slot * self.period_s
            found.append((shares, begin_s, begin_s + self.dwell_s))
            if self.dark_shares:
                found.append(
                    (self.dark_shares[slot], begin_s + self.dwell_s, begin_s + self.period_s)
                )
        return tuple(found)

    def from_(self, begin_s: float) -> Iterator[tuple[int, float, float]]:
        """Number in `spans`, begin and end (s) of each time to send, from the slot of `begin_s`
        on.
        """
        slots, spans = len(self.shares), self.spans
        often = len(spans) // slots
        slot = int(begin_s / self.period_s + 1e-9)
        while True:
            for number in range(slot % slots * often, slot % slots * often + often):
                cycle_s = slot // slots * slots * self.period_s
                yield number, cycle_s + spans[number][1], cycle_s + spans[number][2]
            slot += 1

    def end_s(self, loads: NDArray[np.float64], bytes_per_s: float, begin_s: float) -> float:
        """When bytes from row to column, ready at `begin_s`, have arrived; slot 0 gets its light at
        0 s.

        In a slot a pair is as fast as the fullest of its links allows with what all pairs have
        left, as in static predictions.
        """
        left = loads / bytes_per_s
        if not (left > 0).any():
            return begin_s
        progress = np.zeros_like(left)  # in a cycle
        for shares, start_s, stop_s in self.spans:
            takes = self.takes(shares, left)
            progress += np.divide(stop_s - start_s, takes, out=np.zeros_like(left), where=takes > 0)
        if (progress[left > 0] == 0).any():
            src, dst = map(int, np.argwhere((left > 0) & (progress == 0))[0])
            raise Infeasible(
                f"rank {src} never meets rank {dst}", "take a schedule in which every pair meets"
            )
        often = max(1.0, float((1 / progress[left > 0]).max()) / MOST_CYCLES)
        return begin_s + often * (self._end_s(left / often, begin_s) - begin_s)

    def _end_s(self, left: NDArray[np.float64], begin_s: float) -> float:
        end_s, spans = begin_s, self.spans
        for number, from_s, until_s in self.from_(begin_s):
            if not (left > 1e-12).any():
                break
            start_s = max(from_s, begin_s)
            span_s = until_s - start_s
            takes = self.takes(spans[number][0], left)
            here = (left > 1e-12) & (takes > 0)
            if here.any() and span_s > 0:
                end_s = start_s + min(float(takes[here].max()), span_s)
                left = np.where(
                    here, left * np.maximum(1 - span_s / np.where(here, takes, 1.0), 0.0), left
                )
        return end_s

    def ring_end_s(
        self, order: Sequence[int], size: float, bytes_per_s: float, begin_s: float
    ) -> float:
        """When a ring has reduced a buffer of `size` bytes that all ranks of `order` have ready at
        `begin_s`.

        A rank sends its own k-th part, then passes on what comes in as far as it has come in, until
        it has sent 2 (k - 1) parts, as the project's rings do (`workloads/transport/tasks.py`).
        Raises: Infeasible - two that follow each other never meet.
        """
        steps = list(zip(order, [*order[1:], order[0]], strict=True))
        all_at_once = np.zeros(self.shares[0].shape[1:])
        for src, dst in steps:
            all_at_once[src, dst] = 1.0
        # s for a link's second, all ranks sending
        slow = [self.takes(shares, all_at_once) for shares, _, _ in self.spans]
        paces = [[float(1 / one[pair]) if one[pair] else 0.0 for pair in steps] for one in slow]
        if lost := [
            pair
            for pair, pace in zip(steps, zip(*paces, strict=True), strict=True)
            if not any(pace)
        ]:
            raise Infeasible(
                f"rank {lost[0][0]} never meets rank {lost[0][1]}",
                "take a schedule in which every pair meets",
            )
        part_s, now_s = size / len(order) / bytes_per_s, begin_s
        # s of a whole link, of each rank
        left, ready = [2 * (len(order) - 1) * part_s] * len(order), [part_s] * len(order)
        for number, from_s, until_s in self.from_(begin_s):
            now_s = max(from_s, now_s)
            while now_s < until_s and any(rates := _rates(paces[number], left, ready)):
                ends = [need / rate for need, rate in zip(left, rates, strict=True) if rate]
                ends += [
                    ready[at] / (rate - rates[at - 1])
                    for at, rate in enumerate(rates)
                    if ready[at] and rate > rates[at - 1]
                ]
                span_s = min(until_s - now_s, *ends)
                left = [_rest(need, rate * span_s) for need, rate in zip(left, rates, strict=True)]
                ready = [
                    _rest(some, (rate - rates[at - 1]) * span_s)
                    for at, (some, rate) in enumerate(zip(ready, rates, strict=True))
                ]
                now_s += span_s
                if not any(left):
                    return now_s
        raise AssertionError("slots go on for ever")

    @staticmethod
    def takes(shares: NDArray[np.float64], left: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds that the fullest link of each pair needs for all that is `left` (s of one link),
        0 where it has no path.
        """
        on_link = np.tensordot(shares, left, 2)
        fullest: NDArray[np.float64] = np.where(shares > 0, on_link[:, None, None], 0.0).max(
            axis=0, initial=0.0
        )
        return fullest


def _rates(paces: Sequence[float], left: Sequence[float], ready: Sequence[float]) -> list[float]:
    """How fast each rank of a ring sends: at its pace while it has something ready, else no faster
    than what comes in.
    """
    rates = [pace if need else 0.0 for pace, need in zip(paces, left, strict=True)]
    for at in [*range(len(rates))] * 2:  # twice round: somewhere something is ready
        if not ready[at]:
            rates[at] = min(rates[at], rates[at - 1])
    return rates


def _rest(some: float, less: float) -> float:
    """What is left, 0 where that is a rounding error."""
    return rest if (rest := some - less) > 1e-12 else 0.0


MOST_CYCLES = 50
"""Cycles that are walked through for one phase; a longer one is taken as a multiple of a part of
it.
"""


def mean_s(
    transfers: RoutedSlots,
    sums: RoutedSlots,
    demand: Demand,
    bytes_per_s: float,
    iterations: int = 16,
    rings: Sequence[tuple[Sequence[int], float]] = (),
) -> tuple[float, float]:
    """Times of transfers and of sums in an iteration, each on its routes, the mean of many
    iterations that follow each other.

    rings: orders of ranks, each with the size (bytes) of a buffer that it sums meanwhile, beside
    the demand's pair by pair.
    """
    each, now_s, transfers_s, sums_s = parts(demand), 0.0, 0.0, 0.0
    for number in range(iterations + 1):
        begin_s = now_s + demand.compute_s
        sent_s = transfers.end_s(demand.mp, bytes_per_s, begin_s)
        now_s = sums.end_s(each, bytes_per_s, sums.end_s(each, bytes_per_s, sent_s))
        now_s = max(
            [now_s, *(sums.ring_end_s(order, size, bytes_per_s, sent_s) for order, size in rings)]
        )
        if number:  # the first begins with a slot
            transfers_s += sent_s - begin_s
            sums_s += now_s - sent_s
    return transfers_s / iterations, sums_s / iterations


def ring_mean_s(
    routed: RoutedSlots,
    rings: Sequence[Sequence[int]],
    size: float,
    bytes_per_s: float,
    compute_s: float,
    iterations: int = 16,
) -> float:
    """Time of an iteration that computes, then reduces a buffer of `size` bytes over rings in equal
    parts; the mean of many.
    """
    now_s, first_s = 0.0, 0.0
    for number in range(iterations + 1):
        begin_s = now_s + compute_s
        now_s = max(
            routed.ring_end_s(ring, size / len(rings), bytes_per_s, begin_s) for ring in rings
        )
        first_s = first_s if number else now_s
    return (now_s - first_s) / iterations


def direct(slots: Sequence[Shape]) -> tuple[NDArray[np.float64], ...]:
    """Shares of `RoutedSlots` for pairs that use their own links only."""
    found = []
    for slot in slots:
        share = np.zeros((len(slot.arcs), slot.n, slot.n))
        for link, (src, dst) in enumerate(slot.links):
            share[link, src, dst] = 1 / slot.adjacency[src, dst]
        found.append(share)
    return tuple(found)


def parts(demand: Demand) -> NDArray[np.float64]:
    """Bytes between each two ranks to reduce (and again to gather): of a buffer among k members, a
    k-th to each other.
    """
    matrix = np.zeros((demand.n, demand.n))
    for group in demand.groups:
        members = list(group.members)
        matrix[np.ix_(members, members)] += group.bytes / len(members)
    np.fill_diagonal(matrix, 0.0)
    return matrix


def fitted(demand: Demand, lab: Lab, dark_s: float, most_cycles: int = 64) -> Periodic:
    """The round robin whose dwell makes an iteration shortest: a phase takes 1, 2, ... whole
    cycles, with little light unused.
    """
    slots = round_robin_slots(lab)
    links = Periodic(slots, 1.0, dark_s).links
    needs = [
        float((loads / np.maximum(links, 1)).max()) / lab.port_bytes_per_s
        for loads in (demand.mp, parts(demand))
    ]
    dwells = {need / cycles for need in needs if need for cycles in range(1, most_cycles + 1)}
    found = [Periodic(slots, dwell, dark_s) for dwell in sorted(dwells, reverse=True)]
    return min(
        found,
        key=lambda one: one.iteration_s(demand, lab),
        default=Periodic(slots, max(dark_s, 1e-3), dark_s),
    )
