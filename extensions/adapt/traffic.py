"""What a job is about to send, from what its ranks say, and how much time its iterations leave for
a change. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, pvariance
from typing import Literal, TypeAlias

from optics import HostName
from optics.ranks import RankName, host_of_rank
from planner.model.demand import Infeasible
from planner.model.period import period_of

Bytes: TypeAlias = Mapping[tuple[HostName, HostName], float]
"""Bytes from one host to another in one exchange; pairs without any are absent."""
WEIGHT = 0.5
"""Of the latest traffic in an exponentially weighted mean: its memory is two looks, as circuits are
to follow within a few.
"""
KEPT, LEAST, SURE = 64, 12, 0.7
"""A period is looked for in so many iterations at most, and at least. It counts from this share of
the variance on: of 12 to 64 random ones a share of 0.7 comes again seldom, of a cycle nearly all.
"""
LATEST = 8
"""The job's times are medians over so many iterations."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What a rank sends in each exchange of one iteration: `to`, bytes by rank. begin_ns, gate_ns,
    end_ns: when the iteration began, its gate had decided, and its last exchange was over (None:
    not yet)."""

    iteration: int
    begin_ns: int
    gate_ns: int
    end_ns: int | None
    to: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Demand:
    """What a rank of a mixture of experts is about to send. step: twice its iteration, and one more
    once the gate has decided; -1: nothing can be read, and `error` says why. since_ns: when the
    step began. state: as of JobState."""

    rank: RankName
    state: str
    step: int
    since_ns: int = 0
    sent: tuple[Sent, ...] = ()
    error: str = ""


def bytes_of(
    found: Mapping[RankName, Demand], ranks: Sequence[RankName], iteration: int
) -> Bytes | None:
    """What all ranks send in each exchange of an iteration; None unless every one of them has
    told.
    """
    total: dict[tuple[HostName, HostName], float] = {}
    for rank in ranks:
        sent = (
            next((s for s in found[rank].sent if s.iteration == iteration), None)
            if rank in found
            else None
        )
        if sent is None or len(sent.to) != len(ranks):
            return None
        for other, size in zip(ranks, sent.to, strict=True):
            if size and (pair := (host_of_rank(rank), host_of_rank(other)))[0] != pair[1]:
                total[pair] = total.get(pair, 0.0) + size
    return total


def skew(traffic: Bytes) -> float:
    """The largest pair over the mean of all pairs of these hosts; 1 for uniform traffic, and for
    none.
    """
    hosts = {host for pair in traffic for host in pair}
    pairs = len(hosts) * (len(hosts) - 1)
    return max(traffic.values()) * pairs / sum(traffic.values()) if traffic else 1.0


def distance(one: Bytes, other: Bytes) -> float:
    """What would have to be added to and taken from the first to be the second, over all of it: 0
    for equals, up to 2.
    """
    moved = sum(abs(one.get(pair, 0.0) - other.get(pair, 0.0)) for pair in {*one, *other})
    return moved / sum(one.values()) if one else float(bool(other))


@dataclass
class Forecast:
    """The next traffic by what was seen: the last, an exponentially weighted mean, or that of a
    period before; where no period shows, the last.
    """

    how: Literal["last", "ewma", "period"] = "last"
    now: Bytes = field(default_factory=dict)
    seen: dict[int, Bytes] = field(default_factory=dict)
    """Of `period`: by iteration."""

    def see(self, traffic: Bytes, at: int = 0, before: Mapping[int, Bytes] | None = None) -> Bytes:
        """Take the latest traffic, of iteration `at`, and what is known of ones before; return the
        forecast of the next one.
        """
        if self.how == "period":
            kept = {**self.seen, **(before or {}), at: traffic}
            self.seen = {number: each for number, each in kept.items() if at - KEPT < number <= at}
            length = period(self.seen, at)
            self.now = self.seen.get(at + 1 - length, traffic) if length else traffic
        elif self.how == "last" or not self.now:
            self.now = traffic
        else:
            pairs = {*self.now, *traffic}
            self.now = {
                p: WEIGHT * traffic.get(p, 0.0) + (1 - WEIGHT) * self.now.get(p, 0.0) for p in pairs
            }
        return self.now


def period(seen: Mapping[int, Bytes], at: int) -> int:
    """After how many iterations the traffic comes again, by the pair whose bytes vary most in those
    up to `at` without a gap; 0: no period shows.
    """
    begin = at
    while begin - 1 in seen:
        begin -= 1
    run = [seen[number] for number in range(begin, at + 1)]
    series = [[each.get(pair, 0.0) for each in run] for pair in sorted({p for b in run for p in b})]
    if len(run) < LEAST or not series:
        return 0
    try:
        length, sure = period_of(max(series, key=pvariance), 1.0)
    except Infeasible:
        return 0
    return round(length) if sure >= SURE else 0


@dataclass(frozen=True, slots=True)
class Pace:
    """The usual times (s) of the job: from an iteration's begin to the first gate's decision, and
    to the next one's begin.
    """

    compute_s: float
    iteration_s: float

    def exposed_s(self, change_s: float, late_s: float = 0.0) -> float:
        """How much of a change of `change_s` (s) that begins `late_s` after an iteration did falls
        into its exchanges.
        """
        return max(0.0, late_s + change_s - self.compute_s)


def pace(found: Iterable[Demand]) -> Pace | None:
    """The pace of these ranks' latest iterations; None as long as there are not two in a row."""
    begins: dict[int, int] = {}
    gates: dict[int, int] = {}
    for demand in found:
        for sent in demand.sent[-LATEST:]:
            begins[sent.iteration] = max(begins.get(sent.iteration, 0), sent.begin_ns)
            gates[sent.iteration] = min(gates.get(sent.iteration, sent.gate_ns), sent.gate_ns)
    whole = [begins[i + 1] - begins[i] for i in begins if i + 1 in begins]
    if not whole:
        return None
    return Pace(median(gates[i] - begins[i] for i in begins) / 1e9, median(whole) / 1e9)
