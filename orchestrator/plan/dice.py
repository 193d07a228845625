"""Pseudo-random numbers that are the same in every run. Pure."""

from __future__ import annotations


class Dice:
    """A linear congruential generator with the constants of Knuth's MMIX."""

    def __init__(self) -> None:
        self._state = 1

    def pick(self, count: int) -> int:
        """A number from 0 to `count` - 1."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self._state >> 33) % count
