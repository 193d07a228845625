"""Links for traffic between pairs: maximum-weight matchings, one after the other, the matched
demand weakened each time.

Up to `EXACT` ranks, and where few pairs have traffic, a matching is rustworkx's blossom
algorithm's. Larger dense demands start from an assignment (each rank a partner, not always each
other's; up to `ASSIGNED` ranks) or from the heaviest pairs, and exchange the partners of two pairs
while that serves more. An upper bound on any matching is reported with the result.

Ties fall to a seeded remainder far below one part in 2^30 of the largest weight, so that the answer
is the same in every run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import rustworkx
from numpy.typing import NDArray

from planner.model.demand import Infeasible
from planner.model.totient import Rules

EXACT = 128
FEW = 4
"""Pairs with traffic per rank up to which their number is few."""
ASSIGNED = 512
PARTNERS = 16
"""A rank's heaviest partners that a large matching starts from."""
GROUP = 16
"""Numbers of a row whose largest says whether one of them can be among the largest of the row."""
ROWS = 16
"""Ranks whose weights are worked on at once: a few arrays of 4096 each stay in a cache of 1 MiB."""
SQUARE = 128
"""The same for numbers that are read by rows and by columns."""
FINE = 2**40
WORK = 2**26
"""Pairs of pairs weighed for exchanges at most: all of them 16 times at 4096 ranks, a thousand
times at 512.
"""
ROOM = 2**54
"""What a unit of weight is multiplied by in blossom's whole numbers: more than the remainders of
2^13 pairs together.
"""


@dataclass(frozen=True)
class Match:
    """One round. `weight`: demand it serves, as weakened before, bytes; no matching could serve
    more than `bound`.
    """

    pairs: tuple[tuple[int, int], ...]
    weight: float
    bound: float


def matchings(
    mp: NDArray[np.float64],
    free: NDArray[np.int64],
    *,
    rules: Rules = "paper",
    rounds: int | None = None,
    seed: int = 0,
) -> tuple[Match, ...]:
    """Rounds of matching among ranks with free ports, until ports, demand or `rounds` are used up.

    mp: bytes from row to column. free: ports of each rank that links may take. A pair that has got
    c links counts w / 2^c (paper) or w / (c + 1) (artifact, where every rank must also be matched
    in every round). Raises: Infeasible - `artifact` with an odd number of ranks.
    """
    n = len(mp)
    every = rules == "artifact"
    if every and n % 2:
        raise Infeasible(
            f"{n} ranks cannot all be paired, as the released rules want",
            f"take {n - 1} or {n + 1} ranks, or the rules `paper`",
        )
    rng = np.random.default_rng(seed)
    left = free.astype(np.int64).copy()
    now = mp + mp.T
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
        found.append(
            Match(
                tuple((int(a), int(b)) for a, b in ends),
                float(now[ends[:, 0], ends[:, 1]].sum()),
                bound,
            )
        )
        left[ends.reshape(-1)] -= 1
        made.update(found[-1].pairs)
        for a, b in found[-1].pairs:
            links = made[a, b]
            now[a, b] = now[b, a] = (mp[a, b] + mp[b, a]) / (
                2**links if rules == "paper" else links + 1
            )
    return tuple(found)


