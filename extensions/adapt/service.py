"""The one adapter of an owner's plan on a lab, as a service: its options, what its file says of it,
and what it reports.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.background.kind import Kind
from orchestrator.background.options import ServiceOptions, option
from orchestrator.background.state import ServiceState
from orchestrator.background.work import ServiceReport


@dataclass(frozen=True, slots=True)
class AdaptOptions(ServiceOptions):
    """How long to adapt."""

    changes: int = option(
        0, "--turns", "End after N turns; 0: when the job ends.", metavar="N", least=0
    )


@dataclass(frozen=True, slots=True)
class AdaptState(ServiceState):
    """What an adapter reports of itself. state: starting, adapting. iteration: of the job, when it
    last looked at its traffic.

    changes, skipped, failures: as in AdaptReport. last: the latest event in words.
    """

    iteration: int = 0
    changes: int = 0
    skipped: int = 0
    failures: int = 0
    last: str = ""

    def text(self) -> str:
        did = f"{self.changes} changes, {self.skipped} skipped, {self.failures} failed"
        return f"{self.state}, {self.where}; iteration {self.iteration}: {did}; {self.last}"

    @property
    def leaves(self) -> str:
        return f" after {self.changes} changes"


KIND = Kind(
    "adapt",
    AdaptState,
    "Make the circuits of a running job's regions follow its traffic.",
    "extensions.adapt.adapter:adapt",
    AdaptOptions,
    """
testbed up -t plan.json                a plan whose job has regions, and which says: "adapt": {"every": 4}
testbed service start adapt            in the background, until the job ends
testbed service run adapt --turns 10   ten changes, in this process
testbed service stop adapt             stop it, after the change under way
""",
    """
Ranks say what they are about to send (the program `moe` does). Circuits change while the job computes; meanwhile the region's
traffic goes over its packet switch. A change that gains too little, or would stop the job for too long, is left out. However it
ends, the hosts' routes are confirmed; `testbed up` with the plan makes the plan's own circuits again.
""",
    moves_light=True,
    halts=True,
)


@dataclass(frozen=True, slots=True)
class AdaptReport(ServiceReport):
    """What an adapter did. looks: at the job's traffic. changes: changes of circuits, of them
    `failures` more that were taken back onto the packet switch. skipped: looks after which nothing
    was changed.

    change_ms, dark_ms, exposed_ms: medians over the changes, None without one: from the first
    host's drain to the last commit; from the first command to the last carrier; of the change, what
    did not fit into the time in which the job computes.
    """

    lab: str
    plan: str
    run: str = ""
    looks: int = 0
    changes: int = 0
    skipped: int = 0
    failures: int = 0
    seconds: float = 0.0
    change_ms: float | None = None
    dark_ms: float | None = None
    exposed_ms: float | None = None
    last: str = ""
    journal: str = ""

    def text(self) -> str:
        text = f"Adapted {self.plan}: {self.changes} changes, {self.skipped} looks without one, {self.failures} failures"
        if self.change_ms is not None:
            text += f"; a change took {self.change_ms:.0f} ms, dark for {self.dark_ms:.0f} ms, {self.exposed_ms:.0f} ms of it exposed"
        return text
