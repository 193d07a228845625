"""Polatis (HUBER+SUHNER) switches over SCPI.

Grades: REAL is device output kept in public client code, DOC users' notes of manual
PROD-B-100-03-0, CODE a literal of public clients (R. Polster's driver, hpn-bristol
devicecontrol-polatis), U unconfirmed: no public source says, so the choice made here is the one
that asks most of a driver.
"""

from __future__ import annotations

import re

from emulators.devices.dialects.base import Session
from emulators.devices.dialects.scpi import (
    CONFLICT,
    EXECUTION,
    HARDWARE,
    MISSING,
    PARAMETER_TYPE,
    RANGE,
    Commands,
    ScpiDialect,
    ScpiError,
    channels,
    units,
)
from emulators.devices.family import Family
from emulators.optics.plant import Pair, Plant, Side

MAX_POWER_PORTS = 256  # DOC: at most 256 ports per query
# REAL
NETWORK = 'IP="192.168.1.1" Gateway="0.0.0.0" Mask="255.255.255.0" Broadcast="192.168.1.255"'
LINE_ENDS = {"crlf": b"\r\n", "lf": b"\n", "cr": b"\r"}
_BOOT = {
    "DARK": "DARK",
    "REST": "REST",
    "RESTORE": "REST",
    "AUTO": "AUTO",
    "AUTOSAVE": "AUTO",
}  # DOC; the short form is answered (U)