def heaviest(
    weight: NDArray[np.float64], rng: np.random.Generator, *, every: bool = False
) -> tuple[NDArray[np.int64], float]:
    """Pairs (rows of two) of a matching of much weight, and a bound on any; `every`: as many pairs
    as there can be.

    weight: symmetric, zero diagonal.
    """
    n = len(weight)
    if n <= EXACT or (np.count_nonzero(weight) <= 2 * FEW * n and not every):
        lower, upper = np.triu_indices(n, 1) if every else np.nonzero(np.triu(weight, 1))
        chosen = _blossom(n, lower, upper, weight[lower, upper], rng, every=every)
        return np.column_stack([lower[chosen], upper[chosen]]), float(
            weight[lower[chosen], upper[chosen]].sum()
        )
    noise = rng.random(weight.shape)
    noise *= weight.max() / FINE
    # who is paired with the one beyond the last, of an odd number, stays alone
    shaken = np.zeros((n + n % 2, n + n % 2))
    for rows in _pieces(n, SQUARE):
        for columns in _pieces(n, SQUARE):
            shaken[rows, columns] = (
                weight[rows, columns] + noise[rows, columns] + noise[columns, rows].T
            )
    del noise
    np.fill_diagonal(shaken, 0.0)
    if n <= ASSIGNED:
        pairs, bound = _assigned(shaken)
    else:
        own = _own(shaken)
        pairs, bound = _greedy(shaken, own), _dual(shaken, own)
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
    whole = (
        np.rint(weight * (FINE / top)).astype(np.int64).tolist() if top > 0 else [0] * len(weight)
    )
    dice = rng.integers(FINE, size=len(whole)).tolist()
    graph = rustworkx.PyGraph(multigraph=False)
    graph.add_nodes_from(range(n))
    ends = list(zip(lower.tolist(), upper.tolist(), strict=True))
    graph.add_edges_from(
        [(a, b, w * ROOM + d) for (a, b), w, d in zip(ends, whole, dice, strict=True)]
    )
    chosen = rustworkx.max_weight_matching(graph, max_cardinality=every, weight_fn=int)
    place = {pair: index for index, pair in enumerate(ends)}
    return np.array(sorted(place[(a, b) if a < b else (b, a)] for a, b in chosen), dtype=np.int64)


def _assigned(weight: NDArray[np.float64]) -> tuple[NDArray[np.int64], float]:
    """Every other step of the cycles of the best assignment; half its weight bounds any
    matching's.
    """
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
        paths = [list(zip(cycle[step::2], cycle[step + 1 :: 2], strict=False)) for step in (0, 1)]
        pairs += max(paths, key=lambda path: sum(weight[a, b] for a, b in path))
    return np.array(pairs, dtype=np.int64).reshape(-1, 2), bound


def _pieces(n: int, size: int) -> list[slice]:
    return [slice(first, min(first + size, n)) for first in range(0, n, size)]


