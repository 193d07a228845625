"""The best graphs known or found, up to 64 ranks, for a number of ranks and a degree: fewest steps,
of these fewest hops. Duplex.

Each is stored as a graph that turns: rank (orbit, turn) is number orbit * folds + turn, and a way
(i, j, s) joins (i, t) to (j, t + s) for every turn t modulo `folds`, as in a voltage graph over a
cyclic group. So a circulant is one orbit, Petersen's graph two of five turns. A rank that stays
where it is (`fixed`) is the last one, joined to all turns of the first orbits.

Graphs of `SEARCHED` were found by annealing
(docs/decisions/0085-catalogue-of-low-diameter-graphs.md); that of 57 ranks is a polarity graph.
Sources of orders that are the largest known for their degree and diameter: `LARGEST`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from planner.topology.known_graphs import SEARCHED

Edges = tuple[tuple[int, int], ...]

LARGEST = {
    (10, 3): "diameter 2: Petersen's graph, the Moore bound",
    (20, 3): "diameter 3: as many ranks as C5*F4 (Elspas 1964), no larger one is known",
    (
        38,
        3,
    ): "diameter 4: as many ranks as the graph of Doty (1982) and von Conta (1983), no larger one is known",
    (15, 4): "diameter 2: as many ranks as K3*C5 (Elspas 1964), no larger one is known",
    (41, 4): "diameter 3: as many ranks as Allwright's graph (1992), no larger one is known",
    (
        24,
        5,
    ): "diameter 2: as many ranks as K3*X8 (Bermond, Delorme and Farhi), no larger one is known",
    (32, 6): "diameter 2: as many ranks as Wegner's graph (1977), no larger one is known",
    (50, 7): "diameter 2: Hoffman and Singleton's graph (1960), the Moore bound",
    (
        57,
        8,
    ): "diameter 2: polarity graph (Erdos and Renyi 1962, Brown 1966), no larger one is known",
}
"""By ranks and degree: the diameter reached, and what is known of graphs of this order (Miller and
Siran, survey of 2013).
"""


@dataclass(frozen=True)
class VoltageGraph:
    """A graph by its turns, described above."""

    n: int
    degree: int
    folds: int
    fixed: int
    paths: tuple[tuple[int, int, int], ...]

    @property
    def name(self) -> str:
        by = f"{self.folds} turns" if self.folds > 1 else "link by link"
        return f"voltage graph {self.n} of degree {self.degree}, {by}"

    def edges(self) -> Edges:
        """Its links, each once, the smaller rank first."""
        return tuple(sorted({(min(a, b), max(a, b)) for a, b in self._paths()}))

    def _paths(self) -> Iterator[tuple[int, int]]:
        folds = self.folds
        for i, j, step in self.paths:
            for step_number in range(folds):
                yield i * folds + step_number, j * folds + (step_number + step) % folds
        for orbit in range(self.degree // folds if self.fixed else 0):
            for step_number in range(folds):
                yield self.n - 1, orbit * folds + step_number


def polarity(order: int) -> Edges:
    """Points of the projective plane over a prime field, joined where their product is 0; those on
    their own lines in pairs.
    """
    points = (
        [(1, y, z) for y in range(order) for z in range(order)]
        + [(0, 1, z) for z in range(order)]
        + [(0, 0, 1)]
    )

    def product(a: int, b: int) -> int:
        return sum(x * y for x, y in zip(points[a], points[b], strict=True)) % order

    joined = [
        (a, b) for a in range(len(points)) for b in range(a + 1, len(points)) if product(a, b) == 0
    ]
    own = [a for a in range(len(points)) if product(a, a) == 0]
    return (*joined, *zip(own[::2], own[1::2], strict=False))


@cache
def known() -> dict[tuple[int, int], VoltageGraph]:
    """All stored graphs by ranks and degree."""
    found = {}
    for row in SEARCHED.replace("\n ", " ").splitlines():
        head, _, tail = row.partition(":")
        n, degree, folds, fixed = map(int, head.split())
        numbers = [[int(number) for number in direction.split(",")] for direction in tail.split()]
        found[n, degree] = VoltageGraph(
            n, degree, folds, fixed, tuple((i, j, s) for i, j, s in numbers)
        )
    return found
