"""The service that changes the slots of an owner's plan: its options, what its file says of it, and
what it reports.
"""

from __future__ import annotations

from dataclasses import dataclass

from optics import TestbedError
from orchestrator.background.kind import Kind
from orchestrator.background.options import ServiceOptions, option
from orchestrator.background.state import ServiceState
from orchestrator.background.work import ServiceReport
from orchestrator.inventory.lab import Lab
from orchestrator.plan.reader import read_plan
from orchestrator.plan.stored import pending_slots
from orchestrator.store.records import CurrentPlan

NOT_LAUNCHED = "not launched"
"""How `ScheduleState.job` begins where the job was not."""


@dataclass(frozen=True, slots=True)
class ScheduleOptions(ServiceOptions):
    """stop: no slot is turned; devices that a killed process left turning come to rest."""

    once: bool = option(False, "--once", "Change slots for one cycle, then end.", once=True)
    job: bool = option(False, "--job", "Launch the plan's job once the slots change.")
    stop: bool = False


@dataclass(frozen=True, slots=True)
class ScheduleState(ServiceState):
    """What it reports of itself. state: starting, turning, repairing, ended.

    slot, slots, cycle: where it is. late: slot changes that were left out because they were late.
    duty: measured share of light of the latest slots, 0 to 1; planned_duty: by the plan. worst,
    worst_ms: the host whose last expectation was most wrong. silent: hosts that did not answer its
    last word. job: what became of the job that it was to launch.
    """

    slot: int = 0
    slots: int = 0
    cycle: int = 0
    late: int = 0
    duty: float = 0.0
    planned_duty: float = 0.0
    worst: str = ""
    worst_ms: float = 0.0
    silent: tuple[str, ...] = ()
    job: str = ""

    def text(self) -> str:
        text = f"{self.state}: slot {self.slot} of {self.slots}, cycle {self.cycle}"
        text += f", duty {self.duty:.3f} (planned {self.planned_duty:.3f})" if self.duty else ""
        text += f", {self.late} late" if self.late else ""
        text += f", worst host {self.worst} {self.worst_ms:+.1f} ms" if self.worst else ""
        text += f", silent: {', '.join(self.silent)}" if self.silent else ""
        text += f", job {self.job}" if self.job.startswith(NOT_LAUNCHED) else ""
        return f"{text}; {self.where}"

    @property
    def leaves(self) -> str:
        return f"; in slot {self.slot} of {self.slots}" if self.slots else ""


SCHEDULER = Kind(
    "schedule",
    ScheduleState,
    "Change the slots of the plan that is up.",
    "orchestrator.services.schedule.verb:run_schedule",
    ScheduleOptions,
    """
testbed service start schedule        in the background, as `testbed up` of a plan with a schedule does
testbed service run schedule --once   one cycle, in this process
testbed service stop schedule         the fabric stays in the slot where it is
""",
    """
Hosts hold what loses its path before each slot change, and follow their own light after it. If the process is killed it starts again and
completes the slot; hosts that hear nothing stay in the slot whose light they have. docs/how-to/run-a-schedule.md
""",
    begin="orchestrator.services.schedule.making:begin_schedule",
    after="orchestrator.services.schedule.left:rest_after",
    kept=True,
    moves_light=True,
)


def at_rest(current: CurrentPlan | None, lab: Lab) -> str:
    """What to do about slots that do not change although the plan that is up has a schedule, in
    words; empty if it has none.
    """
    try:
        plan = read_plan(current.plan_text, current.plan_name, lab) if current is not None else None
    except TestbedError:  # the inventory changed since
        return ""
    if current is None or plan is None or plan.schedule is None:
        return ""
    slots = len(plan.schedule.slots)
    made = current.up.slots
    if missing := pending_slots(plan.schedule, made):
        return f"do not change, and {len(missing)} of {slots} were not made and verified: testbed up with the plan makes them"
    return f"do not change; slot {made.slot if made is not None else 0} of {slots} stays; to change them: testbed service start schedule"


@dataclass(frozen=True, slots=True)
class ScheduleReport(ServiceReport):
    """What it did. slot_changes: slots that it began. slot: where the fabric is now."""

    lab: str
    plan: str
    run: str = ""
    slot_changes: int = 0
    late: int = 0
    slot: int = 0
    slots: int = 0
    seconds: float = 0.0
    duty: float = 0.0
    planned_duty: float = 0.0

    def text(self) -> str:
        did = f"{self.slot_changes} slots, {self.late} late, duty {self.duty:.3f} (planned {self.planned_duty:.3f})"
        return f"Changed slots of {self.plan}: {did}; now in slot {self.slot} of {self.slots}"
