"""The one service of a lab that shifts its jobs: its options, what its file says of it, and what it reports."""

from __future__ import annotations

from dataclasses import dataclass

from optics.errors import Usage
from orchestrator.background.kind import Kind
from orchestrator.background.options import TIME, ServiceOptions, option
from orchestrator.background.state import ServiceState

SAMPLED_S = 3.0
"""How long ports are sampled; as a period must show three times, up to iterations of 0.9 s (`measure.LONGER` iterations else)."""
SHIFT, WINDOWS, TOGETHER = "shift", "mltcp", "together"
GRID = "Shifts and periods are multiples of this."
FOR = "How long ports are sampled."


@dataclass(frozen=True, slots=True)
class CoordinateOptions(ServiceOptions):
    """by: shift; mltcp, a congestion control whose windows move jobs apart; or together: all begin at once, once, to compare with.
    force: longer periods where jobs do not fit."""

    by: str = option(SHIFT, "--by", "What is done.", metavar="shift|mltcp|together", known=(SHIFT, WINDOWS, TOGETHER))
    force: bool = option(False, "--force", "Make periods longer until the jobs fit.")
    grid_ms: float = option(1.0, "--grid", GRID, metavar="MS", least=0.1)
    seconds: float = option(SAMPLED_S, "--for", FOR, metavar=TIME)

    def __post_init__(self) -> None:
        if self.by == WINDOWS and self.force:
            text = "service start pacing: --by mltcp cannot be combined with --force"
            raise Usage(text, hint="testbed service start pacing --by mltcp")


@dataclass(frozen=True, slots=True)
class CoordinateState(ServiceState):
    """What it reports of itself. state: starting, pacing, alone (it leaves the jobs alone).

    corrections: how often shifts or periods were worked out anew. score: of the worst link; last: the latest event in words.
    """

    by: str = SHIFT
    score: float = 1.0
    corrections: int = 0
    last: str = ""

    def words(self) -> str:
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
