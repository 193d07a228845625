"""How fast a job's ranks go, by the times that each wrote: is the job slower than usual, who is
late, whom does it wait for. Pure.

Everything is a median over the latest iterations and compared with the other ranks, so that one
slow iteration names nobody.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from optics import HostName
from optics.ranks import RankName, host_of_rank
from orchestrator.hosts.api import Heartbeat, RankTimes
from orchestrator.hosts.late import FACTOR, ITERATIONS, LEAST_S, START_S, waiting_ranks

RECENT = 5
"""The pace is the median of this many iterations: three slow ones change it, two do not."""
BEFORE = 8
"""Fewer iterations before them do not say what is usual; the first of a job, which sets things up,
is left out.
"""
SLOW = 1.25
"""A job is slow if an iteration takes this many times the usual one: on a busy machine medians of
healthy jobs differ by 1.2 (twelve ranks on two cores: 193, 217, 253 ms after changes), and a
verdict needs a cause besides."""
SPREADS = 4.0
"""And by this many robust standard deviations (1.4826 times the median absolute deviation) of the
usual iterations.
"""
WINDOWS = ((RECENT, 0.8), (15, 0.6))
"""A host is late that computes FACTOR times as long as the median of the others (published
stragglers are slower by a tenth: MegaScale, NSDI '24; but ranks that share processors differ by a
quarter without any fault), and that is the last of all in this share of so many iterations: among
twelve equal ones, one host is that in 4 of 5 with a probability of 0.003, in 9 of 15 of 1e-5."""
APART = 3.0
"""And if its median is so many robust standard deviations of the others' medians above theirs."""
MATTERS = 0.15
"""And if what it computes longer is this share of a usual iteration: less is hidden or does not
matter.
"""
NOW = 2.5
"""Where two iterations in a row must do, each is this many times as long: ranks that share
processors differ by less.
"""


@dataclass(frozen=True, slots=True)
class Pace:
    """Medians (ms) of the recent iterations. usual_ms, spread_ms: median and robust deviation
    before them, None: not known.

    compute, wait: by host, of the slowest of its ranks. moving: exposed communication in which
    bytes moved. before: as compute, before them. latest_ms: the latest alone. last: in how many of
    the `iterations` a host computed longest.
    """

    iterations: int
    iter_ms: float | None = None
    usual_ms: float | None = None
    spread_ms: float = 0.0
    compute: Mapping[HostName, float] = field(default_factory=dict)
    wait: Mapping[HostName, float] = field(default_factory=dict)
    moving: Mapping[HostName, float] = field(default_factory=dict)
    last: Mapping[HostName, int] = field(default_factory=dict)
    before: Mapping[HostName, float] = field(default_factory=dict)
    latest_ms: float | None = None

    @property
    def slowing(self) -> bool:
        """Whether the latest iteration took longer than usual: enough where its cause is seen as
        well.
        """
        return (
            self.latest_ms is not None
            and self.usual_ms is not None
            and self.latest_ms > SLOW * self.usual_ms
        )

    @property
    def slow(self) -> bool:
        """Whether iterations take longer than usual, beyond their spread."""
        if self.iter_ms is None or self.usual_ms is None or self.iterations < 3:
            return False
        return self.iter_ms > max(SLOW * self.usual_ms, self.usual_ms + SPREADS * self.spread_ms)

    @property
    def message(self) -> str:
        """The pace in a sentence."""
        if self.iter_ms is None:
            return "no iteration has ended yet"
        now = f"an iteration takes {self.iter_ms:.0f} ms (median of {self.iterations})"
        return now + (
            f", usual are {self.usual_ms:.0f} ms"
            if self.usual_ms is not None
            else ", and what is usual is not known"
        )


