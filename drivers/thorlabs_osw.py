"""Thorlabs OSW12 (1x2) and OSW22 (2x2) switch kits on their USB serial line, 115200 baud.

`S 1` and `S 2` set the state and are not answered; `S?` is answered with 1 or 2. The first answer
after a change may be the state before it (qudi, whose client throws it away), so every question is
put twice. `I?` is answered with a name and the version of the firmware (PnPQ, tried on an
OSW22-1310E), in a form that is in no source: the inventory says which model it is. No state is
dark: a circuit ends where another begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from drivers.api import Evidence
from drivers.link import open_link
from drivers.rounds import Marks
from drivers.session.pairs import Pair, PairSwitch
from drivers.session.scpi import ScpiSession
from drivers.watch import patience_option
from optics import DeviceConfig, Garbled, Identity, Traits

STATES: Mapping[str, Mapping[int, frozenset[Pair]]] = {
    "OSW12": {1: frozenset({(1, 1)}), 2: frozenset({(1, 2)})},
    "OSW22": {1: frozenset({(1, 1), (2, 2)}), 2: frozenset({(1, 2), (2, 1)})},
}
UNTOLD = "not reported"


class ThorlabsOsw(PairSwitch):
    """An OSW12 or OSW22. State 1 is bar (1->1, 2->2), state 2 is cross (1->2, 2->1)."""

    # qudi waits 0.1 s after a change (CODE); the loss is assumed. Whether it keeps its state
    # without power is in no source.
    TRAITS: ClassVar[Traits] = Traits(
        settle_s=0.1, at_once=None, keeps_others_lit=True, latching=False, insertion_loss_db=1.0
    )
    UNSAID: ClassVar[str] = "it reports no errors"
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "model": "OSW12 (1x2) or OSW22 (2x2); default OSW12",
        "patience_s": patience_option(),
    }
    EVIDENCE: ClassVar[Evidence] = Evidence(
        "Thorlabs OSW12 and OSW22, serial",
        ("serial", "visa"),
        {
            "identify": "CODE",
            "read": "CODE",
            "change": "CODE",
            "refusals": "assumed",
            "settling": "CODE",
        },
    )

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits)
        address = config.address
        if address.startswith("serial://") and "baud=" not in address:
            address += "?baud=115200"
        self._session: ScpiSession = ScpiSession(open_link(address, config.timeout_s, config.name))
        self._model = config.options.get("model", "OSW12")
        if self._model not in STATES:
            raise ValueError(f"model {self._model!r}: {' or '.join(STATES)}")

    async def identify(self) -> Identity:
        async with self._lock:
            reply = await self._session.ask("I?", str)  # for people: its form is in no source
        if other := [model for model in STATES if model in reply and model != self._model]:
            raise Garbled(
                f"{self.name}: options.model is {self._model}, it says {reply[:80]!r}: {other[0]}"
            )
        ends = sorted(frozenset().union(*STATES[self._model].values()))
        enter, leave = (
            tuple(str(n) for n in sorted(set(side))) for side in zip(*ends, strict=True)
        )
        return Identity("Thorlabs", self._model, UNTOLD, reply, enter, leave)

    async def _read(self) -> frozenset[Pair]:
        await self._session.ask("S?", _state)
        return STATES[self._model][await self._session.ask("S?", _state)]

    async def _send(
        self, removed: set[Pair], new: set[Pair], seen: frozenset[Pair], marks: Marks[Pair]
    ) -> None:
        marks.reasons.clear()
        if (removed or new) and await marks.begin():
            seen = await self._read()
            removed, new = removed & seen, new - seen
        marks.trying(removed | new)
        state = next((n for n, held in STATES[self._model].items() if new and new <= held), 0)
        if new and not state:
            marks.reasons |= dict.fromkeys(
                removed | new, "no state of the switch has all of these circuits"
            )
        elif new and (left := sorted(seen - removed)):
            stays = ", ".join("->".join(self._labels(pair)) for pair in left)
            marks.reasons |= dict.fromkeys(removed | new, f"it would end {stays}, which stays")
        elif removed and not new:
            text = (
                "the switch has no state without light: connect the other port in the same change"
            )
            marks.reasons |= dict.fromkeys(removed, text)
        elif state:
            marks.write()
            # may still be the state before
            await self._session.ask("S?", _state, command=f"S {state}", again=False)
        marks.acknowledged()

    async def _break(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        raise AssertionError("unreachable: a change is one command")

    async def _make(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        raise AssertionError("unreachable: a change is one command")


def _state(text: str) -> int:
    """Read an answer to `S?`. Raises: Garbled."""
    if text not in ("1", "2"):
        raise Garbled(f"neither 1 nor 2: {text[:80]!r}")
    return int(text)
