"""DiCon GP600 3D matrix switches ("X1" configuration) over SCPI: TCP 10001, RS-232, or anything
pyvisa opens.

Commands as in the public autosweep client, which cites the manual's table 4-11 and ran against a
device. Set commands are not answered; each is followed at once by `SYST:ERR?` (without a leading
colon, which the device rejects) and is accepted only when `X1 CH n?` confirms it. One command sets
one input, so a change takes a round trip per circuit; one query reports one input, so only the
inputs that were set are polled, and the rest of the map is read once they have settled.

Several such queries are sent at once (`window`), each on its own line: the answers name the input,
so that a lost or misplaced one is detected. No public client does so. A device that answers only
some of them, as IEEE 488.2 allows if the next query arrives before the answer was read, is queried
one by one from then on.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import ClassVar

from drivers.api import Evidence
from drivers.link import open_link
from drivers.rounds import Marks
from drivers.session.pairs import Pair, PairSwitch
from drivers.session.scpi import ScpiSession
from drivers.watch import patience_option, soon_s
from drivers.wire import scpi
from optics import DeviceConfig, Garbled, Identity, Setting, TimedOut, Traits, Unreachable

LINE_ENDS = {"cr": "\r", "crlf": "\r\n", "lf": "\n"}
"""On a serial line the vendor's MXS ends messages with CR (DOC), and LF ends them elsewhere: CR LF
ends both.
"""
OURS = re.compile(r"GP6\d\d.*", re.IGNORECASE)
ERRORS = "SYST:ERR?"
OFF = 0  # output 0 switches an input off
WINDOW = 16  # about 180 bytes of queries, which a serial line's buffers hold
LARGEST = 512  # more inputs or outputs than any 3D matrix on the market


class DiconScpi(PairSwitch):
    """A DiCon matrix. Inputs 1..N are its ingress ports, outputs 1..M its egress ports: the same
    number is two ports.
    """

    # No public figure for this model; 50 ms and 1.5 dB are those of MEMS matrices in general,
    # unconfirmed here. Whether circuits return after a power cut depends on WEN (autosave), hence
    # not latching.
    TRAITS: ClassVar[Traits] = Traits(
        settle_s=0.05, at_once=1, keeps_others_lit=True, latching=False, insertion_loss_db=1.5
    )
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "pace_s": "least time between two lines (s); default 0",
        "window": "inputs asked about at once, 1 to ask strictly one by one; default 16, with pace_s 1",
        "line_end": "what ends a line that is sent: cr, crlf or lf; default lf, on a serial line crlf",
        "patience_s": patience_option(),
    }

    EVIDENCE: ClassVar[Evidence] = Evidence(
        "DiCon GP600 3D matrix, SCPI",
        ("tcp", "serial", "visa"),
        {
            "identify": "REAL",
            "read": "CODE",
            "change": "CODE",
            "refusals": "assumed",
            "persistence": "CODE",
            "settling": "assumed",
        },
    )

    def __init__(self, config: DeviceConfig, traits: Traits) -> None:
        super().__init__(config, traits)
        pace = float(config.options.get("pace_s", "0"))
        serial = config.address.startswith("serial:")
        ends = config.options.get("line_end", "crlf" if serial else "lf")
        if ends not in LINE_ENDS:
            raise ValueError(f"line_end {ends!r}: {', '.join(LINE_ENDS)}")
        self._session: ScpiSession = ScpiSession(
            open_link(config.address, config.timeout_s, config.name), pace, LINE_ENDS[ends]
        )
        self._window = int(config.options.get("window", "1" if pace else str(WINDOW)))
        if self._window < 1 or (pace and self._window > 1):
            raise ValueError(f"window {self._window}: at least 1, and 1 with pace_s")
        self._outputs = LARGEST  # how many, as last reported
        self._map: dict[int, int] = {}  # input -> output, as last read whole
        self._awaited: dict[int, int] = {}  # the same, as commanded and not yet reported
        self._reported: dict[int, int] = {}  # what inputs reported since the last command
        self._narrow_until = 0.0  # a device that takes longer is read as a whole again

    async def identify(self) -> Identity:
        async with self._lock:
            vendor, model, serial, firmware = await self._who()
            made_of = await self._session.ask("SYST:CONF?", scpi.parse_string)
            if made_of.upper() != "X1":
                raise Garbled(
                    f'{self.name}: answer to "SYST:CONF?": {made_of[:80]!r}; only the 3D matrix, X1, is known here'
                )
            inputs, outputs = await self._size()
        return Identity(vendor, model, serial, firmware, _labels(inputs), _labels(outputs))

    async def persistence(self) -> str:
        async with self._lock:
            (saves,) = await self._session.ask("WEN?", partial(scpi.parse_integers, count=1))
        return "AUTOSAVE" if saves else "OFF"

    async def _who(self) -> tuple[str, str, str, str]:
        """Who it is. Raises: Garbled - another model, which does not know the next question and
        would be silent.
        """
        vendor, model, serial, firmware = await self._session.ask("*IDN?", _parse_identity)
        if not OURS.fullmatch(model):
            raise Garbled(
                f"{self.name}: this is a {model} of {vendor}; only the GP600 with a 3D matrix, X1, is known here"
            )
        return vendor, model, serial, firmware

    async def _size(self) -> Pair:
        try:
            inputs, outputs = await self._session.ask(
                "X1 DIM?", partial(scpi.parse_integers, count=2)
            )
        except TimedOut:
            with suppress(TimedOut, Unreachable):
                await self._who()  # another model is named rather than called silent
            raise
        if not (0 < inputs <= LARGEST and 0 < outputs <= LARGEST):
            raise Garbled(f'{self.name}: answer to "X1 DIM?": {inputs} x {outputs} ports')
        return inputs, outputs

    async def read(self) -> frozenset[Setting]:
        self._narrow_until = 0.0
        return await super().read()

    async def _read(self) -> frozenset[Pair]:
        """The whole map. While inputs that were set are still switching only those are read; the
        map is then not yet as wanted.
        """
        reported = self._reported if time.monotonic() < self._narrow_until else {}
        if reported is self._reported:
            reported |= await self._output_of(self._awaited)
            self._awaited = {
                ingress: wanted
                for ingress, wanted in self._awaited.items()
                if reported[ingress] != wanted
            }
        if reported is self._reported and self._awaited:
            return _lit({**self._map, **reported})
        inputs, self._outputs = await self._size()
        found = {
            **reported,
            **await self._output_of(n for n in range(1, inputs + 1) if n not in reported),
        }
        self._map, self._narrow_until = found, 0.0
        lit = _lit(found)
        if len({egress for _, egress in lit}) != len(lit):
            raise Garbled(f"{self.name}: two inputs at one output: {sorted(lit)}")
        return lit

    async def _output_of(self, inputs: Iterable[int]) -> dict[int, int]:
        """The output of each input, asked for `window` at a time as long as the device answers all
        of them.
        """
        asked, found = list(inputs), dict[int, int]()
        while asked:
            part = asked[: self._window]
            questions = {
                f"X1 CH {n}?": partial(_parse_output, ingress=n, outputs=self._outputs)
                for n in part
            }
            try:
                answers = await self._session.ask_all(questions)
            except (TimedOut, Garbled):
                if len(part) == 1:
                    raise
                part = part[:1]
                # raises where nothing is answered at all
                answers = await self._session.ask_all(dict([*questions.items()][:1]))
                self._window = 1
            found.update(zip(part, answers, strict=True))
            asked = asked[len(part) :]
        return found

    async def _break(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        for pair in pairs:
            await self._set(pair, OFF, marks)

    async def _make(self, pairs: list[Pair], marks: Marks[Pair]) -> None:
        for pair in pairs:
            await self._set(pair, pair[1], marks)

    async def _set(self, pair: Pair, egress: int, marks: Marks[Pair]) -> None:
        command = f"X1 CH {pair[0]} {egress}"
        marks.write()
        self._reported.clear()
        self._awaited[pair[0]] = egress
        text = await self._session.order(command, ERRORS, _parse_error)
        self._narrow_until = time.monotonic() + soon_s(self.traits, self._patience_s) / 2
        if text:
            del self._awaited[pair[0]]
            marks.reasons[pair] = text

    async def _drain(self) -> list[str]:
        return await self._session.drain(ERRORS, _parse_error)


def _lit(outputs: Mapping[int, int]) -> frozenset[Pair]:
    return frozenset((ingress, egress) for ingress, egress in outputs.items() if egress != OFF)


def _labels(count: int) -> tuple[str, ...]:
    return tuple(str(n) for n in range(1, count + 1))


def _parse_identity(text: str) -> tuple[str, str, str, str]:
    """Read an answer to `*IDN?`; a module has two fields, without serial number and firmware
    (CODE). Raises: Garbled.
    """
    fields = [field.strip() for field in text.split(",")]
    return scpi.parse_identity(f"{text},," if len(fields) == 2 and all(fields) else text)


def _parse_error(text: str) -> scpi.QueuedError:
    """Read an answer to `SYST:ERR?`: a number and bare words, which may hold anything. Raises:
    Garbled.
    """
    match = re.fullmatch(r"([+-]\d{1,5})\s*,\s*(.*)", text.strip())
    if (
        not match
        or not match[2]
        or (int(match[1]) == 0 and match[2].strip('"').lower() != "no error")
    ):
        raise Garbled(f"not an error queue entry: {text[:120]!r}")
    return scpi.QueuedError(int(match[1]), match[2].strip('"'))


def _parse_output(text: str, ingress: int, outputs: int) -> int:
    """Read an answer to `X1 CH n?`: the input asked for and its output, 0 for none. Raises:
    Garbled.
    """
    asked, egress = scpi.parse_integers(text, 2)
    if asked != ingress or not 0 <= egress <= outputs:
        raise Garbled(f"not the output of input {ingress}: {text[:80]!r}")
    return egress
