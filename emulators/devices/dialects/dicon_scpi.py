"""DiCon GP600 matrix switches over SCPI (TCP 10001, a raw socket).

Grades: REAL is output kept in a public program that drives one (autosweep), U unconfirmed: every
error but `+0, No Error`, what becomes of an output that is taken (nothing is made and an error is
queued: silent, as SCPI is), what shows while a mirror moves (output 0), and whether circuits come
back after a power cycle (with WEN 1, "autosave", they do).

Two other products of the vendor speak alike. A matrix module on a serial line of its own: CODE (a
lab's client; the identity from a client of the vendor's own modules). The MXS-9100 says it is an
MG4 and knows no `X1`: DOC (its manual); here is only what a driver of a GP600 meets that was given
its address, the rest is in dicon_mxs.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from emulators.devices.dialects.base import Session
from emulators.devices.dialects.scpi import (
    CONFLICT,
    EXECUTION,
    HARDWARE,
    MISSING,
    PARAMETER_TYPE,
    RANGE,
    UNDEFINED,
    ScpiDialect,
    ScpiError,
    units,
)
from emulators.devices.family import Family, two_sided
from emulators.optics.plant import Pair, Plant

OFF = "0"  # REAL: output 0 is off
WAVES = ("1310", "1550")
MXS_9100 = "MG4"  # DOC: how it calls itself


class DiconScpi(ScpiDialect[tuple[Pair, ...]]):
    """One chassis with one matrix module, `X1`. Each input goes to one output; the error queue
    belongs to the device (U).

    wavelength: what `X1 W` says at the start (nm). autosave: whether WEN is on. module: the words
    of a matrix module, `ID?`, `REBOOT`, `X1 CH? 1` and `X1 CH * 0`, in addition to the chassis's (U
    that it knows those too). model: `MG4` is an MXS-9100.
    """

    writes = re.compile(
        r"\bX1\s+(CH\s+(\d+|\*)\s+\d|W\s+\d)|^\s*(RESET|REBOOT)|^\s*WEN\s+\d|;\s*(RESET|REBOOT|WEN\s+\d)",
        re.IGNORECASE,
    )

    def __init__(
        self,
        plant: Plant,
        *,
        model: str = "GP600",
        serial: str = "19A0M10D0117",
        firmware: str = "7.0",
        wavelength: int = 1550,
        autosave: bool = False,
        module: bool = False,
        seed: int = 0,
        idle_s: float | None = None,
        boot_s: float = 1.0,
    ) -> None:
        super().__init__(plant, seed=seed, idle_s=idle_s, boot_s=boot_s)
        self.model, self.serial, self.firmware = model, serial, firmware
        self.wavelength, self.autosave = str(wavelength), autosave
        if self.wavelength not in WAVES:
            raise ValueError(f"{plant.name}: wavelength {wavelength} is none of {', '.join(WAVES)}")
        self._text: dict[str, Callable[[list[str], float], str | None]] = {
            # REAL
            "*IDN?": lambda tokens, now: (
                f"Dicon Fiberoptics Inc, {self.model}, {self.serial}, {self.firmware}"
            ),
            "*CLS": lambda tokens, now: self.errors.clear(),
            "SYST:CONF?": lambda tokens, now: "X1",  # REAL
            # REAL: `+0, No Error`
            "SYST:ERR?": lambda tokens, now: "{:+d}, {}".format(*self._error()),
            "SYSTEM:CONF?": lambda tokens, now: "X1",
            "SYSTEM:ERR?": lambda tokens, now: "{:+d}, {}".format(*self._error()),
            "RESET": self._reset,
            "WEN": self._set_autosave,
            "WEN?": lambda tokens, now: str(int(self.autosave)),  # U
            "X1": self._module,
        }
        if module:
            self._text |= {
                "ID?": lambda tokens, now: f"DiCon Fiberoptics Inc, {self.model}\r",
                "REBOOT": self._reboot,
            }
        self.alone = module
        if model == MXS_9100:
            kept = ("*CLS", "SYST:ERR?", "WEN", "WEN?")  # DOC
            self._text = {word: self._text[word] for word in kept} | {
                "*IDN?": lambda tokens, now: (
                    f"DiCon Fiberoptics Inc, {self.model}, {self.serial}, {self.firmware}"
                ),
                "STAT?": lambda tokens, now: "READY",
            }

    def preset(self, ingress: str, egress: str) -> None:
        """Make a pair as if it had been there for ever. Raises ValueError."""
        self.plant.preset([(ingress, egress)])
        self._saved = self.plant.pairs()

    # ---- the manner

    def split(self, session: Session) -> list[str]:
        """CR ends a message too on an MXS-9100 (DOC)."""
        if self.model == MXS_9100:
            session.buffer = session.buffer.replace(b"\r", b"\n")
        return super().split(session)

    def execute(self, session: Session, command: str, now: float) -> bytes:
        answers = []
        for unit in units(command):
            tokens = unit.split()
            if not tokens:
                continue
            try:
                # REAL: it "doesn't like the leading `:`" of SYST:ERR?
                handler = self._text.get(tokens[0].upper())
                if handler is None:
                    raise ScpiError(UNDEFINED, tokens[0][:40])
                answer = handler(tokens[1:], now)
            except ScpiError as error:
                self.errors.add(error.code, error.detail)
                continue
            if answer is not None:
                answers.append(answer)
        return (";".join(answers) + "\n").encode("latin-1") if answers else b""

    def unsolicited(self, now: float) -> bytes:
        # no public transcript has one: a line in the shape of its errors (U)
        return b"-240, Hardware error;temperature\n"

    def snapshot(self, now: float) -> tuple[Pair, ...]:
        return tuple(self.plant.light(now))

    def rebooted(self, keep: bool, now: float) -> None:
        """With autosave the last circuits come back, else every input is off."""
        if keep and self.autosave:
            self.plant.restore(self._saved, now, self.boot_s)
        else:
            self._saved = ()
        self.errors.clear()

    # ---- the words

    def _error(self) -> tuple[int, str]:
        code, text = self.errors.take()
        return code, "No Error" if code == 0 else text

    def _module(self, tokens: list[str], now: float) -> str | None:
        """`X1 DIM?`, `X1 CH 1 2`, `X1 CH 1?`, `X1 W 1550`, `X1 W?` (U), `X1 WAVESAVAIL?`."""
        match [word.upper() for word in tokens]:
            case ["DIM?"]:
                return f"{len(self.plant.ingress)},{len(self.plant.egress)}"  # REAL: in,out
            case ["CH", asked] if asked.endswith("?"):
                ingress = self._port(asked[:-1], self.plant.ingress)
                return f"{ingress},{dict(self.view(now)).get(ingress, OFF)}"  # REAL
            case ["CH", asked, "?"]:
                return self._module(["CH", asked + "?"], now)
            case ["CH?", asked] if self.alone:
                ingress = self._port(asked, self.plant.ingress)
                return dict(self.view(now)).get(ingress, OFF)  # CODE: the output alone
            case ["CH", "*", "0"] if self.alone:
                self._reset(tokens, now)
            case ["CH", ingress, egress]:
                self._advance(ingress, egress, now)
            case ["WAVESAVAIL?"]:
                return ",".join(WAVES)
            case ["W?"]:
                return self.wavelength
            case ["W", wave]:
                if wave not in WAVES:
                    raise ScpiError(RANGE, wave[:20])
                self.wrote(now)
                if not self.silent:
                    self.wavelength = wave
            case ["CH" | "W", *_]:
                raise ScpiError(MISSING, " ".join(tokens)[:40])
            case _:
                raise ScpiError(UNDEFINED, " ".join(tokens)[:40])
        return None

    def _port(self, text: str, ports: tuple[str, ...]) -> str:
        if not re.fullmatch(r"[0-9]{1,6}", text):
            raise ScpiError(PARAMETER_TYPE, text[:20])
        label = str(int(text))
        if label not in ports:
            raise ScpiError(RANGE, f"no port {label}")
        return label

    def _advance(self, first: str, second: str, now: float) -> None:
        """Turn an input to an output, away from where it was; 0 is off. An output that is taken
        stays where it is, and so does the input."""
        ingress, egress = (
            self._port(first, self.plant.ingress),
            self._port(second, (OFF, *self.plant.egress)),
        )
        self.wrote(now)
        held = self.plant.circuit(("in", ingress))
        existing = self.plant.circuit(("out", egress))
        if existing is not None and existing.ingress != ingress:
            # the plant refuses: the output is in use
            self._complain(self.plant.connect([(ingress, egress)], now))
            return
        if held is not None and held.egress != egress:
            refused = self.plant.disconnect([held.pair], now)
            if refused:
                self._complain(refused)
                return
        if egress != OFF and self.plant.circuit(("in", ingress)) is None:
            self._complain(self.plant.connect([(ingress, egress)], now))
        self._save()

    def _complain(self, refused: dict[Pair, str]) -> None:
        for (ingress, egress), why in refused.items():
            code = (
                HARDWARE
                if why.endswith(("failed", "stuck"))
                else EXECUTION
                if " locked " in why
                else CONFLICT
            )
            self.errors.add(code, f"{ingress},{egress}: {why}")

    def _reset(self, tokens: list[str], now: float) -> None:
        """Every input off (REAL that RESET is)."""
        self.wrote(now)
        self._complain(self.plant.disconnect(self.some(self.plant.pairs()), now))
        self._save()

    def _reboot(self, tokens: list[str], now: float) -> None:
        self.wrote(now)
        if not self.silent:
            self.reboot(True, now)

    def _set_autosave(self, tokens: list[str], now: float) -> None:
        if tokens not in (["0"], ["1"]):
            raise ScpiError(PARAMETER_TYPE if tokens else MISSING, " ".join(tokens)[:20])
        self.wrote(now)
        if not self.silent:
            self.autosave = tokens == ["1"]
            self._save()

    def _save(self) -> None:
        if self.autosave and not self.silent:
            self._saved = self.plant.pairs()


FAMILY = Family("dicon-scpi", ("tcp", "serial"), DiconScpi, two_sided)
