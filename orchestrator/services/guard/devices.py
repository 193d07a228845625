"""The guard's access to devices: each reading opens connections of its own and closes them again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager

from drivers.api import CircuitSwitch
from optics import DeviceName, Setting, TestbedError
from orchestrator.inventory.lab import Lab
from orchestrator.session import opened


@asynccontextmanager
async def connected(lab: Lab, names: Collection[DeviceName]) -> AsyncIterator[Mapping[DeviceName, CircuitSwitch]]:
    """Drivers for one reading: many devices allow few sessions, and an `up` needs them."""
    devices = {name: opened(lab, name) for name in names}
    try:
        yield devices
    finally:
        await asyncio.gather(*(device.close() for device in devices.values()), return_exceptions=True)


async def settings_held(lab: Lab, names: Collection[DeviceName]) -> dict[DeviceName, frozenset[Setting] | TestbedError]:
    """What each device holds, or its error."""
    async with connected(lab, names) as devices:
        answers = await asyncio.gather(*(device.read() for device in devices.values()), return_exceptions=True)
    found: dict[DeviceName, frozenset[Setting] | TestbedError] = {}
    for name, answer in zip(devices, answers, strict=True):
        if isinstance(answer, BaseException) and not isinstance(answer, TestbedError):
            raise answer
        found[name] = answer
    return found
