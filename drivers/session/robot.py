"""What drivers of robotic patch panels share: nobody listening, and the order of moves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from optics import Progress

P = TypeVar("P", tuple[str, str], tuple[int, int])

BUDGET_S = 120.0
"""Longest single move (s). CODE: MAPPING.TIMEOUT of Quali cloudshell-L1-w2w-rome, the only figure on record for any robot."""
CHECK_S = 3.0
"""Time (s) between two looks at a robot. CODE: CHECK_DELAY of the same driver."""
LEAST_S = 0.25
"""A robot that runs a thousand times faster still needs time (s) to answer."""


def deaf(_: Progress) -> None:
    """Nobody listens."""


def in_turn(gone: Iterable[P], new: Iterable[P], wish: Iterable[P] = ()) -> list[tuple[bool, P]]:
    """The moves, (True, pair) to plug and (False, pair) to take out, in the order that keeps each port dark for the shortest time.

    What a new fibre needs is freed just before it; every port is free when it is reused. wish: an order to follow as far as that
    allows (`Change.order`); pairs that need no move any more are passed over.
    """
    place: dict[P, int] = {pair: at for at, pair in enumerate(wish)}
    left: list[P] = sorted(gone)
    fresh: set[P] = set(new)
    turns: list[tuple[bool, P]] = []
    for _, _, pair in sorted((place.get(pair, len(place)), pair in fresh, pair) for pair in fresh.union(left)):
        if pair in fresh:
            for held in [other for other in left if other[0] == pair[0] or other[1] == pair[1]]:
                left.remove(held)
                turns.append((False, held))
            turns.append((True, pair))
        elif pair in left and pair in place:
            left.remove(pair)
            turns.append((False, pair))
    unasked: list[tuple[bool, P]] = [(False, pair) for pair in left]
    return turns + unasked if place else unasked + turns
