"""The best topologies found for up to 16 ranks: circulants, other Cayley graphs, known graphs, exchanges of links; a Pareto list.

There are too many regular graphs to examine them all (1544 of 12 ranks and degree 4, millions of 16), so that a better one may
exist unless a figure is at its bound. All candidates are regular and, where it can be, divided into rings through all ranks that
use every link, so that all-reduce is as fast as the ports allow; they differ in what traffic between pairs costs, in hops and in
what failures leave. TopologyFinder's own answer is always among those compared.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import gcd

import numpy as np
from numpy.typing import NDArray

from planner.model.demand import Demand, Infeasible
from planner.model.planes import check
from planner.model.shape import Lab, Ring, Shape
from planner.model.totient import ring
from planner.predict.routing import even_loads
from planner.predict.score import Score, allreduce_bound_s, allreduce_s, moore, mp_s, score, survives, worst_diameter
from planner.schedule import bfb
from planner.topology.direct import graph, instead, pareto
from planner.topology.hamilton import decompose
from planner.topology.topofinder import connection, find
from planner.workers import Workers, spread

LARGEST = 16
"""Most ranks for which the search takes reasonable time."""
FINALISTS = 4
"""Graphs of each kind that are scored in full, those of fewest hops."""
EXCHANGED_FINALISTS = 8
"""The same of graphs found by exchanges: of as many hops, their fullest links differ, and only the linear program says how much."""
RESTARTS = 4
EXCHANGES = 1500
"""Starts of the search by exchanges, and exchanges tried in each."""

Links = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A topology and its score. `by`: what its all-reduce time is of, `rings` or `breadth-first` (of `schedule/bfb.py`)."""

    name: str
    shape: Shape
    score: Score
    by: str = "rings"

    @property
    def seconds(self) -> float:
        """Traffic between pairs and all-reduce, one after the other."""
        return self.score.mp_s + self.score.allreduce_s


@dataclass(frozen=True, eq=False)
class Findings:
    """`best`: none is beaten in all figures by another, the fastest first. `totient`: TopologyFinder's answer, where it has one.

    moore: diameter and mean hops no graph of this degree can go below. counts: graphs examined, by kind.
    """

    best: tuple[Candidate, ...]
    totient: Candidate | None
    moore: tuple[int, float]
    allreduce_bound_s: float
    counts: tuple[tuple[str, int], ...]

    def beaten(self) -> str:
        """In which figures totient strides are beaten, in words."""
        first = self.best[0]
        if self.totient is None:
            return "totient strides give no topology here"
        better = first.score.beats(self.totient.score)
        if not better:
            return "totient strides are not beaten"
        figures = [_gain(name, getattr(self.totient.score, name), getattr(first.score, name)) for name in better]
        return f"{first.name} beats totient strides: {', '.join(figures)}"


def _gain(name: str, was: float, now: float) -> str:
    """A better figure in words; times as ratios, which do not depend on the rate of links."""
    if name in ("allreduce_s", "mp_s"):
        return f"{'all-reduce' if name == 'allreduce_s' else 'transfers'} {now / was - 1:+.2%}"
    return f"{'links that must fail' if name == 'fails' else name} {was:.6g} -> {now:.6g}"


