"""The one service of a user that serves a lab's queue: what its file says of it, and what it
reports.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.background.kind import Kind
from orchestrator.background.state import ServiceState
from orchestrator.background.work import ServiceReport


@dataclass(frozen=True, slots=True)
class QueueState(ServiceState):
    """What it reports of itself. state: starting, serving, ended. last: the latest event in
    words.
    """

    last: str = ""

    def text(self) -> str:
        return f"{self.state}, {self.where}" + (f"; {self.last}" if self.last else "")

    @property
    def leaves(self) -> str:
        return "; jobs that run go on"


QUEUE = Kind(
    "queue",
    QueueState,
    "Start and stop the jobs of the queue.",
    "orchestrator.queue.verb:queue_serve",
    examples="""
testbed service start queue     in the background, as `queue add` does
testbed service run queue       here, until no job is left or Ctrl-C
testbed service stop queue      jobs that run go on; none is started or stopped until it is served again
""",
    more="First come, first served; a job behind the first starts where that does not delay the first. docs/how-to/queue.md",
    begin="orchestrator.queue.verb:begin_queue",
    after="orchestrator.queue.verb:given_up_after",
    of="lab",
    kept=True,
)


@dataclass(frozen=True, slots=True)
class QueueReport(ServiceReport):
    """What it did while it served: jobs that it started, stopped, and failed to start."""

    lab: str
    started: int = 0
    stopped: int = 0
    failures: int = 0
    last: str = ""

    def text(self) -> str:
        return f"Started {self.started}, stopped {self.stopped}, {self.failures} failures"
