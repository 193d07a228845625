"""The one process of a user that serves a lab's queue in the background: what its file says of it, and what it reports."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.background.kind import Kind
from orchestrator.background.state import ServiceState
from orchestrator.results import JsonReport


@dataclass(frozen=True, slots=True)
class QueueState(ServiceState):
    """What it reports of itself. state: starting, serving, ended. last: the latest event in words."""

    last: str = ""

    def words(self) -> str:
        return f"{self.state}, {self.where}" + (f"; {self.last}" if self.last else "")


QUEUE = Kind("queue", "queue", "serves", QueueState, ("--foreground",), "lab")


@dataclass(frozen=True, slots=True)
class QueueReport(JsonReport):
    """What it did while it served: jobs that it started, stopped, and failed to start."""

    lab: str
    started: int = 0
    stopped: int = 0
    failures: int = 0
    last: str = ""
