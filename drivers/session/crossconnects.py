"""Cross-connect devices: settings as pairs of the device's own port names."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from drivers.session.frame import Device
from drivers.wire.unknown import Unknown
from optics import Change, CrossConnect, Garbled, Port, Setting

P = TypeVar("P", tuple[str, str], tuple[int, int])
T = TypeVar("T")


class CrossConnects(Device[P]):
    """A device of cross-connects. A pair is (ingress, egress) as the device names them; `_ends`
    converts labels into one.
    """

    @abstractmethod
    def _ends(self, ingress: str, egress: str) -> P | None:
        """The two ports of these labels, None if a label is not a port (and must not reach a
        command).
        """

    def _setting(self, pair: P) -> Setting:
        return CrossConnect(Port(self.name, str(pair[0])), Port(self.name, str(pair[1])))

    def _settings(self, pairs: Iterable[P]) -> frozenset[Setting]:
        return frozenset(map(self._setting, pairs))

    def _pair(self, setting: Setting) -> P | None:
        """The ports of `setting`, None when it is not a cross-connect of this device."""
        if not isinstance(setting, CrossConnect) or {
            setting.ingress.device,
            setting.egress.device,
        } != {self.name}:
            return None
        return self._ends(setting.ingress.label, setting.egress.label)

    def _sides(
        self, change: Change
    ) -> tuple[dict[P, Setting], dict[P, Setting], dict[Setting, str]]:
        """Removals and additions by pair, and settings that are not this device's, with the
        reason.
        """
        remove = {pair: s for s in change.remove if (pair := self._pair(s))}
        add = {pair: s for s in change.add if (pair := self._pair(s))}
        return (
            remove,
            add,
            {s: self._no_pair(s) for s in change.remove | change.add if not self._pair(s)},
        )

    def _no_pair(self, setting: Setting) -> str:
        if isinstance(setting, CrossConnect):
            return f"not a port of {self.name}"
        return "a spectral route; this is a cross-connect switch"


async def believed(
    what: str, ask: Callable[[], Awaitable[tuple[T, frozenset[Unknown]]]], known: frozenset[Unknown]
) -> tuple[T, frozenset[Unknown]]:
    """Await `ask`, a table and its rows that cannot be read. Such a row counts once it was said
    twice in the same words.

    what: the table, in messages. known: rows that counted before. Raises: Garbled - a row that the
    answer before did not have.
    """
    table, strange = await ask()
    if strange <= known:
        return table, strange
    table, again = await ask()
    if once := sorted(row.text for row in again - strange - known):
        raise Garbled(f"{what}: not a row: {once[0][:120]!r}")
    return table, again


async def twice(device: str, question: str, ask: Callable[[], Awaitable[T]]) -> T:
    """Await `ask`, and once more if the answer cannot be read; for queries, which change nothing.
    Raises: as `ask`.
    """
    try:
        return await ask()
    except Garbled:
        pass
    try:
        return await ask()
    except Garbled as error:
        raise Garbled(f'{device}: answer to "{question}": {error}') from error
