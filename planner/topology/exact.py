"""The best topologies found for up to 16 ranks: circulants, other Cayley graphs, known graphs,
exchanges of links; a Pareto list.

There are too many regular graphs to examine them all (1544 of 12 ranks and degree 4, millions of
16), so that a better one may exist unless a figure is at its bound. All candidates are regular and,
where it can be, divided into rings through all ranks that use every link, so that all-reduce is as
fast as the ports allow; they differ in what traffic between pairs costs, in hops and in what
failures leave. TopologyFinder's own answer is always among those compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from planner.model.demand import Demand, Infeasible
from planner.model.planes import check
from planner.model.shape import Lab, Ring, Shape
from planner.model.totient import ring
from planner.predict.score import (
    Score,
    allreduce_bound_s,
    allreduce_s,
    moore,
    mp_s,
    score,
    survives,
    worst_diameter,
)
from planner.schedule import bfb
from planner.topology.direct import graph, instead
from planner.topology.exchanges import exchanged, least_full
from planner.topology.families import cayley, circulants, known
from planner.topology.hamilton import decompose
from planner.topology.hops import Judge, Links
from planner.topology.topofinder import connection, find
from planner.workers import Workers, spread

LARGEST = 16
"""Most ranks for which the search takes reasonable time."""
FINALISTS = 4
"""Graphs of each kind that are scored in full, those of fewest hops."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A topology and its score. `by`: what its all-reduce time is of, `rings` or `breadth-first`
    (of `schedule/bfb.py`).
    """

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
    """`best`: none is beaten in all figures by another, the fastest first. `totient`:
    TopologyFinder's answer, where it has one.

    moore: diameter and mean hops no graph of this degree can go below. counts: graphs examined, by
    kind.
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
        better = first.score.better_than(self.totient.score)
        if not better:
            return "totient strides are not beaten"
        figures = [
            _gain(name, getattr(self.totient.score, name), getattr(first.score, name))
            for name in better
        ]
        return f"{first.name} beats totient strides: {', '.join(figures)}"


def _gain(name: str, was: float, now: float) -> str:
    """A better figure in words; times as ratios, which do not depend on the rate of links."""
    if name in ("allreduce_s", "mp_s"):
        return f"{'all-reduce' if name == 'allreduce_s' else 'transfers'} {now / was - 1:+.2%}"
    return f"{'links that must fail' if name == 'fails' else name} {was:.6g} -> {now:.6g}"


def search(
    demand: Demand,
    lab: Lab,
    *,
    seed: int = 0,
    schedules: bool = True,
    workers: Workers | None = None,
) -> Findings:
    """Search all circulants, other Cayley graphs, known graphs and graphs near the best; score the
    best of each kind.

    schedules: the back-end can run any schedule, so that breadth-first ones count where they are
    faster than rings. workers: carry out the searches by exchanges and the scores of the finalists;
    the answer does not depend on them. Raises: Infeasible - too many ranks, or nothing fits the
    lab.
    """
    n = demand.n
    if n > LARGEST:
        why = f"it ends at {LARGEST}, as it weighs each of the 2^{n} sets of destinations"
        raise Infeasible(
            f"search of all kinds of graphs among {n} ranks: {why}",
            instead(n, lab.degree, duplex=lab.duplex),
        )
    degree = min(lab.degree, n - 1)
    if lab.duplex and n % 2 and degree % 2:
        degree -= 1
    weights = demand.mp if demand.mp.any() else 1.0 - np.eye(n)
    alike = len(np.unique(weights[~np.eye(n, dtype=bool)])) == 1
    judge = Judge(n, weights)
    kinds: dict[str, list[tuple[float, str, Links]]] = {
        "circulant": [],
        "Cayley graph": [],
        "known graph": [],
        "exchanged": [],
    }
    kinds["circulant"] = list(circulants(n, degree, lab.duplex, judge, alike))
    if alike:
        kinds["Cayley graph"] = list(cayley(n, degree, lab.duplex, judge))
        kinds["known graph"] = list(known(n, degree, lab.duplex, judge))
    start = min(kinds["circulant"], default=None)
    kinds["exchanged"] = list(
        exchanged(n, degree, lab.duplex, judge, start[2] if start else None, seed, alike, workers)
    )
    totient = _totient(demand, lab, seed, schedules)
    finalists = [
        entry for kind, found in kinds.items() if kind != "exchanged" for entry in _distinct(found)
    ]
    finalists += least_full(kinds["exchanged"], n, lab.duplex, weights)
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
        allreduce_bound_s(
            n, max((g.bytes for g in demand.groups if len(g.members) == n), default=0), lab
        ),
        counts,
    )


