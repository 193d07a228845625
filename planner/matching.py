"""Links for traffic between pairs: maximum-weight matchings, one after the other, the matched demand weakened each time.

Up to `EXACT` ranks, and where few pairs have traffic, a matching is rustworkx's blossom algorithm's. Larger dense demands start
from an assignment (each rank a partner, not always each other's; up to `ASSIGNED` ranks) or from the heaviest pairs, and exchange
the partners of two pairs while that serves more. An upper bound on any matching is reported with the result.

Ties fall to a seeded remainder far below one part in 2^30 of the largest weight, so that the answer is the same in every run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import rustworkx
from numpy.typing import NDArray

from planner.demand import Infeasible
from planner.totient import Rules

EXACT = 128
FEW = 4
"""Pairs with traffic per rank up to which their number is few."""
ASSIGNED = 512
PARTNERS = 16
"""A rank's heaviest partners that a large matching starts from."""
FINE = 2**40
WORK = 2**26
"""Pairs of pairs weighed for exchanges at most: all of them 16 times at 4096 ranks, a thousand times at 512."""
ROOM = 2**54
"""What a unit of weight is multiplied by in blossom's whole numbers: more than the remainders of 2^13 pairs together."""


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
    every = rules == "artifact"
    if every and n % 2:
        raise Infeasible(
            f"{n} ranks cannot all be paired, as the released rules want", f"take {n - 1} or {n + 1} ranks, or the rules `paper`"
        )
    rng = np.random.default_rng(seed)
    left = free.astype(np.int64).copy()
    both = mp + mp.T
    now = both.copy()
    made: Counter[tuple[int, int]] = Counter()
    found: list[Match] = []
    while rounds is None or len(found) < rounds:
        ranks = np.flatnonzero(left > 0)
        among = now[np.ix_(ranks, ranks)] if len(ranks) < n else now
        if not among.any():
            break
        pairs, bound = heaviest(among, rng, every=every)
        ends = np.sort(ranks[pairs], axis=1)
        ends = ends[np.lexsort((ends[:, 1], ends[:, 0]))]
        found.append(Match(tuple((int(a), int(b)) for a, b in ends), float(now[ends[:, 0], ends[:, 1]].sum()), bound))
        left[ends.reshape(-1)] -= 1
        made.update(found[-1].pairs)
        for a, b in found[-1].pairs:
            links = made[a, b]
            now[a, b] = now[b, a] = both[a, b] / (2**links if rules == "paper" else links + 1)
    return tuple(found)


def heaviest(weight: NDArray[np.float64], rng: np.random.Generator, *, every: bool = False) -> tuple[NDArray[np.int64], float]:
    """Pairs (rows of two) of a matching of much weight, and a bound on any; `every`: as many pairs as there can be.

    weight: symmetric, zero diagonal.
    """
    lower, upper = np.nonzero(np.triu(weight, 1))
    if len(weight) <= EXACT or (len(lower) <= FEW * len(weight) and not every):
        if every:
            lower, upper = np.triu_indices(len(weight), 1)
        chosen = _blossom(len(weight), lower, upper, weight[lower, upper], rng, every=every)
        return np.column_stack([lower[chosen], upper[chosen]]), float(weight[lower[chosen], upper[chosen]].sum())
    n = len(weight)
    noise = rng.random(weight.shape) * (weight.max() / FINE)
    shaken = np.zeros((n + n % 2, n + n % 2))  # who is paired with the one beyond the last, of an odd number, stays alone
    shaken[:n, :n] = weight + noise + noise.T
    np.fill_diagonal(shaken, 0.0)
    if n <= ASSIGNED:
        pairs, bound = _assigned(shaken)
    else:
        pairs, bound = _greedy(shaken), _dual(shaken)
    rest = rng.permutation(np.setdiff1d(np.arange(len(shaken)), pairs.reshape(-1)))
    pairs = _exchanged(shaken, np.concatenate([pairs, rest.reshape(-1, 2)]))
    pairs = pairs[(pairs < n).all(axis=1)]
    served = weight[pairs[:, 0], pairs[:, 1]]
    return pairs if every else pairs[served > 0], max(bound, float(served.sum()))


def _blossom(
    n: int,
    lower: NDArray[np.int64],
    upper: NDArray[np.int64],
    weight: NDArray[np.float64],
    rng: np.random.Generator,
    *,
    every: bool,
) -> NDArray[np.int64]:
    """Places of the pairs of a maximum-weight matching; among those of most pairs if `every`."""
    top = float(weight.max(initial=0.0))
    whole = np.rint(weight * (FINE / top)).astype(np.int64).tolist() if top > 0 else [0] * len(weight)
    dice = rng.integers(FINE, size=len(whole)).tolist()
    graph = rustworkx.PyGraph(multigraph=False)
    graph.add_nodes_from(range(n))
    ends = list(zip(lower.tolist(), upper.tolist(), strict=True))
    graph.add_edges_from([(a, b, w * ROOM + d) for (a, b), w, d in zip(ends, whole, dice, strict=True)])
    chosen = rustworkx.max_weight_matching(graph, max_cardinality=every, weight_fn=int)
    place = {pair: index for index, pair in enumerate(ends)}
    return np.array(sorted(place[(a, b) if a < b else (b, a)] for a, b in chosen), dtype=np.int64)


