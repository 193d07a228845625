"""Matchings for a demand, with a bounded number of slots: whole links in proportion to bytes, taken
apart into matchings. Pure.

Demand becomes whole links as Vermilion rounds it (Addanki et al. 2025): in proportion, rounded up,
so that each pair meets. A matrix of whole numbers whose rows and columns sum to D is D matchings of
senders with receivers (Birkhoff-von Neumann, König). Where a link carries both directions a rank
has one partner, and D such matchings may not do; 3D/2 always do (Shannon): an order of the links
around (Euler) makes senders and receivers of the ends, and each matching of these is cycles: two or
three matchings of pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.model.demand import Infeasible
from planner.model.planes import assign
from planner.model.shape import Shape
from planner.schedule.round_robin import Matching, fewest_slots

Whole = NDArray[np.int64]
HALVINGS = 40
TRIES = 4
"""Recoloured links, per link, for a sum of rows that may not be possible."""


@dataclass(frozen=True, eq=False)
class ForDemand:
    """Matchings for a demand, one slot each, some of them empty.

    links: how often each pair is joined in a cycle, shape (n, n), symmetric. slowdown: slots in
    which the demand is carried over those that the fullest rank needs for its own bytes, 1 at best;
    at most `bound`.
    """

    matchings: tuple[Matching, ...]
    links: Whole
    slowdown: float
    bound: float


def for_demand(demand: NDArray[np.float64], slots: int, *, every_pair: bool = True) -> ForDemand:
    """`slots` matchings in which pairs meet in proportion to their bytes (row to column; the larger
    direction counts).

    every_pair: those without bytes meet once, too. Raises: Infeasible - a demand that is negative
    or no number, or too few slots: two thirds of them must do for each rank to meet every partner
    once, unless a colouring in fewer is found.
    """
    n = len(demand)
    if demand.shape != (n, n) or n < 2 or not np.isfinite(demand).all() or (demand < 0).any():
        raise Infeasible(
            "a demand that is no square of bytes, 0 or more",
            "give bytes from each rank to each other",
        )
    weight = np.maximum(demand, demand.T)
    np.fill_diagonal(weight, 0.0)
    fullest = float(weight.sum(axis=1).max())
    share = weight / (fullest or 1.0)
    base = 1 - np.eye(n, dtype=np.int64) if every_pair else (weight > 0).astype(np.int64)
    least = int(base.sum(axis=1).max())
    sure = slots // 3 * 2
    for room in range(slots, least - 1, -1):
        links = rounded(share, base, room)
        matchings = _two_thirds(links, room) if room <= sure else _coloured(links, slots)
        if matchings is not None:
            needs = float((share / np.maximum(links, 1)).max()) * slots
            bound = slots / (sure - least) if sure > least else float("inf")
            return ForDemand(
                matchings + ((),) * (slots - len(matchings)),
                links,
                max(needs, 1.0),
                max(bound, 1.0),
            )
    need = max(fewest_slots(n, 1) if every_pair else 1, least)
    raise Infeasible(
        f"{slots} slots do not join {n} ranks as their demand wants",
        f"give {max(need, slots + 1)} slots or more",
    )


def rounded(share: NDArray[np.float64], base: Whole, room: int) -> Whole:
    """The most links in proportion to `share`, rounded up and at least `base`, of which no rank has
    more than `room`.

    Rounding up adds less than a link for each pair, so that a pair has share * (room - partners) of
    them at least.
    """
    low, high, found = 0.0, float(room), base
    for _ in range(HALVINGS):
        scale = (low + high) / 2
        links = np.maximum(base, np.ceil(share * scale - 1e-9).astype(np.int64))
        if links.sum(axis=1).max() <= room:
            low, found = scale, links
        else:
            high = scale
    return found


def permutations(counts: Whole) -> list[list[int]]:
    """Receivers of each sender, one matching after the other: of whole numbers whose rows and
    columns all have the same sum.
    """
    left = counts.copy()
    found = []
    for _ in range(int(left[0].sum())):
        match = [-1] * len(left)  # the sender of each receiver
        for sender in range(len(left)):
            _augment(sender, left, match, set())
        receivers = [0] * len(left)
        for receiver, sender in enumerate(match):
            receivers[sender] = receiver
            left[sender, receiver] -= 1
        found.append(receivers)
    return found


def _augment(sender: int, left: Whole, match: list[int], seen: set[int]) -> bool:
    for receiver in np.flatnonzero(left[sender]).tolist():
        if receiver not in seen:
            seen.add(receiver)
            if match[receiver] < 0 or _augment(match[receiver], left, match, seen):
                match[receiver] = sender
                return True
    return False


def _coloured(links: Whole, slots: int) -> tuple[Matching, ...] | None:
    """The links as that many matchings, None if a short search finds none."""
    n = len(links)
    pairs = [(a, b) for a in range(n) for b in range(a + 1, n) for _ in range(int(links[a, b]))]
    try:
        colours = assign(Shape(n, slots, True, (), tuple(pairs)), slots, TRIES)
    except Infeasible:
        return None
    return tuple(
        tuple(pair for pair, colour in zip(pairs, colours, strict=True) if colour == slot)
        for slot in range(slots)
    )


def _two_thirds(links: Whole, room: int) -> tuple[Matching, ...]:
    """The links, of which each rank has at most `room`, as 3 matchings for every 2 of `room`, which
    is even or raised to it.
    """
    n = len(links)
    full = links.copy()  # a link from a rank to itself, counted twice, stands for none
    short = [rank for rank, odd in enumerate(full.sum(axis=1) % 2) if odd]
    extra = np.zeros_like(full)
    for a, b in zip(short[::2], short[1::2], strict=True):
        extra[a, b] = extra[b, a] = 1
    spare = (room + room % 2) - (full + extra).sum(axis=1)
    arcs = _around(full + extra)
    arcs[np.arange(n), np.arange(n)] += spare // 2
    left = links.copy()
    matchings: list[Matching] = []
    for receivers in permutations(arcs):
        matchings += _cycles(receivers, left)
    return tuple(matching for matching in matchings if matching)


def _around(links: Whole) -> Whole:
    """Each link as an arc one way, so that as many leave a rank as arrive: along closed walks (all
    sums are even).
    """
    left, arcs = links.copy(), np.zeros_like(links)
    for start in range(len(links)):
        here = start
        while left[here].any():
            existing = int(left[here].argmax())
            left[here, existing] -= 1
            left[existing, here] -= 1
            arcs[here, existing] += 1
            here = existing
    return arcs


def _cycles(receivers: list[int], left: Whole) -> list[Matching]:
    """The cycles of a permutation as two or three matchings; pairs of which none is left are
    omitted, the others taken off it.
    """
    parts: list[list[tuple[int, int]]] = [[], [], []]
    seen: set[int] = set()
    for start in range(len(receivers)):
        cycle, here = [], start
        while here not in seen:
            seen.add(here)
            cycle.append((here, receivers[here]))
            here = receivers[here]
        for index, (a, b) in enumerate(cycle):
            if a != b and left[a, b]:
                left[a, b] -= 1
                left[b, a] -= 1
                parts[2 if index == len(cycle) - 1 and len(cycle) % 2 else index % 2].append(
                    (min(a, b), max(a, b))
                )
    return [tuple(sorted(part)) for part in parts]
