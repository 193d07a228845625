"""What a port of a Polatis switch may have in addition to a mirror: a power monitor, a variable
attenuator, a flap of its shutter.

That these exist is CODE (public TL1 clients); how they behave in detail is unconfirmed (U) and
stated with each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from emulators.optics.plant import Side

MOST_DB = 40.0  # what an attenuator can take at most (U)


def number_of(text: str) -> float | None:
    """Return a finite number, None for anything else."""
    try:
        number = float(text.strip())
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def metered(model: str, side: Side) -> bool:
    """Return whether a port has a power monitor: I-OST has none (CODE), -701 at egress only, the
    rest at both sides (U).
    """
    return not model.startswith("I-OST") and not (model.endswith("-701") and side[0] == "in")


@dataclass(frozen=True, slots=True)
class Monitor:
    """How a monitor measures: nm, dB, and an averaging time whose unit is U. Written as the columns
    of RTRV-PORT-PMON (CODE).
    """

    wave: float = 1550.0
    offset: float = 0.0
    average: float = 4.0

    def changed(self, values: Mapping[str, float | None]) -> Monitor:
        names = {"WAVE": "wave", "OFFSET": "offset", "AVGTIME": "average"}
        return replace(
            self, **{names[key]: value for key, value in values.items() if value is not None}
        )

    def __str__(self) -> str:
        return f"{self.wave:g},{self.offset:g},{self.average:g}"


@dataclass(slots=True)
class Attenuator:
    """A variable attenuator; the modes' names are CODE, what they do is U.

    NONE: no attenuation. ABSOLUTE: holds the power that leaves at `level` dBm. CONVERGED: reaches
    `level` dBm and stays there whatever then happens to the light. RELATIVE: `level` dB (either
    sign: it only weakens) of attenuation, or, with a reference port, `level` dB below the power at
    that port. None can amplify: a level above what there is leaves the light as it is.
    """

    MODES: ClassVar[frozenset[str]] = frozenset({"NONE", "ABSOLUTE", "RELATIVE", "CONVERGED"})

    mode: str = "NONE"
    level: float = 0.0
    refs: str = ""
    reached: bool = False

    def needed(
        self, reference_dbm: float | None, leaving_dbm: float | None, present_db: float
    ) -> float | None:
        """Return the attenuation (dB) wanted now, None for what there is; `leaving_dbm` is with the
        present one in place.
        """
        if self.mode == "NONE":
            return 0.0
        if self.mode == "RELATIVE" and not self.refs:
            return min(MOST_DB, abs(self.level))
        if leaving_dbm is None or (self.mode == "CONVERGED" and self.reached):
            return None
        target = self.level
        if self.mode == "RELATIVE":
            if reference_dbm is None:
                return None
            target = reference_dbm - abs(self.level)
        self.reached = True
        return min(MOST_DB, max(0.0, leaving_dbm + present_db - target))

    def released(self) -> None:
        """Note that the port has no light to hold: it converges again on the next."""
        self.reached = False

    def __str__(self) -> str:
        return f"MODE={self.mode},LEVEL={self.level:.2f},REFS={self.refs}"


@dataclass(slots=True)
class Flap:
    """A shutter that closes for `dark_s` at the start of each period, `times` times (0: until
    released).
    """

    period_s: float
    dark_s: float
    times: int
    was_shut: bool = False
    _began_s: float | None = None
    _dark: bool = False
    _next_s: float = 0.0

    def start(self, now: float, shut: bool) -> None:
        if self._began_s is None:
            self._began_s, self.was_shut, self._dark = now, shut, False
            self._next_s = now

    def stop(self) -> bool:
        """Return whether it was dark."""
        dark, self._dark, self._began_s = self._dark, False, None
        return dark

    def __str__(self) -> str:
        return f"{self.dark_s * 1000:g},{(self.period_s - self.dark_s) * 1000:g},{self.times}"

    @property
    def next_s(self) -> float | None:
        """When the shutter moves next (s)."""
        return None if self._began_s is None else self._next_s

    def toggled(self, now: float) -> bool | None:
        """Return whether the shutter is to be closed from now on, None when it stays as it is."""
        if self._began_s is None:
            return None
        done = int((now - self._began_s + 1e-9) / self.period_s)
        if self.times and done >= self.times:
            was_dark = self.stop()
            return False if was_dark else None
        within = now - self._began_s - done * self.period_s
        dark = within < self.dark_s - 1e-9
        edge = self.dark_s if dark and self.dark_s < self.period_s else self.period_s
        self._next_s = self._began_s + done * self.period_s + edge
        if dark == self._dark:
            return None
        self._dark = dark
        return dark
