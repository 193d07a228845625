"""Paths over a topology with the share of traffic on each, and their costs: load, deadlock, rules
on hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import islice, pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from planner.model.demand import Infeasible
from planner.model.shape import Shape
from planner.workers import Workers, spread

Pair: TypeAlias = tuple[int, int]
Path: TypeAlias = tuple[int, ...]
Weighted: TypeAlias = tuple[tuple[Path, float], ...]
Channel: TypeAlias = tuple[int, int]
"""A link in one direction."""
ROWS = 16
"""Hosts whose links are loaded at once: what they need stays in a cache of 1 MiB."""


@dataclass(frozen=True)
class HostRules:
    """Rules one host needs, as on TopoOpt's testbed: a route and a neighbour for each destination,
    two filters for each transit.
    """

    routes: int
    neighbours: int
    filters: int


@dataclass(frozen=True, eq=False)
class Routes:
    """For each pair, paths (ends included) and weights that sum to 1, in sorted order of pairs."""

    n: int
    paths: Mapping[Pair, Weighted]

    @property
    def by_destination(self) -> bool:
        """Whether every host has one next hop per destination, so that routes by destination
        suffice.
        """
        following: dict[Pair, int] = {}
        for (_, dst), paths in self.paths.items():
            for path, _ in paths:
                for here, existing in pairwise(path):
                    if following.setdefault((here, dst), existing) != existing:
                        return False
        return True

    def rules(self) -> tuple[HostRules, ...]:
        """How many rules each host needs."""
        own: list[set[tuple[int, int]]] = [set() for _ in range(self.n)]
        transit: list[set[tuple[int, int]]] = [set() for _ in range(self.n)]
        for (src, dst), paths in self.paths.items():
            for path, _ in paths:
                own[src].add((dst, path[1]))
                for before, here in pairwise(path[:-1]):
                    transit[here].add((before, dst))
        return tuple(
            HostRules(len(mine), len(mine), 2 * len(passing))
            for mine, passing in zip(own, transit, strict=True)
        )


def every_pair(shape: Shape) -> list[Pair]:
    """All ordered pairs connected by a path."""
    return [
        (src, dst)
        for src in range(shape.n)
        for dst in range(shape.n)
        if src != dst and shape.hops[src, dst] > 0
    ]


def even(shape: Shape, pairs: Iterable[Pair] | None = None) -> Routes:
    """All shortest paths; each host divides evenly over the links that shorten the distance."""

    def spread(here: int, dst: int) -> Iterator[tuple[Path, float]]:
        if here == dst:
            yield (dst,), 1.0
            return
        nearer = _nearer(shape, here, dst)
        links = sum(int(shape.adjacency[here, existing]) for existing in nearer)
        for existing in nearer:
            for path, weight in spread(existing, dst):
                yield (here, *path), weight * int(shape.adjacency[here, existing]) / links

    return _routes(shape, pairs, lambda src, dst: tuple(spread(src, dst)))


def single(shape: Shape, pairs: Iterable[Pair] | None = None, *, seed: int = 0) -> Routes:
    """One shortest path for each pair, drawn by the seed, as the released planner routes model
    parallel traffic.
    """
    rng = np.random.default_rng(seed)

    def draw(src: int, dst: int) -> Weighted:
        path = [src]
        while path[-1] != dst:
            nearer = _nearer(shape, path[-1], dst)
            path.append(nearer[int(rng.integers(len(nearer)))])
        return ((tuple(path), 1.0),)

    return _routes(shape, pairs, draw)


def k_shortest(shape: Shape, k: int, pairs: Iterable[Pair] | None = None) -> Routes:
    """The k shortest paths without a host twice, used evenly; among equals the first in order of
    ranks.
    """
    if k < 1:
        raise Infeasible(f"{k} paths for a pair", "ask for 1 or more")
    neighbours = [np.flatnonzero(row).tolist() for row in shape.adjacency]

    def of_length(path: list[int], dst: int, length: int) -> Iterator[Path]:
        if length == 0:
            yield tuple(path)
            return
        for place in neighbours[path[-1]]:
            if (
                place not in path
                and 0 <= shape.hops[place, dst] <= length - 1
                and (place != dst or length == 1)
            ):
                yield from of_length([*path, place], dst, length - 1)

    def shortest(src: int, dst: int) -> Weighted:
        found: list[Path] = []
        for length in range(int(shape.hops[src, dst]), shape.n):
            found += islice(of_length([src], dst, length), k - len(found))
            if len(found) == k:
                break
        return tuple((path, 1 / len(found)) for path in found)

    return _routes(shape, pairs, shortest)


def even_loads(
    shape: Shape, demand: NDArray[np.float64], block: int = 512, workers: Workers | None = None
) -> NDArray[np.float64]:
    """What `even` would load each link with, without listing paths: all pairs at once, hosts
    farthest from a destination first.

    block: destinations of one piece of work. The loads depend on it in their last bits, on the
    number of workers never: pieces are summed in their order.
    """
    n, hops = shape.n, shape.hops
    if (hops[demand > 0] < 0).any():
        src, dst = np.argwhere((demand > 0) & (hops < 0))[0].tolist()
        raise Infeasible(
            f"no path leads from rank {src} to rank {dst}",
            "give the topology a ring through all ranks",
        )
    here, existing = np.nonzero(shape.adjacency)
    links = shape.adjacency[here, existing]
    parts = [slice(first, min(first + block, n)) for first in range(0, n, block)]
    pieces = (
        ((here, existing, links), np.ascontiguousarray(hops[:, part]), demand[:, part].copy())
        for part in parts
    )
    along = np.zeros(len(here))
    for sums in spread(workers, _loads_to, pieces):
        for of_distance in sums:
            along += of_distance
    loads = np.zeros((n, n))
    loads[here, existing] = along
    return loads


def _loads_to(
    graph: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
    away: NDArray[np.int16],
    waiting: NDArray[np.float64],
) -> list[NDArray[np.float64]]:
    """The loads of all arcs by traffic to some destinations, an array for each distance from there,
    the farthest first.

    graph: sources of arcs in ascending order, destinations, parallel links. away: hops to the
    destinations. waiting: bytes to them, changed. Sums keep one order, in slots of neighbours:
    their last bits decide between strategies that are equal otherwise.
    """
    from scipy.sparse import csr_array

    here, existing, links = graph
    n = len(away)
    slot = np.arange(len(here)) - np.searchsorted(here, here)
    slots = int(slot.max(initial=-1)) + 1
    pieces = []
    for rows in (slice(first, min(first + ROWS, n)) for first in range(0, n, ROWS)):
        count = rows.stop - rows.start
        out = slice(*np.searchsorted(here, (rows.start, rows.stop)).tolist())
        leaving = csr_array(
            (
                np.ones(out.stop - out.start),
                (here[out] - rows.start, np.arange(out.stop - out.start)),
            ),
            shape=(count, out.stop - out.start),
        )
        in_ = np.flatnonzero((existing >= rows.start) & (existing < rows.stop))
        arriving = csr_array(
            (
                links[in_].astype(np.float64),
                (slot[in_] * count + existing[in_] - rows.start, here[in_]),
            ),
            shape=(slots * count, n),
        )
        pieces.append((rows, out, np.flatnonzero(links[out] > 1), leaving, arriving))
    unit, nearer = np.empty_like(waiting), np.empty_like(waiting)
    found = []
    for distance in range(int(away.max(initial=0)), 0, -1):
        np.copyto(nearer, away == distance - 1)
        sums = np.zeros(len(here))
        for rows, out, several, leaving, _ in pieces:
            paths = nearer[existing[out]]
            paths[several] *= links[out][several, None]
            total = leaving @ paths
            total[away[rows] != distance] = np.inf
            np.divide(waiting[rows], total, out=unit[rows])
            paths *= unit[here[out]]
            sums[out] = paths.sum(axis=1)
        found.append(sums)
        if distance == 1:
            break
        for rows, _, _, _, arriving in pieces:
            then = waiting[rows].copy()
            for of_slot in (arriving @ unit).reshape(slots, *then.shape):
                then += of_slot
            np.copyto(waiting[rows], then, where=nearer[rows] > 0)
    return found


def deadlock(routes: Routes) -> tuple[Channel, ...]:
    """A cycle of channels that wait for each other if the fabric is lossless; empty if there is
    none.
    """
    following: dict[Channel, set[Channel]] = {}
    for paths in routes.paths.values():
        for path, _ in paths:
            _depend(following, path)
    try:
        TopologicalSorter(following).prepare()
    except CycleError as error:
        # the sorter lists what waits after what it waits for
        circle: tuple[Channel, ...] = tuple(error.args[1])[:0:-1]
        return circle
    return ()


def lossless_classes(routes: Routes) -> dict[Path, int]:
    """A priority for each path so that none has a cycle of waiting channels; first fit, long paths
    first.
    """
    classes: list[dict[Channel, set[Channel]]] = []
    found: dict[Path, int] = {}
    every = {path for paths in routes.paths.values() for path, _ in paths}
    for path in sorted(every, key=lambda path: (-len(path), path)):
        for number in range(len(classes) + 1):
            if number == len(classes):
                classes.append({})
            if not _closes(classes[number], path):
                _depend(classes[number], path)
                found[path] = number
                break
    return found


def _depend(following: dict[Channel, set[Channel]], path: Path) -> None:
    for before, after in pairwise(pairwise(path)):
        following.setdefault(before, set()).add(after)


def _closes(following: Mapping[Channel, set[Channel]], path: Path) -> bool:
    """Whether adding the path closes a cycle: its end leads back to one of its channels."""
    steps = list(pairwise(path))
    place = {step: index for index, step in enumerate(steps)}
    seen: dict[Channel, int] = {}
    for index in range(len(steps) - 1, -1, -1):
        waiting = [steps[index]]
        while waiting:
            channel = waiting.pop()
            for after in following.get(channel, ()):
                if place.get(after, len(steps)) <= index:
                    return True
                if after not in seen:
                    seen[after] = index
                    waiting.append(after)
    return False


def _nearer(shape: Shape, here: int, dst: int) -> list[int]:
    """Neighbours one hop nearer to the destination, in order of ranks."""
    away = shape.hops[:, dst]
    nearer: list[int] = np.flatnonzero(
        (shape.adjacency[here] > 0) & (away == away[here] - 1)
    ).tolist()
    return nearer


def _routes(
    shape: Shape, pairs: Iterable[Pair] | None, paths: Callable[[int, int], Weighted]
) -> Routes:
    wanted = every_pair(shape) if pairs is None else sorted(set(pairs))
    for src, dst in wanted:
        if shape.hops[src, dst] < 0:
            raise Infeasible(
                f"no path leads from rank {src} to rank {dst}",
                "give the topology a ring through all ranks",
            )
    return Routes(shape.n, {(src, dst): paths(src, dst) for src, dst in wanted})
