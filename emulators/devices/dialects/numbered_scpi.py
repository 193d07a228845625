"""SCPI with numbers inside the headers (`ROUTe6:SCAN 2`, `LINStrument1:STATus?`), and switches that
turn a common port.

A 1xN switch is always somewhere: its motor goes to a position whatever is at the port there, so a
failed port costs light and not the position. Only a mirror that is stuck stays where it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from emulators.devices.dialects.base import Session, State
from emulators.devices.dialects.scpi import (
    EXECUTION,
    HARDWARE,
    MISSING,
    PARAMETER_TYPE,
    RANGE,
    UNDEFINED,
    ScpiDialect,
    ScpiError,
    spellings,
    units,
)
from emulators.devices.family import Labels
from emulators.optics.light import FOREVER_S
from emulators.optics.plant import Pair, Plant

Handler = Callable[[Session, tuple[int, ...], str, float], str | None]
"""(session, the header's numbers, the parameter, now) -> the answer, None: there is none. Raises
ScpiError.
"""

_NUMBER = re.compile(r"[0-9]{1,4}")


class NumberedScpi(ScpiDialect[State]):
    """A device whose headers may carry numbers; in `handlers` a `#` stands for each of them."""

    end = "\n"  # of an answer
    joint = ";"  # between the answers to one message
    remembers = False  # whether a header goes on where the last message was, whoever sent it

    def __init__(self, plant: Plant, *, seed: int, idle_s: float | None, boot_s: float) -> None:
        super().__init__(plant, seed=seed, idle_s=idle_s, boot_s=boot_s)
        self._path = ""
        self._spelt = {
            word: handler
            for header, handler in self.handlers().items()
            for word in spellings(header)
        }

    def handlers(self) -> Mapping[str, Handler]:
        """Return what the device knows, each header spelt as in a manual."""
        raise AssertionError("a device says itself what it knows")

    def execute(self, session: Session, command: str, now: float) -> bytes:
        answers, path = [], self._path
        for unit in units(command):
            header, _, rest = unit.strip().partition(" ")
            if not header:
                continue
            try:
                handler, numbers, path = self.find(header.upper(), path)
                answer = handler(session, numbers, rest.strip(), now)
            except ScpiError as error:
                self.errors.add(error.code, error.detail)
                continue
            if answer is not None:
                answers.append(answer)
        self._path = path if self.remembers else ""
        return (self.joint.join(answers) + self.end).encode("latin-1") if answers else b""

    def find(self, header: str, path: str) -> tuple[Handler, tuple[int, ...], str]:
        """Return handler, numbers and the path after it: a header without a leading colon goes on
        where the last one was (SCPI-99 6.2.4). Raises ScpiError.
        """
        full = (
            header
            if header.startswith("*")
            else header[1:]
            if header.startswith(":")
            else path + header
        )
        handler = self._spelt.get(_NUMBER.sub("#", full))
        if handler is None:
            raise ScpiError(UNDEFINED, header[:40])
        after = path if header.startswith("*") else full[: full.rfind(":") + 1]
        return handler, tuple(int(number) for number in _NUMBER.findall(full)), after

    def advance(self, old: Iterable[Pair], new: Iterable[Pair], now: float) -> None:
        """Go from the circuits `old` to `new`, dark in between. Raises ScpiError: something is
        stuck or locked; nothing moves.
        """
        old, new = tuple(old), tuple(new)
        if why := self.plant.wrong.fixed((*old, *new)):
            raise ScpiError(HARDWARE if why.endswith(" stuck") else EXECUTION, why)
        if not self.silent:
            self.plant.disconnect(old, now)
            self.plant.restore(new, now)

    def set_out(self, old: Iterable[Pair], new: Iterable[Pair]) -> None:
        """Be at `new` as if it had been so for ever. Raises ValueError: no such ports."""
        self.plant.disconnect(old, FOREVER_S)
        self.plant.history.clear()
        self.plant.preset(new)

    def moving(self, now: float) -> float:
        """Return how long (s) something still moves."""
        self.plant.advance(now)
        circuits = (self.plant.circuit(("in", ingress)) for ingress, _ in self.plant.pairs())
        return max(
            (circuit.lit_at_s - now for circuit in circuits if circuit and circuit.lit_at_s > now),
            default=0.0,
        )


def whole(text: str, least: int, most: int) -> int:
    """Return a parameter that is a whole number. Raises ScpiError."""
    if not text:
        raise ScpiError(MISSING)
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise ScpiError(PARAMETER_TYPE, text[:20])
    if not least <= int(text) <= most:
        raise ScpiError(RANGE, text)
    return int(text)


def switch(text: str) -> bool:
    """Return a parameter that is 0, 1, OFF or ON. Raises ScpiError."""
    if text.upper() not in ("0", "1", "OFF", "ON"):
        raise ScpiError(PARAMETER_TYPE if text else MISSING, text[:20])
    return text.upper() in ("1", "ON")


def selectors(modules: int, channels: int, first: int, most: int) -> tuple[Labels, Labels]:
    """Return the labels of so many 1xN switches in one chassis, which counts them from `first`:
    `2.in`, `2.1`..`2.N` of module 2.

    Channel 1 of each module comes first among the egress labels, shifted by one module: hosts wired
    to the k-th ingress and the k-th egress can be made a ring. Raises ValueError: more than `most`
    modules.
    """
    if modules > most:
        raise ValueError(f"size: such a chassis has at most {most} modules, not {modules}")
    names = [str(first + n) for n in range(modules)]
    ring = [f"{name}.1" for name in (names[-1], *names[:-1])]
    return tuple(f"{name}.in" for name in names), (
        *ring,
        *(f"{name}.{n}" for name in names for n in range(2, channels + 1)),
    )
