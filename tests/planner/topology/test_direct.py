"""Base graphs, expansions, breadth-first schedules: costs counted, derived, and by linear
programs.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from planner.model.demand import Infeasible
from planner.model.shape import Shape
from planner.schedule.bfb import Cost, allreduce, circulant_cost, cost, schedule
from planner.topology import direct
from planner.topology.direct import (
    bipartite,
    cartesian,
    circulant,
    complete,
    de_bruijn,
    graph,
    hypercube,
    incidence,
    kautz,
    kneser,
    line,
    octahedron,
    optimal_load,
    pareto,
    ring,
    torus,
    widened,
)
from tests.planner.predict.test_routing import some_shape

BASES = {
    "ring": (ring(12), 2, 6, Fraction(11, 12)),
    "odd ring": (ring(5), 2, 2, Fraction(4, 5)),
    "one-way ring": (ring(12, duplex=False), 1, 11, Fraction(11, 12)),
    "complete": (complete(5), 4, 1, Fraction(4, 5)),
    "bipartite": (bipartite(4), 4, 2, Fraction(7, 8)),
    "circulant": (circulant(12, (2, 3)), 4, 2, Fraction(11, 12)),
    "strides": (circulant(12, (1, 5)), 4, 3, Fraction(11, 12)),
    "hypercube": (hypercube(4), 4, 4, Fraction(15, 16)),
    "torus": (torus(3, 4), 4, 3, Fraction(11, 12)),
    "Petersen": (kneser(5, 2), 3, 2, Fraction(9, 10)),
    "Heawood": (incidence(7, (0, 1, 3)), 3, 3, Fraction(13, 14)),
    "octahedron": (octahedron(3), 4, 2, Fraction(5, 6)),
    "Kautz": (kautz(2, 12), 2, 3, Fraction(7, 6)),
    "de Bruijn": (de_bruijn(2, 3), 2, 3, Fraction(1)),
}


def load_by_programs(shape: Shape) -> float:
    """T_B as it is defined: a linear program for every rank and step."""
    incoming = [shape.arcs[shape.arcs[:, 1] == u][:, 0] for u in range(shape.n)]
    degree = max(map(len, incoming))
    total = 0.0
    for step in range(1, shape.diameter + 1):
        worst = 0.0
        for u in range(shape.n):
            shards = np.flatnonzero(shape.hops[:, u] == step)
            paths = [
                (i, k)
                for i, v in enumerate(shards)
                for k, w in enumerate(incoming[u])
                if shape.hops[v, w] == step - 1
            ]
            if not paths:
                continue
            whole, full = (
                np.zeros((len(shards), len(paths) + 1)),
                np.zeros((len(incoming[u]), len(paths) + 1)),
            )
            for column, (i, k) in enumerate(paths):
                whole[i, column] = full[k, column] = 1
            full[:, -1] = -1
            aim = np.zeros(len(paths) + 1)
            aim[-1] = 1
            worst = max(
                worst,
                linprog(
                    aim, A_ub=full, b_ub=np.zeros(len(full)), A_eq=whole, b_eq=np.ones(len(shards))
                ).fun,
            )
        total += worst
    return degree / shape.n * total


@pytest.mark.parametrize("name", BASES)
def test_a_base_graph_has_its_known_steps_and_load(name: str) -> None:
    shape, degree, steps, load = BASES[name]
    assert shape.degree == degree and cost(shape) == Cost(steps, load)
    assert load >= optimal_load(shape.n)


@given(st.integers(3, 30), st.sets(st.integers(1, 29), min_size=1, max_size=3), st.booleans())
def test_one_rank_of_a_circulant_sees_what_all_see(n: int, others: set[int], duplex: bool) -> None:
    steps = sorted({1} | {step for step in others if step < (n / 2 if duplex else n)})
    assert circulant_cost(n, steps, duplex=duplex) == cost(circulant(n, steps, duplex=duplex))


def test_a_ring_both_ways_takes_half_the_steps_rounded_down() -> None:
    assert [cost(ring(n)).steps for n in (3, 4, 5, 6, 7)] == [1, 2, 2, 3, 3]


@given(st.integers(3, 8), st.integers(0, 10**6), st.booleans())
@settings(max_examples=15)
def test_the_load_counted_over_sets_of_links_is_the_linear_programs(
    n: int, seed: int, duplex: bool
) -> None:
    shape = some_shape(n, seed, duplex)
    assert float(cost(shape).load) == pytest.approx(load_by_programs(shape), rel=1e-6)


@pytest.mark.parametrize("name", ["strides", "Kautz", "Petersen", "torus"])
def test_a_schedule_brings_every_shard_whole_from_who_has_it_at_the_load_promised(
    name: str,
) -> None:
    shape = BASES[name][0]
    has = np.eye(shape.n)  # part of shard (column) at rank (row)
    sends = schedule(shape)
    loads: dict[int, dict[tuple[int, int], float]] = defaultdict(lambda: defaultdict(float))
    for step in range(1, shape.diameter + 1):
        before = has.copy()
        for send in (send for send in sends if send.step == step):
            assert (
                before[send.src, send.shard] == pytest.approx(1)
                and shape.adjacency[send.src, send.dst]
            )
            has[send.dst, send.shard] += send.part
            loads[step][send.src, send.dst] += send.part
    assert has == pytest.approx(np.ones((shape.n, shape.n)))
    total = sum(max(of_step.values()) for of_step in loads.values())
    assert shape.degree / shape.n * total == pytest.approx(float(cost(shape).load))


@pytest.mark.parametrize(
    ("grown", "small", "steps", "more"),
    [
        (line(kautz(2, 3)), kautz(2, 3), 1, Fraction(1, 3)),
        (line(de_bruijn(2, 2)), de_bruijn(2, 2), 1, Fraction(1, 4)),
        # copies are two hops apart, as is the farthest rank
        (widened(ring(5), 2), ring(5), 0, Fraction(1, 10)),
        (widened(kautz(2, 3), 2), kautz(2, 3), 1, Fraction(1, 6)),
        (widened(complete(4), 3), complete(4), 1, Fraction(2, 12)),
    ],
)
def test_an_expansion_costs_what_its_rule_says(
    grown: Shape, small: Shape, steps: int, more: Fraction
) -> None:
    assert cost(grown) == Cost(cost(small).steps + steps, cost(small).load + more)


def test_powers_and_products_cost_what_their_rules_say() -> None:
    small = de_bruijn(2, 2)
    n = small.n
    load = cost(small).load * Fraction(n, n - 1) * Fraction(n**2 - 1, n**2)
    assert cost(cartesian(small, small)) == Cost(2 * cost(small).steps, load)
    assert cost(cartesian(ring(3), bipartite(2))) == Cost(3, optimal_load(12))
    assert cartesian(cartesian(ring(2), ring(2)), ring(2)).degree == 3
    with pytest.raises(Infeasible, match="duplex and simplex"):
        cartesian(ring(3), ring(3, duplex=False))


@pytest.mark.parametrize(
    ("n", "degree", "duplex"),
    [
        (12, 4, True),
        (16, 4, True),
        (36, 4, True),
        (12, 4, False),
        (16, 2, False),
        (24, 4, False),
        (14, 3, True),
    ],
)
def test_the_front_has_steps_against_load_and_costs_that_graphs_bear_out(
    n: int, degree: int, duplex: bool
) -> None:
    front = pareto(n, degree, duplex=duplex)
    assert [c.cost.steps for c in front] == sorted({c.cost.steps for c in front})
    assert [c.cost.load for c in front] == sorted({c.cost.load for c in front}, reverse=True)
    for candidate in front:
        shape = candidate.build()
        assert (shape.n, shape.degree, shape.duplex) == (n, degree, duplex)
        assert candidate.check() == candidate.cost


def test_derived_costs_are_bounds_and_often_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "COUNTED", 0)
    met = []
    for duplex in (True, False):
        for n, degree in ((8, 4), (10, 4), (12, 6), (18, 2), (20, 4), (32, 2)):
            for candidate in pareto(n, degree, duplex=duplex):
                counted = candidate.check()
                assert counted.steps == candidate.cost.steps and counted.load <= candidate.cost.load
                met.append(counted == candidate.cost)
    assert met.count(True) > met.count(False) > 0


def test_neighbouring_steps_make_the_circulant_of_least_diameter() -> None:
    assert [candidate.name for candidate in pareto(12, 4)] == ["circulant 12(2, 3)"]


def test_eight_ranks_of_two_one_way_links_need_no_more_steps_than_layers_and_no_more_load_than_there_must_be() -> (
    None
):
    (only,) = pareto(8, 2, duplex=False)
    assert only.name == "one-way circulant 8(1, 3)" and only.cost == Cost(3, optimal_load(8))


def test_a_size_nothing_is_known_for_is_refused() -> None:
    with pytest.raises(Infeasible, match="no known graph of 7 ranks and degree 3"):
        pareto(7, 3)
    with pytest.raises(Infeasible, match=r"steps \(0, 1\) among 5"):
        circulant(5, (0, 1))
    with pytest.raises(Infeasible, match="cannot send"):
        cost(graph(4, [(0, 1), (2, 3)]))
    with pytest.raises(Infeasible, match=r"steps \(2, 4\) among 8"):
        circulant_cost(8, (2, 4))
    with pytest.raises(Infeasible, match="17 links into a rank"):
        cost(complete(18))


def test_an_all_reduce_is_a_gather_there_and_back() -> None:
    assert allreduce(circulant(12, (2, 3))) == Cost(4, Fraction(11, 6))
    rotated = graph(12, [(b, a) for a, b in kautz(2, 12).links], duplex=False)
    assert allreduce(kautz(2, 12)) == Cost(
        cost(kautz(2, 12)).steps + cost(rotated).steps, cost(kautz(2, 12)).load + cost(rotated).load
    )


def test_a_cube_of_a_thousand_ranks_is_counted_whole() -> None:
    assert cost(hypercube(10)) == Cost(10, Fraction(1023, 1024))


def test_the_known_planes_are_planes() -> None:
    for lines, differences in ((7, (0, 1, 3)), (13, (0, 1, 3, 9)), (21, (0, 1, 4, 14, 16))):
        shape = direct.incidence(lines, differences)
        assert shape.diameter == 3 and shape.degree == len(differences)
    assert kneser(7, 3).diameter == 3 and kneser(7, 3).degree == 4
