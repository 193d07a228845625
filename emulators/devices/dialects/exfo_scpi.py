"""EXFO FTBx-9160 optical switches in an LTB-8 platform, over SCPI (TCP, lines end with LF).

Grades: DOC is EXFO's manual of the FTB-9100 and IQS-9100, earlier switches with the same words
(pages 58, 59 and 86, 87); CODE a public program that drives an LTB-8 with an FTBx-9160, and for the
port another with an LTB-8; U unconfirmed. DOC: `SNUM?` -> "123456-AB", quoted; `STAT?` -> READY,
BUSY and five other words. CODE: the prefix `LINS1:` names the module by its position;
`ROUTe:SCAN 3`, `SCAN?`, `SCAN:NEXT`, `SCAN:PREV`, `SCAN:ADJust`, `SCAN:ADJust:AUTO`,
`SCAN:SYNChronous`; `ROUTe:CLOSe` is the reset position, WITHOUT light, and `ROUTe:OPEN` brings the
light back at the last channel, the reverse of what other vendors mean by these words; `OPEN:STATe?`
is 1 when light passes; `PATH:CATalog?` is such as 1x12; `LOCK:STATe`; `INST:CAT:FULL?` is a list of
name, position; `*OPC?` answers when all is done; `0,"No error"`; port 5025. U, and chosen so that
they ask most of a driver:

- `SCAN 3` at the reset position stays dark until `OPEN` (`scan_opens`: it brings light); `SCAN?`
  names the last channel even then;
- `SCAN?` names the new channel at once, `OPEN:STATe?` is 0 and `STATus?` BUSY until light passes;
  with `SYNChronous 1` the next command waits until then;
- NEXT after the last channel is the first, PREV before the first the last;
- `LOCK:STATe ON` keeps other clients from moving the module, and ends with the connection;
- modules start, and come back from `RST`, `*RST` and a reboot that loses everything, at channel 1
  in the reset position;
- an 1xN's catalog is quoted, as the serial number is; the numbers of errors; the identity of the
  platform.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from emulators.devices.dialects.base import Session
from emulators.devices.dialects.numbered_scpi import Handler, NumberedScpi, selectors, switch, whole
from emulators.devices.dialects.scpi import EXECUTION, SUFFIX, ScpiError
from emulators.devices.family import Family, Labels
from emulators.optics.plant import Pair, Plant

MOST_MODULES = 8  # slots of an LTB-8
PREFIX = "LINStrument#:"


@dataclass(slots=True)
class Module:
    """One switch: its channel, whether it is there or at the reset position, and how it goes from
    one to another.
    """

    name: str
    channels: int
    channel: int = 1
    open: bool = False
    synchronous: bool = False
    adjusts: bool = False
    holder: Session | None = None

    def pair(self) -> Pair:
        return f"{self.name}.in", f"{self.name}.{self.channel}"

    def pairs(self) -> tuple[Pair, ...]:
        return (self.pair(),) if self.open else ()


class ExfoScpi(NumberedScpi[tuple[tuple[int, bool], ...]]):
    """One platform. The error queue is the platform's (U). serials: of the modules, else made up
    from their positions.
    """

    writes = re.compile(
        r"ROUT(E)?:(SCAN(\s+\d|:NEXT|:PREV|:ADJ(UST)?\s*$)|CLOS(E)?\b|OPEN(?!:))|\*?\bRST\b",
        re.IGNORECASE,
    )

    def __init__(
        self,
        plant: Plant,
        *,
        model: str = "LTB-8",
        serial: str = "1234567",
        firmware: str = "8.0.0",
        serials: list[str] | None = None,
        scan_opens: bool = False,
        seed: int = 0,
        idle_s: float | None = None,
        boot_s: float = 1.0,
    ) -> None:
        names = [label.removesuffix(".in") for label in plant.ingress]
        self.modules = [
            Module(name, sum(label.startswith(f"{name}.") for label in plant.egress))
            for name in names
        ]
        for number, module in enumerate(self.modules, 1):
            wanted = {f"{number}.{channel}" for channel in range(1, module.channels + 1)}
            if module.name != str(number) or not wanted or not wanted <= set(plant.egress):
                raise ValueError(
                    f"{plant.name}: ports: wanted such as 1.in and 1.1, 1.2 .. of module 1"
                )
        super().__init__(plant, seed=seed, idle_s=idle_s, boot_s=boot_s)
        self.identity = ",".join(("EXFO Inc.", model, serial, firmware))
        self.serials = [str(text) for text in serials or ()] or [
            f"{100_000 + number}-9160" for number in range(1, len(names) + 1)
        ]
        if len(self.serials) != len(names):
            raise ValueError(
                f"{plant.name}: serials: wanted one of each of {len(names)} modules, seen {len(self.serials)}"
            )
        self.scan_opens = scan_opens

    def preset(self, ingress: str, egress: str) -> None:
        """Let a module have light at a channel as if it had been so for ever. Raises ValueError."""
        for module in self.modules:
            for channel in range(1, module.channels + 1):
                if (ingress, egress) == (f"{module.name}.in", f"{module.name}.{channel}"):
                    before = module.pairs()
                    module.channel, module.open = channel, True
                    self.set_out(before, module.pairs())
                    return
        raise ValueError(f"{self.plant.name}: preset {ingress}->{egress}: no module has that")

    def handlers(self) -> Mapping[str, Handler]:
        def of_module(does: Callable[[Module, Session, str, float], str | None]) -> Handler:
            return lambda session, numbers, rest, now: does(
                self._module(numbers), session, rest, now
            )

        def shows(text: Callable[[Module], object]) -> Handler:
            return lambda session, numbers, rest, now: str(text(self._module(numbers)))

        module_text: dict[str, Handler] = {
            "ROUTe:SCAN": of_module(
                lambda m, s, rest, now: self._scan(m, s, whole(rest, 1, m.channels), now)
            ),
            "ROUTe:SCAN?": of_module(lambda m, s, rest, now: str(self._seen(m, now)[0])),
            "ROUTe:SCAN:NEXT": of_module(
                lambda m, s, rest, now: self._scan(m, s, m.channel % m.channels + 1, now)
            ),
            "ROUTe:SCAN:PREVious": of_module(
                lambda m, s, rest, now: self._scan(m, s, (m.channel - 2) % m.channels + 1, now)
            ),
            "ROUTe:SCAN:ADJust": of_module(lambda m, s, rest, now: self._adjust(m, s, now)),
            "ROUTe:SCAN:ADJust:AUTO": of_module(
                lambda m, s, rest, now: setattr(m, "adjusts", switch(rest))
            ),
            "ROUTe:SCAN:ADJust:AUTO?": shows(lambda m: int(m.adjusts)),
            "ROUTe:SCAN:SYNChronous": of_module(
                lambda m, s, rest, now: setattr(m, "synchronous", switch(rest))
            ),
            "ROUTe:SCAN:SYNChronous?": shows(lambda m: int(m.synchronous)),
            "ROUTe:CLOSe": of_module(lambda m, s, rest, now: self._go(m, s, m.channel, False, now)),
            "ROUTe:OPEN": of_module(lambda m, s, rest, now: self._go(m, s, m.channel, True, now)),
            "ROUTe:OPEN:STATe?": of_module(lambda m, s, rest, now: str(int(self._seen(m, now)[1]))),
            "ROUTe:PATH:CATalog?": shows(lambda m: f'"1x{m.channels}"'),
            "SNUMber?": shows(lambda m: f'"{self.serials[int(m.name) - 1]}"'),
            "STATus?": of_module(
                lambda m, s, rest, now: "BUSY" if self._moves(m, now) else "READY"
            ),
            "LOCK:STATe": of_module(lambda m, s, rest, now: self._lock(m, s, switch(rest))),
            "LOCK:STATe?": shows(lambda m: int(m.holder is not None)),
            "RST": of_module(lambda m, s, rest, now: self._go(m, s, 1, False, now)),
        }
        return {
            "*IDN?": lambda session, numbers, rest, now: self.identity,
            "*CLS": lambda *_: self.errors.clear(),
            "*RST": self._reset,
            "*OPC?": self._complete,
            "SYSTem:ERRor?": lambda session, numbers, rest, now: self.errors.next(),
            "SYSTem:ERRor:NEXT?": lambda session, numbers, rest, now: self.errors.next(),
            "INSTrument:CATalog?": lambda *_: ",".join('"FTBx-9160"' for _ in self.modules),
            "INSTrument:CATalog:FULL?": lambda *_: ",".join(
                f'"FTBx-9160",{module.name}' for module in self.modules
            ),
            **{PREFIX + header: handler for header, handler in module_text.items()},
        }

    # ---- the manner

    def unsolicited(self, now: float) -> bytes:
        return b'-240,"Hardware error;temperature"\n'  # U: no public program meets one

    def snapshot(self, now: float) -> tuple[tuple[int, bool], ...]:
        resting = self.plant.light(now)
        return tuple((module.channel, module.pair() in resting) for module in self.modules)

    def rebooted(self, keep: bool, now: float) -> None:
        self.errors.clear()
        for module in self.modules:
            module.holder, module.synchronous, module.adjusts = None, False, False
            if not keep:
                module.channel, module.open = 1, False
            self.plant.restore(module.pairs(), now, self.boot_s)

    def close(self, session: Session) -> None:
        super().close(session)
        for module in self.modules:
            if module.holder is session:
                module.holder = None

    # ---- the words

    def _module(self, numbers: tuple[int, ...]) -> Module:
        if not 1 <= numbers[0] <= len(self.modules):
            raise ScpiError(SUFFIX, f"LINS{numbers[0]}")
        return self.modules[numbers[0] - 1]

    def _seen(self, module: Module, now: float) -> tuple[int, bool]:
        return self.view(now)[int(module.name) - 1]

    def _moves(self, module: Module, now: float) -> bool:
        circuit = self.plant.circuit(("in", f"{module.name}.in"))
        return circuit is not None and circuit.lit_at_s > now

    def _go(
        self, module: Module, session: Session, channel: int, is_open: bool, now: float
    ) -> None:
        if module.holder not in (None, session):
            raise ScpiError(EXECUTION, f"LINS{module.name} is locked by another client")
        self.wrote(now)
        if (channel, is_open) == (module.channel, module.open):
            return
        before, was = module.pairs(), (module.channel, module.open)
        module.channel, module.open = channel, is_open
        after = module.pairs()
        module.channel, module.open = was
        self.advance(before, after, now)
        if not self.silent:
            module.channel, module.open = channel, is_open
            session.delay_s = self.moving(now) if module.synchronous else 0.0

    def _scan(self, module: Module, session: Session, channel: int, now: float) -> None:
        self._go(module, session, channel, module.open or self.scan_opens, now)

    def _adjust(self, module: Module, session: Session, now: float) -> None:
        """By way of the reference position back to the channel."""
        if module.holder not in (None, session):
            raise ScpiError(EXECUTION, f"LINS{module.name} is locked by another client")
        self.wrote(now)
        self.advance(module.pairs(), module.pairs(), now)

    @staticmethod
    def _lock(module: Module, session: Session, on: bool) -> None:
        if module.holder not in (None, session):
            raise ScpiError(EXECUTION, f"LINS{module.name} is locked by another client")
        module.holder = session if on else None

    def _reset(self, session: Session, numbers: tuple[int, ...], rest: str, now: float) -> None:
        for module in self.some(self.modules):
            self._go(module, session, 1, False, now)

    def _complete(self, session: Session, numbers: tuple[int, ...], rest: str, now: float) -> str:
        session.delay_s = self.moving(now)
        return "1"


def platform(modules: int, channels: int) -> tuple[Labels, Labels]:
    """Return the labels of so many modules with so many channels each. Raises ValueError: too many
    modules.
    """
    return selectors(modules, channels, 1, MOST_MODULES)


# settle_s: U
FAMILY = Family(
    "exfo-scpi", ("tcp",), ExfoScpi, platform, size="4x12", settle_s=0.1, quick={"size": "8x12"}
)
