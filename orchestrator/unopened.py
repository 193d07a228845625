"""A device that cannot be opened, among others that can: every question to it is answered with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from drivers.api import Ready, at_once
from optics import Change, DeviceName, Identity, Missing, Outcome, Setting, Traits

if TYPE_CHECKING:
    from drivers.api import CircuitSwitch


@dataclass
class Unopened:
    """Stands for the device in a session. Its three verbs raise what stood in the way."""

    name: DeviceName
    traits: Traits
    why: Missing

    async def identify(self) -> Identity:
        self._refuse()

    async def read(self) -> frozenset[Setting]:
        self._refuse()

    async def apply(self, change: Change, ready: Ready = at_once) -> Outcome:
        self._refuse()

    async def close(self) -> None:
        pass

    def _refuse(self) -> NoReturn:
        raise Missing(str(self.why), hint=self.why.hint)


if TYPE_CHECKING:
    _checked: type[CircuitSwitch] = Unopened
