"""Regular graphs of up to 16 ranks found by exchanging the ends of two links, again and again."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np
from numpy.typing import NDArray

from planner.predict.routing import even_loads
from planner.topology.direct import graph
from planner.topology.hops import Judge, Links, neighbours
from planner.workers import Workers, spread

FINALISTS = 8
"""Graphs that are scored in full: of as many hops, their fullest links differ, and only the linear
program says how much.
"""
RESTARTS = 4
EXCHANGES = 1500
"""Starts of the search by exchanges, and exchanges tried in each."""


def exchanged(
    n: int,
    degree: int,
    duplex: bool,
    judge: Judge,
    start: Links | None,
    seed: int,
    alike: bool,
    workers: Workers | None,
) -> Iterator[tuple[float, str, Links]]:
    """Graphs reached by exchanging the ends of two links, from the best circulant and from random
    ones, never for worse.

    Of each start all graphs of its fewest hops that are not alike; where ranks are not alike, all
    with other links.
    """
    if start is None or degree < 2:
        return
    dice = np.random.default_rng(seed).random((RESTARTS, EXCHANGES + n * degree, 3))
    # from random graphs: first so many exchanges at random
    anything = (0, *[n * degree] * (RESTARTS - 1))
    pieces = ((start, *each, judge, duplex) for each in zip(dice, anything, strict=True))
    seen: set[Hashable] = set()
    for attempt, (best, fewest) in enumerate(spread(workers, _descended, pieces)):
        for found in fewest:
            mark = _mark(n, found, duplex) if alike else frozenset(found)
            if mark not in seen:
                seen.add(mark)
                yield best, f"search by exchanges, start {attempt + 1}", found


def _descended(
    start: Links, dice: NDArray[np.float64], anything: int, judge: Judge, duplex: bool
) -> tuple[float, list[Links]]:
    """The fewest hops that exchanges reach, and all graphs met that have them. anything: exchanges
    that may be for worse.
    """
    fewest: list[Links] = []
    links = list(start)
    out = neighbours(judge.n, links, duplex)
    best = judge.hops(out)
    for number, (first, second, step) in enumerate(dice.tolist()):
        i, j = int(first * len(links)), int(second * len(links))
        (a, b), (c, d) = links[i], links[j]
        if duplex and step < 0.5:
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
    """What graphs have in common that differ in the names of ranks only: how many closed walks of
    each length pass each rank.
    """
    walks = bare = graph(n, links, duplex=duplex).adjacency
    counts = []
    for _ in range(4):
        walks = walks @ bare
        counts.append(np.diag(walks))
    return tuple(sorted(zip(*(count.tolist() for count in counts), strict=True)))


def _swap(
    out: list[set[int]], first: tuple[int, int], second: tuple[int, int], duplex: bool
) -> None:
    (a, b), (c, d) = first, second
    for x, old, new in ((a, b, d), (c, d, b)):
        out[x].discard(old)
        out[x].add(new)
    if duplex:
        for x, old, new in ((b, a, c), (d, c, a)):
            out[x].discard(old)
            out[x].add(new)


def least_full(
    found: list[tuple[float, str, Links]], n: int, duplex: bool, weights: NDArray[np.float64]
) -> list[tuple[float, str, Links]]:
    """Graphs of fewest hops, of these the ones whose fullest link carries least where traffic is
    divided evenly.
    """

    def fullest(links: Links) -> float:
        return float(even_loads(graph(n, links, duplex=duplex), weights).max())

    fewest = sorted({round(hops, 9) for hops, _, _ in found})[:2]
    rated = [
        (round(hops, 9), round(fullest(links), 9), hops, name, links)
        for hops, name, links in found
        if round(hops, 9) in fewest
    ]
    rated.sort(key=lambda entry: entry[:2])
    return [
        (hops, name, links) for _, _, hops, name, links in rated[:FINALISTS] if hops < float("inf")
    ]
