"""What came of the latest looks at a job's traffic, as viewers and reports show it: circuits
changed, left, or taken back. Pure.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from extensions.adapt.measurements import WHY
from extensions.adapt.service import KIND, AdaptState
from orchestrator.results import Json
from orchestrator.telemetry.lineprotocol import Point
from orchestrator.views.services import Live, ServiceView

if TYPE_CHECKING:
    from orchestrator.views.report.gather import Source
    from orchestrator.views.report.model import ReportContext

KEPT = 40
"""So many looks are shown."""
TALL = 0.5
"""A gain of so much above 1 is drawn as high as any, where no look had more."""


@dataclass(frozen=True, slots=True)
class Look:
    """One look. what: changed, skipped or failed. gain: as predicted. title: its text, and more
    figures.
    """

    what: str
    gain: float
    message: str
    title: str


class Following(Live):
    """Takes points `adapt`, of the newest run that has any, and the adapter's state."""

    def __init__(self) -> None:
        self._run = ""
        self._looks: deque[Look] = deque(maxlen=KEPT)
        self._counts: Counter[str] = Counter()
        self._alive = self._fresh = False

    def point(self, point: Point) -> tuple[str, dict[str, Json]] | None:
        """Take a look, which is news unless nothing was changed; one of an older run is left
        out.
        """
        run = point.tags.get("run", "")
        if run < self._run:
            return None
        if run > self._run:
            self._run, self._counts = run, Counter()
            self._looks.clear()
        what = point.tags["what"]
        text = look_text(what, point.fields)
        self._looks.append(
            Look(what, float(point.fields.get("gain", 1.0)), text, text + _more(point.fields))
        )
        self._counts[what] += 1
        self._fresh = True
        return None if what == "skipped" else (text, {"what": what})

    def update(self, state: AdaptState | None) -> None:
        alive = state is not None and state.alive
        self._fresh |= alive != self._alive
        self._alive = alive

    def taken(self) -> bool:
        fresh, self._fresh = self._fresh, False
        return fresh

    def text(self) -> str:
        if not self._looks:
            return ""
        did = ", ".join(
            f"{self._counts[what]} {what}"
            for what in ("changed", "skipped", "failed")
            if self._counts[what]
        )
        return f"{did}; last: {self._looks[-1].message}" + (
            "" if self._alive else "; the adapt service does not run"
        )

    def json(self) -> Json:
        """A bar a look: how much its gain is above 1."""
        if not self._looks:
            return None
        most = max(TALL, *(look.gain - 1 for look in self._looks))
        bars: list[Json] = [
            {
                "what": look.what,
                "share": round(max(0.0, look.gain - 1) / most, 4),
                "title": look.title,
            }
            for look in self._looks
        ]
        return {"message": self.text(), "bad": self._looks[-1].what == "failed", "bars": bars}


class AdaptView(ServiceView):
    """The looks of the adapter."""

    name = KIND.name
    measurement = "adapt"

    def live(self) -> Following:
        return Following()

    def section(self, c: ReportContext, source: Source) -> None:
        from extensions.adapt.report import section

        section(c, source)


def look_text(what: str, fields: Mapping[str, Any]) -> str:
    """One look, in words."""
    at = f"iteration {float(fields.get('iteration', 0)):.0f}"
    gain = f"gain {float(fields['gain']):.2f}" if "gain" in fields else ""
    if what == "changed":
        times = (("dark_ms", "dark"), ("exposed_ms", "exposed"))
        parts = [
            gain,
            *(f"{text} {float(fields[name]):.0f} ms" for name, text in times if name in fields),
        ]
        return f"{at}: circuits changed, {', '.join(filter(None, parts))}"
    why = str(fields.get("why", ""))
    return f"{at}: {what}, {WHY.get(why, why or 'no reason said')}" + (f" ({gain})" if gain else "")


def _more(fields: Mapping[str, Any]) -> str:
    skew = f", skew {float(fields['skew']):.1f}" if fields.get("skew") else ""
    return skew + (
        f", exchange {_ms(fields['now_ms'])} to {_ms(fields['then_ms'])}"
        if fields.get("now_ms")
        else ""
    )


def _ms(value: float) -> str:
    return (
        f"{value / 1e3:.2f} s"
        if value >= 1e3
        else f"{value:.0f} ms"
        if value >= 10
        else f"{value:.1f} ms"
    )


SERVICE_VIEW = AdaptView()
