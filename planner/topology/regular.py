"""Regular graphs of few ranks, with their mean hops: circulants, other Cayley graphs, known graphs, exchanges of links."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import combinations
from math import gcd

import numpy as np
from numpy.typing import NDArray

from planner.model.demand import Infeasible
from planner.topology.direct import graph, pareto
from planner.workers import Workers, spread

RESTARTS = 4
EXCHANGES = 1500
"""Starts of the search by exchanges, and exchanges tried in each."""

Links = tuple[tuple[int, int], ...]
Found = tuple[float, str, Links]
"""Mean hops, the name, and the links of a graph."""


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
            for here, beside in enumerate(out):
                mine = reached[here]
                for there in beside:
                    mine |= reached[there]
                further.append(mine)
            if further == reached:
                return float("inf")
            reached = further
            if all(mine == self.all for mine in reached):
                return total / self.total
            waiting = sum(row[self.all ^ mine] for row, mine in zip(self.weight, reached, strict=True))
        return float("inf")


def _out(n: int, links: Iterable[tuple[int, int]], duplex: bool) -> list[set[int]]:
    out: list[set[int]] = [set() for _ in range(n)]
    for a, b in links:
        out[a].add(b)
        if duplex:
            out[b].add(a)
    return out


def circulants(n: int, degree: int, duplex: bool, judge: Judge, alike: bool) -> Iterator[Found]:
    """Every set of steps; where ranks are alike, one of those that differ by a factor only."""
    seen: set[tuple[int, ...]] = set()
    units = [u for u in range(1, n) if gcd(u, n) == 1] if alike else [1]
    single = [n // 2] if duplex and n % 2 == 0 else []
    if duplex:
        choices: Iterable[tuple[int, ...]] = combinations(range(1, (n + 1) // 2), degree // 2)
        if degree % 2:
            choices = (steps + tuple(single) for steps in choices)
    else:
        choices = combinations(range(1, n), degree)
    for steps in choices:
        if gcd(n, *steps) != 1:
            continue
        turned = ((u * s % n for s in steps) for u in units)
        same = min(tuple(sorted(min(s, n - s) if duplex else s for s in other)) for other in turned)
        if same in seen:
            continue
        seen.add(same)
        links = tuple((i, (i + s) % n) for s in same for i in range(n // 2 if duplex and 2 * s == n else n))
        yield judge.hops(_out(n, links, duplex)), f"circulant {n}{same}".replace(",)", ")"), links


def cayley(n: int, degree: int, duplex: bool, judge: Judge) -> Iterator[Found]:
    """Cayley graphs of products of two cyclic groups and of the dihedral group; at most a few thousand sets of generators."""
    tables = [(f"Z{a} x Z{n // a}", _product_table(a, n // a)) for a in range(2, n) if n % a == 0 and a <= n // a]
    if n % 2 == 0 and n > 4:
        tables.append((f"D{n // 2}", _dihedral_table(n // 2)))
    for name, table in tables:
        if duplex:
            inverse = [row.index(0) for row in table]
            units = sorted({(min(g, inverse[g]), max(g, inverse[g])) for g in range(1, n)})
            single = [g for g in units if g[0] == g[1]]
            double = [g for g in units if g[0] != g[1]]
            choices: Iterable[tuple[tuple[int, ...], ...]] = (
                twos + ones
                for count in range(degree // 2 + 1)
                for twos in combinations(double, count)
                for ones in combinations(single, degree - 2 * count)
            )
        else:
            choices = (tuple((g,) for g in chosen) for chosen in combinations(range(1, n), degree))
        for number, chosen in enumerate(choices):
            if number >= 300:
                break
            generators = sorted({g for unit in chosen for g in unit})
            out = [[table[x][g] for g in generators] for x in range(n)]
            hops = judge.hops(out)
            if hops < float("inf"):
                links = tuple((x, y) for x in range(n) for y in out[x] if not duplex or x < y)
                yield hops, f"Cayley graph of {name} by {tuple(generators)}", links


def known(n: int, degree: int, duplex: bool, judge: Judge) -> Iterator[Found]:
    """Graphs of the direct-connect catalogue whose links all join other ranks."""
    try:
        catalogue = pareto(n, degree, duplex=duplex)
    except Infeasible:
        return
    for entry in catalogue:
        links = tuple(sorted({(min(pair), max(pair)) if duplex else (pair[0], pair[1]) for pair in entry.build().cables.tolist()}))
        regular = len(links) == n * degree // (2 if duplex else 1) and all(a != b for a, b in links)
        if regular and (hops := judge.hops(_out(n, links, duplex))) < float("inf"):
            yield hops, entry.name, links


def _product_table(a: int, b: int) -> list[list[int]]:
    return [[(x // b + y // b) % a * b + (x + y) % b for y in range(a * b)] for x in range(a * b)]


def _dihedral_table(m: int) -> list[list[int]]:
    """Turns 0 to m - 1, then reflections: x * y is x after y."""

    def times(x: int, y: int) -> int:
        turn = x % m + (-(y % m) if x >= m else y % m)
        return turn % m + (m if (x >= m) != (y >= m) else 0)

    return [[times(x, y) for y in range(2 * m)] for x in range(2 * m)]


def exchanged(
    n: int, degree: int, duplex: bool, judge: Judge, start: Links | None, seed: int, alike: bool, workers: Workers | None
) -> Iterator[Found]:
    """Graphs reached by exchanging the ends of two links, from the best circulant and from random ones, never for worse.

    Of each start all graphs of its fewest hops that are not alike; where ranks are not alike, all with other links.
    """
    if start is None or degree < 2:
        return
    dice = np.random.default_rng(seed).random((RESTARTS, EXCHANGES + n * degree, 3))
    anything = (0, *[n * degree] * (RESTARTS - 1))  # from random graphs: first so many exchanges at random
    pieces = ((start, *each, judge, duplex) for each in zip(dice, anything, strict=True))
    seen: set[Hashable] = set()
    for attempt, (best, fewest) in enumerate(spread(workers, _descended, pieces)):
        for found in fewest:
            mark = _mark(n, found, duplex) if alike else frozenset(found)
            if mark not in seen:
                seen.add(mark)
                yield best, f"search by exchanges, start {attempt + 1}", found


def _descended(start: Links, dice: NDArray[np.float64], anything: int, judge: Judge, duplex: bool) -> tuple[float, list[Links]]:
    """The fewest hops that exchanges reach, and all graphs met that have them. anything: exchanges that may be for worse."""
    fewest: list[Links] = []
    links = list(start)
    out = _out(judge.n, links, duplex)
    best = judge.hops(out)
    for number, (first, second, turn) in enumerate(dice.tolist()):
        i, j = int(first * len(links)), int(second * len(links))
        (a, b), (c, d) = links[i], links[j]
        if duplex and turn < 0.5:
            c, d = d, c
        # a-b and c-d become a-d and c-b
        if len({a, b, c, d}) < 4 or d in out[a] or b in out[c]:
            continue
        _swap(out, (a, b), (c, d), duplex)
        now = judge.hops(out)
        if now <= best or (number < anything and now < float("inf")):
            if now < best:
                fewest.clear()
            best = now
            links[i], links[j] = (a, d), (c, b)
            fewest.append(tuple(links))
        else:
            _swap(out, (a, d), (c, b), duplex)
    return best, fewest or [tuple(links)]


def _mark(n: int, links: Links, duplex: bool) -> tuple[object, ...]:
    """What graphs have in common that differ in the names of ranks only: how many closed walks of each length pass each rank."""
    walks = bare = graph(n, links, duplex=duplex).adjacency
    counts = []
    for _ in range(4):
        walks = walks @ bare
        counts.append(np.diag(walks))
    return tuple(sorted(zip(*(count.tolist() for count in counts), strict=True)))


def _swap(out: list[set[int]], first: tuple[int, int], second: tuple[int, int], duplex: bool) -> None:
    (a, b), (c, d) = first, second
    for x, old, new in ((a, b, d), (c, d, b)):
        out[x].discard(old)
        out[x].add(new)
    if duplex:
        for x, old, new in ((b, a, c), (d, c, a)):
            out[x].discard(old)
            out[x].add(new)
