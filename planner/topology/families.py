"""Regular graphs of up to 16 ranks by their families: circulants, other Cayley graphs, known
graphs; each with its mean hops.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations
from math import gcd

from planner.model.demand import Infeasible
from planner.topology.direct import pareto
from planner.topology.hops import Judge, Links, neighbours


def circulants(
    n: int, degree: int, duplex: bool, judge: Judge, alike: bool
) -> Iterator[tuple[float, str, Links]]:
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
        rotated = ((u * s % n for s in steps) for u in units)
        same = min(
            tuple(sorted(min(s, n - s) if duplex else s for s in other)) for other in rotated
        )
        if same in seen:
            continue
        seen.add(same)
        links = tuple(
            (i, (i + s) % n) for s in same for i in range(n // 2 if duplex and 2 * s == n else n)
        )
        yield (
            judge.hops(neighbours(n, links, duplex)),
            f"circulant {n}{same}".replace(",)", ")"),
            links,
        )


def cayley(n: int, degree: int, duplex: bool, judge: Judge) -> Iterator[tuple[float, str, Links]]:
    """Cayley graphs of products of two cyclic groups and of the dihedral group; at most a few
    thousand sets of generators.
    """
    tables = [
        (f"Z{a} x Z{n // a}", _product_table(a, n // a))
        for a in range(2, n)
        if n % a == 0 and a <= n // a
    ]
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


def known(n: int, degree: int, duplex: bool, judge: Judge) -> Iterator[tuple[float, str, Links]]:
    """Graphs of the direct-connect catalogue whose links all join other ranks."""
    try:
        catalogue = pareto(n, degree, duplex=duplex)
    except Infeasible:
        return
    for entry in catalogue:
        links = tuple(
            sorted(
                {
                    (min(pair), max(pair)) if duplex else (pair[0], pair[1])
                    for pair in entry.build().cables.tolist()
                }
            )
        )
        regular = len(links) == n * degree // (2 if duplex else 1) and all(a != b for a, b in links)
        if regular and (hops := judge.hops(neighbours(n, links, duplex))) < float("inf"):
            yield hops, entry.name, links


def _product_table(a: int, b: int) -> list[list[int]]:
    return [[(x // b + y // b) % a * b + (x + y) % b for y in range(a * b)] for x in range(a * b)]


def _dihedral_table(m: int) -> list[list[int]]:
    """Turns 0 to m - 1, then reflections: x * y is x after y."""

    def times(x: int, y: int) -> int:
        step = x % m + (-(y % m) if x >= m else y % m)
        return step % m + (m if (x >= m) != (y >= m) else 0)

    return [[times(x, y) for y in range(2 * m)] for x in range(2 * m)]
