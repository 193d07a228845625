"""The one exporter of a lab's figures, as a service: what its file says of it."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.background.kind import Kind
from orchestrator.background.state import ServiceState


@dataclass(frozen=True, slots=True)
class ExporterState(ServiceState):
    """What an exporter says of itself. state: starting, serving. url: where figures are read."""

    url: str = ""

    def words(self) -> str:
        return f"{self.state} {self.url}, {self.where}" if self.url else f"{self.state}, {self.where}"


EXPORTER = Kind("serve metrics", "exporter", "serves", ExporterState, of="lab")
