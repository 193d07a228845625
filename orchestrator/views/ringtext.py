"""What a change cost a running job, in words; and what an iteration that took too long has to do
with changes. Pure.

A *ring change* is the moment when a job's ranks take over other rings, at the end of an iteration,
or go on after a pause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from orchestrator.change.standstill import pause_text

BEFORE = 20
"""An iteration is compared with the median of so many before it on the same rings."""
ENOUGH = 5
"""With fewer than this before it, nothing is said of an iteration."""
FACTOR, LEAST_MS = 1.5, 20.0
"""An iteration is slow if it took more than FACTOR times the median, and at least LEAST_MS more."""
CAUSES = ("dark", "commit", "boundary")
PAUSE, STRAGGLER = "pause", "straggler"
WHY = {
    PAUSE: "the time passed before it began, and no change overlaps it",
    STRAGGLER: "no change overlaps it; the times of its ranks show which was late",
}


@dataclass(frozen=True, slots=True)
class Span:
    """One iteration, wall ms. It begins at the end of the one before, so that a pause between two
    counts for the second.

    own: what it took by itself (ms).
    """

    number: int
    begin: float
    end: float
    own: float

    @property
    def took(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Change:
    """When a change disturbed the job, wall ms: each cause with its begin and end, as far as they
    are known.

    dark: from the first device's removals to the last one's report of the new state. commit: from
    there to the last host's commit. boundary: from there to the end of the first iteration on the
    new rings.
    """

    spans: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Slow:
    """A slow iteration. usual: median (ms) of those before. parts: what of the excess each cause
    overlaps (ms), in order; the boundary gets what the others leave. other: what none of them
    explains: all of it where the job paused before the iteration, or a rank was late."""

    span: Span
    usual: float
    parts: Mapping[str, float]
    other: float

    @property
    def causes(self) -> tuple[str, ...]:
        return tuple(self.parts) or (
            STRAGGLER if is_slow_iteration(self.span.own, self.usual) else PAUSE,
        )

    @property
    def message(self) -> str:
        """In one line: `iteration 213 took 308 ms, usually 212: dark 60, commit 4, boundary 32`."""
        text = (
            f"iteration {self.span.number} took {self.span.took:.0f} ms, usually {self.usual:.0f}: "
        )
        if not self.parts:
            return f"{text}{self.causes[0]} ({WHY[self.causes[0]]})"
        parts = [f"{cause} {ms:.0f}" for cause, ms in self.parts.items()]
        return text + ", ".join(parts + ([f"other {self.other:.0f}"] if self.other >= 1 else []))


def is_slow_iteration(took: float, usual: float) -> bool:
    """Whether an iteration (ms) took too long, compared with the usual time (ms)."""
    return took > FACTOR * usual and took >= usual + LEAST_MS


def usual_iteration_ms(before: Sequence[float]) -> float | None:
    """The usual time (ms) by the iterations before; None if they are too few."""
    return median(before[-BEFORE:]) if len(before) >= ENOUGH else None


def judged(span: Span, usual_ms: float, changes: Sequence[Change]) -> Slow:
    """A slow iteration with what the changes have to do with it."""
    excess = max(0.0, span.took - usual_ms)
    left, parts = excess, dict[str, float]()
    for cause in CAUSES:
        within = sum(
            max(0.0, min(span.end, b) - max(span.begin, a))
            for c in changes
            for a, b in [c.spans.get(cause, (0.0, 0.0))]
        )
        if within > 0:
            parts[cause] = left if cause == "boundary" else min(left, within)
            left -= parts[cause]
    return Slow(span, usual_ms, parts, left)


def pause_summary(fields: Mapping[str, Any]) -> str:
    """What the job lost, from the fields of a `ring_change` point:
    `job lost 96 ms: 60 dark, 4 commit, 32 boundary`.
    """
    paused = fields.get("paused_ms")
    if paused is None:
        return "job went on; for how long it paused is not recorded"
    if all(fields.get(f"{cause}_ms") is None for cause in CAUSES):
        return f"job lost {paused:.0f} ms"
    return pause_text(
        paused, fields.get("dark_ms"), fields.get("commit_ms"), str(fields.get("mode") or "")
    )


def ring_change_text(fields: Mapping[str, Any], ok: bool = True) -> str:
    """The same with the iteration times: `...; iteration 212 -> 172 ms`. ok: whether the ranks took
    over what they were to.
    """
    if not ok:
        return "the ring change did not happen"
    before, after = fields.get("before_ms"), fields.get("after_ms")
    return pause_summary(fields) + (
        "" if before is None or after is None else f"; iteration {before:.0f} -> {after:.0f} ms"
    )
