"""Cross-connect devices: settings as pairs of the device's own port names, and the frame of `apply` that all of them share."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, Protocol, TypeVar

from drivers.api import Ready, at_once
from drivers.rounds import Marks, in_rounds
from optics import Change, CrossConnect, DeviceConfig, Garbled, Outcome, Port, Setting, Traits

P = TypeVar("P", tuple[str, str], tuple[int, int])
T = TypeVar("T")


class Session(Protocol):
    """What `close` needs of a link or session."""

    async def close(self) -> None: ...


class CrossConnects(ABC, Generic[P]):
    """A device of cross-connects, one question at a time. A pair is (ingress, egress) in the device's own words.

    A family sets `_session`, and says how a label becomes a port (`_ends`) and what one round of a change does (`_round`).
    """

    _session: Session

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        self.name = config.name
        self.traits = traits
        self._turn = asyncio.Lock()

    @abstractmethod
    async def _round(self, change: Change, marks: Marks[P]) -> Outcome:
        """Read, send what is missing, watch. A lost answer leaves by an exception; the next round begins by reading."""

    @abstractmethod
    def _ends(self, ingress: str, egress: str) -> P | None:
        """The two ports of these labels, None when a label is not one (and must not reach a command)."""

    async def apply(self, change: Change, ready: Ready = at_once) -> Outcome:
        async with self._turn:
            marks = Marks[P](ready)
            return await in_rounds(marks, lambda: self._round(change, marks))

    async def close(self) -> None:
        async with self._turn:
            await self._session.close()

    def _setting(self, pair: P) -> Setting:
        return CrossConnect(Port(self.name, str(pair[0])), Port(self.name, str(pair[1])))

    def _settings(self, pairs: Iterable[P]) -> frozenset[Setting]:
        return frozenset(map(self._setting, pairs))

    def _pair(self, setting: Setting) -> P | None:
        """The ports of `setting`, None when it is not a cross-connect of this device."""
        if not isinstance(setting, CrossConnect) or {setting.ingress.device, setting.egress.device} != {self.name}:
            return None
        return self._ends(setting.ingress.label, setting.egress.label)

    def _sides(self, change: Change) -> tuple[dict[P, Setting], dict[P, Setting], dict[Setting, str]]:
        """Removals and additions by pair, and settings that are not this device's, with the reason."""
        remove = {pair: s for s in change.remove if (pair := self._pair(s))}
        add = {pair: s for s in change.add if (pair := self._pair(s))}
        return remove, add, {s: self._no_pair(s) for s in change.remove | change.add if not self._pair(s)}

    def _no_pair(self, setting: Setting) -> str:
        if isinstance(setting, CrossConnect):
            return f"not a port of {self.name}"
        return "a spectral route; this is a cross-connect switch"


async def twice(device: str, question: str, ask: Callable[[], Awaitable[T]]) -> T:
    """Await `ask`, and once more when the answer cannot be read; for questions, which change nothing. Raises: as `ask`."""
    try:
        return await ask()
    except Garbled:
        pass
    try:
        return await ask()
    except Garbled as error:
        raise Garbled(f'{device}: answer to "{question}": {error}') from error
