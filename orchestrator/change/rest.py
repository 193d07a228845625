"""Devices that change slots by their own clock brought to rest: nobody can change one that
turns."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from drivers.api import CircuitSwitch, Presets
from optics import DeviceName, TestbedError
from orchestrator.background.kind import StateFile
from orchestrator.background.registry import kind
from orchestrator.change.context import Context
from orchestrator.settings import Settings


async def rest(devices: Mapping[DeviceName, CircuitSwitch]) -> list[DeviceName]:
    """Stop those that change slots, and wait until the light of the slot in which they rest is
    there; return which they were.

    Raises: as `Presets`.
    """

    async def one(device: Presets) -> bool:
        if not (await device.position()).running:
            return False
        await device.stop()
        await asyncio.sleep((await device.position()).left_s or 0.0)
        return True

    chosen = {name: device for name, device in devices.items() if isinstance(device, Presets)}
    stopped = await asyncio.gather(*map(one, chosen.values()))
    return [name for name, was in zip(chosen, stopped, strict=True) if was]


async def rest_left(context: Context, settings: Settings) -> list[DeviceName]:
    """Stop the devices that this owner's schedule left turning when its process was killed; return
    which. The lab's lock is held.

    A device that cannot be stopped is left for whoever needs it to say so.
    """
    scheduler = kind("schedule")
    path = scheduler.path(settings, context.tenancy)
    left = scheduler.read(path)
    if left is None or left.alive or left.state == "ended":
        return []
    own = {s.ingress.device for s in context.store.owned(context.tenancy)}
    try:
        found = await rest(
            {name: device for name, device in context.session.devices.items() if name in own}
        )
    except TestbedError:
        return []
    with StateFile(scheduler, path, replace(left, state="ended")):
        return found
