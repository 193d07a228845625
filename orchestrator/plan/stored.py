"""The plan that is up, read again from what the store has of it."""

from __future__ import annotations

from optics.plan import Plan, Schedule
from orchestrator.fabric.up_state import SlotsMade
from orchestrator.inventory.lab import Lab
from orchestrator.plan.reader import read_plan


def stored_plan(text: str, name: str, slots: SlotsMade | None, lab: Lab) -> Plan:
    """The plan as it is written; of one with a schedule, the slot that is up. Raises: as
    `read_plan`.
    """
    plan = read_plan(text, name, lab)
    return plan if plan.schedule is None else plan.slot(slots.slot if slots is not None else 0)


def pending_slots(schedule: Schedule, slots: SlotsMade | None) -> tuple[int, ...]:
    """The slots that were not made and verified yet."""
    made = slots.made if slots is not None else ()
    return tuple(slot for slot in range(len(schedule.slots)) if slot not in made)
