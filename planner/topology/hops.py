"""Mean hops of graphs of up to 16 ranks, by sets of ranks as bits: how a search of many such graphs
weighs them.

Links are pairs of ranks; duplex ones go both ways.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Links = tuple[tuple[int, int], ...]


class Judge:
    """Weighs hops of small graphs by sets as bits."""

    def __init__(self, n: int, weights: NDArray[np.float64]) -> None:
        self.n = n
        self.all = (1 << n) - 1
        table = np.zeros((n, 1))
        for dst in range(n):  # the weight of each set of destinations
            table = np.concatenate([table, table + weights[:, dst : dst + 1]], axis=1)
        self.weight: list[list[float]] = table.tolist()
        self.total = float(weights.sum())

    def hops(self, out: Sequence[Iterable[int]]) -> float:
        """Mean weighted hops, infinite where some rank is out of reach."""
        reached = [1 << rank for rank in range(self.n)]
        total, waiting = 0.0, self.total
        for _ in range(self.n):
            total += waiting
            further = []
            for here, neighbour in enumerate(out):
                mine = reached[here]
                for existing in neighbour:
                    mine |= reached[existing]
                further.append(mine)
            if further == reached:
                return float("inf")
            reached = further
            if all(mine == self.all for mine in reached):
                return total / self.total
            waiting = sum(
                row[self.all ^ mine] for row, mine in zip(self.weight, reached, strict=True)
            )
        return float("inf")


def neighbours(n: int, links: Iterable[tuple[int, int]], duplex: bool) -> list[set[int]]:
    """Return the ranks that each rank's links lead to."""
    out: list[set[int]] = [set() for _ in range(n)]
    for a, b in links:
        out[a].add(b)
        if duplex:
            out[b].add(a)
    return out
