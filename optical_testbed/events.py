"""The engine's progress as events."""

from __future__ import annotations

from optical_testbed.progress import SHOW, Event
from orchestrator.telemetry.progress import Progress


class Events(Progress):
    """Passes what the engine reports on to the call under way."""

    def __init__(self) -> None:
        self._show = SHOW.get()

    def phase(self, name: str, detail: str = "") -> None:
        self._show(Event("phase", name, detail))

    def update(self, name: str, done: int, total: int, detail: str = "") -> None:
        self._show(Event("update", name, detail, done, total))

    def done(self, name: str, detail: str = "", seconds: float | None = None) -> None:
        self._show(Event("done", name, detail, seconds=seconds))

    def note(self, text: str) -> None:
        self._show(Event("note", detail=text))
