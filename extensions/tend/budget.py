"""What trials may cost within an hour: moves of circuits, and darkness. Pure.

A trial books its way there and back before anything moves, until after the latest moment at which
it can still be taken back; so no hour has more, whoever takes it back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from optics.errors import StoreFailed

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Spent:
    """moves: circuits' settings made or broken. dark_ms: the longest darkness of each change. at:
    when it was spent, or is by then (wall s). slower: how many times as long as it was rehearsed a
    change was dark, at the worst.
    """

    at: float
    moves: int
    dark_ms: float
    slower: float = 1.0

    def __str__(self) -> str:
        return f"{self.at:.3f} {self.moves} {self.dark_ms:.3f} {self.slower:.3f}"

    @classmethod
    def of(cls, text: str, file: Path) -> Spent:
        """file: has it. Raises: StoreFailed - it is not what `str` writes."""
        try:
            at, moves, dark_ms, slower = text.split()
            return cls(float(at), int(moves), float(dark_ms), float(slower))
        except ValueError as error:
            hint = f"rm {file}; what earlier trials cost is forgotten with it"
            raise StoreFailed(f"{file}: {text!r} is no cost of a trial", hint=hint) from error


@dataclass
class Budget:
    """moves, dark_ms: of an hour. spent: oldest first."""

    moves: int
    dark_ms: float
    spent: list[Spent] = field(default_factory=list)

    def left(self, now: float) -> tuple[int, float]:
        """Moves and darkness (ms) that may still be spent."""
        self.spent = [one for one in self.spent if one.at > now - HOUR_S]
        moves, dark_ms = (one.moves for one in self.spent), (one.dark_ms for one in self.spent)
        return self.moves - sum(moves), self.dark_ms - sum(dark_ms)

    def there_and_back(self, moves: int, dark_ms: float) -> tuple[int, float]:
        """What a trial books for a change of this size: as dark as the worst of the hour."""
        return 2 * moves, 2 * dark_ms * max([1.0, *(one.slower for one in self.spent)])

    def why_not(self, now: float, moves: int, dark_ms: float) -> str:
        """Why a change of this size is not to be tried now; empty if it may be."""
        left = self.left(now)
        asked = self.there_and_back(moves, dark_ms)
        if asked[0] > left[0]:
            return f"{asked[0]} moves there and back, {left[0]} of {self.moves} are left this hour"
        if asked[1] > left[1]:
            return f"{asked[1]:.0f} ms dark there and back, {max(0.0, left[1]):.0f} of {self.dark_ms:g} ms are left this hour"
        return ""

    def book(self, until: float, moves: int, dark_ms: float) -> Spent:
        """Book a change and its way back, which is over at `until` (wall s)."""
        self.spent.append(Spent(until, *self.there_and_back(moves, dark_ms)))
        return self.spent[-1]

    def settle(self, booked: Spent, became: Spent) -> None:
        """Replace what was booked by what it came to."""
        self.spent[self.spent.index(booked)] = became
