"""The one guard of an owner's plan on a lab, as a background process: what its file says of it."""

from __future__ import annotations

from dataclasses import dataclass

from optics import Locked
from orchestrator.background.kind import Kind
from orchestrator.background.state import ServiceState
from orchestrator.results import JsonReport
from orchestrator.settings import Settings


@dataclass(frozen=True, slots=True)
class GuardState(ServiceState):
    """What a guard reports of itself. state: starting, watching, standing back, acting.

    generation: the routes that replaced the plan's, None while the plan's own are in use. around: the links they leave out.
    cut_off: hosts that cannot be reached over the fabric. silent: hosts and devices without an answer.
    jobs: the budget of recoveries of the job, empty if it leaves jobs alone.
    """

    generation: int | None = None
    around: tuple[str, ...] = ()
    cut_off: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    jobs: str = ""

    def words(self) -> str:
        where = self.where + (f", recovers the job up to {self.jobs}" if self.jobs else "")
        if not self.around:
            return f"{self.state}, {where}"
        return f"{self.state}, {where}; traffic is rerouted around {', '.join(self.around)} (generation {self.generation})"


GUARD = Kind("guard", "guard", "watches", GuardState)


@dataclass(frozen=True, slots=True)
class GuardReport(JsonReport):
    """What a guard did while it watched. failures: attempts that were rolled back. recovered: its job, so often. last: its latest
    message."""

    lab: str
    plan: str
    reroutes: int = 0
    restores: int = 0
    failures: int = 0
    seconds: float = 0.0
    last: str = ""
    recovered: int = 0


def recovers_as(settings: Settings, slice_: str, budget: str) -> None:
    """Check that a guard which already runs recovers the job within this budget. Raises: Locked - it does not."""
    there = GUARD.running(settings, slice_)
    if there is None or there.jobs == budget:
        return
    if there.unreadable:
        raise Locked(f"a guard watches this plan already: it {there}", hint="testbed guard --stop, then the same again")
    does = f"recovers the job up to {there.jobs}, not {budget}" if there.jobs else "does not recover the job"
    raise Locked(f"a guard watches this plan already, and {does} ({there.where})", hint="testbed guard --stop, then the same again")
