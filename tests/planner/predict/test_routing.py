"""Paths, weights, loads; circles of waiting channels; rules on hosts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.model.demand import Demand, Group, Infeasible
from planner.model.shape import Lab, Shape
from planner.predict import routing
from planner.predict.routing import (
    Routes,
    deadlock,
    even,
    even_loads,
    k_shortest,
    lossless_classes,
    single,
)
from planner.topology.direct import circulant, graph, ring
from planner.topology.planned import planned
from planner.topology.topofinder import find


def all_to_all(n: int) -> np.ndarray:
    return np.ones((n, n)) - np.eye(n)


def some_shape(n: int, seed: int, duplex: bool = True) -> Shape:
    """A ring and a few more links, two of them parallel to others at times."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(n).tolist()
    more = [tuple(rng.choice(n, 2, replace=False).tolist()) for _ in range(n // 2)]
    return graph(n, list(zip(order, order[1:] + order[:1], strict=True)) + more, duplex=duplex)


def loads(routes: Routes, demand: np.ndarray) -> np.ndarray:
    """Bytes between neighbours, from row to column."""
    found = np.zeros(demand.shape)
    for src, dst in np.argwhere(demand > 0).tolist():
        for path, weight in routes.paths[src, dst]:
            for step in pairwise(path):
                found[step] += weight * demand[src, dst]
    return found


@given(st.integers(3, 9), st.integers(0, 10**6), st.booleans())
@settings(max_examples=40)
def test_weights_of_routes_sum_to_one_and_paths_follow_links(
    n: int, seed: int, duplex: bool
) -> None:
    shape = some_shape(n, seed, duplex)
    for routes in (even(shape), single(shape, seed=seed), k_shortest(shape, 3)):
        assert set(routes.paths) == {(a, b) for a in range(n) for b in range(n) if a != b}
        for (src, dst), paths in routes.paths.items():
            assert sum(weight for _, weight in paths) == pytest.approx(1)
            assert len({path for path, _ in paths}) == len(paths)
            for path, _ in paths:
                assert path[0] == src and path[-1] == dst and len(set(path)) == len(path)
                assert all(shape.adjacency[step] for step in pairwise(path))


@given(st.integers(3, 10), st.integers(0, 10**6), st.booleans(), st.integers(1, 12))
@settings(max_examples=40)
def test_loads_counted_at_once_are_those_of_the_paths_listed(
    n: int, seed: int, duplex: bool, block: int
) -> None:
    shape = some_shape(n, seed, duplex)
    demand = np.random.default_rng(seed).random((n, n)) * all_to_all(n)
    assert even_loads(shape, demand, block) == pytest.approx(loads(even(shape), demand))


def test_even_division_counts_parallel_links() -> None:
    shape = graph(4, [(0, 1), (0, 1), (0, 2), (1, 3), (2, 3)])
    assert dict(even(shape).paths[0, 3]) == {
        (0, 1, 3): pytest.approx(2 / 3),
        (0, 2, 3): pytest.approx(1 / 3),
    }


def test_the_k_shortest_paths_come_in_order_of_length_and_only_as_many_as_there_are() -> None:
    paths = [path for path, _ in k_shortest(circulant(6, (1, 2)), 4, [(0, 3)]).paths[0, 3]]
    assert paths == [(0, 1, 3), (0, 2, 3), (0, 4, 3), (0, 5, 3)]
    assert [path for path, _ in k_shortest(ring(5), 9, [(0, 2)]).paths[0, 2]] == [
        (0, 1, 2),
        (0, 4, 3, 2),
    ]
    with pytest.raises(Infeasible, match="0 paths for a pair"):
        k_shortest(ring(5), 0)


def test_a_pair_drawn_by_a_seed_is_drawn_again_by_it() -> None:
    shape = circulant(12, (1, 5))
    assert single(shape, seed=1).paths == single(shape, seed=1).paths != single(shape, seed=2).paths


def test_the_bandwidth_tax_of_shortest_paths_is_their_mean_hops() -> None:
    shape, demand = circulant(12, (1, 5)), all_to_all(12)
    assert (
        loads(even(shape), demand).sum() / demand.sum()
        == pytest.approx(shape.mean_hops())
        == pytest.approx(20 / 11)
    )
    assert loads(even(shape), demand).sum() == pytest.approx(240)


def test_published_routing_is_coin_change_in_the_group_and_k_shortest_for_other_traffic() -> None:
    wire = np.zeros((12, 12))
    wire[0, 6] = 1e6
    found = find(Demand(12, (Group("dp", tuple(range(12)), 10**9),), wire), Lab(12, 4))
    routes = planned(found, wire, k=2)
    assert routes.paths[0, 2] == (((0, 1, 2), 1.0),)  # coins 1 + 1
    assert [path for path, _ in routes.paths[0, 6]] == [(0, 1, 6), (0, 5, 6)]
    released = find(
        Demand(12, (Group("dp", tuple(range(12)), 10**9),), wire), Lab(12, 4), rules="artifact"
    )
    assert all(len(paths) == 1 for paths in planned(released, wire, seed=4).paths.values())
    assert planned(released, wire, seed=4).paths == planned(released, wire, seed=4).paths


def test_routing_by_coins_counts_places_in_the_group_not_ranks() -> None:
    members = (7, 3, 11, 0, 5, 9, 1)
    found = find(Demand(12, (Group("dp", members, 10**9),), np.zeros((12, 12))), Lab(12, 4))
    coins = found.coins("dp")
    for a, src in enumerate(members):
        for b, dst in enumerate(members):
            if a != b:
                ((path, _),) = planned(found, np.zeros((12, 12))).paths[src, dst]
                assert path == tuple(members[i] for i in coins.path(a, b))


def test_channels_round_a_one_way_ring_wait_for_each_other() -> None:
    circle = deadlock(even(ring(5, duplex=False)))
    assert sorted(circle) == [(i, (i + 1) % 5) for i in range(5)]
    assert all(before[1] == after[0] for before, after in pairwise((*circle, circle[0])))
    assert deadlock(even(graph(5, [(0, 1), (1, 2), (2, 3), (3, 4)]))) == ()  # a line cannot
    assert deadlock(
        even(
            ring(4, duplex=False),
        )
    ) and not deadlock(even(ring(3)))


@given(st.integers(3, 9), st.integers(0, 10**6), st.booleans())
@settings(max_examples=30)
def test_within_a_class_no_channels_wait_in_a_circle(n: int, seed: int, duplex: bool) -> None:
    routes = even(some_shape(n, seed, duplex))
    classes = lossless_classes(routes)
    assert set(classes) == {path for paths in routes.paths.values() for path, _ in paths}
    for number in set(classes.values()):
        mine = {
            (path[0], path[-1], i): ((path, 1.0),)
            for i, path in enumerate(classes)
            if classes[path] == number
        }
        assert deadlock(Routes(n, mine)) == ()  # type: ignore[arg-type]
    assert (max(classes.values()) == 0) == (deadlock(routes) == ())


def test_each_host_needs_a_route_and_a_neighbour_a_destination_and_two_filters_a_transit() -> None:
    shape = ring(5, duplex=False)
    rules = even(shape).rules()
    # from one side arrives what goes 1, 2 or 3 ranks further
    assert rules == (routing.HostRules(routes=4, neighbours=4, filters=6),) * 5
    star = even(graph(4, [(0, 1), (0, 2), (0, 3)]), [(1, 2), (1, 3)]).rules()
    assert star[0].filters == 4 and star[1] == routing.HostRules(routes=2, neighbours=2, filters=0)


def test_bytes_for_a_rank_no_way_leads_to_are_refused() -> None:
    apart = graph(4, [(0, 1), (2, 3)])
    with pytest.raises(Infeasible, match="no path leads from rank 0 to rank 2"):
        even(apart, [(0, 2)])
    with pytest.raises(Infeasible, match="no path leads from rank 0 to rank 2"):
        even_loads(apart, all_to_all(4))
