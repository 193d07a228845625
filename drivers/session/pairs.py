"""Switches that hold a map of numbered pairs: one `apply` for all of them. A family defines how its
map is read and written.
"""

from __future__ import annotations

import re
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import ClassVar

from drivers.rounds import Marks
from drivers.session.crossconnects import CrossConnects
from drivers.watch import PATIENCE_S, late_s, patience_s, soon_s, watch
from drivers.wire import unknown
from drivers.wire.unknown import Unknown
from optics import (
    Change,
    CrossConnect,
    DeviceConfig,
    Outcome,
    Port,
    PortState,
    Refused,
    Setting,
    Traits,
)

Pair = tuple[int, int]
"""(ingress, egress), as the device numbers them."""


class PairSwitch(CrossConnects[tuple[int, int]]):
    """A switch whose ports are numbers and whose set commands are not answered: they are accepted
    only when the map shows them.
    """

    TRIES: ClassVar[int] = 2
    """How often a circuit that is neither made nor refused is requested, each time after reading
    the map.
    """
    UNSAID: ClassVar[str] = "no error queued"
    """Completes the reason for a change that the device neither made nor refused."""

    PATIENCE_S: ClassVar[float] = PATIENCE_S
    """How long (s) public clients of the family wait for a circuit, at the pace of a real
    device.
    """

    _configured: ClassVar[bool] = False
    """The map is a datastore, which shows what is configured before the light is there: a change is
    accepted only a settling time after its last command."""

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits)
        self._patience_s = patience_s(
            traits, config.options.get("patience_s"), self.PATIENCE_S / config.time_scale
        )
        self._steady_at = 0.0
        self._strange: frozenset[Unknown] = frozenset()  # rows of the last map that cannot be read

    @abstractmethod
    async def _read(self) -> frozenset[Pair]:
        """The whole map."""

    @abstractmethod
    async def _break(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        """Send the removals; put the device's reason for each failure into `marks.message`."""

    @abstractmethod
    async def _make(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        """Send the new circuits; put the device's reason for each failure into `marks.message`."""

    async def _drain(self) -> list[str]:
        """Empty the device's error queue and return it: errors queued before a command belong to
        another client.

        A device that answers every command has none.
        """
        return []

    async def read(self) -> frozenset[Setting]:
        async with self._lock:
            return self._settings(await self._read())

    async def _round(self, change: Change, marks: Marks[Pair]) -> Outcome:
        """Read, send what is missing, watch; a lost answer raises an exception and the next round
        begins by reading.
        """
        remove, add, failed = self._sides(change)

        def wrong(pairs: frozenset[Pair]) -> dict[Pair, Setting]:
            return {p: s for p, s in remove.items() if p in pairs} | {
                p: s for p, s in add.items() if p not in pairs
            }

        def done(pairs: frozenset[Pair]) -> bool:
            return all(map(marks.final, wrong(pairs))) and time.monotonic() >= self._steady_at

        if marks.writes and self._configured:  # a lost answer: when it was carried out is not known
            self._steady_at = time.monotonic() + self.traits.settle_s
        # After a lost answer the circuits may be in progress and not yet in the map: do not send
        # them again.
        first_s = late_s(self.traits) if marks.writes else 0.0
        last = await watch(self._read, done, expected_s=self.traits.settle_s, patience_s=first_s)
        for wait_s in [soon_s(self.traits, self._patience_s)] * (self.TRIES - 1) + [
            self._patience_s
        ]:
            todo = wrong(last.report)
            await self._send(
                todo.keys() & remove.keys(), todo.keys() & add.keys(), last.report, marks
            )
            last = await watch(self._read, done, expected_s=self.traits.settle_s, patience_s=wait_s)
            if last.done:
                # else: neither made nor refused; a command that the switch lost is sent once more
                break
        # an error that came after its command was acknowledged
        late = "" if last.done else "; ".join(await self._drain())
        for pair, setting in wrong(last.report).items():
            failed[setting] = (
                marks.reasons.get(pair) or late or self._silence(pair, last.report, last.watched_s)
            )
        for pair, setting in remove.items():
            if pair not in marks.tried and setting not in failed and (text := self._unknown(pair)):
                failed[setting] = f"not known whether it is there: {text}"
        return marks.outcome(self.name, self._settings(last.report), last.at_ns, failed)

    async def _send(
        self, removed: set[Pair], new: set[Pair], seen: frozenset[Pair], marks: Marks[Pair]
    ) -> None:
        """Break `removed`, make `new`, given the current map; a port held by a circuit that stays
        is not driven for another.
        """
        marks.reasons.clear()
        if removed or new:
            await self._drain()  # before anything goes dark: older errors are not about this change
            if await marks.begin():
                seen = await self._read()
                removed, new = removed & seen, new - seen
        if removed:
            marks.trying(removed)
            await self._break(sorted(removed), marks)
            marks.broke()
            # one query while dark, a fraction of a millisecond: is every port really free now?
            if new:
                soon = soon_s(self.traits, self._patience_s)
                last = await watch(
                    self._read,
                    lambda now: removed & now <= marks.reasons.keys(),
                    expected_s=self.traits.settle_s,
                    patience_s=soon,
                )
                seen = last.report
        for pair in sorted(new):
            if holders := [
                held for held in sorted(seen) if held[0] == pair[0] or held[1] == pair[1]
            ]:
                marks.reasons[pair] = self._taken(pair, holders[0])
            elif text := self._unknown(pair):
                marks.reasons[pair] = text
        if free := sorted(pair for pair in new if pair not in marks.reasons):
            marks.trying(free)
            await self._make(free, marks)
        marks.acknowledged()
        if self._configured and (removed or new):
            self._steady_at = time.monotonic() + self.traits.settle_s

    def _unknown(self, pair: Pair) -> str:
        """Why one of these ports is neither free nor known; empty if no row that cannot be read
        concerns them.
        """
        setting = self._setting(pair)
        return unknown.at((setting.ingress.label, setting.egress.label), self._strange)

    async def _in_lists(
        self,
        making: bool,
        pairs: list[Pair],
        marks: Marks[Pair],
        send: Callable[[list[Pair]], Awaitable[str]],
        read: Callable[[], Awaitable[frozenset[Pair]]] | None = None,
    ) -> None:
        """Send one command for all `pairs`; if the device refuses it, find out which of them it
        refuses.

        The device may do all, some or none of a refused list. What is missing a settling time later
        is sent one by one, so that each pair gets its own answer and a good pair does not fail
        because of a bad one. `send` returns the reason for a refusal, empty if it was done; `read`
        the pairs that hold ports (default: the map).
        """
        if not (text := await send(pairs)):
            return
        if len(pairs) == 1:
            marks.reasons[pairs[0]] = text
            return
        last = await watch(
            read or self._read,
            lambda seen: all((pair in seen) == making for pair in pairs),
            expected_s=self.traits.settle_s,
            patience_s=late_s(self.traits),
        )
        for pair in pairs:
            if (pair in last.report) != making and (text := await send([pair])):
                marks.reasons[pair] = text

    async def _watch_ports(
        self,
        ports: list[Port],
        read: Callable[[list[Port]], Awaitable[dict[Port, PortState]]],
        enabled: bool,
    ) -> dict[Port, PortState]:
        """Wait until `ports` report that they are open, or shut; return what they report."""
        aim = PortState.ENABLED if enabled else PortState.DISABLED
        seen = await watch(
            lambda: read(ports),
            lambda states: all(states.get(port) is aim for port in ports),
            expected_s=self.traits.settle_s,
            patience_s=soon_s(self.traits, self._patience_s),
        )
        return seen.report

    def _labels(self, pair: Pair) -> tuple[str, str]:
        """The labels of its two ports."""
        return str(pair[0]), str(pair[1])

    def _setting(self, pair: Pair) -> Setting:
        ingress, egress = self._labels(pair)
        return CrossConnect(Port(self.name, ingress), Port(self.name, egress))

    def _taken(self, pair: Pair, holder: Pair) -> str:
        """The reason why `pair` is not made while `holder` has one of its ports."""
        side = pair[0] != holder[0]
        port = self._labels(pair)[side]
        return f"{'egress' if side else 'ingress'} port {port} is held by {'->'.join(self._labels(holder))}"

    def _silence(self, pair: Pair, seen: frozenset[Pair], watched_s: float) -> str:
        """The reason for a change that the device neither made nor refused."""
        others = sorted((a, b) for a, b in seen if a == pair[0] or b == pair[1])
        ingress, egress = self._labels(pair)
        reports = ", ".join("->".join(self._labels(other)) for other in others) or f"{ingress}->-"
        removed = " gone" if pair in seen else ""
        return f"wanted {ingress}->{egress}{removed}, reports {reports} after {watched_s:.1f} s, {self.UNSAID}"

    def _numbers(self, ports: Iterable[Port]) -> dict[int, Port]:
        """This device's ports by number; anything else is left out."""
        return {
            n: port for port in ports if port.device == self.name and (n := port_number(port.label))
        }

    def _own(self, ports: Iterable[Port]) -> dict[int, Port]:
        """This device's ports by number. Raises: Refused - one is not a port of the device."""
        asked = list(ports)
        found = self._numbers(asked)
        if strange := sorted(set(asked) - set(found.values())):
            raise Refused(f"{strange[0]}: not a port of {self.name}")
        return found

    def _ends(self, ingress: str, egress: str) -> Pair | None:
        a, b = port_number(ingress), port_number(egress)
        return (a, b) if a and b else None


def port_number(label: str) -> int | None:
    """The number that a label denotes, None if it is not a plain number (1..9999)."""
    return int(label) if re.fullmatch(r"[1-9][0-9]{0,3}", label) else None
