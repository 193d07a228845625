"""What came of the latest looks at a job's traffic: circuits changed, left, or taken back. Pure."""

from __future__ import annotations

from collections import Counter, deque
from typing import cast

from orchestrator.results import Json
from extensions.adapt.process import AdaptState
from orchestrator.telemetry.lineprotocol import Point

KEPT = 40
"""So many looks are shown."""
WHY = {
    "gain": "too little gain",
    "dark": "the dark would not fit into the computing",
    "late": "no iteration left room",
    "unknown": "not every rank has said what it sends",
}
"""Why circuits were left, in words."""
_FIGURES = ("iteration", "skew", "gain", "now_ms", "then_ms", "turn_ms", "dark_ms", "exposed_ms", "moved")


class Adapting:
    """Takes points `adapt`, of the newest run that has any, and the adapter's state."""

    def __init__(self) -> None:
        self._run = ""
        self._looks: deque[dict[str, Json]] = deque(maxlen=KEPT)
        self._counts: Counter[str] = Counter()
        self._state: AdaptState | None = None
        self._fresh = False

    def point(self, point: Point) -> str:
        """Take a look, and return it in words; empty for one of an older run."""
        run = point.tags.get("run", "")
        if run < self._run:
            return ""
        if run > self._run:
            self._run, self._counts = run, Counter()
            self._looks.clear()
        what, why = point.tags["what"], str(point.fields.get("why", ""))
        figures = {name: round(float(point.fields[name]), 3) for name in _FIGURES if name in point.fields}
        look: dict[str, Json] = {"at": round(point.time_ns / 1e6, 3), "what": what, "why": why, **figures}
        look["words"] = look_words(what, why, figures)
        self._looks.append(look)
        self._counts[what] += 1
        self._fresh = True
        return str(look["words"])

    def standing(self, state: AdaptState | None) -> None:
        """Take what the adapter says of itself."""
        alive = state is not None and state.alive
        if alive != (self._state is not None and self._state.alive):
            self._fresh = True
        self._state = state

    def taken(self) -> bool:
        """Whether something changed since the last call."""
        fresh, self._fresh = self._fresh, False
        return fresh

    @property
    def alive(self) -> bool:
        return self._state is not None and self._state.alive

    def words(self) -> str:
        """In a line; empty if no look is known."""
        if not self._looks:
            return ""
        did = ", ".join(f"{self._counts[what]} {what}" for what in ("turned", "skipped", "failed") if self._counts[what])
        return f"{did}; last: {self._looks[-1]['words']}" + ("" if self.alive else "; the adapter does not run")

    def json(self) -> Json:
        """As viewers receive them; None if no look is known."""
        if not self._looks:
            return None
        counts = {what: self._counts[what] for what in ("turned", "skipped", "failed")}
        return cast(Json, {"alive": self.alive, "words": self.words(), **counts, "looks": list(self._looks)})


def look_words(what: str, why: str, figures: dict[str, float]) -> str:
    """One look, in words."""
    at = f"iteration {figures.get('iteration', 0):.0f}"
    gain = f"gain {figures['gain']:.2f}" if "gain" in figures else ""
    if what == "turned":
        parts = [
            gain,
            *(
                f"{words} {figures[name]:.0f} ms"
                for name, words in (("dark_ms", "dark"), ("exposed_ms", "exposed"))
                if name in figures
            ),
        ]
        return f"{at}: circuits turned, {', '.join(filter(None, parts))}"
    said = WHY.get(why, why or "no reason said")
    return f"{at}: {what}, {said}" + (f" ({gain})" if gain else "")
