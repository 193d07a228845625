"""The iterations of the jobs of a lab next to the changes: ring changes, and slow iterations with
their causes. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from orchestrator.results import Json
from orchestrator.telemetry.lineprotocol import Point
from orchestrator.views import ringtext
from orchestrator.views.ringtext import Change, Slow, Span

SPANS = 2048
"""Iterations remembered per job: those of the longest change, and those before it."""
KEPT, CHANGES = 12, 256
"""Jobs and ring changes remembered; reconfigurations remembered."""
PENDING = 64
"""Slow iterations that wait for the end of a run, whose journal says only then what it did."""
QUIET_MS = 10_000.0
"""At most one straggler is noted in so long (ms); the next one says how many there were in
between.
"""

Notice = tuple[float, str, str, Mapping[str, Json]]
"""An event: wall ms, its name, in words, for programs."""


@dataclass
class _Disturbance:
    """What the points of one reconfiguration say, wall ms."""

    begins: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)
    at_change: float = 0.0
    job: str = ""
    after: int | None = None
    boundary: float | None = None

    def change(self) -> Change:
        spans = dict[str, tuple[float, float]]()
        end = self.at_change
        if self.begins and self.ends:
            end = max(self.ends)
            spans["dark"] = min(self.begins), end
        if self.commits and max(self.commits) > end:
            if self.ends:
                spans["commit"] = end, max(self.commits)
            end = max(self.commits)
        if self.boundary is not None:
            spans["boundary"] = end, self.boundary
        return Change(spans)


class Training:
    """Takes the points of iterations, devices and ring changes, in any order; `judge` says what was
    slow, and why.
    """

    def __init__(self) -> None:
        self.ring_changes: dict[str, dict[str, Json]] = {}
        """By reconfiguration, as viewers receive them."""
        self._spans: dict[tuple[str, str], deque[Span]] = {}
        self._changes: dict[str, _Disturbance] = {}
        self._recent: dict[tuple[str, str], deque[float]] = {}
        self._awaited: dict[tuple[str, int], str] = {}
        """The iterations around a ring change that were not there yet when it was recorded, with
        its reconfiguration.
        """
        self._pending: deque[tuple[tuple[str, str], Span]] = deque()
        self._straggled = -QUIET_MS
        self._hidden = 0

    def iteration(self, job: str, run: str, number: int, begin: float, took: float) -> bool:
        """Take one iteration (wall ms, ms); whether it places a ring change on the time axis that
        was not placed before.
        """
        spans = self._spans.setdefault((job, run), deque(maxlen=SPANS))
        recent = self._recent.setdefault((job, run), deque(maxlen=ringtext.BEFORE))
        for old in list(self._spans)[:-KEPT]:
            del self._spans[old], self._recent[old]
        last = spans[-1] if spans else None
        span = Span(
            number,
            min(begin, last.end) if last and last.number == number - 1 else begin,
            begin + took,
            took,
        )
        before = (
            ringtext.usual_iteration_ms([*recent])
            if ringtext.is_slow_iteration(span.took, min(recent, default=span.took))
            else None
        )
        if before is not None and ringtext.is_slow_iteration(span.took, before):
            self._pending.append(((job, run), span))
        spans.append(span)
        recent.append(span.took)
        ring_change = self._awaited.pop((job, number), "")
        return bool(ring_change) and self._place(ring_change)

    def device(self, point: Point) -> None:
        """Take what a device did in a reconfiguration."""
        at, change = point.time_ns / 1e6, self._change(point)
        for into, name in (
            (change.begins, "t_dark_begin_ns"),
            (change.ends, "t_dark_end_ns"),
            (change.commits, "t_route_ns"),
        ):
            if name in point.fields:
                into.append(at + float(point.fields[name]) / 1e6)

    def change_rings(self, point: Point) -> Notice:
        """Take what a change cost a job; return it as an event."""
        at, ok, change = point.time_ns / 1e6, point.tags["ok"] == "1", self._change(point)
        figures = {k: v for k, v in point.fields.items() if k != "reconfig_id"}
        text = ringtext.ring_change_text({**figures, "mode": point.tags.get("mode")}, ok)
        change.at_change, change.job = at, point.tags["job"]
        change.after = int(figures["after"]) if ok and "after" in figures else None
        reply: dict[str, Json] = {
            "run": point.tags.get("run", ""),
            "job": change.job,
            "mode": point.tags["mode"],
            "ok": ok,
            **figures,
        }
        id_ = _id(point)
        self.ring_changes[id_] = {"at": round(at, 3), "message": text, **reply}
        for old in list(self.ring_changes)[:-KEPT]:
            del self.ring_changes[old]
        self._place(id_)
        placed = self.ring_changes[id_]["at"] if id_ in self.ring_changes else at
        return float(placed) if isinstance(placed, (int, float)) else at, "ring_change", text, reply

    def last_of(self, job: str, since: float) -> dict[str, Json] | None:
        """The latest ring change of a job since its launch (wall ms)."""
        found = [
            ring_change
            for ring_change in self.ring_changes.values()
            if ring_change["job"] == job and cast(float, ring_change["at"]) >= since
        ]
        return max(found, key=lambda ring_change: cast(float, ring_change["at"]), default=None)

    def judge(self, running_since: float | None) -> Iterator[Notice]:
        """The slow iterations whose changes are known by now.

        running_since: when the run that goes on began (wall ms); None: none does.
        """
        waiting = deque[tuple[tuple[str, str], Span]]()
        while self._pending:
            key, span = self._pending.popleft()
            if running_since is not None and span.end >= running_since and len(waiting) < PENDING:
                waiting.append((key, span))
            elif (slow := self._judged(key, span)) is not None:
                yield from self._notices(key[0], slow)
        self._pending = waiting

    def _judged(self, key: tuple[str, str], span: Span) -> Slow | None:
        """None if it is not slow among those on the same rings."""
        changes = [c for c in self._changes.values() if c.job == key[0] and c.after is not None]
        firsts = [c.after + 1 for c in changes if c.after is not None and c.after + 1 < span.number]
        since = max(firsts, default=-1)
        before = ringtext.usual_iteration_ms(
            [s.took for s in self._spans.get(key, ()) if since < s.number < span.number]
        )
        if before is None or not ringtext.is_slow_iteration(span.took, before):
            return None
        return ringtext.judged(span, before, [change.change() for change in self._changes.values()])

    def _notices(self, job: str, slow: Slow) -> Iterator[Notice]:
        text = slow.message
        if slow.causes == (ringtext.STRAGGLER,):
            if slow.span.end - self._straggled < QUIET_MS:
                self._hidden += 1
                return
            text += f"; {self._hidden} more since the last such line" if self._hidden else ""
            self._straggled, self._hidden = slow.span.end, 0
        causes: dict[str, Json] = {k: round(v, 3) for k, v in slow.parts.items()}
        causes |= {} if slow.parts else {slow.causes[0]: round(slow.other, 3)}
        fields: dict[str, Json] = {
            "job": job,
            "iter": slow.span.number,
            "iter_ms": round(slow.span.took, 3),
        }
        yield (
            slow.span.end,
            "slow",
            text,
            {**fields, "usual_ms": round(slow.usual, 3), "causes": causes},
        )

    def _change(self, point: Point) -> _Disturbance:
        found = self._changes.setdefault(_id(point), _Disturbance())
        for old in list(self._changes)[:-CHANGES]:
            del self._changes[old]
        return found

    def _place(self, id_: str) -> bool:
        """Put a ring change where its iteration ended, if that is known."""
        change, ring_change = self._changes.get(id_), self.ring_changes.get(id_)
        if change is None or change.after is None:
            return False
        spans = [s for (job, _), some in self._spans.items() if job == change.job for s in some]
        ends = {s.number: s.end for s in spans if s.end >= change.at_change}
        for number in {change.after, change.after + 1} - ends.keys():
            self._awaited[change.job, number] = id_
        for old in list(self._awaited)[:-CHANGES]:
            del self._awaited[old]
        change.boundary = ends.get(change.after + 1)
        if ring_change is None or change.after not in ends:
            return False
        ring_change["at"] = round(ends[change.after], 3)
        return True


def _id(point: Point) -> str:
    return str(point.fields.get("reconfig_id") or point.tags.get("run", ""))
