"""What a mutant is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """promise: what it breaks. edits: (file, old text, new text). plot: whose seeds show it
    (`tests.sim.plots`), "" the usual ones.

    most: within so many seeds from `FIRST` on it must die.
    """

    name: str
    promise: str
    edits: tuple[tuple[str, str, str], ...]
    plot: str = ""
    most: int = 300
