"""The one process of a user that serves a lab's queue in the background: what its file says of it, and what it reports."""

from __future__ import annotations

import time
from dataclasses import dataclass

from optics import TimedOut
from orchestrator.results import JsonReport
from orchestrator.services.kind import STOP_S, Kind
from orchestrator.services.state import ServiceState
from orchestrator.settings import Settings


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


def serve_in_background(settings: Settings, lab: str) -> QueueState:
    """The process that serves the queue of this lab (`key_of`), started unless it runs. Raises: as `Kind.start`.

    One that found nothing left to do, and ends, is waited for: it may not have seen what was added since.
    """
    give_up = time.monotonic() + STOP_S
    while (there := QUEUE.running(settings, lab)) is not None and there.state == "ended":
        if time.monotonic() > give_up:
            raise TimedOut(f"the queue (pid {there.pid}) does not end", hint=f"see {there.log}")
        time.sleep(0.05)
    return QUEUE.start(settings, lab)
