"""What a job is about to send, from what its ranks say, and how much time its iterations leave for
a change. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal, TypeAlias

from optics import HostName
from optics.ranks import RankName, host_of_rank

Bytes: TypeAlias = Mapping[tuple[HostName, HostName], float]
"""Bytes from one host to another in one exchange; pairs without any are absent."""
WEIGHT = 0.5
"""Of the latest traffic in an exponentially weighted mean: its memory is two looks, as circuits are
to follow within a few.
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
    """The next traffic by what was seen: the last, or an exponentially weighted mean."""

    how: Literal["last", "ewma"] = "last"
    now: Bytes = field(default_factory=dict)

    def see(self, traffic: Bytes) -> Bytes:
        """Take the latest traffic; return the forecast."""
        if self.how == "last" or not self.now:
            self.now = traffic
        else:
            pairs = {*self.now, *traffic}
            self.now = {
                p: WEIGHT * traffic.get(p, 0.0) + (1 - WEIGHT) * self.now.get(p, 0.0) for p in pairs
            }
        return self.now


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
