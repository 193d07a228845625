"""Devices that hold spectral routes: one `apply` for all of them. A family defines how its routes
are read and written.
"""

from __future__ import annotations

import re
import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar

from drivers.rounds import Marks
from drivers.session.frame import Device
from drivers.watch import PATIENCE_S, Seen, late_s, patience_s, soon_s, watch
from optics import Change, CrossConnect, DeviceConfig, Outcome, Setting, SpectralRoute, Traits


class Held(Protocol):
    """A device's report; `routes` are those that carry light."""

    @property
    def routes(self) -> frozenset[SpectralRoute]: ...


H = TypeVar("H", bound=Held)


@dataclass(frozen=True, slots=True)
class Work:
    """What to send: removals, (old, new) attenuations, new routes. refused: routes that are not
    attempted, with the reason.
    """

    removed: list[SpectralRoute]
    tuned: list[tuple[SpectralRoute, SpectralRoute]]
    fresh: list[SpectralRoute]
    refused: dict[Setting, str]

    def __bool__(self) -> bool:
        return bool(self.removed or self.tuned or self.fresh)


class RouteSwitch(Device[Setting], Generic[H]):
    """A wavelength-selective device. A route that changes only its attenuation is changed in place
    and never goes dark.
    """

    PATIENCE_S: ClassVar[float] = PATIENCE_S
    """How long (s) public clients of the family wait for a route, at the pace of a real device."""
    LABEL: ClassVar[re.Pattern[str]] = re.compile("[A-Za-z0-9]+")
    """How the family's ports may be called; no other label is sent to the device."""

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits)
        self._patience_s = patience_s(
            traits, config.options.get("patience_s"), self.PATIENCE_S / config.time_scale
        )

    @abstractmethod
    async def _look(self) -> H:
        """All that the device holds now."""

    @abstractmethod
    def _fault(self, route: SpectralRoute, seen: H) -> str:
        """Why this device can never hold `route`, empty if it can; such a route is not sent."""

    @abstractmethod
    async def _carry_out(
        self,
        removed: Sequence[SpectralRoute],
        tuned: Sequence[tuple[SpectralRoute, SpectralRoute]],
        new: Sequence[SpectralRoute],
        seen: H,
        marks: Marks[Setting],
    ) -> None:
        """Send removals, then (old, new) attenuations, then new routes; put the reason for each
        failure into `marks.message`.
        """

    async def read(self) -> frozenset[Setting]:
        async with self._lock:
            return frozenset((await self._look()).routes)

    async def _round(self, change: Change, marks: Marks[Setting]) -> Outcome:
        """Read, send what is missing, watch; a lost answer leaves by an exception and the next
        round begins with reading.
        """
        seen = await self._look()
        failed: dict[Setting, str] = {}
        for setting in change.remove | change.add:
            if text := self._unfit(setting, seen):
                failed[setting] = text
        remove = {s for s in change.remove - failed.keys() if isinstance(s, SpectralRoute)}
        add = {s for s in change.add - failed.keys() if isinstance(s, SpectralRoute)}

        def wrong(held: H) -> set[SpectralRoute]:
            return (remove & held.routes) | (add - held.routes)

        def done(held: H) -> bool:
            return all(map(marks.final, wrong(held)))

        # After a lost answer the change may be in progress and not yet reported, or reported before
        # its light is there, for which the answer would have waited: neither repeat it nor accept
        # the report at once.
        first_s = late_s(self.traits) if marks.writes else 0.0
        steady = time.monotonic() + (self.traits.settle_s if marks.writes else 0.0)

        def settled(held: H) -> bool:
            return done(held) and time.monotonic() >= steady

        last = Seen(seen, done(seen), time.monotonic_ns(), 0.0)
        if marks.writes:
            last = await watch(
                self._look, settled, expected_s=self.traits.settle_s, patience_s=first_s
            )
        for wait_s in (soon_s(self.traits, self._patience_s), self._patience_s):
            todo = wrong(last.report)
            await self._send(todo & remove, todo & add, last.report, marks)
            last = await watch(self._look, done, expected_s=self.traits.settle_s, patience_s=wait_s)
            if last.done:
                # else: neither made nor refused; a command that the device lost is sent once more
                break
        for route in wrong(last.report):
            kept = "still there" if route in remove else "not reported"
            failed[route] = (
                marks.reasons.get(route)
                or f"{kept} after {last.watched_s:.1f} s, no error reported"
            )
        return marks.outcome(self.name, frozenset(last.report.routes), last.at_ns, failed)

    async def _send(
        self, removed: set[SpectralRoute], new: set[SpectralRoute], seen: H, marks: Marks[Setting]
    ) -> None:
        marks.reasons.clear()
        work = _sorted_out(removed, new, seen.routes)
        if work and await marks.begin():
            seen = await self._look()
            work = _sorted_out(removed & seen.routes, new - seen.routes, seen.routes)
        marks.reasons.update(work.refused)
        if work:
            marks.trying([*work.removed, *(after for _, after in work.tuned), *work.fresh])
            await self._carry_out(work.removed, work.tuned, work.fresh, seen, marks)
        marks.acknowledged()

    def _unfit(self, setting: Setting, seen: H) -> str:
        if isinstance(setting, CrossConnect):
            return "a cross-connect is no spectral route; this is a wavelength-selective switch"
        ports = (setting.ingress, setting.egress)
        if any(port.device != self.name or not self.LABEL.fullmatch(port.label) for port in ports):
            return f"not a port of {self.name}"
        if not self.traits.joins(*(port.label for port in ports)):
            return (
                f"not a port of {self.name}, or no path from {ports[0].label} to {ports[1].label}"
            )
        return self._fault(setting, seen)


def _sorted_out(
    removed: Set[SpectralRoute], new: Set[SpectralRoute], held: Set[SpectralRoute]
) -> Work:
    """The commands for `removed` and `new`, given `held`: a mere change of attenuation is tuned in
    place, a conflict is refused.
    """
    old = {route.route: route for route in sorted(removed)}
    tuned = [(old[route.route], route) for route in sorted(new) if route.route in old]
    removed = removed - {before for before, _ in tuned}
    work = Work(sorted(removed), tuned, [], {})
    existing = sorted(held - removed)
    for route in sorted(new - {after for _, after in tuned}):
        if text := blocking(route, (*existing, *work.fresh)):
            work.refused[route] = text
        else:
            work.fresh.append(route)
    return work


def blocking(route: SpectralRoute, existing: Iterable[SpectralRoute]) -> str:
    """Describe which of `existing` holds the spectrum that `route` wants; empty if none does."""
    other = next((other for other in existing if _overlap(route, other)), None)
    if other is None:
        return ""
    port = route.ingress if route.ingress == other.ingress else route.egress
    return f"the spectrum at port {port.label} is held by {other}"


def _overlap(one: SpectralRoute, other: SpectralRoute) -> bool:
    """Whether the two want the same light at the same port."""
    return one.slot.overlaps(other.slot) and (
        one.ingress == other.ingress or one.egress == other.egress
    )
