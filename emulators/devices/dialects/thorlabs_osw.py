"""Thorlabs OSW12 and OSW22 MEMS fibre switches on their serial line (USB): 115200 8N1; LF ends a
command, CR LF an answer.

Grades: CODE is what public programs send and read (qudi's osw12, QPnP's switch of the OSWxx-yyyyE
series, tried on an OSW22-1310E), U unconfirmed. CODE: `S 1` is bar, `S 2` cross, neither is
answered; `S?` -> 1 or 2; a state that it is in already is no error; the first answer to `S?` after
a change may be the state before it (qudi discards one, QPnP asks until it is right, at most 3 s);
`I?` is a name with the firmware's version, `T?` a type code, both for people; the serial number is
the USB chip's and not asked here. U, and chosen so that they ask most of a driver:

- the first answer after a change is always the state before it, however long the client waited; the
  next is true;
- nothing is said about a command that is not known or has no such state: it is as if it had not
  come;
- the state says what was commanded: light comes `settle_s` later;
- a reboot that keeps the state keeps it (the mirror latches); one that loses it ends in bar, lit:
  there is no dark position;
- the texts of `I?` and `T?`. RTS/CTS, which QPnP switches on, is not to be had on a
  pseudo-terminal.
"""

from __future__ import annotations

import re

from emulators.devices.dialects.base import Dialect, Session
from emulators.devices.family import Family, Labels, two_sided
from emulators.optics.plant import Pair, Plant

BAR, CROSS = 1, 2


class ThorlabsOsw(Dialect[int]):
    """One switch: bar leads input n to output n, cross to the other output. A 1x2 has input 1
    alone.
    """

    writes = re.compile(r"^\s*S\s*[12]\s*$", re.IGNORECASE)

    def __init__(
        self,
        plant: Plant,
        *,
        model: str | None = None,
        firmware: str = "v1.0",
        seed: int = 0,
        boot_s: float = 1.0,
    ) -> None:
        super().__init__(plant, seed=seed, boot_s=boot_s)
        self.inputs = len(plant.ingress)
        self.name = f"{model or f'OSW{self.inputs}2-1310E'} {firmware}"
        self.state = self._shown = BAR  # what is commanded, what the next answer says
        self.plant.preset(self.pairs(BAR))

    def preset(self, ingress: str, egress: str) -> None:
        """Be in the state that has this pair as if it had been so for ever. Raises ValueError."""
        state = next(
            (state for state in (BAR, CROSS) if (ingress, egress) in self.pairs(state)), None
        )
        if state is None:
            raise ValueError(f"{self.plant.name}: preset {ingress}->{egress}: there is no such way")
        if state != self.state:
            self.plant.power_cycle(0.0)
            self.plant.history.clear()
            self.plant.preset(self.pairs(state))
        self.state = self._shown = state

    def pairs(self, state: int) -> tuple[Pair, ...]:
        """Return the circuits of a state."""
        return tuple((str(n), str(n if state == BAR else 3 - n)) for n in range(1, self.inputs + 1))

    # ---- the manner

    def split(self, session: Session) -> list[str]:
        *lines, session.buffer = session.buffer.split(b"\n")
        return [text for line in lines if (text := line.decode("latin-1").strip())]

    def execute(self, session: Session, command: str, now: float) -> bytes:
        word, _, rest = command.upper().partition(" ")
        match word, rest.strip():
            case "S?", "":
                reported, self._shown = self._shown, self.state
                return self._line(reported if reported != self.state else self.view(now))
            case "S", ("1" | "2") as state:
                self._advance(int(state), now)
            case "I?", "":
                return self._line(self.name)
            case "T?", "":
                return self._line(self.inputs)
        return b""

    def refuse(self, session: Session, command: str, now: float) -> bytes:
        return b""

    def unsolicited(self, now: float) -> bytes:
        return b"ERR\r\n"  # U: no public program meets one

    def snapshot(self, now: float) -> int:
        return self.state

    def rebooted(self, keep: bool, now: float) -> None:
        if not keep:
            self.state = BAR
        self._shown = self.state
        self.plant.restore(self.pairs(self.state), now, self.boot_s)

    # ---- the words

    def _advance(self, state: int, now: float) -> None:
        self.wrote(now)
        fixed = self.plant.wrong.fixed((*self.pairs(self.state), *self.pairs(state)))
        if state == self.state or fixed or self.silent:  # it has no way to say why
            return
        self.plant.disconnect(self.pairs(self.state), now)
        self._shown, self.state = self.state, state
        self.plant.restore(self.pairs(state), now)

    @staticmethod
    def _line(answer: object) -> bytes:
        return f"{answer}\r\n".encode("latin-1")


def bar_and_cross(inputs: int, outputs: int) -> tuple[Labels, Labels]:
    """Return the labels of a 1x2 or a 2x2. Raises ValueError: there is no other such switch."""
    if inputs not in (1, 2) or outputs != 2:
        raise ValueError(f"size: such a switch is a 1x2 or a 2x2, not {inputs}x{outputs}")
    return two_sided(inputs, outputs)


# baud: CODE; settle_s: U
FAMILY = Family("thorlabs-osw", ("serial",), ThorlabsOsw, bar_and_cross, size="2x2", baud=115_200)
