"""When jobs send, and how to shift jobs that share links so that one sends while the others
compute. Pure.

The circle method of S. Rajasekaran et al., CASSINI: Network-Aware Job Scheduling in Machine
Learning Clusters, NSDI 2024: an iteration is a circle whose perimeter is its period; jobs of one
link are laid on a circle whose perimeter is the least common multiple of their periods, and turned
against each other until they ask for more than the link has as little as possible.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import ceil, gcd, isfinite, lcm
from statistics import median, quantiles

import numpy as np
from numpy.typing import NDArray

from planner.model.demand import Infeasible
from planner.model.period import period_of

SLOTS = 10_000
"""The longest circle, in slots of the grid."""
ROTATIONS = 10_000
"""So many rotations of a link's jobs are tried one by one; where there are more, a spread of them,
then job after job.
"""
STRETCH = 0.05
"""An iteration may be made so much longer (of its period) for periods that fit each other."""
BUSY = 0.25
"""A job counts as sending where it sends at this share of its highest rate or more: half of a fair
share of two.
"""
GAP = 0.03
"""Gaps between bursts, and bursts, shorter than this share of the period are none:
acknowledgements, a step of a collective.
"""
EQUAL = 1e-9
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Phases:
    """One iteration: its period (ms), and when in it the job sends: begin, end (ms from the
    iteration's begin), rate (Mb/s).

    confidence: 1 where every iteration is the same, 0 where no period shows.
    """

    period_ms: float
    bursts: tuple[tuple[float, float, float], ...]
    confidence: float = 1.0

    def __post_init__(self) -> None:
        if not (isfinite(self.period_ms) and self.period_ms > 0):
            raise Infeasible(f"a period of {self.period_ms} ms", "give a time above 0")
        for begin, end, rate in self.bursts:
            if not (
                0 <= begin < end <= self.period_ms * (1 + EQUAL) and isfinite(rate) and rate >= 0
            ):
                text = f"a burst from {begin:g} to {end:g} ms at {rate:g} Mb/s in a period of {self.period_ms:g} ms"
                raise Infeasible(text, "give bursts within the period")

    @property
    def busy_ms(self) -> float:
        """How long it sends in an iteration."""
        return sum(end - begin for begin, end, _ in self.bursts)

    def paced(self, period_ms: float) -> Phases:
        """The same in a longer period: its ranks wait at the end of each iteration. Raises:
        Infeasible - it is shorter.
        """
        if period_ms < self.period_ms * (1 - EQUAL):
            raise Infeasible(
                f"a period of {period_ms:g} ms for iterations of {self.period_ms:g} ms",
                "give a longer one",
            )
        return replace(self, period_ms=period_ms)

    def demand(self, grid_ms: float) -> Array:
        """Its mean rate (Mb/s) in each slot of one period; the period is a whole number of
        slots.
        """
        slots = round(self.period_ms / grid_ms)
        edges = np.arange(slots + 1) * grid_ms
        found = np.zeros(slots)
        for begin, end, rate in self.bursts:
            found += (
                rate
                * np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin), 0.0, None)
                / grid_ms
            )
        return found


# --- from what was seen


def of_records(
    times: Sequence[tuple[float, float, float]], sent_bytes: float, mbps: float
) -> Phases:
    """The phases of a job that has its link to itself, from its ranks' records.

    times: of iterations, ms: whole, computing, exposed exchange. sent_bytes: in an iteration over
    the link that limits it, whose rate is `mbps`. Where the exchange took longer than these bytes
    take, others sent at the same time: that part is left out. Raises: Infeasible - fewer than three
    iterations, or it is not known what of them was computing.
    """
    if len(times) < 3:
        raise Infeasible(f"{len(times)} iterations, which show no period", "let the job run on")
    whole, compute, exposed = (median(column) for column in zip(*times, strict=True))
    if not exposed and not compute:
        raise Infeasible(
            "ranks that do not say when they compute",
            "take its phases from samples of its hosts' ports",
        )
    alone = max(sent_bytes * 8 / (mbps * 1e3), 1e-3)
    period = compute + min(exposed, alone)
    burst = min(alone, period)
    rate = sent_bytes * 8 / 1e3 / burst
    low, _, high = quantiles((one[0] for one in times), n=4)
    return Phases(
        period,
        ((period - burst, period, rate),) if rate else (),
        max(0.0, 1 - (high - low) / whole),
    )


def of_samples(
    counts: Sequence[float] | Array, step_ms: float, period_ms: float | None = None
) -> Phases:
    """The phases shown by bytes sent in steps of `step_ms`: the first burst after the longest gap
    ends the circle's first gap.

    period_ms: where it is known. Raises: Infeasible - as `period_of`.
    """
    found, confidence = period_of(counts, step_ms)
    period = found if period_ms is None else period_ms
    slots = max(4, round(period / step_ms))
    at = (np.arange(len(counts)) * step_ms % period / period * slots).astype(int) % slots
    sums = np.bincount(at, np.asarray(counts, float), slots)
    # bytes/ms -> Mb/s
    rates = sums / np.maximum(np.bincount(at, minlength=slots), 1) * 8 / 1e3 / step_ms
    busy = _without_short(rates >= BUSY * rates.max(), max(1, round(GAP * slots)))
    first = _after_longest_gap(busy)
    rates, busy = np.roll(rates, -first), np.roll(busy, -first)
    step = period / slots
    edges = np.flatnonzero(np.diff(np.concatenate(([0], busy.astype(int), [0]))))
    bursts = tuple(
        (a * step, b * step, float(rates[a:b].mean())) for a, b in edges.reshape(-1, 2).tolist()
    )
    return Phases(period, bursts, confidence)


def _without_short(busy: NDArray[np.bool_], least: int) -> NDArray[np.bool_]:
    """Gaps of fewer than `least` slots filled, then bursts of fewer taken away, on a circle."""
    for kind in (False, True):
        if busy.all() or not busy.any():
            break
        start = int(np.flatnonzero(busy != np.roll(busy, 1))[0])
        rotated = np.roll(busy, -start)
        edges = [0, *(np.flatnonzero(rotated[1:] != rotated[:-1]) + 1).tolist(), len(rotated)]
        for a, b in pairwise(edges):
            if rotated[a] == kind and b - a < least:
                rotated[a:b] = not kind
        busy = np.roll(rotated, start)
    return busy


def _after_longest_gap(busy: NDArray[np.bool_]) -> int:
    """The slot at which the longest gap begins, 0 where there is none: an iteration begins with
    computing.
    """
    size, best, first = len(busy), 0, 0
    for at in range(size):
        if busy[at] or not busy[at - 1]:
            continue
        gap = next((k for k in range(size) if busy[(at + k) % size]), size)
        if gap > best:
            best, first = gap, at
    return first


# --- one link


@dataclass(frozen=True, slots=True)
class SharedLink:
    """A link with its rate (Mb/s) and the phases of each job that uses it."""

    name: str
    mbps: float
    jobs: Mapping[str, Phases]


def align(
    periods_ms: Sequence[float], grid_ms: float = 1.0, stretch: float = STRETCH
) -> tuple[float, ...]:
    """The periods made at most `stretch` longer, so that they are multiples of the longest possible
    unit (of whole slots).

    Periods that nothing relates, such as 143 and 145, meet in every position: no rotation would
    suit them. Where there is no unit longer than a slot each is rounded up to whole slots.
    """
    least = [max(1, ceil(period / grid_ms - EQUAL)) for period in periods_ms]
    most = [
        max(low, int(period * (1 + stretch) / grid_ms))
        for low, period in zip(least, periods_ms, strict=True)
    ]
    for unit in range(min(most, default=1), 1, -1):
        if all(-(-low // unit) * unit <= high for low, high in zip(least, most, strict=True)):
            times = [-(-low // unit) for low in least]
            unit = max(-(-low // count) for low, count in zip(least, times, strict=True))
            return tuple(count * unit * grid_ms for count in times)
    return tuple(low * grid_ms for low in least)


def perimeter(periods_ms: Collection[float], grid_ms: float = 1.0) -> int:
    """The circle on which all periods fit, in slots of the grid. Raises: Infeasible - it is too
    long; the nearest grid is named.
    """
    if (found := _circle(periods_ms, grid_ms)) <= SLOTS:
        return found
    fits = next(
        (grid_ms * k for k in range(2, SLOTS) if _circle(periods_ms, grid_ms * k) <= SLOTS),
        max(periods_ms),
    )
    notice = ", ".join(f"{period:g}" for period in sorted(set(periods_ms)))
    text = f"periods of {notice} ms on a grid of {grid_ms:g} ms: their circle has {found} slots, {SLOTS} are the most"
    raise Infeasible(text, f"the nearest grid on which they fit: --grid {fits:g}")


def _circle(periods_ms: Collection[float], grid_ms: float) -> int:
    return lcm(*(max(1, round(period / grid_ms)) for period in periods_ms))


def score(link: SharedLink, shifts_ms: Mapping[str, float], grid_ms: float = 1.0) -> float:
    """How well the jobs fit: 1 - sum_a max(0, sum_j bw_j(a - d_j) - C) / (|A| C); 1: the link
    always carries what they ask for.

    Raises: as `perimeter`.
    """
    circle = _Circle([link], grid_ms)
    return circle.scores([round(shifts_ms[job] / grid_ms) for job in circle.jobs])[0]


class _Circle:
    """Links with the same jobs, or with some of them: all are turned together."""

    def __init__(self, links: Sequence[SharedLink], grid_ms: float) -> None:
        self.jobs = sorted({job for link in links for job in link.jobs})
        phases = {job: one for link in links for job, one in link.jobs.items()}
        self.slots = perimeter([phases[job].period_ms for job in self.jobs], grid_ms)
        self.periods = [max(1, round(phases[job].period_ms / grid_ms)) for job in self.jobs]
        self.rates = np.array([link.mbps for link in links])
        nothing = [np.zeros(period) for period in self.periods]
        self.demands = [  # job, then link
            np.array(
                [
                    _fitted(link.jobs[job].demand(grid_ms), period) if job in link.jobs else none
                    for link in links
                ]
            )
            for job, period, none in zip(self.jobs, self.periods, nothing, strict=True)
        ]

    def total(self, shifts: Sequence[int]) -> Array:
        """What is asked for: a row for each link, a column for each slot of the circle."""
        parts = zip(self.demands, self.periods, shifts, strict=True)
        return np.sum(  # type: ignore[no-any-return]
            [np.tile(np.roll(one, shift, 1), self.slots // period) for one, period, shift in parts],
            axis=0,
        )

    def scores(self, shifts: Sequence[int]) -> list[float]:
        """The score of each link."""
        over = np.clip(self.total(shifts) - self.rates[:, None], 0.0, None).sum(1)
        return [float(value) for value in 1 - over / (self.slots * self.rates)]

    def rank(self, shifts: Sequence[int], window: int) -> tuple[float, float]:
        """What is best first: the score of the worst link; among equals what is spread most evenly
        over the circle, for iterations are early or late by a little."""
        total = self.total(shifts) / self.rates[:, None]
        ring = np.concatenate((total, total[:, :window]), 1)
        sums = np.cumsum(np.pad(ring, ((0, 0), (1, 0))), 1)
        smooth = (sums[:, window:] - sums[:, :-window])[:, : self.slots]
        return round(min(self.scores(shifts)), 9), -round(float((smooth**2).sum()), 6)

    def best(self) -> list[int]:
        """The best rotation, in slots, the first job's being 0. Jobs are turned no further than
        gives something new.
        """
        window = max(1, min(self.periods) // 4)
        paths, circle = [range(1)], self.periods[0]
        for period in self.periods[1:]:
            paths.append(range(gcd(period, circle)))
            circle = lcm(circle, period)
        rotated = self._first_of(paths, window)
        for _ in range(3 if self._steps(paths) else 0):
            for job in range(1, len(paths)):
                others = [(*rotated[:job], shift, *rotated[job + 1 :]) for shift in paths[job]]
                rotated = max(others, key=lambda each: self.rank(each, window))
        return list(rotated)

    def _steps(self, paths: Sequence[range]) -> int:
        """How many rotations of each job are tried at first, 0: all."""
        count = np.prod([float(len(path)) for path in paths])
        return 0 if count <= ROTATIONS else max(2, int(ROTATIONS ** (1 / (len(paths) - 1))))

    def _first_of(self, paths: Sequence[range], window: int) -> tuple[int, ...]:
        """The best of all rotations, or of some that are evenly spread where there are too many."""
        steps = self._steps(paths)
        tried = [path[:: -(-len(path) // steps)] if steps else path for path in paths]
        return max(product(*tried), key=lambda each: self.rank(each, window))


def _fitted(demand: Array, slots: int) -> Array:
    """A demand in exactly so many slots: rounding may have given one more or fewer."""
    return np.resize(demand, slots)


# --- many links


@dataclass(frozen=True, slots=True)
class Shifts:
    """By how much (ms) each job's iterations begin later; the score of each link, by name, and its
    circle (ms).
    """

    shifts_ms: Mapping[str, float]
    scores: Mapping[str, float]
    perimeters_ms: Mapping[str, float]

    @property
    def score(self) -> float:
        """That of the worst link; 1 without one."""
        return min(self.scores.values(), default=1.0)


def shifts(links: Sequence[SharedLink], grid_ms: float = 1.0) -> Shifts:
    """The shift of every job over all links that jobs share.

    Links that have their jobs in common, or some of the jobs of another link, are turned as one.
    The bipartite graph of jobs and links is walked breadth first: t_k = (t_j - t_j^l + t_k^l) mod
    period_k. Raises: Infeasible - it has a loop: a job would need two shifts; periods without a
    common circle.
    """
    groups = _groups([link for link in links if len(link.jobs) > 1])
    found: dict[str, float] = {}
    scores: dict[str, float] = {}
    perimeters: dict[str, float] = {}
    left = list(groups)
    while left:
        queue = [min(job for group in left for link in group for job in link.jobs)]
        found[queue[0]] = 0.0
        while queue:
            job = queue.pop(0)
            for group in [group for group in left if any(job in link.jobs for link in group)]:
                left.remove(group)
                circle = _Circle(group, grid_ms)
                rotated = circle.best()
                at = dict(zip(circle.jobs, rotated, strict=True))
                for other, period in zip(circle.jobs, circle.periods, strict=True):
                    if other == job:
                        continue
                    if other in found:
                        names = ", ".join(link.name for link in group)
                        text = f"jobs {job} and {other} share {names}, and are joined by other links and jobs too: a loop"
                        raise Infeasible(
                            text,
                            "one of them on other links, or: testbed service start pacing --by mltcp",
                        )
                    shift = round(found[job] / grid_ms) - at[job] + at[other]
                    found[other] = shift % period * grid_ms
                    queue.append(other)
                for link, value in zip(group, circle.scores(rotated), strict=True):
                    scores[link.name], perimeters[link.name] = value, circle.slots * grid_ms
    return Shifts(found, scores, perimeters)


def _groups(links: Sequence[SharedLink]) -> list[list[SharedLink]]:
    """Links turned as one: each goes to the largest link that has all of its jobs."""
    groups: list[list[SharedLink]] = []
    for link in sorted(links, key=lambda one: (-len(one.jobs), one.name)):
        for group in groups:
            if set(link.jobs) <= set(group[0].jobs):
                group.append(link)
                break
        else:
            groups.append([link])
    return groups