def pace(
    heartbeats: Mapping[RankName, Heartbeat], usual_ms: float | None = None, window: int = RECENT
) -> Pace:
    """The pace by the latest `window` iterations that all ranks have ended. usual_ms: of iterations
    before those in `heartbeats`.
    """
    by_rank = {
        rank: {t.iteration: t for t in heartbeat.times}
        for rank, heartbeat in heartbeats.items()
        if heartbeat.times
    }
    if not by_rank:
        return Pace(0, usual_ms=usual_ms)
    common = sorted(set.intersection(*(set(times) for times in by_rank.values())))
    recent, before = common[-window:], [i for i in common[:-window] if i > 1]
    if not recent:
        return Pace(0, usual_ms=usual_ms)
    spans = [_of_all(by_rank, i) for i in before]
    spread = 0.0
    if len(spans) >= BEFORE:
        middle = statistics.median(spans)
        spread = 1.4826 * statistics.median(abs(x - middle) for x in spans)
        usual_ms = min(middle, usual_ms) if usual_ms is not None else middle
    hosts: dict[HostName, list[RankName]] = {}
    for rank in by_rank:
        hosts.setdefault(host_of_rank(rank), []).append(rank)

    def medians(value: str, over: Sequence[int] = recent) -> dict[HostName, float]:
        return {
            host: max(
                statistics.median(getattr(by_rank[rank][i], value) for i in over) for rank in ranks
            )
            for host, ranks in hosts.items()
        }

    exposed, wait = medians("exposed_ms"), medians("wait_ms")
    last: dict[HostName, int] = dict.fromkeys(hosts, 0)
    for i in recent:
        last[
            max(hosts, key=lambda host: max(by_rank[rank][i].compute_ms for rank in hosts[host]))
        ] += 1
    return Pace(
        len(recent),
        statistics.median(_of_all(by_rank, i) for i in recent),
        usual_ms,
        spread,
        medians("compute_ms"),
        wait,
        {host: max(0.0, exposed[host] - wait[host]) for host in hosts},
        last,
        medians("compute_ms", before) if len(before) >= BEFORE else {},
        _of_all(by_rank, recent[-1]),
    )


def _of_all(by_rank: Mapping[RankName, Mapping[int, RankTimes]], iteration: int) -> float:
    """The time of one iteration (ms): ranks end it together, so the median of theirs."""
    return statistics.median(times[iteration].iter_ms for times in by_rank.values())


@dataclass(frozen=True, slots=True)
class LateHost:
    """A host whose ranks compute longer than all others. others_ms: the median of the others."""

    host: HostName
    compute_ms: float
    others_ms: float
    wait_ms: float
    others_wait_ms: float
    last: int
    of: int
    before_ms: float | None = None

    @property
    def changed(self) -> bool:
        """Whether the host itself computed less before: then it is a fault even if the job is
        hardly slower.
        """
        return self.before_ms is not None and self.compute_ms >= FACTOR * self.before_ms

    @property
    def message(self) -> str:
        share = (
            f"{self.compute_ms / self.others_ms:.1f} times as long as"
            if self.others_ms
            else "longer than"
        )
        mine = f"{self.host} computes {self.compute_ms:.0f} ms an iteration, {share} the others' median ({self.others_ms:.0f} ms)"
        mine += f", before it was {self.before_ms:.0f} ms" if self.before_ms is not None else ""
        waits = f"it waits {self.wait_ms:.0f} ms for others, they {self.others_wait_ms:.0f} ms"
        last = (
            f"was the last in {self.last} of {self.of} iterations"
            if self.of > 1
            else "alone computes on in the present iteration"
        )
        return f"{mine}, and {last}; {waits}"


def late(heartbeats: Mapping[RankName, Heartbeat], usual_ms: float | None) -> LateHost | None:
    """The host that the others wait for, if there is one beyond the noise in one of WINDOWS."""
    return next(
        (
            found
            for window, share in WINDOWS
            if (found := _late(pace(heartbeats, usual_ms, window), window, share))
        ),
        None,
    )


