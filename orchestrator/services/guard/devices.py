"""What the guard reads of devices, over connections of its own that are closed again, and what is
new in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from drivers.api import CircuitSwitch
from optics import DeviceName, Setting, TestbedError
from optics.values import short, sort_key
from orchestrator.fabric.lightpath import Held, among
from orchestrator.inventory.lab import Lab
from orchestrator.session import open_driver


@asynccontextmanager
async def connected(
    lab: Lab, names: Collection[DeviceName]
) -> AsyncIterator[Mapping[DeviceName, CircuitSwitch]]:
    """Drivers for one reading: many devices allow few sessions, and an `up` needs them."""
    devices = {name: open_driver(lab, name) for name in names}
    try:
        yield devices
    finally:
        await asyncio.gather(
            *(device.close() for device in devices.values()), return_exceptions=True
        )


async def settings_held(
    lab: Lab, names: Collection[DeviceName]
) -> dict[DeviceName, frozenset[Setting] | TestbedError]:
    """What each device holds, or its error."""
    async with connected(lab, names) as devices:
        answers = await asyncio.gather(
            *(device.read() for device in devices.values()), return_exceptions=True
        )
    found: dict[DeviceName, frozenset[Setting] | TestbedError] = {}
    for name, answer in zip(devices, answers, strict=True):
        if isinstance(answer, BaseException) and not isinstance(answer, TestbedError):
            raise answer
        found[name] = answer
    return found


@dataclass
class DeviceDrift:
    """How devices differ from the plan. silent: those that do not answer, and why. differs: what
    each was last found to lack.
    """

    silent: dict[str, str]
    differs: dict[str, str] = field(default_factory=dict)

    def news(
        self, wanted: Held, found: Mapping[DeviceName, frozenset[Setting] | TestbedError]
    ) -> Iterator[tuple[str, str, str]]:
        """What is new in this reading: event, words, device."""
        for name, held in sorted(found.items()):
            if isinstance(held, TestbedError):
                if name not in self.silent:
                    yield (
                        "device lost",
                        f"{name} does not answer: {held.line}; its light stays as it is",
                        name,
                    )
                self.silent[name] = held.line
                continue
            if name in self.silent:
                del self.silent[name]
                yield "device back", f"{name} answers again", name
            missing = sorted(wanted[name] - among(wanted[name], held), key=sort_key)
            text = f"{name}: {', '.join(map(short, missing[:6]))} missing" if missing else ""
            if text != self.differs.get(name, ""):
                self.differs[name] = text
                yield "drift" if text else "drift gone", text or f"{name}: as planned again", name
