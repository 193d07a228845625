"""One option of a program: what its value may be, and how it is read."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

MANY = 10**9


@dataclass(frozen=True, slots=True)
class Option:
    """One option, `--batch` on the command line and `batch` in a plan.

    kind: size is a number of bytes, which may be written 64K or 1G. least, most: the range, both
    included. above: as `least`, but not included. multiple: of what a value must be a multiple.
    weights: another value trains other weights, so a job with another value must not go on from
    this one's checkpoints. later: added to a program that had trainings already, which are those
    with its default. parse: of a text, which raises ValueError with the reason where it is none of
    this option's; form: what such a text must be, in words.
    """

    name: str
    kind: Literal["whole", "number", "size", "flag", "word", "text"]
    default: int | float | str | bool | None
    help: str
    least: float | None = None
    most: float | None = None
    above: float | None = None
    multiple: int = 1
    choices: tuple[int | str, ...] = ()
    short: str = ""
    weights: bool = False
    later: bool = False
    parse: Callable[[object], object] | None = None
    form: str = ""

    @property
    def wanted(self) -> str:
        """What a value must be, in words."""
        if self.parse is not None:
            return self.form
        if self.choices:
            return f"{', '.join(map(str, self.choices[:-1]))} or {self.choices[-1]}"
        if self.kind == "flag":
            return "true or false"
        text = {
            "whole": "a whole number",
            "number": "a number",
            "size": "a size such as 65536, 64K or 1G",
        }[self.kind]
        if self.above is not None:
            text += (
                f" above {self.above:g} and up to {self.most:.0f}"
                if self.most is not None
                else f" above {self.above:g}"
            )
        elif self.least is not None:
            text += f" from {self.least:.0f}" + (
                f" to {self.most:.0f}" if self.most is not None else " up"
            )
        return text + (f", a multiple of {self.multiple}" if self.multiple > 1 else "")

    def takes(self, value: object) -> bool:
        """Whether a value of a plan is one of this option's."""
        if self.parse is not None:
            return self._fault(value) is None
        if self.kind == "flag" or isinstance(value, bool):
            return self.kind == "flag" and isinstance(value, bool)
        if self.kind == "size" and isinstance(value, str):
            try:
                value = size(value)
            except argparse.ArgumentTypeError:
                return False
        if self.kind == "word" or isinstance(value, str):
            return value in self.choices
        if not isinstance(value, int) and not (isinstance(value, float) and self.kind == "number"):
            return False
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (not self.choices or value in self.choices)
            and (self.multiple == 1 or value % self.multiple == 0)
        )

    def reason(self, value: object) -> str:
        """What is to be added to `wanted` where `value` is none of this option's: `: because`, or
        nothing.
        """
        why = self._fault(value) if self.parse is not None else None
        return f": {why}" if why else ""

    def _fault(self, value: object) -> str | None:
        assert self.parse is not None
        try:
            self.parse(value)
        except ValueError as error:
            return str(error)
        return None

    def read(self, text: str) -> int | float | str:
        """The value of a word of the command line. Raises: argparse.ArgumentTypeError - it is none
        of this option's.
        """
        value: int | float | str = text
        with contextlib.suppress(ValueError):
            value = (
                int(text)
                if self.kind == "whole"
                else float(text)
                if self.kind == "number"
                else text
            )
        value = size(text) if self.kind == "size" else value
        if not self.takes(value):
            raise argparse.ArgumentTypeError(
                f"wanted {self.wanted}, got {text!r}{self.reason(value)}"
            )
        return value


def size(text: str) -> int:
    """The bytes that `text` such as 8, 64K or 1G names."""
    match = re.fullmatch(r"([0-9]{1,15})([KMG]?)B?", text.strip().upper())
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r}: not a size such as 8, 64K or 1G")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]
