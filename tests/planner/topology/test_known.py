"""Stored graphs: every entry is what it is said to be, and the method that offers them offers the
best.
"""

from __future__ import annotations

import re

import networkx
import pytest

from planner.model.demand import Demand, Group
from planner.model.shape import Lab
from planner.predict.score import moore
from planner.topology.direct import best_known, instead, pareto
from planner.topology.known import LARGEST, known
from planner.topology.known_graphs import SEARCHED
from planner.topology.methods import Wanted, direct
from tests.planner.topology.test_exact import whole

MOST = {
    (3, 2): 10,
    (3, 3): 20,
    (3, 4): 38,
    (4, 2): 15,
    (4, 3): 41,
    (5, 2): 24,
    (6, 2): 32,
    (7, 2): 50,
    (8, 2): 57,
}
"""The largest known graphs of a degree and diameter, up to 64 ranks (Miller and Siran, Moore graphs
and beyond, 2013).
"""


def measured(n: int, edges: list[list[int]]) -> tuple[int, float]:
    """Diameter and mean hops by another program's breadth-first search."""
    graph = networkx.Graph(map(tuple, edges))
    assert graph.number_of_nodes() == n and networkx.is_connected(graph)
    return networkx.diameter(graph), networkx.average_shortest_path_length(graph)


@pytest.mark.parametrize(("n", "degree"), [*known(), (57, 8)])
def test_every_stored_graph_is_regular_connected_and_as_near_as_it_is_said(
    n: int, degree: int
) -> None:
    stored = best_known(n, degree)
    assert stored is not None
    shape = stored.build()
    links = shape.cables.tolist()
    assert len({frozenset(link) for link in links}) == len(links) == n * degree // 2
    assert all(sum(rank in link for link in links) == degree for rank in range(n))
    diameter, hops = measured(n, links)
    least = moore(n, degree, duplex=True)
    assert (shape.diameter, shape.mean_hops()) == (diameter, pytest.approx(hops))
    assert diameter >= least[0] and hops >= least[1] - 1e-9
    assert stored.cost.steps == diameter


def test_no_graph_is_stored_twice() -> None:
    assert len(SEARCHED.replace("\n ", " ").splitlines()) == len(known())


@pytest.mark.parametrize(("degree", "diameter"), MOST)
def test_the_largest_known_graphs_of_a_degree_and_diameter_are_offered_with_their_source(
    degree: int, diameter: int
) -> None:
    n = MOST[degree, diameter]
    demand = Demand(n, (Group("dp", tuple(range(n)), 10**6),), 0 * whole(n).mp)
    first = direct(demand, Lab(n, degree), Wanted("direct"))[0]
    assert first.shape.diameter == diameter and first.shape.n == n and first.shape.degree == degree
    assert LARGEST[n, degree] in first.why or n == 10
    assert any(
        line.startswith(f"Moore bound: no graph of this degree has a diameter below {diameter} ")
        for line in first.why
    )


@pytest.mark.long
def test_no_other_graph_of_the_catalogue_takes_fewer_steps_than_the_stored_one() -> None:
    for n, degree in known():
        stored = best_known(n, degree)
        assert stored is not None and pareto(n, degree)[0].cost.steps == stored.cost.steps


def test_who_asks_for_too_much_is_told_what_is_stored() -> None:
    assert re.search(
        r"voltage graph 38 of degree 3.*diameter 4, 3.108 mean hops", instead(38, 3, duplex=True)
    )
