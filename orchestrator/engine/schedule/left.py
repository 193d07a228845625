"""Devices that turn on by their own clock although nobody follows them any more: stopped on request."""

from __future__ import annotations

from collections.abc import Mapping

from drivers.api import Presets
from optics import Missing
from orchestrator.engine.schedule.process import TurnReport
from orchestrator.engine.schedule.verb import TurnOptions, scheduled, turn
from orchestrator.results import Json
from orchestrator.session import Command, load_lab, open_session
from orchestrator.store.keys import slice_of


async def stop_left(command: Command) -> TurnReport | None:
    """Have devices of the owner's schedule that a killed turner left turning rest in a whole slot; None if there are none.

    Raises: as `turn`; Unreachable, TimedOut - a device that can turn does not say whether it does.
    """
    lab = load_lab(command.inventory)
    try:
        current, _, _ = scheduled(command, lab)
    except Missing:
        return None
    key = slice_of(lab, command.settings)
    able = {d for d in {s.ingress.device for s in command.store.owned(key)} if lab.traits_of(d).stored_dwell_s is not None}
    if not able:
        return None
    async with open_session(lab, command.inventory, command.settings.run_dir(current.run)) as session:
        devices = [d for d in (session.devices[name] for name in sorted(able)) if isinstance(d, Presets)]
        if not any([(await device.position()).turning for device in devices]):
            return None

    def quiet(event: Mapping[str, Json]) -> None:
        del event

    return await turn(command, notify=quiet, options=TurnOptions(stop=True))
