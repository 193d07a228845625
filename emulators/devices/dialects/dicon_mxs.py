"""DiCon MXS-9100 rackmount switches (control module MG4): EXFO's words with an input in the header;
CR ends a line.

Grades: DOC is the operation manual 91592 Rev. A2, pages 17 and 22 to 25 (pages 18 to 21, on the
ROUTe words, were not found), U unconfirmed. DOC: a command and a reply end with CR, items of a
reply are parted by a comma and a space; `ROUT6:SCAN 2`, `SCAN?`, `SCAN:NEXT`, `ROUT2:OPEN:STAT?`;
commands do not reply; a header goes on where the last one was, in later messages too, unless a
colon leads it, and may be given whole; output 0 is parked, without light; `*RST` parks all and is
`*RCL 0`; `STAT?`; `SYST:ERR?` takes from a queue of 8, which records nothing when full; `*CLS`
clears two registers, and not this queue; `*OPC?` answers when all is done; `WEN 1` has the last
state come back with the power, and is off at first; `QCT?` counts what it recorded. U, and chosen
so that they ask most of a driver:

- what is remembered of a header belongs to the module, not to the client; after `ROUT2:OPEN:STAT?`
  a bare `STAT?` asks that again;
- `SCAN?` names the new output at once; `STAT?` is BUSY and `OPEN:STAT?` 0 until light passes;
- an output that another input has is not taken: nothing moves and an error is queued (the manual
  speaks of a matrix, but two of its examples, sent one after the other, would meet this);
- `CLOSe` parks and `OPEN` goes back (EXFO's meaning); NEXT after the last output is the first;
  PREVious;
- each answer to a message of several queries is a line of its own; the numbers and words of errors;
  9 memory registers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from emulators.devices.dialects.base import Session
from emulators.devices.dialects.numbered_scpi import Handler, NumberedScpi, switch, whole
from emulators.devices.dialects.scpi import CONFLICT, SUFFIX, ErrorQueue, ScpiError
from emulators.devices.family import Family, two_sided
from emulators.optics.plant import Pair, Plant

PARKED = "0"
REGISTERS = 9  # of *SAV (U)
# DOC: Standard Event Status Register
OPERATION_COMPLETE, EXECUTION_ERROR, COMMAND_ERROR, POWER_ON = 1, 16, 32, 128
EVENT_SUMMARY, REQUEST = 32, 64  # DOC: Status Byte


class Errors(ErrorQueue):
    """DOC: at most 8; a full queue records nothing. Keeps the event bits of what went wrong."""

    def __init__(self) -> None:
        super().__init__(8)
        self.events = POWER_ON

    def add(self, code: int, detail: str = "") -> None:
        self.events |= COMMAND_ERROR if code > -200 else EXECUTION_ERROR
        if len(self) < 8:
            super().add(code, detail)


class DiconMxs(NumberedScpi[tuple[tuple[Pair, ...], tuple[Pair, ...]]]):
    """One switch of N inputs and M outputs. Errors, registers and the remembered header belong to
    the device.

    autosave: whether WEN is on.
    """

    end = joint = "\r"
    remembers = True
    writes = re.compile(
        r"SCAN(\s+\d|:NEXT|:PREV)|(^|;|:)\s*(NEXT|PREV(IOUS)?)\b|\b(OPEN|CLOSE?)\s*(;|$)|\*RST|\*RCL|\bWEN\s+\d",
        re.IGNORECASE,
    )

    def __init__(
        self,
        plant: Plant,
        *,
        model: str = "MG4",
        serial: str = "19B0M10D0042",
        firmware: str = "1.05",
        autosave: bool = False,
        seed: int = 0,
        idle_s: float | None = None,
        boot_s: float = 1.0,
    ) -> None:
        super().__init__(plant, seed=seed, idle_s=idle_s, boot_s=boot_s)
        self.errors: Errors = Errors()
        self.serial, self.identity = (
            serial,
            ", ".join(("DiCon Fiberoptics Inc", model, serial, firmware)),
        )
        self.autosave, self.recorded = autosave, 0
        self._last: dict[str, str] = {}  # input -> where it was before it was parked
        self._registers: dict[int, tuple[Pair, ...]] = {0: ()}
        self._masks = {"*ESE": 0, "*SRE": 0}
        self._complete_at_s: float | None = None

    def preset(self, ingress: str, egress: str) -> None:
        """Make a pair as if it had been there for ever. Raises ValueError."""
        self.plant.preset([(ingress, egress)])
        self._saved = self.plant.pairs()

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "*IDN?": lambda session, numbers, rest, now: self.identity,
            "*CLS": self._clear,
            "*ESE": lambda session, numbers, rest, now: self._masks.update(
                {"*ESE": whole(rest, 0, 255)}
            ),
            "*ESE?": lambda session, numbers, rest, now: str(self._masks["*ESE"]),
            "*ESR?": self._events,
            "*SRE": lambda session, numbers, rest, now: self._masks.update(
                {"*SRE": whole(rest, 0, 255)}
            ),
            "*SRE?": lambda session, numbers, rest, now: str(self._masks["*SRE"]),
            "*STB?": self._status_byte,
            "*OPC": lambda session, numbers, rest, now: setattr(
                self, "_complete_at_s", now + self.moving(now)
            ),
            "*OPC?": self._complete,
            "*WAI": lambda session, numbers, rest, now: self._wait(session, now),
            "*RST": lambda session, numbers, rest, now: self._recall(0, now),
            "*RCL": lambda session, numbers, rest, now: self._recall(
                whole(rest, 0, REGISTERS), now
            ),
            "*SAV": lambda session, numbers, rest, now: self._registers.update(
                {whole(rest, 1, REGISTERS): self.plant.pairs()}
            ),
            "*TST?": lambda session, numbers, rest, now: "0",
            "ROUTe#:SCAN": lambda session, numbers, rest, now: self._advance(
                self._input(numbers), str(whole(rest, 0, len(self.plant.egress))), now
            ),
            "ROUTe#:SCAN?": lambda session, numbers, rest, now: dict(self.view(now)[0]).get(
                self._input(numbers), PARKED
            ),
            "ROUTe#:SCAN:NEXT": lambda session, numbers, rest, now: self._step(
                self._input(numbers), 1, now
            ),
            "ROUTe#:SCAN:PREVious": lambda session, numbers, rest, now: self._step(
                self._input(numbers), -1, now
            ),
            "ROUTe#:CLOSe": lambda session, numbers, rest, now: self._advance(
                self._input(numbers), PARKED, now
            ),
            "ROUTe#:OPEN": self._open,
            "ROUTe#:OPEN:STATe?": lambda session, numbers, rest, now: str(
                int(self._input(numbers) in dict(self.view(now)[1]))
            ),
            "ROUTe:PATH:CATalog?": lambda *_: f"{len(self.plant.ingress)}x{len(self.plant.egress)}",
            "STATus?": lambda session, numbers, rest, now: "BUSY" if self.moving(now) else "READY",
            "SNUMber?": lambda *_: self.serial,
            "SYSTem:ERRor?": lambda *_: "{}, {}".format(*self.errors.take()),
            "SYSTem:VERSion?": lambda *_: "1999.0",
            "QCT?": lambda *_: str(self.recorded),
            "WEN": self._set_autosave,
            "WEN?": lambda *_: str(int(self.autosave)),
        }

    # ---- the manner

    def split(self, session: Session) -> list[str]:
        *lines, session.buffer = session.buffer.split(b"\r")
        return [text for line in lines if (text := line.decode("latin-1").strip())]

    def find(self, header: str, path: str) -> tuple[Handler, tuple[int, ...], str]:
        try:
            return super().find(header, path)
        except ScpiError:
            if not path:
                raise
            return super().find(header, "")

    def inside(self, reply: bytes) -> int:
        return reply.find(b"\r") + 1

    def unsolicited(self, now: float) -> bytes:
        return b"-240, Hardware error;temperature\r"  # U: the manual has none

    def snapshot(self, now: float) -> tuple[tuple[Pair, ...], tuple[Pair, ...]]:
        return self.plant.pairs(), tuple(self.plant.light(now))

    def rebooted(self, keep: bool, now: float) -> None:
        """With autosave the last circuits come back (DOC), else every input is parked (U)."""
        self.errors = Errors()
        self._path, self._last, self._complete_at_s = "", {}, None
        if keep and self.autosave:
            self.plant.restore(self._saved, now, self.boot_s)
        else:
            self._saved = ()

    # ---- the words

    def _input(self, numbers: tuple[int, ...]) -> str:
        if not 1 <= numbers[0] <= len(self.plant.ingress):
            raise ScpiError(SUFFIX, f"input {numbers[0]}")
        return str(numbers[0])

    def _advance(self, ingress: str, egress: str, now: float) -> None:
        self.wrote(now)
        held = self.plant.circuit(("in", ingress))
        existing = self.plant.circuit(("out", egress))
        if existing is not None:
            if existing is held:
                return
            # counted as an attempt on a port in use
            refused = self.plant.connect([(ingress, egress)], now)
            raise ScpiError(CONFLICT, refused.get((ingress, egress), ""))
        old = (held.pair,) if held else ()
        self.advance(old, () if egress == PARKED else ((ingress, egress),), now)
        if held and not self.silent:
            self._last[ingress] = held.egress
        self._record()

    def _step(self, ingress: str, by: int, now: float) -> None:
        held = self.plant.circuit(("in", ingress))
        self._advance(
            ingress,
            str((int(held.egress if held else PARKED) - 1 + by) % len(self.plant.egress) + 1),
            now,
        )

    def _open(self, session: Session, numbers: tuple[int, ...], rest: str, now: float) -> None:
        ingress = self._input(numbers)
        if self.plant.circuit(("in", ingress)) is None:
            self._advance(ingress, self._last.get(ingress, PARKED), now)

    def _recall(self, register: int, now: float) -> None:
        self.wrote(now)
        wanted = self._registers.get(register, ())
        self.advance(
            self.some([pair for pair in self.plant.pairs() if pair not in wanted]),
            [pair for pair in wanted if pair not in self.plant.pairs()],
            now,
        )
        self._record()

    def _complete(self, session: Session, numbers: tuple[int, ...], rest: str, now: float) -> str:
        self._wait(session, now)
        return "1"

    def _wait(self, session: Session, now: float) -> None:
        session.delay_s = self.moving(now)

    def _clear(self, session: Session, numbers: tuple[int, ...], rest: str, now: float) -> None:
        self.errors.events, self._complete_at_s = 0, None

    def _settled(self, now: float) -> None:
        if self._complete_at_s is not None and self._complete_at_s <= now:
            self.errors.events |= OPERATION_COMPLETE
            self._complete_at_s = None

    def _events(self, session: Session, numbers: tuple[int, ...], rest: str, now: float) -> str:
        self._settled(now)
        events, self.errors.events = self.errors.events, 0
        return str(events)

    def _status_byte(
        self, session: Session, numbers: tuple[int, ...], rest: str, now: float
    ) -> str:
        self._settled(now)
        byte = EVENT_SUMMARY if self.errors.events & self._masks["*ESE"] else 0
        return str(byte | (REQUEST if byte & self._masks["*SRE"] else 0))

    def _set_autosave(
        self, session: Session, numbers: tuple[int, ...], rest: str, now: float
    ) -> None:
        wanted = switch(rest)
        self.wrote(now)
        if not self.silent:
            self.autosave = wanted
            self._record()

    def _record(self) -> None:
        if self.autosave and not self.silent:
            self._saved, self.recorded = self.plant.pairs(), self.recorded + 1


# addresses, settle_s, baud: U
FAMILY = Family("dicon-mxs", ("tcp", "serial"), DiconMxs, two_sided, baud=115_200)
