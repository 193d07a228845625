"""The one service of a lab that shifts its jobs: its kind, and what its file says of it."""

from __future__ import annotations

from dataclasses import dataclass

from extensions.pacing.options import SHIFT, CoordinateOptions
from orchestrator.background.kind import Kind
from orchestrator.background.state import ServiceState


@dataclass(frozen=True, slots=True)
class CoordinateState(ServiceState):
    """What it reports of itself. state: starting, pacing, measuring (jobs that
    have changed), alone (it leaves the jobs alone).

    corrections: how often shifts or periods were worked out again. score: of the worst link; last:
    the latest event in words.
    """

    by: str = SHIFT
    score: float = 1.0
    corrections: int = 0
    last: str = ""

    def text(self) -> str:
        return f"{self.state}, {self.where}; {self.last}"


KIND = Kind(
    "pacing",
    CoordinateState,
    "Shift jobs that share links, so that one sends while the others compute.",
    "extensions.pacing.coordinator:coordinate",
    CoordinateOptions,
    """
testbed service start pacing                 shift the running jobs of all owners, while at least two run
testbed service start pacing --by mltcp      no shifts: TCP windows that grow with an iteration's progress move them apart
testbed service start pacing --force         where jobs do not fit: longer periods, until they do
testbed service start pacing --by together   once: the next iterations of all jobs begin at the same time, to compare with
testbed service stop pacing                  iterations begin when they like
""",
    """
Phases are taken from the ranks' own records and from samples of their hosts' ports; see them: testbed job phases. Jobs with a best
score below 0.95 do not fit: that is said, and they are left alone. Nobody waits longer than a period, or 20 s after the process
has died. extensions/pacing/README.md
""",
    begin="extensions.pacing.coordinator:begin",
    after="extensions.pacing.coordinator:released_after",
    of="lab",
)
