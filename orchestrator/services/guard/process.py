"""The one guard of an owner's plan on a lab, as a service: its options, what its file says of it,
and what it reports.
"""

from __future__ import annotations

from dataclasses import dataclass

from optics.errors import Locked, Usage
from orchestrator.background.kind import Kind
from orchestrator.background.options import TIME, ServiceOptions, option
from orchestrator.background.state import ServiceState
from orchestrator.background.work import ServiceReport
from orchestrator.fabric.detour import HOLD_S
from orchestrator.services.guard.policy import Budget
from orchestrator.settings import Settings

LOOK_S = 10.0
"""Interval (s) between readings of the devices and of the hosts' generations."""


def budget_of(command: str, jobs: bool, restarts: str) -> Budget | None:
    """The budget of recoveries, None without --jobs. command: a verb and what else is to be typed.
    Raises: Usage - it is none.
    """
    verb = command.partition(" -")[0]
    try:
        budget = Budget.of(restarts or "3/h")
    except ValueError as error:
        raise Usage(
            f"{verb}: --restarts: {error}", hint=f"testbed {command} --jobs --restarts 3/h"
        ) from None
    if restarts and not jobs:
        raise Usage(
            f"{verb}: --restarts can only be used with --jobs",
            hint=f"testbed {command} --jobs --restarts {restarts}",
        )
    return budget if jobs else None


@dataclass(frozen=True, slots=True)
class GuardOptions(ServiceOptions):
    """How to guard. look_s, hold_s: as `LOOK_S`, `HOLD_S` (s)."""

    look_s: float = option(LOOK_S, "--look", "Interval between readings of devices.", metavar=TIME)
    hold_s: float = option(
        HOLD_S,
        "--hold",
        "How long light must be stable before a circuit is used again.",
        metavar=TIME,
    )
    stay: bool = option(False, "--stay", "Wait for the next plan instead of ending.")
    jobs: bool = option(
        False,
        "--jobs",
        "Also restart the job from its newest checkpoint, and replace dead hosts by spares.",
    )
    restarts: str = option(
        "",
        "--restarts",
        "With --jobs: at most N recoveries in TIME (default 3/h).",
        metavar="N/TIME",
    )

    def __post_init__(self) -> None:
        budget_of("service start guard", self.jobs, self.restarts)

    @property
    def budget(self) -> Budget | None:
        """Of recoveries of the job, None to leave jobs alone."""
        return budget_of("service start guard", self.jobs, self.restarts)


@dataclass(frozen=True, slots=True)
class GuardState(ServiceState):
    """What a guard reports of itself. state: starting, watching, standing back, acting.

    generation: the routes that replaced the plan's, None while the plan's own are in use. around:
    the links they leave out. cut_off: hosts that cannot be reached over the fabric. silent: hosts
    and devices without an answer. jobs: the budget of recoveries of the job, empty if it leaves
    jobs alone.
    """

    generation: int | None = None
    around: tuple[str, ...] = ()
    cut_off: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    jobs: str = ""

    def text(self) -> str:
        where = self.where + (f", recovers the job up to {self.jobs}" if self.jobs else "")
        if not self.around:
            return f"{self.state}, {where}"
        return f"{self.state}, {where}; traffic is rerouted around {', '.join(self.around)} (generation {self.generation})"

    @property
    def leaves(self) -> str:
        return f"; traffic stays rerouted around {', '.join(self.around)}" if self.around else ""


GUARD = Kind(
    "guard",
    GuardState,
    "Watch the current plan; reroute traffic around circuits that lose light; recover its job.",
    "orchestrator.services.guard.guard:guard",
    GuardOptions,
    """
testbed service start guard                  until the plan is taken down; `testbed up --guard` starts it, too
testbed service start guard --jobs           also restart a job that lost a rank or hangs, up to 3 times an hour
testbed service start guard --jobs --restarts 10/d
testbed service run guard --jsonl --stay     for systemd: wait for plans, print JSON lines
testbed service stop guard
""",
    """
Without --jobs it switches no circuit; `testbed up --avoid PORT` does that. It waits while another run holds the lab. With --jobs
a host that died is replaced by a spare of the plan (`up --spares`); what was done, and why: `testbed status`, `run list`,
`lock audit`.
""",
)


@dataclass(frozen=True, slots=True)
class GuardReport(ServiceReport):
    """What a guard did while it watched. failures: attempts that were rolled back. recovered: its
    job, so often. last: its latest message."""

    lab: str
    plan: str
    reroutes: int = 0
    restores: int = 0
    failures: int = 0
    seconds: float = 0.0
    last: str = ""
    recovered: int = 0

    def text(self) -> str:
        moves = f"rerouted {self.reroutes} times, restored {self.restores} times"
        moves += f", recovered its job {self.recovered} times" if self.recovered else ""
        return f"Guarded {self.plan or self.lab}: {moves}"


def recovers_as(settings: Settings, tenancy: str, budget: str) -> None:
    """Check that a guard which already runs recovers the job within this budget. Raises: Locked -
    it does not.
    """
    place = GUARD.running(settings, tenancy)
    if place is None or place.jobs == budget:
        return
    hint = "testbed service stop guard, then the same again"
    if place.unreadable:
        raise Locked(f"a guard watches this plan already: it {place}", hint=hint)
    does = (
        f"recovers the job up to {place.jobs}, not {budget}"
        if place.jobs
        else "does not recover the job"
    )
    raise Locked(f"a guard watches this plan already, and {does} ({place.where})", hint=hint)
