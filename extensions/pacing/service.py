"""The one coordinator of a lab, as a background process: what its file says of it."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.background.kind import Kind
from orchestrator.background.state import ServiceState


@dataclass(frozen=True, slots=True)
class CoordinateState(ServiceState):
    """What a coordinator reports of itself. state: starting, pacing, alone (it leaves the jobs alone).

    corrections: how often shifts or periods were worked out anew. score: of the worst link; last: the latest event in words.
    """

    by: str = "shift"
    score: float = 1.0
    corrections: int = 0
    last: str = ""

    def words(self) -> str:
        return f"{self.state}, {self.where}; {self.last}"


KIND = Kind("coordinate", "coordinator", "shifts the jobs of", CoordinateState, ("--foreground",), "lab", "--by off")