def _assigned(weight: NDArray[np.float64]) -> tuple[NDArray[np.int64], float]:
    """Every other step of the cycles of the best assignment; half its weight bounds any matching's."""
    from scipy.optimize import linear_sum_assignment

    n = len(weight)
    alone = weight.copy()
    np.fill_diagonal(alone, -n * weight.max())
    _, partner = linear_sum_assignment(alone, maximize=True)
    bound = float(weight[np.arange(n), partner].sum()) / 2
    pairs: list[tuple[int, int]] = []
    seen = np.zeros(n, dtype=bool)
    for start in range(n):
        cycle = []
        at = start
        while not seen[at]:
            seen[at] = True
            cycle.append(at)
            at = int(partner[at])
        ways = [list(zip(cycle[turn::2], cycle[turn + 1 :: 2], strict=False)) for turn in (0, 1)]
        pairs += max(ways, key=lambda way: sum(weight[a, b] for a, b in way))
    return np.array(pairs, dtype=np.int64).reshape(-1, 2), bound


def _greedy(weight: NDArray[np.float64]) -> NDArray[np.int64]:
    """Heaviest first among each rank's heaviest partners, after subtracting each rank's average weight."""
    n = len(weight)
    own = (weight.sum(axis=1) - weight.sum() / (2 * (n - 1))) / (n - 2)  # the best w[i, j] = own[i] + own[j]
    rest = weight - own[:, None] - own[None, :]
    np.fill_diagonal(rest, -np.inf)
    near = np.argpartition(-rest, PARTNERS, axis=1)[:, :PARTNERS]
    rows, columns = np.repeat(np.arange(n), PARTNERS), near.reshape(-1)
    order = np.argsort(-rest[rows, columns], kind="stable")
    free = np.ones(n, dtype=bool)
    pairs = []
    for a, b in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
        if free[a] and free[b]:
            free[a] = free[b] = False
            pairs.append((a, b))
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _dual(weight: NDArray[np.float64], turns: int = 6) -> float:
    """The sum of prices of ranks that no pair outweighs, which bounds every matching: additive fits, lowered by turns."""
    n = len(weight)
    fit = (weight.sum(axis=1) - weight.sum() / (2 * (n - 1))) / (n - 2)
    sums = []
    for price in (fit, weight.max(axis=1) / 2):
        least = _most_after(weight, price)
        price = np.maximum(price, least)
        for _ in range(turns):
            price = (price + _most_after(weight, price)) / 2
        sums.append(float(np.maximum(price, 0.0).sum()))
    return min(sums)


def _most_after(weight: NDArray[np.float64], price: NDArray[np.float64]) -> NDArray[np.float64]:
    """What each rank must at least be priced, the others' prices given; never below nothing."""
    left = weight - price[None, :]
    np.fill_diagonal(left, 0.0)
    most: NDArray[np.float64] = left.max(axis=1)
    return np.maximum(most, 0.0)


def _exchanged(weight: NDArray[np.float64], pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Exchange partners between two pairs while that gains, the largest gains of all pairs of pairs first."""
    a, b = pairs[:, 0].copy(), pairs[:, 1].copy()
    worth = float(weight.max()) * 1e-9
    fresh = np.arange(len(a))
    weighed = 0
    while len(fresh) and weighed < WORK:
        weighed += len(fresh) * len(a)
        now = weight[a, b]
        rows = np.arange(len(fresh))
        of_a, of_b = weight[a[fresh]], weight[b[fresh]]
        alike, crossed = of_a[:, a] + of_b[:, b], of_a[:, b] + of_b[:, a]
        gain = np.maximum(alike, crossed) - now[fresh][:, None] - now[None, :]
        gain[rows, fresh] = 0.0
        other = gain.argmax(axis=1)
        gains = gain[rows, other]
        changed = np.zeros(len(a), dtype=bool)
        for row in np.argsort(-gains, kind="stable").tolist():
            i, j = int(fresh[row]), int(other[row])
            if gains[row] <= worth:
                break
            if changed[j] and not changed[i]:  # the next best: many pairs have the same best
                gain[row, changed] = 0.0
                j = int(gain[row].argmax())
            if changed[i] or gain[row, j] <= worth:
                continue
            changed[[i, j]] = True
            if crossed[row, j] > alike[row, j]:
                b[i], b[j] = b[j], b[i]
            else:
                b[i], a[j] = a[j], b[i]
        fresh = np.unique(np.concatenate([np.flatnonzero(changed), fresh[gains > worth]]))
    return np.column_stack([a, b])