def _own(weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """The best w[i, j] = own[i] + own[j]."""
    n = len(weight)
    own: NDArray[np.float64] = (weight.sum(axis=1) - weight.sum() / (2 * (n - 1))) / (n - 2)
    return own


def _greedy(weight: NDArray[np.float64], own: NDArray[np.float64]) -> NDArray[np.int64]:
    """Heaviest first among each rank's heaviest partners, after subtracting each rank's average
    weight.
    """
    n = len(weight)
    near, worth = np.empty((n, PARTNERS), dtype=np.int64), np.empty((n, PARTNERS))
    for rows in _pieces(n, ROWS):
        rest = weight[rows] - own[rows, None] - own[None, :]
        rest[np.arange(len(rest)), np.arange(rows.start, rows.stop)] = -np.inf
        near[rows] = _largest(rest)
        worth[rows] = np.take_along_axis(rest, near[rows], axis=1)
    order = np.argsort(-worth.reshape(-1), kind="stable")
    free = [True] * n
    pairs = []
    for a, b in zip((order // PARTNERS).tolist(), near.reshape(-1)[order].tolist(), strict=True):
        if free[a] and free[b]:
            free[a] = free[b] = False
            pairs.append((a, b))
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _largest(rows: NDArray[np.float64]) -> NDArray[np.int64]:
    """Places of the `PARTNERS` largest numbers of each row, as argpartition chooses them where
    numbers are equal.
    """
    count, n = rows.shape
    groups = n // GROUP
    if groups <= PARTNERS:
        few: NDArray[np.int64] = np.argpartition(-rows, PARTNERS, axis=1)[:, :PARTNERS]
        return few
    most = rows[:, : groups * GROUP].reshape(count, GROUP, groups).max(axis=1)
    # PARTNERS + 1 are at least as large
    enough = np.partition(most, groups - PARTNERS - 1, axis=1)[:, groups - PARTNERS - 1]
    row, column = np.nonzero(rows >= enough[:, None])
    value = rows[row, column]
    order = np.lexsort((-value, row))
    first = np.searchsorted(row, np.arange(count))[:, None] + np.arange(PARTNERS + 1)
    ranked = value[order][first]
    found: NDArray[np.int64] = column[order][first[:, :PARTNERS]]
    equal = (ranked[:, 1:] == ranked[:, :-1]).any(axis=1)
    if equal.any():
        found[equal] = np.argpartition(-rows[equal], PARTNERS, axis=1)[:, :PARTNERS]
    return found


def _dual(weight: NDArray[np.float64], own: NDArray[np.float64], steps: int = 6) -> float:
    """The sum of prices of ranks that no pair outweighs, which bounds every matching: additive
    fits, lowered by turns.
    """
    price = np.stack([own, weight.max(axis=1) / 2])
    price = np.maximum(price, _most_after(weight, price))
    for _ in range(steps):
        price = (price + _most_after(weight, price)) / 2
    return min(float(np.maximum(one, 0.0).sum()) for one in price)


def _most_after(weight: NDArray[np.float64], prices: NDArray[np.float64]) -> NDArray[np.float64]:
    """What each rank must at least be priced, the others' prices given, for each row of prices;
    never below nothing.
    """
    most = np.empty_like(prices)
    for rows in _pieces(len(weight), ROWS):
        for price, found in zip(prices, most, strict=True):
            left = weight[rows] - price
            left[np.arange(len(left)), np.arange(rows.start, rows.stop)] = 0.0
            left.max(axis=1, out=found[rows])
    return np.maximum(most, 0.0)


def _exchanged(weight: NDArray[np.float64], pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Exchange partners between two pairs while that gains, the largest gains of all pairs of pairs
    first.
    """
    a, b = pairs[:, 0].copy(), pairs[:, 1].copy()
    worth = float(weight.max()) * 1e-9
    fresh = np.arange(len(a))
    weighed = 0
    while len(fresh) and weighed < WORK:
        weighed += len(fresh) * len(a)
        now = weight[a, b]
        gain = np.empty((len(fresh), len(a)))
        for part in _pieces(len(fresh), ROWS):
            of_a, of_b = weight[a[fresh[part]]], weight[b[fresh[part]]]
            alike, crossed = (
                of_a.take(a, axis=1) + of_b.take(b, axis=1),
                of_a.take(b, axis=1) + of_b.take(a, axis=1),
            )
            gain[part] = np.maximum(alike, crossed) - now[fresh[part]][:, None] - now[None, :]
        rows = np.arange(len(fresh))
        gain[rows, fresh] = 0.0
        other = gain.argmax(axis=1)
        gains = gain[rows, other]
        changed = np.zeros(len(a), dtype=bool)
        for row in np.argsort(-gains, kind="stable").tolist():
            i, j = int(fresh[row]), int(other[row])
            if gains[row] <= worth:
                break
            if changed[j] and not changed[i]:  # the next best: many pairs have the same best
                np.putmask(gain[row], changed, 0.0)
                j = int(gain[row].argmax())
            if changed[i] or gain[row, j] <= worth:
                continue
            changed[[i, j]] = True
            # neither has changed
            if weight[a[i], b[j]] + weight[b[i], a[j]] > weight[a[i], a[j]] + weight[b[i], b[j]]:
                b[i], b[j] = b[j], b[i]
            else:
                b[i], a[j] = a[j], b[i]
        fresh = np.unique(np.concatenate([np.flatnonzero(changed), fresh[gains > worth]]))
    return np.column_stack([a, b])
