"""Where to look at a ring all-reduce so that every sum is seen, with the fewest looks.

A ring of n reduces n chunks: each is summed as it goes round, and then, complete, goes round once
more. The member at position p completes chunk p + 1, and receives all the others complete. So one
receiver sees n - 1 of n, and any second one the missing one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import combinations
from typing import TypeVar

T = TypeVar("T")


def unseen(order: Sequence[T], receivers: Collection[T]) -> list[int]:
    """The chunks, by number, that none of `receivers` receives complete in a ring of this order;
    none where it has one member.
    """
    size = len(order)
    seen = {
        chunk
        for at, member in enumerate(order)
        if member in receivers
        for chunk in range(size)
        if chunk != (at + 1) % size
    }
    return [chunk for chunk in range(size) if chunk not in seen] if size > 1 else []


def receivers(orders: Sequence[Sequence[T]], preferred: Iterable[T]) -> tuple[T, ...]:
    """The fewest members that between them receive every chunk of every ring complete, the first
    such choice by `preferred`.

    Raises: ValueError - not all of them together do.
    """
    members = list(preferred)
    for count in range(1, len(members) + 1):
        for chosen in combinations(members, count):
            if not any(unseen(order, chosen) for order in orders):
                return chosen
    raise ValueError("no choice of members sees every chunk of every ring")
