"""The least load of the fullest link, by three independent methods."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from planner.model.demand import Infeasible
from planner.model.shape import Shape
from planner.predict.flow import fullest
from planner.topology.direct import bipartite, circulant, complete, graph, hypercube, ring, torus
from tests.planner.predict.test_routing import all_to_all, some_shape


def by_pairs(shape: Shape, demand: np.ndarray) -> float:
    """The same program written out by source and destination: a variable for each pair and link."""
    n = shape.n
    arcs = np.argwhere(shape.adjacency > 0)
    pairs = np.argwhere(demand > 0)
    size = len(pairs) * len(arcs) + 1
    equal, right = np.zeros((len(pairs) * n, size)), np.zeros(len(pairs) * n)
    full = np.zeros((len(arcs), size))
    for p, (src, dst) in enumerate(pairs):
        for a, (x, y) in enumerate(arcs):
            equal[p * n + x, p * len(arcs) + a] += 1
            equal[p * n + y, p * len(arcs) + a] -= 1
            full[a, p * len(arcs) + a] = demand[src, dst]
        right[p * n + src], right[p * n + dst] = 1, -1
    full[:, -1] = -shape.adjacency[arcs[:, 0], arcs[:, 1]]
    cost = np.zeros(size)
    cost[-1] = 1
    return float(linprog(cost, A_ub=full, b_ub=np.zeros(len(arcs)), A_eq=equal, b_eq=right).fun)


@given(st.integers(3, 6), st.integers(0, 10**6), st.booleans())
@settings(max_examples=25)
def test_flow_by_destination_is_as_good_as_flow_by_pair(n: int, seed: int, duplex: bool) -> None:
    shape = some_shape(n, seed, duplex)
    demand = np.random.default_rng(seed).integers(5, size=(n, n)) * all_to_all(n)
    if demand.any():
        load, flow = fullest(shape, demand)
        assert load == pytest.approx(by_pairs(shape, demand), rel=1e-6)
        links = shape.adjacency[shape.adjacency > 0]
        assert (flow.sum(axis=0) / links).max() == pytest.approx(load)


@pytest.mark.parametrize(
    "shape",
    [ring(5), ring(6), complete(6), bipartite(3), hypercube(3), torus(3, 3), circulant(12, (1, 5))],
)
def test_where_all_links_look_alike_all_to_all_is_all_hops_over_all_links(shape: Shape) -> None:
    assert fullest(shape, all_to_all(shape.n))[0] == pytest.approx(
        shape.hops.sum() / shape.adjacency.sum()
    )


def test_all_to_all_on_the_strides_of_twelve() -> None:
    assert fullest(circulant(12, (1, 5)), all_to_all(12))[0] == pytest.approx(5)
    # hops alone would allow 4.5
    assert fullest(circulant(12, (2, 3)), all_to_all(12))[0] == pytest.approx(14 / 3)


def test_parallel_links_share_a_load() -> None:
    demand = np.zeros((3, 3))
    demand[0, 1] = 6
    assert fullest(graph(3, [(0, 1), (0, 1), (0, 2), (1, 2)]), demand)[0] == pytest.approx(2)


def test_nothing_to_carry_and_nowhere_to_go() -> None:
    assert fullest(ring(4), np.zeros((4, 4)))[0] == 0
    with pytest.raises(Infeasible, match="no path leads from rank 0 to rank 2"):
        fullest(graph(4, [(0, 1), (2, 3)]), all_to_all(4))
