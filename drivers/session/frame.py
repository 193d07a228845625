"""The base of every device: one question at a time, and a change carried out in rounds."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from drivers.api import Ready, at_once
from drivers.rounds import Marks, in_rounds
from optics import Change, DeviceConfig, Outcome, Traits

K = TypeVar("K")


class Session(Protocol):
    """The part of a link or session that `close` needs."""

    async def close(self) -> None: ...


class Device(ABC, Generic[K]):
    """A device, one question at a time. A family sets `_session` and defines one round of a change.

    K: the subject of the reasons in `Marks`: a pair of ports, or a setting.
    """

    _session: Session

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        self.name = config.name
        self.traits = traits
        self._lock = asyncio.Lock()

    @abstractmethod
    async def _round(self, change: Change, marks: Marks[K]) -> Outcome:
        """Read, send what is missing, watch. A lost answer raises an exception; the next round
        begins by reading.
        """

    async def apply(self, change: Change, ready: Ready = at_once) -> Outcome:
        async with self._lock:
            marks = Marks[K](ready)
            return await in_rounds(marks, lambda: self._round(change, marks))

    async def close(self) -> None:
        async with self._lock:
            await self._session.close()
