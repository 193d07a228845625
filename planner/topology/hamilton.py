"""Rings that use every link of a topology once: a decomposition into Hamiltonian cycles, by
exhaustive search for small ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from planner.model.shape import Shape

STEPS = 20_000
"""Steps of the search before it gives up; for graphs of 16 ranks a few hundred are mostly
enough.
"""

Order = tuple[int, ...]


def decompose(
    shape: Shape, steps: int = STEPS
) -> tuple[tuple[Order, ...], tuple[tuple[int, int], ...]] | None:
    """Orders of rings and, for an odd duplex degree, the matching left over; None where the search
    finds none.

    The links must be as many at every rank; parallel ones go to different rings.
    """
    search = _Search(shape.n, shape.cables.tolist(), shape.duplex, steps)
    rings = search.rings(shape.degree // 2 if shape.duplex else shape.degree)
    if rings is None:
        return None
    left = sorted(pair for pair in search.count.elements() if not shape.duplex or pair[0] < pair[1])
    return tuple(rings), tuple(left)


class _Search:
    def __init__(self, n: int, links: Iterable[tuple[int, int]], duplex: bool, steps: int) -> None:
        self.n, self.duplex, self.left = n, duplex, steps
        self.out: list[set[int]] = [set() for _ in range(n)]
        self.count: Counter[tuple[int, int]] = Counter()
        for a, b in links:
            self.add(a, b)

    def add(self, a: int, b: int) -> None:
        for here, existing in ((a, b), (b, a)) if self.duplex else ((a, b),):
            self.count[here, existing] += 1
            self.out[here].add(existing)

    def rings(self, count: int) -> list[Order] | None:
        """Take that many cycles out of what is left; None if there are not so many, and `out` is
        unchanged.
        """
        if count == 0:
            return []
        for cycle in self.cycles():
            self.take(cycle)
            rest = self.rings(count - 1)
            if rest is not None:
                return [cycle, *rest]
            self.put_back(cycle)
            if self.left <= 0:
                break
        return None

    def cycles(self) -> Iterator[Order]:
        """Hamiltonian cycles of what is left, hosts with few next hops first."""
        path = [0]
        inside = {0}

        def onward() -> list[int]:
            return sorted(
                (x for x in self.out[path[-1]] if x not in inside),
                key=lambda x: (-len(self.out[x] - inside), -x),
            )

        todo = [onward()]
        while todo:
            self.left -= 1
            if self.left <= 0:
                return
            if not todo[-1]:
                todo.pop()
                inside.discard(path.pop())
                continue
            path.append(todo[-1].pop())
            inside.add(path[-1])
            if len(path) == self.n:
                if 0 in self.out[path[-1]] and not (self.duplex and self.n == 2):
                    yield tuple(path)
                todo.append([])
            else:
                todo.append(onward())

    def take(self, cycle: Order) -> None:
        for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True):
            for here, existing in ((a, b), (b, a)) if self.duplex else ((a, b),):
                self.count[here, existing] -= 1
                if not self.count[here, existing]:
                    self.out[here].discard(existing)

    def put_back(self, cycle: Order) -> None:
        for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True):
            self.add(a, b)
