"""Devices that store every slot's map and step through them by their own clock: given once, then
followed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from drivers.api import CircuitSwitch, Presets
from optics import DeviceName, Outcome, Setting, TestbedError, TimedOut
from optics.plan import Schedule
from orchestrator.change.rest import rest
from orchestrator.fabric.lightpath import Held
from orchestrator.services.schedule.goals import NONE, SlotGoal, Times

T = TypeVar("T")
JUST_AFTER_S = 0.001
"""A device is asked so long after the time at which its state changes by its own word."""


@dataclass(frozen=True, slots=True)
class StoredSlots:
    """The devices of one schedule that change slots by themselves. maps: each one's settings in
    every slot, those of others included.
    """

    devices: Mapping[DeviceName, CircuitSwitch]
    maps: Mapping[DeviceName, tuple[frozenset[Setting], ...]]
    times: Times

    async def begin(self, slot: int) -> int:
        """Store the maps and start, from this slot on; return when its light is there (monotonic
        ns). Raises: as `Presets`.
        """
        dwell_s, dark_window_s = self.times.dwell_s, self.times.dark_window_s
        await self._all(lambda name, device: device.load(self.maps[name], dwell_s, dark_window_s))
        return max(await self._all(lambda _, device: _started(device, slot)))

    async def stop(self) -> int | None:
        """Have all rest in the slot that is lit, in a dark window in the next, whose light is then
        awaited.

        Return the slot, None where they say none, or different ones. Raises: as `Presets`.
        """
        await rest(self.devices)
        slots = {at.slot for at in await self._all(lambda _, device: device.position())}
        return slots.pop() if len(slots) == 1 else None

    async def found(self) -> tuple[int, int] | None:
        """The slot in which all are now, and when its light ends (monotonic ns); None if they
        do not, or not together.
        """
        try:
            each = await self._all(lambda name, _: self._lit(name, None))
        except TestbedError:
            return None
        slots, ends = {slot for slot, _ in each}, [end for _, end in each]
        apart = max(ends) - min(ends) > self.times.dark_window_s * 1e9
        within = min(ends) - time.monotonic_ns() <= self.times.dwell_s * 1e9
        return (slots.pop(), min(ends)) if len(slots) == 1 and within and not apart else None

    async def slot_changed(
        self, count: int, end_ns: int
    ) -> tuple[int, dict[DeviceName, Outcome | BaseException]]:
        """Wait for the light after slot `count`, which ends at `end_ns`; return the slot (as a
        count) that it is of, and what each device did by its own word."""
        if (left := end_ns / 1e9 + self.times.dark_window_s + JUST_AFTER_S - time.monotonic()) > 0:
            await asyncio.sleep(left)
        each = await asyncio.gather(
            *(self._after(name, count, end_ns) for name in self.devices), return_exceptions=True
        )
        counts = [one[0] for one in each if not isinstance(one, BaseException)]
        reached = max(counts, default=count + 1)
        answers: dict[DeviceName, Outcome | BaseException] = {}
        for name, one in zip(self.devices, each, strict=True):
            if isinstance(one, BaseException):
                answers[name] = one
            else:
                behind = f"{name}: in slot {one[0]} while another device is in {reached}, counted from the start"
                answers[name] = one[1] if one[0] == reached else TestbedError(behind)
        return reached, answers

    async def _after(self, name: DeviceName, count: int, end_ns: int) -> tuple[int, Outcome]:
        """The slot (as a count) that a device has reached after `count`, and its light. Raises:
        TestbedError - it has another.
        """
        device, maps = self.devices[name], self.maps[name]
        slot, until_ns = await self._lit(name, count % len(maps))
        dark_window_ns, period_ns = int(self.times.dark_window_s * 1e9), self.times.period_s * 1e9
        light_ns = until_ns - int(self.times.dwell_s * 1e9)
        reached = count + 1 + max(0, round((light_ns - dark_window_ns - end_ns) / period_ns))
        if reached % len(maps) != slot:
            raise TestbedError(
                f"{name}: it is in slot {slot} when {reached % len(maps)} was to come"
            )
        held = await device.read()
        if time.monotonic_ns() > until_ns:
            held = maps[slot]  # read too late to say anything of this slot
        began_ns = light_ns - dark_window_ns
        failed = dict.fromkeys(maps[slot] - held, "not there in its slot")
        moves = len(maps[slot] ^ maps[count % len(maps)])
        return reached, Outcome(name, held, began_ns, began_ns, began_ns, light_ns, moves, failed)

    async def _lit(self, name: DeviceName, before: int | None) -> tuple[int, int]:
        """The lit slot of a device, another than `before`, and when its light ends (monotonic ns);
        waits for light.

        Raises: TestbedError - it does not change slots. TimedOut - no light came within a slot's
        time.
        """
        device = self.devices[name]
        assert isinstance(device, Presets)
        give_up = time.monotonic() + self.times.period_s + self.times.late_s
        while time.monotonic() < give_up:
            at = await device.position()
            if not at.running or at.slot is None or at.left_s is None:
                raise TestbedError(f"{name}: it does not change slots any more")
            if not at.dark_window and at.slot != before:
                return at.slot, time.monotonic_ns() + int(at.left_s * 1e9)
            await asyncio.sleep(at.left_s + JUST_AFTER_S)
        raise TimedOut(
            f"{name}: it changes slots, but no light of another slot came within {self.times.period_s:g} s"
        )

    async def _all(self, ask: Callable[[DeviceName, Presets], Awaitable[T]]) -> list[T]:
        """Ask all devices at once."""
        asked = (
            (name, device) for name, device in self.devices.items() if isinstance(device, Presets)
        )
        return list(await asyncio.gather(*(ask(name, device) for name, device in asked)))


async def _started(device: Presets, slot: int) -> int:
    light_s = await device.start(slot)
    return time.monotonic_ns() + int(light_s * 1e9)


def stored_slots(
    schedule: Schedule,
    goals: tuple[SlotGoal, ...],
    times: Times,
    foreign: Held,
    devices: Mapping[DeviceName, CircuitSwitch],
) -> StoredSlots | None:
    """The devices that move between slots, if all of them can change slots by themselves; else
    None, and each is given every slot.

    None too where the job's phases end the slots, which no device's clock knows.
    """
    moving = sorted(moved(goals))
    if schedule.kind == "phase" or not all(isinstance(devices[d], Presets) for d in moving):
        return None
    maps = {
        d: tuple(goal.wanted.get(d, NONE) | foreign.get(d, NONE) for goal in goals) for d in moving
    }
    return StoredSlots({d: devices[d] for d in moving}, maps, times)


def moved(goals: Iterable[SlotGoal]) -> set[DeviceName]:
    """The devices that do not hold the same in every slot."""
    each = list(goals)
    return {
        d
        for d in {d for goal in each for d in goal.wanted}
        if len({goal.wanted.get(d, NONE) for goal in each}) > 1
    }
