"""Acme optical switches: one command a line, one answer a line (imaginary manual, 7th edition)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import ClassVar

from drivers.api import Evidence, Ready, at_once
from drivers.link import open_link
from drivers.rounds import Marks, in_rounds
from drivers.watch import patience_s, watch
from optics import (
    Change,
    CrossConnect,
    DeviceConfig,
    Garbled,
    Identity,
    Outcome,
    Port,
    Setting,
    Traits,
)

Pair = tuple[str, str]


class AcmeLine:
    """An Acme switch: ports 1..N let light in, N+1..2N let it out."""

    TRAITS: ClassVar[Traits] = Traits(settle_s=0.02, at_once=1, latching=False)  # manual, page 2
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "patience_s": "longest time (s) that the device may report no change"
    }
    EVIDENCE: ClassVar[Evidence] = Evidence(
        "Acme line switches (imaginary)",
        ("tcp",),
        {"identify": "DOC", "read": "DOC", "change": "DOC", "refusals": "DOC"},
    )

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        self.name, self.traits = config.name, traits
        self._link = open_link(config.address, config.timeout_s, config.name)
        self._patience_s = patience_s(traits, config.options.get("patience_s"))
        self._lock = asyncio.Lock()  # one question at a time

    async def identify(self) -> Identity:
        async with self._lock:
            answer = await self._ask("WHO?")
        try:
            model, serial, firmware, ports = answer.split(",")
            numbers = [str(n) for n in range(1, 2 * int(ports) + 1)]
        except ValueError:
            raise Garbled(f'{self.name}: answer to "WHO?": {answer[:80]!r}') from None
        half = len(numbers) // 2
        return Identity(
            "Acme", model, serial, firmware, tuple(numbers[:half]), tuple(numbers[half:])
        )

    async def read(self) -> frozenset[Setting]:
        async with self._lock:
            return frozenset(self._setting(pair) for pair in await self._map())

    async def apply(self, change: Change, ready: Ready = at_once) -> Outcome:
        async with self._lock:
            marks = Marks[Pair](ready)
            return await in_rounds(marks, lambda: self._round(change, marks))

    async def close(self) -> None:
        async with self._lock:
            await self._link.close()

    async def _round(self, change: Change, marks: Marks[Pair]) -> Outcome:
        remove = {pair: s for s in change.remove if (pair := self._pair(s))}
        add = {pair: s for s in change.add if (pair := self._pair(s))}
        failed = {
            s: f"{s} is not a port pair of {self.name}: not a port"
            for s in change.remove | change.add
            if not self._pair(s)
        }

        def wrong(held: frozenset[Pair]) -> dict[Pair, Setting]:
            return {p: s for p, s in remove.items() if p in held} | {
                p: s for p, s in add.items() if p not in held
            }

        held = await self._map()  # read first: after a lost answer the state is unknown
        if wrong(held):
            await marks.begin()
        for pair in sorted(remove.keys() & held):
            await self._change("BREAK", pair, marks)
        if remove.keys() & held:
            marks.broke()
        for pair in sorted(add.keys() - held):
            await self._change("MAKE", pair, marks)
        marks.acknowledged()
        last = await watch(
            self._map,
            lambda held: wrong(held).keys() <= marks.reasons.keys(),
            expected_s=self.traits.settle_s,
            patience_s=self._patience_s,
        )
        late = f"not reported after {last.watched_s:.1f} s"
        failed |= {
            setting: marks.reasons.get(pair, late) for pair, setting in wrong(last.report).items()
        }
        return marks.outcome(
            self.name, frozenset(self._setting(pair) for pair in last.report), last.at_ns, failed
        )

    async def _change(self, verb: str, pair: Pair, marks: Marks[Pair]) -> None:
        marks.write()
        answer = await self._ask(f"{verb} {pair[0]} {pair[1]}")
        if answer != "OK":
            marks.reasons[pair] = f'refused "{verb} {pair[0]} {pair[1]}": {answer}'

    async def _map(self) -> frozenset[Pair]:
        answer = await self._ask("MAP?")
        if not re.fullmatch(r"([1-9]\d*>[1-9]\d*(,[1-9]\d*>[1-9]\d*)*)?", answer):
            raise Garbled(f'{self.name}: answer to "MAP?": {answer[:80]!r}')
        return frozenset((a, b) for a, b in (row.split(">") for row in answer.split(",") if row))

    async def _ask(self, question: str) -> str:
        if not self._link.alive:
            await self._link.open()
        received = bytearray()

        def complete(chunk: bytes) -> bool:
            received.extend(chunk)
            return received.endswith(b"\n")

        await self._link.exchange(
            f"{question}\n".encode(), complete, question=question, discard=True
        )
        return received.decode("ascii", "replace").strip()

    def _setting(self, pair: Pair) -> Setting:
        return CrossConnect(Port(self.name, pair[0]), Port(self.name, pair[1]))

    def _pair(self, setting: Setting) -> Pair | None:
        """The labels, None when they must not reach a command line."""
        ports = (setting.ingress, setting.egress)
        if not isinstance(setting, CrossConnect) or any(port.device != self.name for port in ports):
            return None
        return (
            (ports[0].label, ports[1].label)
            if all(re.fullmatch(r"[1-9][0-9]{0,3}", p.label) for p in ports)
            else None
        )