def _distinct(found: list[tuple[float, str, Links]]) -> list[tuple[float, str, Links]]:
    """The best few; a number of hops and a link set only once."""
    kept: list[tuple[float, str, Links]] = []
    for entry in sorted(found, key=lambda e: (e[0], e[1])):
        if entry[0] < float("inf") and all(
            round(entry[0], 9) != round(other[0], 9) for other in kept
        ):
            kept.append(entry)
        if len(kept) == FINALISTS:
            break
    return kept


def _hopeful(
    entry: tuple[float, str, Links], demand: Demand, lab: Lab, schedules: bool
) -> Candidate | None:
    """The topology with its rings, if it has them, and its score, in which the time of traffic
    between pairs is a lower bound; None if the lab cannot carry it."""
    _, name, links = entry
    bare = graph(demand.n, links, duplex=lab.duplex)
    shape = replace(bare, degree=lab.degree)
    rings = _strides(demand.n, links, lab.duplex) or decompose(bare)
    if rings is not None:
        group = next(
            (group.id for group in demand.groups if len(group.members) == demand.n),
            connection(demand.groups),
        )
        orders, left = rings
        strides = [order[1] if order == _by_stride(order) else None for order in orders]
        named = tuple(
            Ring(group, order, stride) for order, stride in zip(orders, strides, strict=True)
        )
        shape = Shape(demand.n, lab.degree, lab.duplex, named, left)
    try:
        check(shape, lab)
    except Infeasible:
        return None
    allreduce, by = _allreduce(shape, demand, lab, schedules)
    least = float((demand.mp * shape.hops).sum()) / len(shape.arcs) / lab.port_bytes_per_s
    hopeful = Score(
        allreduce,
        least,
        shape.mean_hops(demand.mp if demand.mp.any() else None),
        shape.diameter,
        0,
        None,
    )
    return Candidate(
        name,
        shape,
        replace(hopeful, fails=survives(shape), worst_diameter=worst_diameter(shape)),
        by,
    )


def _allreduce(shape: Shape, demand: Demand, lab: Lab, schedules: bool) -> tuple[float, str]:
    """Time of all-reduce by whatever is faster, and by what that is."""
    rings = allreduce_s(shape, demand.groups, lab)
    best, by = rings, "rings"
    if (
        schedules
        and demand.groups
        and all(len(group.members) == demand.n for group in demand.groups)
    ):
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


def _strides(
    n: int, links: Links, duplex: bool
) -> tuple[tuple[tuple[int, ...], ...], Links] | None:
    """Rings of a circulant whose steps are all coprime to n, read off its links."""
    steps = sorted({(b - a) % n for a, b in links})
    if duplex:
        steps = sorted({min(s, n - s) for s in steps})
    half = [s for s in steps if duplex and 2 * s == n]
    whole = [s for s in steps if s not in half]
    same = {(i, (i + s) % n) for s in whole for i in range(n)} | {
        (i, i + s) for s in half for i in range(n // 2)
    }
    if same != set(links) or any(gcd(s, n) != 1 for s in whole):
        return None
    return tuple(ring(range(n), s) for s in whole), tuple(
        (i, i + s) for s in half for i in range(n // 2)
    )


def _totient(demand: Demand, lab: Lab, seed: int, schedules: bool) -> Candidate | None:
    try:
        found = find(demand, lab, seed=seed)
    except Infeasible:
        return None
    if not found.shape.connected:
        return None
    allreduce, by = _allreduce(found.shape, demand, lab, schedules)
    return Candidate(
        "totient strides (TopologyFinder)",
        found.shape,
        score(found.shape, demand, lab, allreduce=allreduce),
        by,
    )


def _figures(score: Score, n: int) -> tuple[float, ...]:
    """What is compared, less being better; times and hops to six figures."""
    late = score.worst_diameter if score.worst_diameter is not None else n
    rounded = (float(f"{x:.6g}") for x in (score.allreduce_s, score.mp_s, score.hops))
    return (*rounded, score.diameter, -score.fails, late)


def _no_better(mine: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return all(x <= y for x, y in zip(other, mine, strict=True))


def _pareto(candidates: list[Candidate]) -> tuple[Candidate, ...]:
    """The candidates that no other equals or beats in every figure, the fastest first; of equals
    the first.
    """
    rated = [
        (_figures(candidate.score, candidate.shape.n), place, candidate)
        for place, candidate in enumerate(candidates)
    ]
    kept = [
        (mine, place, candidate)
        for mine, place, candidate in rated
        if not any(
            _no_better(mine, other) and (other != mine or at < place)
            for other, at, _ in rated
            if at != place
        )
    ]
    kept.sort(key=lambda entry: (float(f"{entry[2].seconds:.6g}"), entry[0][2:], entry[1]))
    return tuple(candidate for _, _, candidate in kept)