def late_now(heartbeats: Mapping[RankName, Heartbeat], usual_ms: float | None) -> LateHost | None:
    """The host that made the latest iteration long and is the only one that computes in the present
    one, each NOW times as long as it did before; two in a row name it before the medians do.
    """
    found = pace(heartbeats, usual_ms, 1)
    if (
        found.iter_ms is None
        or found.usual_ms is None
        or found.iter_ms < SLOW * found.usual_ms
        or len(found.compute) < 3
    ):
        return None
    host = max(found.compute, key=lambda name: found.compute[name])
    own, before = found.compute[host], found.before.get(host)
    others = statistics.median(ms for name, ms in found.compute.items() if name != host)
    if (
        before is None
        or others <= 0
        or own < NOW * max(others, before)
        or own - before < MATTERS * found.usual_ms
    ):
        return None
    mine = [
        b
        for r, b in heartbeats.items()
        if host_of_rank(r) == host and b.phase == "compute" and b.age_s * 1e3 >= NOW * before
    ]
    rest = [heartbeat for rank, heartbeat in heartbeats.items() if host_of_rank(rank) != host]
    if not mine or any(heartbeat.phase != "exchange" for heartbeat in rest):
        return None
    waits = statistics.median(ms for name, ms in found.wait.items() if name != host)
    return LateHost(host, own, others, found.wait[host], waits, 1, 1, before)


def _late(found: Pace, window: int, share: float) -> LateHost | None:
    if (
        found.iterations < (3 if window == RECENT else window)
        or found.usual_ms is None
        or len(found.compute) < 3
    ):
        return None
    host = max(found.compute, key=lambda name: found.compute[name])
    rest = [ms for name, ms in found.compute.items() if name != host]
    others, own = statistics.median(rest), found.compute[host]
    spread = max(1.4826 * statistics.median(abs(ms - others) for ms in rest), 0.02 * others)
    count = found.last[host]
    if (
        others <= 0
        or own < FACTOR * others
        or own - others < max(MATTERS * found.usual_ms, APART * spread)
    ):
        return None
    if count < share * found.iterations:
        return None
    waits = statistics.median(ms for name, ms in found.wait.items() if name != host)
    return LateHost(
        host, own, others, found.wait[host], waits, count, found.iterations, found.before.get(host)
    )


def stalled_ranks(
    heartbeats: Mapping[RankName, Heartbeat], usual_ms: float | None
) -> tuple[RankName, ...]:
    """The living ranks that do not go on: their heartbeat has not changed for longer than
    `hosts/late.py` allows, and they do not pause.

    One that has ended its iteration, or writes a checkpoint, stands only while others wait for it.
    """
    limit_s = START_S if usual_ms is None else max(LEAST_S, ITERATIONS * usual_ms / 1e3)
    waiting = {heartbeat.rank for heartbeat in waiting_ranks(heartbeats.values(), limit_s)}
    waits = any(heartbeats[rank].phase == "exchange" for rank in waiting)
    return tuple(
        rank
        for rank in heartbeats
        if rank in waiting and (heartbeats[rank].phase not in ("end", "save") or waits)
    )


def hang_text(heartbeats: Mapping[RankName, Heartbeat], ranks: Sequence[RankName]) -> str:
    """The standing ranks in a sentence."""
    ages = [heartbeats[rank].age_s for rank in ranks]
    return f"{len(ranks)} of {len(heartbeats)} ranks have been idle for {min(ages):.1f} to {max(ages):.1f} s"


def suspects(found: Pace, hosts: Iterable[tuple[HostName, HostName]]) -> list[int]:
    """The indexes of these pairs of hosts, by how long bytes move on their ends, longest first: a
    slow link is slow at both.
    """
    pairs = list(hosts)
    moving = found.moving
    return sorted(
        range(len(pairs)), key=lambda at: -min(moving.get(host, 0.0) for host in pairs[at])
    )
