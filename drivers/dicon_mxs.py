"""DiCon MXS-9100 matrix switches over SCPI: TCP, RS-232, or anything pyvisa opens (operation manual
91592 Rev. A2).

Commands and answers end with a carriage return. A command that does not begin with a colon may be
taken to go on where the one before it was, whoever sent that (page 17), so each begins with one.
Set commands are not answered: each is followed by `SYST:ERR?`, and is done when `STAT?` says READY
and `ROUT1:SCAN?` names the output. Output 0 is parked: no light passes. The pages of the manual
that are public do not say how the switch reports its size; `ROUT:PATH:CAT?` is a word of EXFO's
modules, which share this grammar.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import ClassVar

from drivers.api import Evidence
from drivers.link import open_link
from drivers.rounds import Marks
from drivers.session.pairs import Pair, PairSwitch
from drivers.session.routscan import moves, state
from drivers.session.scpi import ScpiSession
from drivers.watch import patience_option
from drivers.wire import scpi
from optics import Change, DeviceConfig, Garbled, Identity, Outcome, Traits

ERRORS = ":SYST:ERR?"
PARKED = 0


class DiconMxs(PairSwitch):
    """An MXS-9100. Inputs 1..N are its ingress ports, outputs 1..M its egress ports: the same
    number is two ports.
    """

    # No public figure of the switch: 50 ms and 1.5 dB are those of MEMS matrices in general.
    # Circuits return after a power cut only with autosave (WEN 1), which is off by default (page
    # 25), hence not latching.
    TRAITS: ClassVar[Traits] = Traits(
        settle_s=0.05, at_once=1, keeps_others_lit=True, latching=False, insertion_loss_db=1.5
    )
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "size": "inputs and outputs, such as 8x8, where the switch does not answer ROUT:PATH:CAT?; default its answer",
        "patience_s": patience_option(),
    }
    EVIDENCE: ClassVar[Evidence] = Evidence(
        "DiCon MXS-9100, SCPI",
        ("tcp", "serial", "visa"),
        {
            "identify": "DOC",
            "read": "DOC",
            "change": "DOC",
            "refusals": "DOC",
            "persistence": "DOC",
            "settling": "DOC",
            "size": "assumed",
        },
    )

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits)
        self._session: ScpiSession = ScpiSession(
            open_link(config.address, config.timeout_s, config.name), end="\r"
        )
        self._given = config.options.get("size", "")
        if self._given and not re.fullmatch("[1-9][0-9]{0,2}x[1-9][0-9]{0,2}", self._given):
            raise ValueError(f"size {self._given!r}: inputs x outputs, such as 8x8")
        self._known: Pair | None = None  # inputs and outputs, as reported in this round
        # inputs whose commands were sent since the switch last said READY
        self._moving: set[int] = set()

    async def identify(self) -> Identity:
        async with self._lock:
            vendor, model, serial, firmware = await self._session.ask("*IDN?", scpi.parse_identity)
            inputs, outputs = await self._size()
        labels = [str(n) for n in range(1, max(inputs, outputs) + 1)]
        return Identity(
            vendor, model, serial, firmware, tuple(labels[:inputs]), tuple(labels[:outputs])
        )

    async def persistence(self) -> str:
        async with self._lock:
            (saves,) = await self._session.ask(":WEN?", partial(scpi.parse_integers, count=1))
        return "AUTOSAVE" if saves else "OFF"

    async def _size(self) -> Pair:
        return (
            scpi.parse_size(self._given)
            if self._given
            else await self._session.ask(":ROUT:PATH:CAT?", scpi.parse_size)
        )

    async def _round(self, change: Change, marks: Marks[Pair]) -> Outcome:
        self._known = None
        return await super()._round(change, marks)

    async def _read(self) -> frozenset[Pair]:
        """The whole map; an input that turns is not there yet."""
        inputs, outputs = self._known = self._known or await self._size()
        if not moves(self.name, await self._session.ask(":STAT?", state)):
            self._moving.clear()
        found = {
            n: await self._session.ask(f":ROUT{n}:SCAN?", partial(_output, outputs=outputs))
            for n in range(1, inputs + 1)
        }
        lit = frozenset((n, m) for n, m in found.items() if m != PARKED and n not in self._moving)
        if len({m for _, m in lit}) != len(lit):
            raise Garbled(f"{self.name}: two inputs at one output: {sorted(lit)}")
        return lit

    async def _break(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        for pair in pairs:
            await self._set(pair, PARKED, marks)

    async def _make(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        for pair in pairs:
            await self._set(pair, pair[1], marks)

    async def _set(self, pair: Pair, output: int, marks: Marks[Pair]) -> None:
        marks.write()
        self._moving.add(pair[0])
        if text := await self._session.order(
            f":ROUT{pair[0]}:SCAN {output}", ERRORS, scpi.parse_bare_error
        ):
            self._moving.discard(pair[0])
            marks.reasons[pair] = text

    async def _drain(self) -> list[str]:
        return await self._session.drain(ERRORS, scpi.parse_bare_error)


def _output(text: str, outputs: int) -> int:
    """Read an answer to `ROUT1:SCAN?`. Raises: Garbled."""
    (output,) = scpi.parse_integers(text, 1)
    if not PARKED <= output <= outputs:
        raise Garbled(f"not one of {outputs} outputs: {text[:80]!r}")
    return output
