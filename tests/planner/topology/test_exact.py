"""The search of small clusters: what it finds on twelve, what it says of totient strides, and that
rings use every link once.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from planner.model.demand import Demand, Group, Infeasible
from planner.model.planes import assign
from planner.model.shape import Lab, Shape
from planner.topology.direct import bipartite, circulant, complete, graph, kneser
from planner.topology.exact import Findings, search
from planner.topology.hamilton import decompose
from planner.topology.railonly import template
from tests.planner.predict.test_routing import all_to_all


def whole(n: int, between: float = 1e6) -> Demand:
    return Demand(n, (Group("dp", tuple(range(n)), 10**8),), between * all_to_all(n))


def edges(
    shape: Shape, orders: tuple[tuple[int, ...], ...], left: tuple[tuple[int, int], ...]
) -> list[tuple[int, int]]:
    paths = [step for order in orders for step in pairwise((*order, order[0]))] + list(left)
    return sorted((min(path), max(path)) if shape.duplex else path for path in paths)


@pytest.mark.parametrize(
    "shape",
    [circulant(12, (2, 3)), circulant(16, (2, 6, 7)), bipartite(4), complete(7), complete(8)],
)
def test_rings_use_every_link_once_and_leave_a_matching_at_odd_degree(shape: Shape) -> None:
    orders, left = decompose(shape) or ((), ())
    assert all(sorted(order) == list(range(shape.n)) for order in orders)
    assert edges(shape, orders, left) == sorted(map(tuple, np.sort(shape.cables, axis=1).tolist()))
    assert (
        len({rank for pair in left for rank in pair})
        == 2 * len(left)
        == (shape.n if shape.degree % 2 else 0)
    )


def test_one_way_links_divide_into_one_way_rings() -> None:
    shape = circulant(9, (1, 3, 4), duplex=False)  # three steps of 3 come back
    orders, left = decompose(shape) or ((), ())
    assert len(orders) == 3 and left == () and edges(shape, orders, ()) == sorted(shape.links)


def test_petersens_graph_has_no_ring_through_all() -> None:
    assert decompose(kneser(5, 2)) is None
    assert decompose(graph(6, [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5)])) is None
    # rings there are, but no three that share no link
    assert decompose(circulant(9, (1, 3, 5), duplex=False)) is None


def test_twelve_hosts_of_degree_four_get_the_fewest_hops_there_can_be_and_it_is_said() -> None:
    found = search(whole(12), Lab(12, 4, planes=True))
    best = found.best[0]
    assert best.name.startswith("search by exchanges") and found.totient is not None
    assert (
        (best.score.diameter, best.score.hops)
        == pytest.approx(found.moore)
        == (2, pytest.approx(18 / 11))
    )
    assert (
        best.score.allreduce_s
        == pytest.approx(found.allreduce_bound_s)
        == found.totient.score.allreduce_s
    )
    assert found.beaten() == (
        f"{best.name} beats totient strides: transfers -8.57%, hops 1.81818 -> 1.63636, diameter 3 -> 2"
    )
    assert [len(ring.order) for ring in best.shape.rings] == [12, 12] and len(
        assign(best.shape, 4)
    ) == 24


def test_of_graphs_of_as_few_hops_the_one_whose_fullest_link_carries_least_is_found() -> None:
    lab = Lab(12, 4)
    for demand in (whole(12), Demand(12, (), 1e6 * all_to_all(12))):
        best = search(demand, lab).best[0]
        assert best.score.mp_s * lab.port_bytes_per_s <= 32 / 7 * 1e6 * (1 + 1e-6), (
            "the best circulant's fullest link carries 14/3"
        )


def test_known_graphs_are_among_those_compared() -> None:
    found = search(whole(10), Lab(10, 3))
    assert found.best[0].name == "Petersen's graph" and ("known graph", 1) in found.counts


def test_where_strides_cannot_be_beaten_that_is_said() -> None:
    found = search(whole(11), Lab(11, 4))
    assert found.beaten() == "totient strides are not beaten" and len(found.best) == 1
    assert found.best[0].shape.rings[0].stride == 1


def test_a_port_that_no_ring_can_use_goes_to_a_schedule_if_the_back_end_can_run_one() -> None:
    found = search(whole(8), Lab(8, 3))
    assert found.best[0].by == "breadth-first" and found.best[0].score.allreduce_s == pytest.approx(
        found.allreduce_bound_s
    )
    rings = search(whole(8), Lab(8, 3), schedules=False)
    assert all(candidate.by == "rings" for candidate in rings.best)
    assert rings.best[0].score.allreduce_s == pytest.approx(found.allreduce_bound_s * 3 / 2)


def test_steps_that_cost_time_make_schedules_of_few_steps_better() -> None:
    found = search(whole(12), Lab(12, 4, alpha_s=1e-4))
    assert found.best[0].by == "breadth-first" and found.best[0].score.allreduce_s == pytest.approx(
        found.allreduce_bound_s + 4e-4
    )


def test_uneven_traffic_is_brought_nearer_than_by_any_circulant() -> None:
    traffic = np.zeros((12, 12))
    for a, b in ((0, 7), (1, 9), (2, 5), (3, 11), (4, 10), (6, 8)):
        traffic[a, b] = traffic[b, a] = 1e7
    found = search(Demand(12, whole(12).groups, traffic), Lab(12, 4))
    assert found.best[0].score.hops == 1 and found.best[0].score.mp_s == min(
        c.score.mp_s for c in found.best
    )
    assert found.totient is not None and found.best[0].score.better_than(found.totient.score)


def test_nobody_on_the_list_is_beaten_by_another_on_it_in_everything() -> None:
    traffic = np.random.default_rng(0).random((12, 12)) ** 3 * 1e7 * all_to_all(12)
    found = search(Demand(12, whole(12).groups, traffic), Lab(12, 4, planes=True))
    assert len(found.best) >= 2
    for one in found.best:
        for other in found.best:
            if one is not other:
                mine, its = one.score, other.score
                assert mine.better_than(its) or (mine.worst_diameter or 12) < (
                    its.worst_diameter or 12
                )


def test_one_way_links_are_searched_too() -> None:
    found = search(whole(8), Lab(8, 2, duplex=False))
    assert all((candidate.shape.adjacency.sum(axis=1) == 2).all() for candidate in found.best)
    assert found.best[0].score.hops <= 2


def test_a_search_too_large_or_for_a_lab_that_carries_nothing_is_refused() -> None:
    with pytest.raises(Infeasible, match="search of all kinds of graphs among 17 ranks"):
        search(whole(17), Lab(17, 1))
    with pytest.raises(Infeasible, match="no topology of 11 ranks and degree 4 fits") as caught:
        search(whole(11), Lab(11, 4, planes=True))
    assert "12 ranks" in caught.value.alternative


def test_a_seed_gives_the_same_list() -> None:
    def shown(found: Findings) -> str:
        return repr(
            [
                (candidate.name, candidate.shape, candidate.score, candidate.by)
                for candidate in found.best
            ]
        )

    assert shown(search(whole(8), Lab(8, 3), seed=2)) == shown(search(whole(8), Lab(8, 3), seed=2))


def test_parallel_links_go_to_different_rings() -> None:
    shape = template(Lab(12, 4), 2)
    assert shape.adjacency.max() == 2, "two links between the two hosts of a domain"
    found = decompose(shape)
    assert found is not None and found[1] == () and len(found[0]) == 2
    assert edges(shape, *found) == sorted(tuple(sorted(pair)) for pair in shape.cables.tolist())
    assert decompose(graph(4, [(0, 1), (0, 1), (2, 3), (2, 3)])) is None


def test_more_ranks_than_can_be_searched_are_told_why_what_is_proven_and_which_method_answers() -> (
    None
):
    with pytest.raises(Infeasible) as caught:
        search(whole(20), Lab(20, 3))
    text = f"{caught.value.condition}, {caught.value.alternative}"
    assert (
        "among 20 ranks: it ends at 16, as it weighs each of the 2^20 sets of destinations" in text
    )
    assert (
        "diameter 3, 2.368 mean hops; no graph has a diameter below 3 or fewer mean hops than 2.368"
        in text
    )
    with pytest.raises(Infeasible) as caught:
        search(whole(19), Lab(19, 3))
    assert caught.value.alternative == "take the method `topoopt`, or fewer ranks"
