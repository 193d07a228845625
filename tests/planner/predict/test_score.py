"""Times, bounds and what failures leave; the worked values of a twelve-host lab."""

from __future__ import annotations

import numpy as np
import pytest

from planner.model.demand import Demand, Group, Infeasible
from planner.model.shape import Lab, Ring, Shape
from planner.predict.score import (
    allreduce_bound_s,
    allreduce_loads,
    allreduce_s,
    directed_rings,
    iteration_s,
    moore,
    mp_s,
    score,
    survives,
    without,
    worst_diameter,
)
from planner.topology.direct import circulant, complete, graph, hypercube, kneser, ring
from planner.topology.topofinder import find
from tests.planner.predict.test_routing import all_to_all

TWELVE = tuple(range(12))
WHOLE = Demand(12, (Group("dp", TWELVE, 10**9),), np.zeros((12, 12)))


def bus_and_algorithm(seconds: float) -> tuple[float, float]:
    """busbw and algbw in GB/s, as nccl-tests count them."""
    return 1 / seconds * 2 * 11 / 12, 1 / seconds


@pytest.mark.parametrize("duplex", [False, True])
def test_four_rings_of_25g_reduce_a_gigabyte_in_the_known_time(duplex: bool) -> None:
    lab = Lab(12, 4, 25.0, duplex=duplex)
    seconds = allreduce_s(find(WHOLE, lab).shape, WHOLE.groups, lab)
    assert seconds == pytest.approx(0.146666667, rel=1e-8) == allreduce_bound_s(12, 1e9, lab)
    assert bus_and_algorithm(seconds) == (pytest.approx(12.5), pytest.approx(6.818182, rel=1e-6))


def test_one_ring_of_25g_takes_four_times_as_long() -> None:
    lab = Lab(12, 1, 25.0, duplex=False)
    assert allreduce_s(find(WHOLE, lab).shape, WHOLE.groups, lab) == pytest.approx(
        0.586666667, rel=1e-8
    )


def test_every_step_round_a_ring_costs_alpha() -> None:
    quick, slow = Lab(12, 4), Lab(12, 4, alpha_s=1e-3)
    shape = find(WHOLE, quick).shape
    assert allreduce_s(shape, WHOLE.groups, slow) - allreduce_s(
        shape, WHOLE.groups, quick
    ) == pytest.approx(22e-3)


def test_a_duplex_ring_is_two_rings_but_for_two_ranks() -> None:
    shape = Shape(4, 4, True, (Ring("dp", (0, 1, 2, 3), 1), Ring("pair", (0, 2), 1)))
    assert directed_rings(shape, range(4)) == ((0, 1, 2, 3), (3, 2, 1, 0))
    assert directed_rings(shape, {2, 0}) == ((0, 2),)


def test_a_group_without_rings_goes_half_each_way_over_the_links_of_others() -> None:
    shape = circulant(12, (1,))
    loads = allreduce_loads(shape, [Group("odd", (1, 3, 5, 7, 9, 11), 12)])
    assert loads[1, 2] == loads[2, 3] == loads[2, 1] == pytest.approx(2 * 5 / 6 * 12 / 2)
    assert loads.sum() == pytest.approx(2 * 5 * 12 * 2)  # each byte makes two hops


def test_groups_on_rings_of_their_own_do_not_wait_for_each_other() -> None:
    halves = (Group("a", TWELVE[:6], 10**9), Group("b", TWELVE[6:], 10**9))
    demand, lab = Demand(12, halves, np.zeros((12, 12))), Lab(12, 4)
    shape = find(demand, lab).shape
    alone = 2 * 5 / 6 * 1e9 / (4 * 3.125e9)
    assert allreduce_s(shape, demand.groups, lab) == pytest.approx(alone)


def test_an_iteration_is_compute_then_pairs_then_all_reduce() -> None:
    lab = Lab(12, 4)
    demand = Demand(12, WHOLE.groups, all_to_all(12) * 1e6, compute_s=0.02)
    shape = circulant(12, (1, 5))
    assert mp_s(shape, demand.mp, lab) == pytest.approx(5e6 / 3.125e9)
    # no rings are named, so all-reduce goes round in order of ranks, over one of two strides
    assert iteration_s(shape, demand, lab) == pytest.approx(
        0.02 + 5e6 / 3.125e9 + 2 * 11 / 12 * 0.5e9 / 3.125e9
    )


def test_even_division_is_never_better_than_the_best() -> None:
    shape, mp = circulant(12, (2, 3)), all_to_all(12)
    assert mp_s(shape, mp, Lab(12, 4)) < mp_s(shape, mp, Lab(12, 4), exact=False)


def test_links_that_must_fail_before_a_rank_is_cut_off() -> None:
    assert [
        survives(shape)
        for shape in (ring(6), ring(6, duplex=False), circulant(12, (1, 5)), hypercube(4))
    ] == [2, 1, 4, 4]
    assert survives(graph(4, [(0, 1), (1, 2), (2, 3)])) == 1
    paths = [(0, 1), (0, 1), (0, 2), (0, 2), (1, 2), (1, 2), (2, 1), (2, 1), (1, 0)]
    assert (
        survives(graph(3, paths, duplex=False))
        == 1
        == survives(graph(3, [path[::-1] for path in paths], duplex=False))
    )
    assert survives(Shape(4, 4, True, (Ring("a", (0, 1, 2, 3)), Ring("a", (0, 1, 2, 3))))) == 4


def test_the_diameter_after_the_link_that_matters_most() -> None:
    assert worst_diameter(ring(6)) == 5
    assert worst_diameter(ring(6, duplex=False)) is None
    assert worst_diameter(circulant(12, (1, 5))) == 3
    assert worst_diameter(complete(5)) == 2
    assert len(without(ring(6), (0, 1))) == 10 and len(without(ring(6, duplex=False), (0, 1))) == 5
    with pytest.raises(Infeasible, match="no link from rank 0 to rank 2"):
        without(ring(6), (0, 2))


def test_no_topology_of_this_degree_has_fewer_hops() -> None:
    assert moore(12, 4, duplex=True) == (2, pytest.approx(18 / 11))
    assert moore(12, 3, duplex=False) == (2, pytest.approx(19 / 11))
    assert (
        moore(10, 3, duplex=True)
        == (2, pytest.approx(5 / 3))
        == (kneser(5, 2).diameter, kneser(5, 2).mean_hops())
    )
    assert moore(13, 1, duplex=False) == (12, 6.5)
    with pytest.raises(Infeasible, match="cannot all be joined"):
        moore(3, 1, duplex=True)


def test_a_score_says_in_which_figures_it_is_better() -> None:
    demand, lab = Demand(12, WHOLE.groups, all_to_all(12)), Lab(12, 4)
    near, far = (score(circulant(12, steps), demand, lab) for steps in ((2, 3), (1, 5)))
    assert near.better_than(far) == ("mp_s", "hops", "diameter") and far.better_than(near) == ()
