"""What a process left that was killed or gave up, brought to a whole slot on request: half a slot,
or devices that go on.
"""

from __future__ import annotations

from drivers.api import Presets
from optics import Missing
from orchestrator.background.work import ServiceNote
from orchestrator.inventory.lab import Lab
from orchestrator.services.schedule.process import (
    SCHEDULER,
    ScheduleOptions,
    ScheduleReport,
    ScheduleState,
)
from orchestrator.services.schedule.verb import run_schedule, scheduled
from orchestrator.session import Command, load_lab, open_session
from orchestrator.store.keys import tenancy_of
from orchestrator.store.records import CurrentPlan


async def rest_after(command: Command, stopped: ScheduleState | None) -> ServiceNote:
    """Where none was running, as `stop_left`."""
    report = await stop_left(command) if stopped is None else None
    if report is None:
        return ServiceNote()
    text = f"what the last one left is at rest in slot {report.slot} of {report.slots}"
    return ServiceNote(text, {"rested": report.to_json()}, done=True)


async def stop_left(command: Command) -> ScheduleReport | None:
    """Leave the fabric of the owner's schedule at rest in a whole slot; None if the last one did,
    and no device changes slots.

    Raises: as `run_schedule`; Unreachable, TimedOut - a device that can change slots does not say
    whether it does.
    """
    lab = load_lab(command.inventory)
    try:
        current, _, _ = scheduled(command, lab)
    except Missing:
        return None
    key = tenancy_of(lab, command.settings)
    left = SCHEDULER.read(SCHEDULER.path(command.settings, key))
    if (left is not None and left.plan == current.plan_name and left.halted) or await _scheduling(
        command, lab, current
    ):
        return await run_schedule(
            command, notify=lambda event: None, options=ScheduleOptions(stop=True)
        )
    return None


async def _scheduling(command: Command, lab: Lab, current: CurrentPlan) -> bool:
    """Whether a device of the owner's changes slots by its own clock. Raises: as `stop_left`."""
    key = tenancy_of(lab, command.settings)
    able = {
        d
        for d in {s.ingress.device for s in command.store.owned(key)}
        if lab.traits_of(d).stored_dwell_s is not None
    }
    if not able:
        return False
    async with open_session(
        lab, command.inventory, command.settings.run_dir(current.run), command.settings.bounds
    ) as session:
        devices = [
            d for d in (session.devices[name] for name in sorted(able)) if isinstance(d, Presets)
        ]
        return any([(await device.position()).running for device in devices])
