"""Santec OSX-100 and OSX-150, JGR Optics SX1: chassis of 1xN and 2xN switches, over SCPI (TCP,
lines end with LF both ways).

Grades: CODE is what public programs send and read (an SX1 driver, an OSX-150 driver, an OSX-100
driver and the simulator kept with it, which cite tables 4 and 5 of manual M-OSX_SX1-001.04), U
unconfirmed. CODE: `*IDN?` of four fields, the serial third; `CLOSe`, `CLOSe?`, `CFG:SWT:END?` are
of the selected module; modules count from 0, channels from 1; `ROUTe0:CHANnel`, `:COMMon`, `:HOMe`;
commands are asynchronous and `STAT:OPER:COND?` is 0 when all is done; `0,"No error"`, -222 for a
channel or a module that is not there; 1A has one input, 2A one of two inputs at any output, 2B two
inputs at outputs of their own that move together. DOC (SX8 manual G-UM-00004, another switch of
this maker): a header goes on where the last one of the message was unless a colon leads it. U, and
chosen so that they ask most of a driver:

- `CLOSe?` says the new channel at once, as in the simulator, while the light comes `settle_s`
  later: only the condition tells;
- what is queried of a module that moves is answered, not kept back; `*OPC?` is 1 even then, as in
  the simulator;
- the selected module belongs to the device: one client's `MODule:SELect` turns what another's
  `CLOSe` means;
- logical channels that an OSX-150 leads to other ports (it has such a table) lead to the port of
  their number here;
- a reboot that keeps the channels keeps them; one that loses them ends at channel 1, lit. There is
  no dark position;
- the inputs of a 2A count from 1; the wording of errors beyond the two of the simulator; *RST is
  home for every module;
- local mode (`LCL 1`) refuses nothing.

The TCP port is set at the front panel; the public programs default to 5025. No public program has a
2C (the second input follows the first), so there is none here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from emulators.devices.dialects.base import Session
from emulators.devices.dialects.numbered_scpi import Handler, NumberedScpi, selectors, switch, whole
from emulators.devices.dialects.scpi import COMMAND, RANGE, ScpiError
from emulators.devices.family import Family, Labels
from emulators.optics.plant import Pair, Plant

MOST_MODULES = 16  # U
_LABEL = re.compile(r"([0-9]{1,2})\.(in2?|b?[1-9][0-9]{0,3})")


@dataclass(slots=True)
class Module:
    """One switch and where it is."""

    name: str
    inputs: int
    channels: int
    both: bool  # 2B: either input has outputs of its own
    channel: int = 1
    common: int = 1

    @property
    def kind(self) -> str:
        return f"{'1A' if self.inputs == 1 else '2B' if self.both else '2A'}x{self.channels}"

    def pairs(self, channel: int, common: int) -> tuple[Pair, ...]:
        """Return its circuits at this position."""
        if self.both:
            return (f"{self.name}.in", f"{self.name}.{channel}"), (
                f"{self.name}.in2",
                f"{self.name}.b{channel}",
            )
        return ((f"{self.name}.in{'2' if common == 2 else ''}", f"{self.name}.{channel}"),)


def modules_of(plant: Plant) -> list[Module]:
    """Return the modules that the labels describe: 0.in and 0.1..N is a 1A, with 0.in2 a 2A, with
    0.b1..N too a 2B.

    Raises ValueError: labels of no such chassis.
    """
    for label in (*plant.ingress, *plant.egress):
        if not _LABEL.fullmatch(label):
            raise ValueError(f"{plant.name}: port {label!r}: wanted such as 0.in, 0.in2, 0.1, 0.b1")
    found = []
    for number in range(len({label.split(".")[0] for label in plant.ingress})):
        inputs = sum(f"{number}.in{n}" in plant.ingress for n in ("", "2"))
        outs = [
            sum(bool(re.fullmatch(rf"{number}\.{side}[0-9]+", label)) for label in plant.egress)
            for side in ("", "b")
        ]
        module = Module(str(number), inputs, outs[0], bool(outs[1]))
        wanted = [
            pair
            for n in range(1, outs[0] + 1)
            for common in (1, inputs)
            for pair in module.pairs(n, common)
        ]
        if not wanted or outs[1] not in (0, outs[0]) or (outs[1] and inputs != 2):
            raise ValueError(f"{plant.name}: ports: module {number} is no switch of 1 or 2 inputs")
        for ingress, egress in wanted:
            if ingress not in plant.ingress or egress not in plant.egress:
                raise ValueError(
                    f"{plant.name}: ports: module {number} has no {ingress} or no {egress}"
                )
        found.append(module)
    return found


class SantecScpi(NumberedScpi[tuple[tuple[int, int], ...]]):
    """One chassis. The error queue and the selected module belong to the device (U)."""

    writes = re.compile(
        r"\b(CLOSE?\b(?!\?)|CHAN(NEL)?(:ALL)?\s+\d|COMM(ON)?\s+\d|HOM(E)?\b)|\*RST", re.IGNORECASE
    )

    def __init__(
        self,
        plant: Plant,
        *,
        make: str = "Santec",
        model: str = "OSX-100",
        serial: str = "21040117",
        firmware: str = "1.0.0",
        seed: int = 0,
        idle_s: float | None = None,
        boot_s: float = 1.0,
    ) -> None:
        self.modules = modules_of(plant)
        super().__init__(plant, seed=seed, idle_s=idle_s, boot_s=boot_s)
        self.identity = ",".join((make, model, serial, firmware))
        self.selected, self.local = 0, True
        self.plant.preset(pair for module in self.modules for pair in module.pairs(1, 1))

    def preset(self, ingress: str, egress: str) -> None:
        """Let a module be at a channel as if it had been there for ever. Raises ValueError."""
        for module in self.modules:
            for channel in range(1, module.channels + 1):
                for common in range(1, module.inputs + 1):
                    if (ingress, egress) in (pairs := module.pairs(channel, common)):
                        self.set_out(module.pairs(module.channel, module.common), pairs)
                        module.channel, module.common = channel, common
                        return
        raise ValueError(f"{self.plant.name}: preset {ingress}->{egress}: no module has that")

    def handlers(self) -> Mapping[str, Handler]:
        def reported(text: Callable[[], object]) -> Handler:
            return lambda session, numbers, rest, now: str(text())

        return {
            "*IDN?": reported(lambda: self.identity),
            "*CLS": lambda *_: self.errors.clear(),
            "*RST": self._reset,
            "*OPC?": reported(lambda: 1),
            "*TST?": reported(lambda: 0),
            "SYSTem:ERRor?": reported(self.errors.next),
            "SYSTem:ERRor:NEXT?": reported(self.errors.next),
            "SYSTem:VERSion?": reported(lambda: "1999.0"),
            "STATus:OPERation:CONDition?": lambda session, numbers, rest, now: str(
                int(self.moving(now) > 0)
            ),
            "CLOSe": self._close,
            "CLOSe?": lambda session, numbers, rest, now: self._channel(self.selected, now),
            "CFG:SWT:END?": reported(lambda: self.modules[self.selected].channels),
            "MODule:CATalog?": reported(
                lambda: ",".join(f'"SX {module.kind}"' for module in self.modules)
            ),
            "MODule:NUMber?": reported(lambda: len(self.modules)),
            "MODule:SELect": self._select,
            "MODule:SELect?": reported(lambda: self.selected),
            "MODule#:INFO?": self._info,
            "ROUTe:CHANnel:ALL": self._all,
            "ROUTe#:CHANnel": self._route,
            "ROUTe#:CHANnel?": lambda session, numbers, rest, now: self._channel(
                self._number(numbers), now
            ),
            "ROUTe#:CLOSe": self._route,
            "ROUTe#:CLOSe?": lambda session, numbers, rest, now: self._channel(
                self._number(numbers), now
            ),
            "ROUTe#:COMMon": self._common,
            "ROUTe#:COMMon?": lambda session, numbers, rest, now: str(
                self.view(now)[self._number(numbers)][1]
            ),
            "ROUTe#:HOMe": lambda session, numbers, rest, now: self._move(
                [self._number(numbers)], now, 1
            ),
            "LCL": self._set_local,
            "LCL?": reported(lambda: int(self.local)),
        }

    # ---- the manner

    def unsolicited(self, now: float) -> bytes:
        return b'-240,"Hardware error;module 0"\n'  # U: no public program meets one

    def snapshot(self, now: float) -> tuple[tuple[int, int], ...]:
        return tuple((module.channel, module.common) for module in self.modules)

    def rebooted(self, keep: bool, now: float) -> None:
        self.errors.clear()
        self.selected, self.local = 0, True
        for module in self.modules:
            if not keep:
                module.channel = module.common = 1
            self.plant.restore(module.pairs(module.channel, module.common), now, self.boot_s)

    # ---- the words

    def _number(self, numbers: tuple[int, ...]) -> int:
        if numbers[0] >= len(self.modules):
            raise ScpiError(RANGE, f"module {numbers[0]}")
        return numbers[0]

    def _channel(self, number: int, now: float) -> str:
        return str(self.view(now)[number][0])

    def _move(
        self, numbers: list[int], now: float, channel: int, common: int | None = None
    ) -> None:
        self.wrote(now)
        for number in self.some(numbers):
            module = self.modules[number]
            existing = channel, common or module.common
            if existing == (module.channel, module.common):
                continue
            self.advance(module.pairs(module.channel, module.common), module.pairs(*existing), now)
            if not self.silent:
                module.channel, module.common = existing

    def _close(self, session: Session, numbers: tuple[int, ...], rest: str, now: float) -> None:
        """`CLOSe 3`, or `CLOSe` alone: the next channel, after the last the first."""
        module = self.modules[self.selected]
        self._move(
            [self.selected],
            now,
            whole(rest, 1, module.channels) if rest else module.channel % module.channels + 1,
        )

    def _route(self, session: Session, numbers: tuple[int, ...], rest: str, now: float) -> None:
        number = self._number(numbers)
        self._move([number], now, whole(rest, 1, self.modules[number].channels))

    def _all(self, session: Session, numbers: tuple[int, ...], rest: str, now: float) -> None:
        """Every module that has the channel goes there (the simulator's way); where none has it, it
        is out of range (U).
        """
        channel = whole(rest, 1, max(module.channels for module in self.modules))
        self._move(
            [n for n, module in enumerate(self.modules) if channel <= module.channels], now, channel
        )

    def _common(self, session: Session, numbers: tuple[int, ...], rest: str, now: float) -> None:
        number = self._number(numbers)
        module = self.modules[number]
        if module.inputs == 1 or module.both:  # U: it has no input to choose
            raise ScpiError(COMMAND, f"module {number} is a {module.kind}")
        self._move([number], now, module.channel, whole(rest, 1, 2))

    def _select(self, session: Session, numbers: tuple[int, ...], rest: str, now: float) -> None:
        last = len(self.modules) - 1
        self.selected = whole(rest, 0, last) if rest else (self.selected + 1) % (last + 1)

    def _info(self, session: Session, numbers: tuple[int, ...], rest: str, now: float) -> str:
        """U: people read it; the simulator's fields."""
        number = self._number(numbers)
        module, (channel, common) = self.modules[number], self.view(now)[number]
        return f"SX {module.kind},channels={module.channels},current={channel},common={common}"

    def _reset(self, session: Session, numbers: tuple[int, ...], rest: str, now: float) -> None:
        self.errors.clear()
        self.selected, self.local = 0, True
        self._move(list(range(len(self.modules))), now, 1, 1)

    def _set_local(self, session: Session, numbers: tuple[int, ...], rest: str, now: float) -> None:
        self.local = switch(rest)


def chassis(modules: int, channels: int) -> tuple[Labels, Labels]:
    """Return the labels of so many 1A modules with so many channels each. Raises ValueError: too
    many modules.
    """
    return selectors(modules, channels, 0, MOST_MODULES)


FAMILY = Family(
    "santec-scpi",
    ("tcp",),
    SantecScpi,
    chassis,
    size="4x24",
    quick={"size": "12x24"},
    settle_s=0.3,  # the simulator's; the OSX-150 driver waits 0.25 s, the others at most 3 s
)
