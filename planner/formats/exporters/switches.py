"""Packet switches for exporters and pictures: which ranks are cabled to which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Switch:
    """A packet switch: the ranks at its ports, and switches whose uplinks end at it. message: its
    rates, for people.
    """

    name: str
    ranks: tuple[int, ...] = ()
    below: tuple[Switch, ...] = ()
    message: str = ""

    def tree(self) -> Iterator[Switch]:
        """Itself, and all below it."""
        yield self
        for switch in self.below:
            yield from switch.tree()

    @property
    def every_rank(self) -> tuple[int, ...]:
        """The ranks it connects, directly or over other switches."""
        return tuple(rank for switch in self.tree() for rank in switch.ranks)