def numbered(ingress: int, egress: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the labels of an NxM switch: 1..N in, N+1..N+M out."""
    return tuple(str(n) for n in range(1, ingress + 1)), tuple(
        str(n) for n in range(ingress + 1, ingress + egress + 1)
    )


class PolatisScpi(ScpiDialect[tuple[Pair, ...]]):
    """One switch. The error queue belongs to the device and every session drinks from it (U). Over
    RS-232: 38400 8N1 (DOC).

    min_gap_s: a message that comes sooner after the one before is lost silently (U that it is lost;
    CODE: Polster waits 0.1 s "because the firmware on the switch is not stable enough to support
    commands executed at high-speeds"). 0: none is lost. line_end: what ends an answer: crlf (CODE:
    Polster and others cut two characters off every answer), lf, or cr (CODE: a script for the
    serial port reads up to it).
    """

    writes = re.compile(
        r"conn\w*:(add|sub|only)|disc\w*:all|\*rst|port:(dis|enab)|boot:mode\s", re.IGNORECASE
    )

    def __init__(
        self,
        plant: Plant,
        *,
        model: str | None = None,
        serial: str = "002414",
        firmware: str = "6.5.2.18",
        boot_mode: str = "AUTO",
        min_gap_s: float = 0.0,
        line_end: str = "crlf",
        seed: int = 0,
        idle_s: float | None = None,
        boot_s: float = 1.0,
    ) -> None:
        super().__init__(plant, seed=seed, idle_s=idle_s, boot_s=boot_s)
        self.model = model or f"N-VST-{len(plant.ingress)}x{len(plant.egress)}-LA1-DMHNV-801"
        self.serial, self.firmware = serial, firmware
        self.min_gap_s, self._heard_s = min_gap_s, -1.0e9
        if line_end not in LINE_ENDS:
            raise ValueError(
                f"{plant.name}: line_end {line_end!r} is none of {', '.join(LINE_ENDS)}"
            )
        self._line_end = LINE_ENDS[line_end]
        if boot_mode.upper() not in _BOOT:
            raise ValueError(
                f"{plant.name}: boot_mode {boot_mode!r} is none of DARK, RESTORE, AUTOSAVE"
            )
        self.boot_mode = _BOOT[boot_mode.upper()]
        self._saved: tuple[Pair, ...] = () if self.boot_mode == "DARK" else plant.pairs()
        self._side: dict[str, Side] = {p: ("in", p) for p in plant.ingress} | {
            p: ("out", p) for p in plant.egress
        }
        self._commands = Commands({
            "*IDN?": lambda _, now: f"Polatis,{self.model},{self.serial},{self.firmware}",
            "*CLS": lambda _, now: self.errors.clear(),
            # bit 2: the error queue holds something (SCPI-99 5.2)
            "*STB?": lambda _, now: "4" if len(self.errors) else "0",
            "*OPC?": lambda _, now: "1",  # CODE: a client sends it behind every change
            "*RST": self._reset,
            "OXC:SWITch:SIZE?": lambda _, now: f"{len(plant.ingress)},{len(plant.egress)}",
            "OXC:SWITch:CONNect:ADD": self._add,
            "OXC:SWITch:CONNect:SUB": self._sub,
            "OXC:SWITch:CONNect:ONLY": self._only,
            "OXC:SWITch:CONNect:STATe?": self._map,
            "OXC:SWITch:CONNect:PORT?": self._peer,
            "OXC:SWITch:DISConnect:ALL": self._clear,
            "OXC:SWITch:PORT:DISable": lambda text, now: self._shutter(text, True, now),
            "OXC:SWITch:PORT:ENABle": lambda text, now: self._shutter(text, False, now),
            "OXC:SWITch:PORT:STATe?": self._port_states,
            "OXC:BOOT:MODE": self._set_boot,
            "OXC:BOOT:MODE?": lambda _, now: self.boot_mode,
            "PMON:POWer?": self._power,
            "SYSTem:ERRor?": lambda _, now: self.errors.next(),
            "SYSTem:ERRor:NEXT?": lambda _, now: self.errors.next(),
            "SYSTem:ERRor:ALL?": lambda _, now: self.errors.all(),
            "SYSTem:COMMunicate:NETWork:ADDRess?": lambda _, now: NETWORK,
        })  # fmt: skip

    def preset(self, ingress: str, egress: str) -> None:
        """Make a pair as if it had been there for ever. Raises ValueError."""
        self.plant.preset([(ingress, egress)])
        if self.boot_mode != "DARK":
            self._saved = self.plant.pairs()

    # ---- the manner

    def execute(self, session: Session, command: str, now: float) -> bytes:
        too_soon, self._heard_s = now - self._heard_s < self.min_gap_s, now
        if too_soon:
            return b""
        answers, path = [], ""
        for unit in units(command):
            tokens = unit.split(None, 1)
            if not tokens:
                continue
            try:
                handler, path = self._commands.find(tokens[0], path)
                answer = handler(tokens[1] if len(tokens) > 1 else "", now)
            # a query that fails answers nothing: 488.2 has no other form for it
            except ScpiError as error:
                self.errors.add(error.code, error.detail)
                continue
            if answer is not None:
                answers.append(answer)
            if tokens[0].upper() == "*OPC?":  # 488.2 12.5.3: answered when no operation is pending
                session.delay_s = self._moving_s(now)
        return ";".join(answers).encode("latin-1") + self._line_end if answers else b""

    def _moving_s(self, now: float) -> float:
        """Return how long the mirrors still move (s)."""
        circuits = [
            circuit
            for pair in self.plant.pairs()
            if (circuit := self.plant.circuit(("in", pair[0])))
        ]
        return max(0.0, *(circuit.lit_at_s - now for circuit in circuits)) if circuits else 0.0

    def unsolicited(self, now: float) -> bytes:
        return (
            b'-240,"Hardware error;temperature"' + self._line_end
        )  # no public Polatis transcript has one: a line in the shape of its errors (U)

    def snapshot(self, now: float) -> tuple[Pair, ...]:
        """Only circuits that have settled are reported: clients wait 50 ms and read back (CODE); U
        what shows meanwhile.
        """
        return tuple(sorted(self.plant.light(now), key=lambda pair: int(pair[0])))

    def rebooted(self, keep: bool, now: float) -> None:
        """DARK comes up empty, RESTORE with the map at the time it was set (U), AUTOSAVE with the
        last map (DOC: boot:mode).
        """
        if keep:
            self.plant.restore(self._saved, now, self.boot_s)
        else:
            self._saved = ()
        self.errors.clear()

    # ---- the words

    def _pairs(self, text: str, now: float) -> list[Pair]:
        lists = channels(text)
        if len(lists) != 2:
            raise ScpiError(MISSING, text)
        if len(lists[0]) != len(lists[1]):
            raise ScpiError(CONFLICT, "lists differ in length")
        return list(zip(*lists, strict=True))

    def _complain(self, refused: dict[Pair, str]) -> None:
        for (ingress, egress), why in refused.items():
            code = (
                RANGE
                if why.startswith("no ")
                else HARDWARE
                if why.endswith(("failed", "stuck"))
                else EXECUTION
                if " locked " in why
                else CONFLICT
            )
            self.errors.add(code, f"{ingress},{egress}: {why}")

    def _changed(self) -> None:
        if self.silent:
            return
        if self.boot_mode == "AUTO":
            self._saved = self.plant.pairs()

    def _add(self, text: str, now: float) -> None:
        pairs = self._pairs(text, now)
        self.wrote(now)
        self._complain(self.plant.connect(self.some(pairs), now))
        self._changed()

    def _sub(self, text: str, now: float) -> None:
        lists = channels(text)
        pairs: list[Pair] = []
        # CODE: `(@1,2,3),(@)` frees whatever hangs on the ports named
        if len(lists) == 2 and (not lists[0] or not lists[1]):
            for label in lists[0] or lists[1]:
                circuit = self.plant.circuit(self._known(label))
                if circuit:
                    pairs.append(circuit.pair)
        else:
            pairs = self._pairs(text, now)
            for pair in pairs:
                if self.plant.since(pair) is None:
                    self.errors.add(CONFLICT, f"{pair[0]},{pair[1]}: not connected")
        self.wrote(now)
        self._complain(self.plant.disconnect(self.some(pairs), now))
        self._changed()

    def _only(self, text: str, now: float) -> None:
        pairs = self._pairs(text, now)
        self.wrote(now)
        self._complain(
            self.plant.disconnect([p for p in self.plant.pairs() if p not in set(pairs)], now)
        )
        self._complain(self.plant.connect(self.some(pairs), now))
        self._changed()

    def _reset(self, text: str, now: float) -> None:
        """Free and open every port. CODE knows the word; the effect is U: 488.2 10.32 resets
        settings, and it asks most.
        """
        self._clear(text, now)
        self.plant.set_disabled(
            [side for side in self._side.values() if self.plant.disabled(side)], False, now
        )

    def _clear(self, text: str, now: float) -> None:
        self.wrote(now)
        self._complain(self.plant.disconnect(self.some(self.plant.pairs()), now))
        self._changed()

    def _map(self, text: str, now: float) -> str:
        pairs = self.view(now)
        # REAL: two lists, parallel by position
        return f"(@{','.join(i for i, _ in pairs)}),(@{','.join(e for _, e in pairs)})"

    def _peer(self, text: str, now: float) -> str:
        which, label = self._known(text.strip())
        pairs = self.view(now)
        peer = next(
            (
                pair[1] if which == "in" else pair[0]
                for pair in pairs
                if label == pair[0 if which == "in" else 1]
            ),
            "",
        )
        return f'"{peer}"'

    def _shutter(self, text: str, disable: bool, now: float) -> None:
        sides = [self._known(label) for label in self._one_list(text)]
        self.wrote(now)
        self.plant.set_disabled(self.some(sides), disable, now)

    def _port_states(self, text: str, now: float) -> str:
        wrong = self.plant.wrong.failed
        sides = [self._known(label) for label in self._one_list(text)]
        return f"({','.join('F' if s in wrong else 'D' if self.plant.disabled(s) else 'E' for s in sides)})"

    def _power(self, text: str, now: float) -> str:
        """Two decimals (REAL). By the model: I-OST has no meters (CODE); -701 meters egress only
        and the rest both sides (U).
        """
        sides = [self._known(label) for label in self._one_list(text)]
        if len(sides) > MAX_POWER_PORTS:
            raise ScpiError(RANGE, f"{len(sides)} ports")
        for which, label in sides:
            if self.model.startswith("I-OST") or (self.model.endswith("-701") and which == "in"):
                raise ScpiError(EXECUTION, f"no power monitor on {label}")
        return f"({','.join(f'{self.plant.power_dbm(side, now):.2f}' for side in sides)})"

    def _set_boot(self, text: str, now: float) -> None:
        mode = _BOOT.get(text.strip().upper())
        if mode is None:
            raise ScpiError(PARAMETER_TYPE, text.strip())
        self.wrote(now)
        if self.silent:
            return
        self.boot_mode = mode
        self._saved = () if mode == "DARK" else self.plant.pairs()

    def _known(self, label: str) -> Side:
        if not re.fullmatch(r"\d+", label):
            raise ScpiError(MISSING if not label else PARAMETER_TYPE, label)
        side = self._side.get(str(int(label)))
        if side is None:
            raise ScpiError(RANGE, f"no port {label}")
        return side

    def _one_list(self, text: str) -> list[str]:
        lists = channels(text)
        if len(lists) != 1:
            raise ScpiError(PARAMETER_TYPE, text)
        return lists[0]


FAMILY = Family("polatis-scpi", ("tcp", "serial"), PolatisScpi, numbered)