def search(demand: Demand, lab: Lab, *, seed: int = 0, schedules: bool = True, workers: Workers | None = None) -> Findings:
    """Search all circulants, other Cayley graphs, known graphs and graphs near the best; score the best of each kind.

    schedules: the back-end can run any schedule, so that breadth-first ones count where they are faster than rings.
    workers: carry out the searches by exchanges and the scores of the finalists; the answer does not depend on them.
    Raises: Infeasible - too many ranks, or nothing fits the lab.
    """
    n = demand.n
    if n > LARGEST:
        why = f"it ends at {LARGEST}, as it weighs each of the 2^{n} sets of destinations"
        raise Infeasible(f"search of all kinds of graphs among {n} ranks: {why}", instead(n, lab.degree, duplex=lab.duplex))
    degree = min(lab.degree, n - 1)
    if lab.duplex and n % 2 and degree % 2:
        degree -= 1
    weights = demand.mp if demand.mp.any() else 1.0 - np.eye(n)
    alike = len(np.unique(weights[~np.eye(n, dtype=bool)])) == 1
    judge = _Judge(n, weights)
    kinds: dict[str, list[tuple[float, str, Links]]] = {"circulant": [], "Cayley graph": [], "known graph": [], "exchanged": []}
    kinds["circulant"] = list(_circulants(n, degree, lab.duplex, judge, alike))
    if alike:
        kinds["Cayley graph"] = list(_cayley(n, degree, lab.duplex, judge))
        kinds["known graph"] = list(_known(n, degree, lab.duplex, judge))
    start = min(kinds["circulant"], default=None)
    kinds["exchanged"] = list(_exchanged(n, degree, lab.duplex, judge, start[2] if start else None, seed, alike, workers))
    totient = _totient(demand, lab, seed, schedules)
    finalists = [entry for kind, found in kinds.items() if kind != "exchanged" for entry in _distinct(found)]
    finalists += _least_full(kinds["exchanged"], n, lab.duplex, weights)
    candidates: list[Candidate] = []
    finalists.sort(key=lambda entry: entry[0])  # stable: of as few hops, circulants first
    hopeful = spread(workers, _hopeful, ((entry, demand, lab, schedules) for entry in finalists))
    for candidate in (found for found in hopeful if found is not None):
        figures = _figures(candidate.score, n)
        if not any(_no_better(figures, _figures(rival.score, n)) for rival in candidates):
            exact = replace(candidate.score, mp_s=mp_s(candidate.shape, demand.mp, lab))
            candidates.append(replace(candidate, score=exact))
    candidates += [totient] if totient is not None else []
    if not candidates:
        raise Infeasible(
            f"no topology of {n} ranks and degree {lab.degree} fits this lab",
            f"{f'take {n + 1} ranks, or simplex links' if n % 2 else 'give hosts more ports'}, or one switch for all ports",
        )
    counts = tuple((kind, len(found)) for kind, found in kinds.items())
    return Findings(
        _pareto(candidates),
        totient,
        moore(n, max(degree, 1), duplex=lab.duplex),
        allreduce_bound_s(n, max((g.bytes for g in demand.groups if len(g.members) == n), default=0), lab),
        counts,
    )


class _Judge:
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


def _circulants(n: int, degree: int, duplex: bool, judge: _Judge, alike: bool) -> Iterator[tuple[float, str, Links]]:
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


def _cayley(n: int, degree: int, duplex: bool, judge: _Judge) -> Iterator[tuple[float, str, Links]]:
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


def _known(n: int, degree: int, duplex: bool, judge: _Judge) -> Iterator[tuple[float, str, Links]]:
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


def _exchanged(
    n: int, degree: int, duplex: bool, judge: _Judge, start: Links | None, seed: int, alike: bool, workers: Workers | None
) -> Iterator[tuple[float, str, Links]]:
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


def _descended(start: Links, dice: NDArray[np.float64], anything: int, judge: _Judge, duplex: bool) -> tuple[float, list[Links]]:
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


def _least_full(
    found: list[tuple[float, str, Links]], n: int, duplex: bool, weights: NDArray[np.float64]
) -> list[tuple[float, str, Links]]:
    """Graphs of fewest hops, of these the ones whose fullest link carries least where traffic is divided evenly."""

    def fullest(links: Links) -> float:
        return float(even_loads(graph(n, links, duplex=duplex), weights).max())

    fewest = sorted({round(hops, 9) for hops, _, _ in found})[:2]
    rated = [
        (round(hops, 9), round(fullest(links), 9), hops, name, links) for hops, name, links in found if round(hops, 9) in fewest
    ]
    rated.sort(key=lambda entry: entry[:2])
    return [(hops, name, links) for _, _, hops, name, links in rated[:EXCHANGED_FINALISTS] if hops < float("inf")]


def _swap(out: list[set[int]], first: tuple[int, int], second: tuple[int, int], duplex: bool) -> None:
    (a, b), (c, d) = first, second
    for x, old, new in ((a, b, d), (c, d, b)):
        out[x].discard(old)
        out[x].add(new)
    if duplex:
        for x, old, new in ((b, a, c), (d, c, a)):
            out[x].discard(old)
            out[x].add(new)


def _distinct(found: list[tuple[float, str, Links]]) -> list[tuple[float, str, Links]]:
    """The best few; a number of hops and a link set only once."""
    kept: list[tuple[float, str, Links]] = []
    for entry in sorted(found, key=lambda e: (e[0], e[1])):
        if entry[0] < float("inf") and all(round(entry[0], 9) != round(other[0], 9) for other in kept):
            kept.append(entry)
        if len(kept) == FINALISTS:
            break
    return kept


