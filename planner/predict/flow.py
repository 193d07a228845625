"""The least load that any division of traffic over paths can reach: concurrent flow as a linear
program, solved by HiGHS.

Flow is counted by destination, so there are n x links variables and not n x n x links.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.model.demand import Infeasible
from planner.model.shape import Shape

TIDY = 1e-6
"""Weight of the hops of all traffic relative to the load of the fullest link: among equal loads,
the shortest paths.
"""


def fullest(shape: Shape, demand: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """The least load, in bytes for each parallel link, that the fullest link can have; and
    flow[destination, arc] that reaches it.

    Arcs are the pairs of neighbours in the order of `np.nonzero(shape.adjacency)`.
    Raises: Infeasible - bytes for an unreachable rank.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array, hstack, identity, kron

    n = shape.n
    tails, heads = np.nonzero(shape.adjacency)
    arcs = len(tails)
    if ((demand > 0) & (shape.hops < 0)).any():
        src, dst = np.argwhere((demand > 0) & (shape.hops < 0))[0].tolist()
        raise Infeasible(
            f"no path leads from rank {src} to rank {dst}",
            "give the topology a ring through all ranks",
        )
    wanted = np.flatnonzero(demand.any(axis=0))
    if not len(wanted):
        return 0.0, np.zeros((n, arcs))
    bound = float((demand * np.maximum(shape.hops, 0)).sum()) / float(shape.adjacency.sum())
    scaled = demand / bound
    # leaving - arriving = demand, at every rank but the destination
    ends = csr_array(
        (
            np.r_[np.ones(arcs), -np.ones(arcs)],
            (np.r_[tails, heads], np.r_[np.arange(arcs), np.arange(arcs)]),
        ),
        shape=(n, arcs),
    )
    conserve = kron(identity(len(wanted)), ends, format="csr")
    rows = np.ones((len(wanted), n), dtype=bool)
    rows[np.arange(len(wanted)), wanted] = False
    conserve = conserve[np.flatnonzero(rows.reshape(-1))]
    total = hstack([csr_array((conserve.shape[0], 1)), conserve], format="csr")
    links = shape.adjacency[tails, heads].astype(float)
    full = hstack(
        [csr_array(-links[:, None]), kron(np.ones((1, len(wanted))), identity(arcs))], format="csr"
    )
    cost = np.full(1 + len(wanted) * arcs, TIDY / arcs)
    cost[0] = 1.0
    answer = linprog(
        cost,
        A_ub=full,
        b_ub=np.zeros(arcs),
        A_eq=total,
        b_eq=scaled[:, wanted].T.reshape(-1)[rows.reshape(-1)],
        method="highs",
    )
    if answer.status != 0:
        raise Infeasible(
            f"the linear program has no answer: {answer.message}",
            "see that all amounts are within a few orders of magnitude",
        )
    flow = np.zeros((n, arcs))
    flow[wanted] = answer.x[1:].reshape(len(wanted), arcs)
    return float(max((flow.sum(axis=0) / links).max(), 0.0)) * bound, flow * bound
