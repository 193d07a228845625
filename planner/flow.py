"""The best that any division of traffic over paths can do: concurrent flow as a linear program, solved by HiGHS.

Flow is counted by destination, so there are n x links variables and not n x n x links. For traffic and links that look alike from
every rank (circulants, uniform demand) an optimum exists that looks alike too, which leaves distance x stride variables.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from planner.demand import Infeasible
from planner.routing import Pair, Path, Routes
from planner.shape import Shape

TIDY = 1e-6
"""Weight of the hops of all traffic beside the load of the fullest link: among equal loads, the shortest paths."""
DUST = 1e-9
"""Flow below this part of the largest load is rounding."""


def fullest(shape: Shape, demand: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """The least load, in bytes for each parallel link, that the fullest link can have; and flow[destination, arc] that reaches it.

    Arcs are the pairs of neighbours in the order of `np.nonzero(shape.adjacency)`.
    Raises: Infeasible - bytes are to go where no way leads.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, hstack, identity, kron

    n = shape.n
    tails, heads = np.nonzero(shape.adjacency)
    arcs = len(tails)
    if ((demand > 0) & (shape.hops < 0)).any():
        src, dst = np.argwhere((demand > 0) & (shape.hops < 0))[0].tolist()
        raise Infeasible(f"no way leads from rank {src} to rank {dst}", "give the topology a ring through all ranks")
    wanted = np.flatnonzero(demand.any(axis=0))
    if not len(wanted):
        return 0.0, np.zeros((n, arcs))
    bound = float((demand * np.maximum(shape.hops, 0)).sum()) / float(shape.adjacency.sum())
    scaled = demand / bound
    # leaving - arriving = demand, at every rank but the destination
    ends = csr_array(
        (np.r_[np.ones(arcs), -np.ones(arcs)], (np.r_[tails, heads], np.r_[np.arange(arcs), np.arange(arcs)])), shape=(n, arcs)
    )
    conserve = kron(identity(len(wanted)), ends, format="csr")
    rows = np.ones((len(wanted), n), dtype=bool)
    rows[np.arange(len(wanted)), wanted] = False
    conserve = conserve[np.flatnonzero(rows.reshape(-1))]
    total = hstack([csr_array((conserve.shape[0], 1)), conserve], format="csr")
    links = shape.adjacency[tails, heads].astype(float)
    full = hstack([csr_array(-links[:, None]), kron(np.ones((1, len(wanted))), identity(arcs))], format="csr")
    cost = np.full(1 + len(wanted) * arcs, TIDY / arcs)
    cost[0] = 1.0
    answer = linprog(
        cost, A_ub=full, b_ub=np.zeros(arcs), A_eq=total, b_eq=scaled[:, wanted].T.reshape(-1)[rows.reshape(-1)], method="highs"
    )
    if answer.status != 0:
        raise Infeasible(
            f"the linear program has no answer: {answer.message}", "see that all amounts are within a few orders of magnitude"
        )
    flow = np.zeros((n, arcs))
    flow[wanted] = answer.x[1:].reshape(len(wanted), arcs)
    return float(max((flow.sum(axis=0) / links).max(), 0.0)) * bound, flow * bound


def balanced(shape: Shape, demand: NDArray[np.float64]) -> tuple[float, Routes]:
    """Routes whose fullest link carries as few bytes as any could, and those bytes (for each parallel link)."""
    load, flow = fullest(shape, demand)
    tails, heads = np.nonzero(shape.adjacency)
    paths: dict[Pair, tuple[tuple[Path, float], ...]] = {}
    for dst in np.flatnonzero(demand.any(axis=0)).tolist():
        parts = _acyclic(shape.n, tails, heads, flow[dst], dust=DUST * max(float(flow.max()), 1e-300))
        for src in np.flatnonzero(demand[:, dst]).tolist():
            paths[src, dst] = _split(parts, src, dst)
    return load, Routes(shape.n, dict(sorted(paths.items())))


def _acyclic(
    n: int, tails: NDArray[np.int64], heads: NDArray[np.int64], flow: NDArray[np.float64], dust: float
) -> dict[int, dict[int, float]]:
    """What each rank sends to each neighbour for one destination, less what goes round in circles."""
    parts: dict[int, dict[int, float]] = {}
    for here, there, amount in zip(tails.tolist(), heads.tolist(), flow.tolist(), strict=True):
        if amount > dust:
            parts.setdefault(here, {})[there] = amount
    while circle := _circle(parts):
        steps = list(zip(circle, [*circle[1:], circle[0]], strict=True))
        least = min(parts[a][b] for a, b in steps)
        for a, b in steps:
            parts[a][b] -= least
            if parts[a][b] <= dust:
                del parts[a][b]
    return parts


def _circle(parts: Mapping[int, Mapping[int, float]]) -> list[int]:
    done: set[int] = set()
    for start in sorted(parts):
        trail: list[int] = []
        todo = [[start]]
        while todo:
            if not todo[-1]:
                todo.pop()
                if trail:
                    done.add(trail.pop())
                continue
            here = todo[-1].pop()
            if here in trail:
                return trail[trail.index(here) :]
            if here not in done:
                trail.append(here)
                todo.append(sorted(parts.get(here, ())))
    return []


def _split(parts: Mapping[int, Mapping[int, float]], src: int, dst: int) -> tuple[tuple[Path, float], ...]:
    found: list[tuple[Path, float]] = []
    waiting: list[tuple[Path, float]] = [((src,), 1.0)]
    while waiting:
        path, weight = waiting.pop()
        if path[-1] == dst:
            found.append((path, weight))
            continue
        out = parts[path[-1]]
        total = sum(out.values())
        waiting += [((*path, there), weight * amount / total) for there, amount in out.items()]
    return tuple(sorted(found, key=lambda way: (len(way[0]), way[0])))


def circulant_fullest(n: int, links: Mapping[int, int], demand: NDArray[np.float64]) -> float:
    """As `fullest`, where every rank i has `links[s]` links to i + s and sends `demand[m]` bytes to i + m.

    Averaging an optimum over all translations gives one that depends on distances alone, so nothing is lost.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    steps = sorted(links)
    count = len(steps)
    # variable 1 + r * count + c: bytes with r still to go that leave by steps[c]
    distances = np.arange(1, n)
    rows, columns, values = [], [], []
    for c, step in enumerate(steps):
        rows.append(distances - 1)
        columns.append(1 + distances * count + c)
        values.append(np.ones(n - 1))
        before = (distances + step) % n
        keep = before != 0
        rows.append(distances[keep] - 1)
        columns.append(1 + before[keep] * count + c)
        values.append(-np.ones(int(keep.sum())))
    size = 1 + n * count
    conserve = csr_array((np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=(n - 1, size))
    full = np.zeros((count, size))
    for c, step in enumerate(steps):
        full[c, 1 + c :: count] = 1.0
        full[c, 0] = -links[step]
    top = float(demand[1:].max(initial=0.0))
    if top == 0:
        return 0.0
    cost = np.zeros(size)
    cost[0] = 1.0
    answer = linprog(cost, A_ub=full, b_ub=np.zeros(count), A_eq=conserve, b_eq=demand[1:] / top, method="highs")
    if answer.status != 0:
        raise Infeasible(f"steps {steps} do not join all of {n} ranks", "add a stride coprime to the number of ranks")
    return float(answer.x[0]) * top