def _hopeful(entry: tuple[float, str, Links], demand: Demand, lab: Lab, schedules: bool) -> Candidate | None:
    """The topology with its rings, if it has them, and its score, in which the time of traffic between pairs is a lower bound; None
    if the lab cannot carry it."""
    _, name, links = entry
    bare = graph(demand.n, links, duplex=lab.duplex)
    shape = replace(bare, degree=lab.degree)
    rings = _strides(demand.n, links, lab.duplex) or decompose(bare)
    if rings is not None:
        group = next((group.id for group in demand.groups if len(group.members) == demand.n), connection(demand.groups))
        orders, left = rings
        strides = [order[1] if order == _by_stride(order) else None for order in orders]
        named = tuple(Ring(group, order, stride) for order, stride in zip(orders, strides, strict=True))
        shape = Shape(demand.n, lab.degree, lab.duplex, named, left)
    try:
        check(shape, lab)
    except Infeasible:
        return None
    allreduce, by = _allreduce(shape, demand, lab, schedules)
    least = float((demand.mp * shape.hops).sum()) / len(shape.arcs) / lab.port_bytes_per_s
    hopeful = Score(allreduce, least, shape.mean_hops(demand.mp if demand.mp.any() else None), shape.diameter, 0, None)
    return Candidate(name, shape, replace(hopeful, fails=survives(shape), worst_diameter=worst_diameter(shape)), by)


def _allreduce(shape: Shape, demand: Demand, lab: Lab, schedules: bool) -> tuple[float, str]:
    """Time of all-reduce by whatever is faster, and by what that is."""
    rings = allreduce_s(shape, demand.groups, lab)
    best, by = rings, "rings"
    if schedules and demand.groups and all(len(group.members) == demand.n for group in demand.groups):
        once = bfb.allreduce(shape)
        used = int(np.bincount(shape.arcs[:, 0]).max())
        size = sum(group.bytes for group in demand.groups)
        seconds = once.steps * lab.alpha_s + float(once.load) * size / (used * lab.port_bytes_per_s)
        if seconds < rings * (1 - 1e-9):
            best, by = seconds, "breadth-first"
    return best, by


def _by_stride(order: tuple[int, ...]) -> tuple[int, ...] | None:
    n = len(order)
    return ring(range(n), order[1]) if order[0] == 0 and gcd(order[1], n) == 1 else None


def _strides(n: int, links: Links, duplex: bool) -> tuple[tuple[tuple[int, ...], ...], Links] | None:
    """Rings of a circulant whose steps are all coprime to n, read off its links."""
    steps = sorted({(b - a) % n for a, b in links})
    if duplex:
        steps = sorted({min(s, n - s) for s in steps})
    half = [s for s in steps if duplex and 2 * s == n]
    whole = [s for s in steps if s not in half]
    same = {(i, (i + s) % n) for s in whole for i in range(n)} | {(i, i + s) for s in half for i in range(n // 2)}
    if same != set(links) or any(gcd(s, n) != 1 for s in whole):
        return None
    return tuple(ring(range(n), s) for s in whole), tuple((i, i + s) for s in half for i in range(n // 2))


def _totient(demand: Demand, lab: Lab, seed: int, schedules: bool) -> Candidate | None:
    try:
        found = find(demand, lab, seed=seed)
    except Infeasible:
        return None
    if not found.shape.connected:
        return None
    allreduce, by = _allreduce(found.shape, demand, lab, schedules)
    return Candidate("totient strides (TopologyFinder)", found.shape, score(found.shape, demand, lab, allreduce=allreduce), by)


def _figures(score: Score, n: int) -> tuple[float, ...]:
    """What is compared, less being better; times and hops to six figures."""
    late = score.worst_diameter if score.worst_diameter is not None else n
    rounded = (float(f"{x:.6g}") for x in (score.allreduce_s, score.mp_s, score.hops))
    return (*rounded, score.diameter, -score.fails, late)


def _no_better(mine: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(x <= y for x, y in zip(other, mine, strict=True))


def _pareto(candidates: list[Candidate]) -> tuple[Candidate, ...]:
    """The candidates that no other equals or beats in every figure, the fastest first; of equals the first."""
    rated = [(_figures(candidate.score, candidate.shape.n), place, candidate) for place, candidate in enumerate(candidates)]
    kept = [
        (mine, place, candidate)
        for mine, place, candidate in rated
        if not any(_no_better(mine, other) and (other != mine or at < place) for other, at, _ in rated if at != place)
    ]
    kept.sort(key=lambda entry: (float(f"{entry[2].seconds:.6g}"), entry[0][2:], entry[1]))
    return tuple(candidate for _, _, candidate in kept)
