"""The subject of the checks: a driver, opened from a `DeviceConfig`, and what is known of the
device it controls.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeAlias, cast

from conformance.outcome import Failed, NotTried, want
from conformance.truth import Lit, Truth
from drivers.api import CircuitSwitch, Ready, at_once
from drivers.registry import driver_class, open_device
from optics import (
    Change,
    CrossConnect,
    DeviceConfig,
    FrequencySlot,
    Identity,
    Outcome,
    Port,
    Setting,
    SpectralRoute,
    TestbedError,
)

Pairs: TypeAlias = tuple[tuple[int, int], ...]
LIGHTS = 16
"""The most connections a check may use."""
# 50 GHz wide, 100 GHz apart: on every 50 GHz grid, in the C-band, none touches another
_SLOT_N, _SLOT_STEP, _SLOT_M = -40, 16, 4
_POLL_S = 0.005
_SLACK_S = 0.05  # the processor is shared


class OneLine:
    """A device on a line that only one program can open at a time: before each call the other
    instance closes it.
    """

    def __init__(self, device: CircuitSwitch, other: CircuitSwitch, lock: asyncio.Lock) -> None:
        self._device, self._other, self._lock = device, other, lock

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._device, name)
        if not inspect.iscoroutinefunction(verb):
            return verb

        async def taken(*args: Any, **given: Any) -> Any:
            async with self._lock:
                await self._other.close()
                return await verb(*args, **given)

        return taken


class Subject:
    """One device under check. `light((a, b))` connects input a to output b, whatever the family
    calls its ports.

    The input of a cross-connect is an ingress port; that of a spectral route is a slot on the
    ingress that reaches most egress ports. Where each ingress port has egress ports of its own,
    output b is the b-th of them. Ports in use at the beginning are never used: their settings are
    foreign and must not change. truth: the emulated lab behind it, None for a real device.
    """

    def __init__(self, config: DeviceConfig, truth: Truth | None = None) -> None:
        self.config, self.truth = config, truth
        self.name = config.name
        self.device: CircuitSwitch = open_device(config)
        self.identity = Identity("", "", "", "", (), ())
        self.foreign: frozenset[Setting] = frozenset()
        self.ingress: tuple[str, ...] = ()
        self.egress: tuple[str, ...] = ()
        # of each ingress, where none shares its egress ports with another
        self.exits: Mapping[str, tuple[str, ...]] = {}
        # when the check began (s, monotonic): of a long history no more is asked for
        self.began_s = 0.0

    # ---- the device

    async def inspect(self) -> None:
        """Read identity and settings; choose the free ports."""
        self.identity = await self.device.identify()
        self.foreign = await self.device.read()
        self.choose()

    def choose(self) -> None:
        """Choose free ports, as far as the device has reported what it carries."""
        busy = (
            {setting.ingress.label for setting in self.foreign},
            {setting.egress.label for setting in self.foreign},
        )
        duplex = set(self.identity.ingress) & set(self.identity.egress)
        taken = tuple(side | ((busy[0] | busy[1]) & duplex) for side in busy)
        enter = [label for label in self.identity.ingress if label not in taken[0]]
        leave = [label for label in self.identity.egress if label not in taken[1]]
        joins = self.device.traits.joins
        if self.spectral:
            exits = {label: tuple(out for out in leave if joins(label, out)) for label in enter}
            best = max(enter, key=lambda label: len(exits[label]), default="")
            self.ingress, self.egress = (best,) * LIGHTS if best else (), exits.get(best, ())
        elif self.device.traits.directions and enter and leave:
            exits = {label: tuple(out for out in leave if joins(label, out)) for label in enter}
            most = max(exits.values(), key=len)
            same = tuple(label for label in enter if exits[label] == most)
            if len(same) > 1:
                self.ingress, self.egress = same, most
            else:
                self.exits = {label: found for label, found in exits.items() if len(found) > 1}
                self.ingress, self.egress = tuple(self.exits), most
        else:
            self.ingress, self.egress = tuple(enter), tuple(leave)

    @property
    def spectral(self) -> bool:
        return self.device.traits.spectral

    @property
    def lights(self) -> int:
        """How many connections a check can use."""
        if self.spectral:
            return LIGHTS if len(self.egress) > 1 else 0
        if self.exits:
            return min(len(self.ingress), LIGHTS)
        return min(len(self.ingress), len(self.egress), LIGHTS)

    @cached_property
    def scheme(self) -> str:
        return self.config.address.partition("://")[0]

    @property
    def quick_s(self) -> float:
        """A time-out (s) that a local emulator meets easily; encryption takes processor time."""
        return 0.5 if self.scheme in ("ssh", "netconf", "https") else 0.2

    @asynccontextmanager
    async def another(self, **changes: Any) -> AsyncIterator[CircuitSwitch]:
        """Open the device a second time, with another time-out, login, address or options."""
        options = changes.pop("options", None)
        if options is not None:
            known = driver_class(self.config.driver).OPTIONS
            changes["options"] = {
                **self.config.options,
                **{k: v for k, v in options.items() if k in known},
            }
        device = open_device(replace(self.config, **changes))
        mine = self.device
        if self.scheme == "serial":
            lock = asyncio.Lock()
            self.device, device = (
                cast(CircuitSwitch, OneLine(mine, device, lock)),
                cast(CircuitSwitch, OneLine(device, mine, lock)),
            )
        try:
            yield device
        finally:
            self.device = mine
            await device.close()

    # ---- settings

    def light(self, *pairs: tuple[int, int]) -> frozenset[Setting]:
        """The settings that connect input a to output b, for each (a, b) counted from 1."""
        return frozenset(self._setting(a, b) for a, b in pairs)

    def one(self, a: int, b: int) -> Setting:
        return self._setting(a, b)

    def clashing(self, setting: Setting) -> Setting:
        """A setting that conflicts with `setting`."""
        if isinstance(setting, SpectralRoute):
            other = next((label for label in self.egress if label != setting.egress.label), None)
            if other is None:
                raise NotTried("the device has a single output")
            return replace(setting, egress=Port(self.name, other))
        if self.exits:
            other = next(
                label
                for label in self.exits[setting.ingress.label]
                if label != setting.egress.label
            )
            return CrossConnect(setting.ingress, Port(self.name, other))
        used = self.ingress.index(setting.ingress.label)
        return CrossConnect(
            Port(self.name, self.ingress[(used + 7) % len(self.ingress)]), setting.egress
        )

    def key(self, setting: Setting) -> Lit:
        """The identity of a setting in the emulator's true state: without its attenuation."""
        ends = (setting.ingress.label, setting.egress.label)
        return (
            (*ends, setting.slot.low_mhz, setting.slot.high_mhz)
            if isinstance(setting, SpectralRoute)
            else ends
        )

    def keys(self, settings: Iterable[Setting]) -> frozenset[Lit]:
        return frozenset(self.key(setting) for setting in settings)

    def _setting(self, a: int, b: int) -> Setting:
        if a > self.lights:
            raise NotTried(f"{self.lights} free connections, {a} wanted")
        ingress = Port(self.name, self.ingress[a - 1])
        if self.spectral:
            slot = FrequencySlot.flexgrid(_SLOT_N + _SLOT_STEP * (a - 1), _SLOT_M)
            return SpectralRoute(
                ingress, Port(self.name, self.egress[(b - 1) % len(self.egress)]), slot
            )
        reached = self.exits.get(ingress.label, self.egress)
        return CrossConnect(
            ingress,
            Port(self.name, reached[(b - 1) % len(reached)] if self.exits else reached[b - 1]),
        )

    # ---- changes

    async def apply(
        self,
        remove: Iterable[Setting] = (),
        add: Iterable[Setting] = (),
        *,
        device: CircuitSwitch | None = None,
        ready: Ready = at_once,
    ) -> Outcome:
        """Apply a change through the device, or through another instance of it."""
        return await (device or self.device).apply(
            Change(self.name, frozenset(remove), frozenset(add)), ready
        )

    async def make(self, *pairs: tuple[int, int]) -> frozenset[Setting]:
        """Make connections; return their settings. Raises: Failed - the device did not make them
        all.
        """
        wanted = self.light(*pairs)
        outcome = await self.apply(add=wanted)
        want(not outcome.failed, f"preparation failed: {_first(outcome)}")
        await self.world(self.keys(wanted))
        return wanted

    async def clear(self) -> None:
        """Remove whatever a check left; foreign settings stay."""
        left = await self.device.read() - self.foreign
        if left:
            outcome = await self.apply(remove=left)
            want(not outcome.failed, f"clean-up failed: {_first(outcome)}")

    # ---- truth

    @property
    def known(self) -> Truth:
        """The emulator's true state. Raises: NotTried - a real device does not disclose it."""
        if self.truth is None:
            raise NotTried("needs the true state, which only an emulator discloses")
        return self.truth

    async def world(self, expected: frozenset[Lit] = frozenset()) -> frozenset[Lit]:
        """The connections that carry light, foreign ones excluded: from the emulator if there is
        one, else from the device.

        expected: connections that may still be settling. No public source states for any family
        that its report waits for the mirrors, so light may take 1.5 times the settling time the
        driver promises to appear; darkness must be immediate.
        """
        deadline = time.monotonic() + 1.5 * self.device.traits.settle_s + _SLACK_S
        while True:
            seen = self.truth.lit if self.truth else self.keys(await self.device.read())
            seen = self.listed(seen) - self.keys(self.foreign)
            if expected <= seen or time.monotonic() > deadline:
                return seen
            await asyncio.sleep(_POLL_S)

    def listed(self, lit: frozenset[Lit]) -> frozenset[Lit]:
        """Those that leave at a port the device listed: a module without a dark position rests at
        one it does not list.
        """
        return frozenset(one for one in lit if one[1] in self.identity.egress)

    async def shows(self, wanted: Iterable[Setting]) -> None:
        """Check that `wanted` carries light, nothing less and nothing more. Raises: Failed."""
        expected = self.keys(wanted)
        seen = await self.world(expected)
        want(seen == expected, f"wanted {_text(expected)} lit, found {_text(seen)}")

    async def honest(self, outcome: Outcome) -> None:
        """Check that the outcome reports the true connections and that its timestamps are in order.
        Raises: Failed.
        """
        reported = self.keys(outcome.observed) - self.keys(self.foreign)
        seen = await self.world(reported)
        want(reported == seen, f"the outcome reports {_text(reported)}; {_text(seen)} is lit")
        marks = (outcome.sent_ns, outcome.broken_ns, outcome.acked_ns, outcome.settled_ns)
        want(
            list(marks) == sorted(marks),
            f"timestamps out of order: sent, broken, acked, settled = {marks}",
        )

    def since(self, settings: Iterable[Setting]) -> dict[Lit, float]:
        """When each of `settings` was last made in this check, from the emulator's history; -1 if
        it was broken since.
        """
        wanted = self.keys(settings)
        found: dict[Lit, float] = dict.fromkeys(wanted, -1.0)
        for event in self.known.events(self.began_s):
            where: Lit = event[2:]
            if where in found and event[1] in ("making", "broken"):
                found[where] = event[0] if event[1] == "making" else -1.0
        return found

    async def until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Poll `holds` for at most `seconds`; return its last value."""
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_POLL_S)
        return True


async def refused(act: Callable[[], Any]) -> TestbedError | None:
    """Await `act()`; return the TestbedError it raised, None if it succeeded."""
    try:
        await act()
    except TestbedError as error:
        return error
    return None


def names_device(subject: Subject, error: TestbedError) -> None:
    """Check that the error names its device. Raises: Failed."""
    want(
        subject.name in str(error),
        f"the error does not name the device: {type(error).__name__}: {error}",
    )


def failed_exactly(subject: Subject, outcome: Outcome, wanted: Iterable[Setting]) -> None:
    """Check that exactly `wanted` failed, each with a reason. Raises: Failed."""
    expected = frozenset(wanted)
    if outcome.failed.keys() != expected:
        reply = {str(setting): text for setting, text in outcome.failed.items()}
        raise Failed(f"wanted {sorted(map(str, expected))} reported as failed, got {reply}")
    for setting, text in outcome.failed.items():
        want(len(text) > 10, f"{setting} failed without a reason: {text!r}")


def _first(outcome: Outcome) -> str:
    return "; ".join(f"{setting}: {text}" for setting, text in list(outcome.failed.items())[:2])


def _text(lit: Iterable[Lit]) -> str:
    return (
        ", ".join(
            f"{one[0]}->{one[1]}" + (f"@{one[2]}-{one[3]}" if len(one) == 4 else "")
            for one in sorted(lit)
        )
        or "nothing"
    )
