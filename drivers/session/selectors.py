"""Switches of modules that connect one common port with one of their channels: module 3 connects
`3.in` with `3.1`, `3.2`, ...

Most have no dark position. A circuit of such a module ends where the next one of it begins, or at a
channel that leads nowhere.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping

from drivers.rounds import Marks
from drivers.session.pairs import Pair, PairSwitch
from drivers.watch import watch
from optics import Change, DeviceConfig, Outcome, Traits

MODULES = 32
"""More modules than any chassis of these families has slots."""
CHANNELS = 1000
"""More than the channels of a module; the largest in a catalogue has 400 (Santec OSX-100)."""
DARK = 0
"""The channel of a module without light."""
DIRECTIONS = ((r"([0-9]+)\.in", r"\1\.[1-9][0-9]*"),)


class Selectors(PairSwitch):
    """Modules of one common port and several channels. A pair is (module, module * CHANNELS +
    channel).

    A circuit that takes the place of another in the same module is one command, which also ends the
    other.
    """

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits)
        self._sizes: Mapping[int, int] = {}  # module -> channels, as reported in this round
        # modules that were commanded to turn and have not yet reported that they rest
        self._moving: set[int] = set()

    @abstractmethod
    async def _modules(self) -> Mapping[int, int]:
        """The modules that can be used, and how many channels each has."""

    @abstractmethod
    async def _busy(self) -> bool:
        """Whether the device reports that something still moves."""

    @abstractmethod
    async def _channel(self, module: int) -> int:
        """The channel that the module reports; DARK where it reports that no light passes."""

    @abstractmethod
    async def _connect(self, module: int, channel: int, marks: Marks[Pair]) -> str:
        """Connect the module with `channel`; return the device's refusal, empty if there is
        none.
        """

    @abstractmethod
    def _rest(self, module: int) -> int | None:
        """The channel that stands for no circuit, None if the module has none."""

    async def _round(self, change: Change, marks: Marks[Pair]) -> Outcome:
        self._sizes = {}
        return await super()._round(change, marks)

    async def _read(self) -> frozenset[Pair]:
        """The whole map; a module that turns is not there yet."""
        self._sizes = self._sizes or await self._modules()
        if not await self._busy():  # asked first: what is reported after it is at rest
            self._moving.clear()
        found = {module: await self._channel(module) for module in self._sizes}
        at_rest = {
            module: channel for module, channel in found.items() if module not in self._moving
        }
        return frozenset(
            _pair(*held) for held in at_rest.items() if held[1] not in (DARK, self._rest(held[0]))
        )

    async def _send(
        self, removed: set[Pair], new: set[Pair], seen: frozenset[Pair], marks: Marks[Pair]
    ) -> None:
        marks.reasons.clear()
        if removed or new:
            await self._drain()
            if await marks.begin():
                seen = await self._read()
                removed, new = removed & seen, new - seen
        marks.trying(removed | new)
        held = {pair[0]: pair for pair in seen}
        if over := sorted(pair for pair in removed if pair[0] not in {module for module, _ in new}):
            await self._break(over, marks)
            marks.broke()
        for pair in sorted(new):
            before = held.get(pair[0])
            if before is not None and before not in removed:
                marks.reasons[pair] = self._taken(pair, before)
                continue
            await self._go(pair, pair[1] % CHANNELS, before, marks)
            if pair not in marks.reasons:
                held[pair[0]] = pair
            elif before is not None:  # what it was to displace is not wanted all the same
                await self._break([before], marks)
        marks.acknowledged()

    async def _break(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        for pair in pairs:
            if (rest := self._rest(pair[0])) is None:
                marks.reasons[pair] = (
                    f"{self._labels(pair)[0]} is always connected with one of its channels: connect another one in the same "
                    "change, or name one that leads nowhere in options.rest"
                )
            else:
                await self._go(pair, rest, pair, marks)

    async def _make(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        raise AssertionError("unreachable: each circuit is made after what its module holds")

    async def _go(self, pair: Pair, channel: int, before: Pair | None, marks: Marks[Pair]) -> None:
        """Turn the module of `pair` once the device is at rest: no source says what becomes of a
        command while it is busy. What another caller had it connect meanwhile stays.

        before: what the module held when it was last asked.
        """
        if await self._busy():
            if not await self._idle():
                marks.reasons[pair] = (
                    f"not sent: the device has been busy for {self._patience_s:.1f} s"
                )
                return
            held = await self._channel(pair[0])
            now = None if held in (DARK, self._rest(pair[0])) else _pair(pair[0], held)
            if now not in (None, before, pair):
                marks.reasons[pair] = self._taken(pair, now)
                return
        self._moving.add(pair[0])
        if text := await self._connect(pair[0], channel, marks):
            self._moving.discard(pair[0])
            marks.reasons[pair] = text

    async def _idle(self) -> bool:
        """Wait until nothing moves; return whether that came."""
        settle_s, patience_s = self.traits.settle_s, self._patience_s
        return (
            await watch(
                self._busy,
                lambda busy: not busy,
                expected_s=settle_s,
                patience_s=patience_s,
                extends=False,
            )
        ).done

    def _labels(self, pair: Pair) -> tuple[str, str]:
        return f"{pair[0]}.in", f"{pair[0]}.{pair[1] % CHANNELS}"

    def _ends(self, ingress: str, egress: str) -> Pair | None:
        match = re.fullmatch(r"(0|[1-9][0-9]?)\.([1-9][0-9]{0,2})", egress)
        if not match or ingress != f"{match[1]}.in" or int(match[2]) == self._rest(int(match[1])):
            return None
        return _pair(int(match[1]), int(match[2]))

    def _ports(
        self, sizes: Mapping[int, int]
    ) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """The labels of the common ports, of the channels that can carry a circuit, and of the
        others."""
        channels = [(module, n) for module, size in sizes.items() for n in range(1, size + 1)]
        lit, dark = (
            tuple(f"{m}.{n}" for m, n in channels if (n == self._rest(m)) is rests)
            for rests in (False, True)
        )
        return tuple(f"{module}.in" for module in sizes), lit, dark


def _pair(module: int, channel: int) -> Pair:
    return module, module * CHANNELS + channel
