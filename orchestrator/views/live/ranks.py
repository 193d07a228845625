"""The ranks of the job that runs: what they say of themselves now, and the times of their latest
iterations. Pure.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection
from typing import cast

from optics.ranks import RankName
from orchestrator.hosts import Heartbeat, late
from orchestrator.results import Json
from orchestrator.telemetry.lineprotocol import Point

LATEST = 20
"""Times are medians over so many iterations."""
STALE_MS = 10_000.0
"""What was heard of ranks so long ago (ms) says nothing of how they are."""
_TIMES = ("iter_ms", "compute_ms", "exposed_ms", "wait_ms")


class Ranks:
    """Takes points of iterations, and heartbeats as hosts report them; those of an older job than
    the latest are left out.
    """

    def __init__(self) -> None:
        self._run = ""
        self._latest: dict[RankName, deque[dict[str, float]]] = {}
        self._beats: dict[RankName, Heartbeat] = {}
        self._heard_ms = 0.0
        self._fresh = False

    def _of(self, run: str) -> bool:
        if run > self._run:
            self._run, self._latest, self._beats = run, {}, {}
        self._fresh = self._fresh or run == self._run
        return run == self._run

    def point(self, point: Point) -> None:
        """Take an iteration of a rank."""
        if self._of(point.tags.get("run", "")):
            times = {name: float(point.fields[name]) for name in _TIMES if name in point.fields}
            self._latest.setdefault(point.tags["rank"], deque(maxlen=LATEST)).append(times)

    def heard(self, run: str, heartbeats: Collection[Heartbeat], at: float) -> None:
        """Take what the ranks of the job that `run` launched said at a time (wall ms)."""
        if self._of(run):
            self._beats, self._heard_ms = (
                {heartbeat.rank: heartbeat for heartbeat in heartbeats},
                at,
            )

    def taken(self) -> bool:
        """Whether something changed since the last call."""
        fresh, self._fresh = self._fresh, False
        return fresh

    def median(self, rank: RankName, name: str) -> float | None:
        """The median of a time (`iter_ms`, ...) over the rank's latest iterations."""
        found = [times[name] for times in self._latest.get(rank, ()) if name in times]
        return round(statistics.median(found), 3) if found else None

    def _usual_ms(self) -> float | None:
        known = [ms for rank in self._latest if (ms := self.median(rank, "iter_ms")) is not None]
        return statistics.median(known) if known else None

    def text(self, now: float) -> tuple[str, bool]:
        """How they are at a time (wall ms), and whether that is trouble: which are silent, else
        which is the slowest.
        """
        heartbeats = list(self._beats.values()) if now - self._heard_ms < STALE_MS else []
        if silent := late.silent_text(heartbeats, self._usual_ms()):
            return silent, True
        compute = {rank: ms for rank in self._latest if (ms := self.median(rank, "compute_ms"))}
        return late.slow_text(compute, always=True), bool(late.slow_text(compute))

    def json(self) -> dict[str, Json]:
        """As viewers receive them."""
        rows = []
        silent = {
            heartbeat.rank
            for heartbeat in late.silent(list(self._beats.values()), self._usual_ms())[0]
        }
        for rank in sorted(self._latest.keys() | self._beats.keys()):
            heartbeat = self._beats.get(rank)
            row: dict[str, Json] = {"rank": rank} | {
                name: self.median(rank, name) for name in _TIMES
            }
            if heartbeat is not None:
                row |= {
                    "state": heartbeat.state,
                    "iteration": heartbeat.iteration,
                    "phase": heartbeat.phase,
                }
                row |= {
                    "age_s": round(heartbeat.age_s, 3) if heartbeat.phase else None,
                    "silent": rank in silent,
                }
            rows.append(row)
        text, trouble = self.text(self._heard_ms)
        return {"message": text, "trouble": trouble, "ranks": cast(Json, rows)}
