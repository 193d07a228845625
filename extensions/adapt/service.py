"""The one adapter of an owner's plan on a lab, as a background process: what its file says of it, and what it reports."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.background.kind import Kind
from orchestrator.background.state import ServiceState
from orchestrator.results import JsonReport


@dataclass(frozen=True, slots=True)
class AdaptState(ServiceState):
    """What an adapter reports of itself. state: starting, adapting. iteration: of the job, when it last looked at its traffic.

    turns, skipped, failures: as in AdaptReport. last: the latest event in words.
    """

    iteration: int = 0
    turns: int = 0
    skipped: int = 0
    failures: int = 0
    last: str = ""

    def words(self) -> str:
        did = f"{self.turns} turns, {self.skipped} skipped, {self.failures} failed"
        return f"{self.state}, {self.where}; iteration {self.iteration}: {did}; {self.last}"


KIND = Kind("adapt", "adapter", "adapts", AdaptState, ("--foreground",), moves_light=True, halts=True)


@dataclass(frozen=True, slots=True)
class AdaptReport(JsonReport):
    """What an adapter did. looks: at the job's traffic. turns: changes of circuits, of them `failures` more that were taken back
    onto the packet switch. skipped: looks after which nothing was changed.

    turn_ms, dark_ms, exposed_ms: medians over the turns, None without one: from the first host's drain to the last commit; from
    the first command to the last carrier; of the turn, what did not fit into the time in which the job computes.
    """

    lab: str
    plan: str
    run: str = ""
    looks: int = 0
    turns: int = 0
    skipped: int = 0
    failures: int = 0
    seconds: float = 0.0
    turn_ms: float | None = None
    dark_ms: float | None = None
    exposed_ms: float | None = None
    last: str = ""
    journal: str = ""
