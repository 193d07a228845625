"""Breadth-first broadcast schedules (direct-connect topologies, NSDI'25): all-gather on any graph,
its steps and its load.

At step t a rank receives, whole, every shard whose source is t hops away, from predecessors t - 1
hops from it, divided so that the fullest of its incoming links carries least. That division is a
linear program for each rank and step; its value is, by duality, the largest of (shards that only
links in L can bring) / |L| over sets L of incoming links. All ranks' values are counted at once
over the 2^degree sets, in whole numbers; the program itself is solved only where the division is
wanted, once for each pattern.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.model.demand import Infeasible
from planner.model.shape import Shape
from planner.model.totient import coin_change

WIDEST = 16
"""Most incoming links for which all sets of them are counted."""


@dataclass(frozen=True)
class Cost:
    """Of an all-gather: `steps` times alpha and `load` times M / B, B the rate of all of a rank's
    links together.
    """

    steps: int
    load: Fraction


@dataclass(frozen=True)
class Send:
    """In step `step` (from 1), rank `src` sends `dst` the part `part` (0 to 1) of the shard of rank
    `shard`.
    """

    step: int
    src: int
    dst: int
    shard: int
    part: float


def cost(shape: Shape) -> Cost:
    """Steps and load of the schedule, exactly. Raises: Infeasible - some rank cannot be reached, or
    has too many links to count.
    """
    slots, hops = _incoming(shape)
    return _counted(hops, _masks(slots, hops), len(slots))


def circulant_cost(n: int, steps: Sequence[int], *, duplex: bool = True) -> Cost:
    """As `cost` of a circulant, from what one rank sees: translations carry every rank to every
    other.
    """
    coins = coin_change(n, steps, duplex=duplex)
    if (coins.hops < 0).any() or len(coins.coins) > WIDEST:
        raise Infeasible(
            f"steps {tuple(steps)} among {n} ranks",
            f"take at most {WIDEST} links, one of a step coprime to {n}",
        )
    masks = np.zeros(n, dtype=np.int64)
    for bit, coin in enumerate(coins.coins):
        masks |= (np.roll(coins.hops, coin) == coins.hops - 1).astype(np.int64) << bit
    return _counted(coins.hops[:, None], masks[:, None], len(coins.coins))


def _counted(hops: NDArray[np.integer[Any]], masks: NDArray[np.int64], degree: int) -> Cost:
    """From hops and links that can bring a shard, of each source (row) to each rank examined
    (column).
    """
    n, seen = hops.shape
    whole = lcm(*range(1, degree + 1))
    sizes = np.array([bits.bit_count() for bits in range(2**degree)])
    share = np.where(sizes > 0, whole // np.maximum(sizes, 1), 0)
    load = 0
    for step in range(1, int(hops.max()) + 1):
        src, dst = np.nonzero(hops == step)
        confined = np.bincount(
            dst * 2**degree + masks[src, dst], minlength=seen * 2**degree
        ).reshape(seen, 2**degree)
        for bit in range(degree):  # now: shards that links in the set alone can bring
            view = confined.reshape(seen, -1, 2, 2**bit)
            view[:, :, 1] += view[:, :, 0]
        load += int((confined * share).max())
    return Cost(int(hops.max()), Fraction(degree * load, n * whole))


def allreduce(shape: Shape) -> Cost:
    """A reduce-scatter (an all-gather backwards, on the links turned round) and an all-gather:
    steps and load of both together.
    """
    present = cost(shape)
    back = (
        present
        if shape.duplex
        else cost(Shape(shape.n, shape.degree, False, (), tuple((b, a) for a, b in shape.links)))
    )
    return Cost(present.steps + back.steps, present.load + back.load)


def schedule(shape: Shape) -> tuple[Send, ...]:
    """Every send of the all-gather, in order of steps."""
    slots, hops = _incoming(shape)
    masks = _masks(slots, hops)
    sends = []
    for step in range(1, int(hops.max()) + 1):
        for dst in range(shape.n):
            shards = np.flatnonzero(hops[:, dst] == step).tolist()
            patterns = Counter(int(masks[shard, dst]) for shard in shards)
            parts = division(tuple(sorted(patterns.items())), len(slots))
            for shard in shards:
                for slot, part in parts[int(masks[shard, dst])]:
                    sends.append(Send(step, int(slots[slot][dst]), dst, shard, part))
    return tuple(sends)


@cache
def division(
    patterns: tuple[tuple[int, int], ...], degree: int
) -> dict[int, tuple[tuple[int, float], ...]]:
    """For (set of links, how many shards they alone can bring) the part each link brings of each
    such shard: least fullest link.
    """
    from scipy.optimize import linprog

    paths = [
        (mask, count, slot)
        for mask, count in patterns
        for slot in range(degree)
        if mask >> slot & 1
    ]
    full = np.zeros((degree, len(paths) + 1))
    whole = np.zeros((len(patterns), len(paths) + 1))
    rows = {mask: row for row, (mask, _) in enumerate(patterns)}
    for column, (mask, count, slot) in enumerate(paths):
        full[slot, column] = count
        whole[rows[mask], column] = 1.0
    full[:, -1] = -1.0
    aim = np.zeros(len(paths) + 1)
    aim[-1] = 1.0
    answer = linprog(
        aim,
        A_ub=full,
        b_ub=np.zeros(degree),
        A_eq=whole,
        b_eq=np.ones(len(patterns)),
        method="highs",
    )
    parts: dict[int, tuple[tuple[int, float], ...]] = {mask: () for mask, _ in patterns}
    for (mask, _, slot), part in zip(paths, answer.x[:-1], strict=True):
        if part > 1e-9:
            parts[mask] += ((slot, float(part)),)
    return parts


def _incoming(shape: Shape) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
    """The predecessor at each incoming link, shape (degree, n), -1 where a rank has fewer; and
    hops.
    """
    order = np.lexsort((shape.arcs[:, 0], shape.arcs[:, 1]))
    src, dst = shape.arcs[order, 0], shape.arcs[order, 1]
    place = np.arange(len(dst)) - np.searchsorted(dst, dst)
    degree = int(place.max(initial=0)) + 1
    if degree > WIDEST:
        raise Infeasible(f"{degree} links into a rank", f"take at most {WIDEST}")
    if not shape.connected:
        raise Infeasible(
            "some ranks cannot send to the others", "give the topology a ring through all ranks"
        )
    slots = np.full((degree, shape.n), -1, dtype=np.int64)
    slots[place, dst] = src
    return slots, shape.hops


def _masks(slots: NDArray[np.int64], hops: NDArray[np.int16]) -> NDArray[np.int64]:
    """For each source (row) and rank (column), the set of incoming links that can bring the
    source's shard, as bits.
    """
    masks = np.zeros(hops.shape, dtype=np.int64)
    for bit, before in enumerate(slots):
        masks |= ((hops[:, before] == hops - 1) & (before >= 0)).astype(np.int64) << bit
    return masks
