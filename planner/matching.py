"""Links for traffic between pairs: maximum-weight matchings, one after the other, the matched demand weakened each time.

Blossom matching is rustworkx's. Weights are whole numbers there, and its choice among equals is its own, so each weight gets a
seeded remainder far below one part in 2^40 of the largest: the best matching is then one, and the same in every run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import rustworkx
from numpy.typing import NDArray

from planner.demand import Infeasible
from planner.totient import Rules

DENSE = 512
"""Ranks up to which every pair with traffic is a candidate; beyond, each rank's `PARTNERS` heaviest."""
PARTNERS = 12
FINE = 2**40
ROOM = 2**54
"""What a unit of weight is multiplied by: more than the remainders of 2^13 pairs together."""


@dataclass(frozen=True)
class Match:
    """One round. `weight`: demand it serves, as weakened before, bytes; no matching could serve more than `bound`."""

    pairs: tuple[tuple[int, int], ...]
    weight: float
    bound: float


def matchings(
    mp: NDArray[np.float64], free: NDArray[np.int64], *, rules: Rules = "paper", rounds: int | None = None, seed: int = 0
) -> tuple[Match, ...]:
    """Rounds of matching among ranks with free ports, until ports, demand or `rounds` are used up.

    mp: bytes from row to column. free: ports of each rank that links may take. A pair that has got c links counts w / 2^c (paper)
    or w / (c + 1) (artifact, where every rank must also be matched in every round).
    Raises: Infeasible - `artifact` with an odd number of ranks.
    """
    n = len(mp)
    if rules == "artifact" and n % 2:
        raise Infeasible(
            f"{n} ranks cannot all be paired, as the released rules want", f"take {n - 1} or {n + 1} ranks, or the rules `paper`"
        )
    rng = np.random.default_rng(seed)
    left = free.astype(np.int64).copy()
    lower, upper, weight = _candidates(mp, left, rng, every=rules == "artifact")
    made = np.zeros(len(lower), dtype=np.int64)
    found: list[Match] = []
    while rounds is None or len(found) < rounds:
        now = weight / (np.exp2(made) if rules == "paper" else made + 1)
        open_ = np.flatnonzero((left[lower] > 0) & (left[upper] > 0) & ((now > 0) | (rules == "artifact")))
        if not len(open_) or not now[open_].any():
            break
        taken = open_[heaviest(n, lower[open_], upper[open_], now[open_], rng, perfect=rules == "artifact")]
        if not len(taken):
            break
        most = np.zeros(n)
        np.maximum.at(most, lower[open_], now[open_])
        np.maximum.at(most, upper[open_], now[open_])
        pairs = tuple(sorted(zip(lower[taken].tolist(), upper[taken].tolist(), strict=True)))
        found.append(Match(pairs, float(now[taken].sum()), float(most.sum() / 2)))
        made[taken] += 1
        left[lower[taken]] -= 1
        left[upper[taken]] -= 1
    return tuple(found)


def heaviest(
    n: int,
    lower: NDArray[np.int64],
    upper: NDArray[np.int64],
    weight: NDArray[np.float64],
    rng: np.random.Generator,
    *,
    perfect: bool = False,
) -> NDArray[np.int64]:
    """Indices of the pairs (lower, upper) of a maximum-weight matching; among those of most pairs if it is to be perfect."""
    top = float(weight.max(initial=0.0))
    whole = np.rint(weight * (FINE / top)).astype(np.int64).tolist() if top > 0 else [0] * len(weight)
    dice = rng.integers(FINE, size=len(whole)).tolist()
    graph = rustworkx.PyGraph(multigraph=False)
    graph.add_nodes_from(range(n))
    ends = list(zip(lower.tolist(), upper.tolist(), strict=True))
    graph.add_edges_from([(a, b, w * ROOM + d) for (a, b), w, d in zip(ends, whole, dice, strict=True)])
    chosen = rustworkx.max_weight_matching(graph, max_cardinality=perfect, weight_fn=int)
    place = {pair: index for index, pair in enumerate(ends)}
    return np.array(sorted(place[(a, b) if a < b else (b, a)] for a, b in chosen), dtype=np.int64)


def _candidates(
    mp: NDArray[np.float64], free: NDArray[np.int64], rng: np.random.Generator, *, every: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Pairs (lower, upper) that may be matched and the bytes between them, both ways together."""
    n = len(mp)
    both = mp + mp.T
    if n <= DENSE:
        lower, upper = np.triu_indices(n, 1)
        keep = (free[lower] > 0) & (free[upper] > 0) & ((both[lower, upper] > 0) | every)
        lower, upper = lower[keep], upper[keep]
        return lower, upper, both[lower, upper]
    # A rank takes equal partners in an order of its own, seeded, or all would want the same few.
    kept = np.empty((n, PARTNERS), dtype=np.int64)
    turn = rng.permutation(n)
    for row in range(n):
        mine = np.roll(turn, row)
        kept[row] = mine[np.argpartition(-both[row, mine], PARTNERS)[:PARTNERS]]
    rows, columns = np.repeat(np.arange(n), PARTNERS), kept.reshape(-1)
    lower, upper = np.minimum(rows, columns), np.maximum(rows, columns)
    flat = np.unique(lower * n + upper)
    lower, upper = flat // n, flat % n
    keep = (both[lower, upper] > 0) & (lower != upper) & (free[lower] > 0) & (free[upper] > 0)
    return lower[keep], upper[keep], both[lower, upper][keep]
