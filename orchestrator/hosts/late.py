"""Which ranks of a job are slow or silent, in words. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping

from optics.plain import counted, seconds_text
from optics.ranks import RankName
from orchestrator.hosts.api import Heartbeat

FACTOR, LEAST_MS = 1.5, 5.0
"""A rank is slow that computes this many times as long as the median of the others, and so much
longer (ms).
"""
ITERATIONS, LEAST_S = 3, 2.0
"""A rank is silent that has not changed what it does for so many usual iterations, and for this
time (s). It is only shown, or named by a diagnosis; the guard, which restarts the job, waits twice
as long (HANG_LEAST_S of `services/guard/policy.py`)."""
START_S = 120.0
"""A job of which no iteration is known may stand for this time (s), which `up` gives it for its
first ones.
"""
SAVE_S = 15.0
"""A rank that writes a checkpoint is silent no sooner than after this time (s), since shared disks
may stall for seconds, nor until ITERATIONS times its longest one so far are over; its first may
take as long as a start."""
BETWEEN = ("start", "end", "save")
"""Phases outside an iteration. A rank is silent in one only while others wait for it: all ranks
start, save and end together.
"""
ALIVE_S = 3.0
"""A rank in an exchange gives a sign of life once a second; one that gave none for so long (s) is
silent.
"""
_SHOWN = 3


def slowest_rank(compute_ms: Mapping[RankName, float]) -> tuple[RankName, float, float] | None:
    """The rank that computes longest, its time and the median of the others (ms); None where that
    is not known of two.

    >>> slowest_rank({"gpu01": 20.0, "gpu02": 21.0, "gpu03": 90.0})
    ('gpu03', 90.0, 20.5)
    """
    known = {rank: ms for rank, ms in compute_ms.items() if ms > 0}
    if len(known) < 2:
        return None
    rank = max(known, key=lambda name: known[name])
    return rank, known[rank], statistics.median(ms for name, ms in known.items() if name != rank)


def slow_text(compute_ms: Mapping[RankName, float], *, always: bool = False) -> str:
    """The slowest rank, if it is slow; always: also if it is not. Times as `slowest_rank`."""
    found = slowest_rank(compute_ms)
    if found is None or not (always or is_slow(found[1], found[2])):
        return ""
    rank, its, usual = found
    return f"slowest {rank}: computes {seconds_text(its / 1e3)} of an iteration, the others {seconds_text(usual / 1e3)}"


def is_slow(its_ms: float, others_ms: float) -> bool:
    return its_ms > FACTOR * others_ms and its_ms >= others_ms + LEAST_MS


def medians(heartbeats: Collection[Heartbeat]) -> dict[RankName, float]:
    """Of each rank the median compute_ms of the iterations that came with its heartbeat."""
    return {
        heartbeat.rank: statistics.median(times.compute_ms for times in heartbeat.times)
        for heartbeat in heartbeats
        if heartbeat.times
    }


def silent(
    heartbeats: Collection[Heartbeat], iteration_ms: float | None
) -> tuple[list[Heartbeat], list[Heartbeat]]:
    """The running ranks that are silent, and those that wait for others as long; iteration_ms: what
    is usual.
    """
    still = waiting_ranks(heartbeats, max(LEAST_S, ITERATIONS * (iteration_ms or 0) / 1e3))
    stopped = [
        b
        for b in still
        if b.phase == "compute" or (b.phase == "exchange" and ALIVE_S < b.alive_s < math.inf)
    ]
    waiting = [b for b in still if b.phase == "exchange" and b not in stopped]
    return stopped + [b for b in still if b.phase in BETWEEN and waiting], waiting


def waiting_ranks(heartbeats: Collection[Heartbeat], limit_s: float) -> list[Heartbeat]:
    """The running ranks that have done the same for longer than they may, which is this in an
    iteration; never in a pause.
    """
    return [
        b
        for b in heartbeats
        if b.state == "running" and max(limit_s, _least_s(b)) < b.age_s < math.inf
    ]


def _least_s(heartbeat: Heartbeat) -> float:
    """How long (s) a rank may at least be in its phase."""
    if heartbeat.phase == "save":
        return max(SAVE_S, ITERATIONS * heartbeat.save_s) if heartbeat.save_s else START_S
    return {"start": START_S, "hold": math.inf, "": math.inf}.get(heartbeat.phase, 0.0)


def silent_text(heartbeats: Collection[Heartbeat], iteration_ms: float | None) -> str:
    """Which ranks are silent, or that all wait; empty if neither. iteration_ms: as `silent`."""
    still, waiting = silent(heartbeats, iteration_ms)
    if still:
        names = ", ".join(b.rank for b in still[:_SHOWN]) + (
            f" and {len(still) - _SHOWN} more" if len(still) > _SHOWN else ""
        )
        text = f"{names} silent for {seconds_text(max(b.age_s for b in still))} in iteration {min(b.iteration for b in still)}"
        return text + (f", {counted(len(waiting), 'rank')} waiting" if waiting else "")
    if waiting:
        age = seconds_text(min(b.age_s for b in waiting))
        return f"{counted(len(waiting), 'rank')} waiting for an exchange for {age} in iteration {waiting[0].iteration}"
    return ""
