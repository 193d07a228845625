"""The one coordinator of a lab, as a background process: what its file says of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orchestrator.engine.background import BackgroundState, Kind
from orchestrator.settings import Settings


@dataclass(frozen=True, slots=True)
class CoordinateState(BackgroundState):
    """What a coordinator reports of itself. state: starting, pacing, alone (it leaves the jobs alone).

    corrections: how often shifts or periods were worked out anew. score: of the worst link; last: the latest event in words.
    """

    by: str = "shift"
    score: float = 1.0
    corrections: int = 0
    last: str = ""

    def words(self) -> str:
        return f"{self.state}, {self.where}; {self.last}"


COORDINATOR = Kind("coordinate", "coordinator", "shifts the jobs of", CoordinateState, ("--foreground",), "--by off")


def log_path(settings: Settings, lab: str) -> Path:
    """Where a coordinator in the background writes its events; its folder is made. lab: its key."""
    path = COORDINATOR.path(settings, lab).with_suffix(".jsonl")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path
