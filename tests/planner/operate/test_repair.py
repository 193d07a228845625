"""After a failure: links borrowed, detours, costs now and later."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.model.demand import Demand, Group, Infeasible
from planner.model.planes import check
from planner.model.shape import Lab, Ring, Shape
from planner.operate.repair import Payoff, borrow, dark_s, payoff, replan
from planner.predict.score import iteration_s
from planner.topology.topofinder import find
from tests.planner.predict.test_routing import all_to_all

DP = Group("dp", tuple(range(12)), 10**8)
MIXED = Demand(12, (DP,), all_to_all(12) * 5e7, 0.01)
"""Traffic between pairs is three quarters of all, so that half of the ports are matched."""


def square(*matched: tuple[int, int], duplex: bool = True) -> Shape:
    return Shape(6, 4, duplex, (Ring("dp", (0, 1, 2, 3, 4, 5), 1),), matched)


def test_a_parallel_link_of_the_same_ranks_stands_in_as_it_is() -> None:
    mp = np.zeros((6, 6))
    mp[1, 0] = 7
    leased = borrow(square((0, 3), (1, 0)), (0, 1), mp)
    assert (leased.moves, leased.shape.matched, leased.lost_bytes) == (0, ((0, 3),), 7)


def test_two_links_of_least_demand_are_borrowed_and_their_partners_joined() -> None:
    mp = np.zeros((6, 6))
    mp[0, 3], mp[0, 4], mp[1, 5], mp[3, 5] = 10, 4, 5, 7
    leased = borrow(square((0, 4), (1, 5), (0, 3)), (0, 1), mp)
    # giving up 0-4 and 1-5 loses 9; giving up 0-3 and 1-5 loses 15 and gains 3-5
    assert (
        leased.removed == ((0, 3), (1, 5))
        and leased.added == ((0, 1), (3, 5))
        and leased.lost_bytes == 8
    )
    assert sorted(leased.shape.matched) == [(0, 4), (3, 5)] and leased.moves == 4


def test_partners_that_are_one_rank_are_not_joined_to_itself() -> None:
    leased = borrow(square((0, 3), (1, 3)), (0, 1), np.ones((6, 6)))
    assert leased.added == ((0, 1),) and leased.shape.matched == ()


def test_one_way_links_give_a_transmitter_and_a_receiver() -> None:
    leased = borrow(square((0, 3), (3, 0), (1, 5), (5, 1), duplex=False), (0, 1), np.zeros((6, 6)))
    assert leased.removed == ((0, 3), (5, 1)) and leased.added == ((0, 1), (5, 3))


def test_on_planes_both_links_must_be_on_one_switch() -> None:
    shape = square((0, 3), (1, 5), (1, 4))
    ports = [0, 1, 0] + [2, 3] * 3
    assert borrow(shape, (0, 1), np.zeros((6, 6)), ports).removed == ((0, 3), (1, 4))
    with pytest.raises(Infeasible, match="no two model parallel links on one switch") as caught:
        borrow(shape, (0, 1), np.zeros((6, 6)), [0, 1, 1] + [2, 3] * 3)
    assert "go round" in caught.value.alternative
    with pytest.raises(Infeasible, match="no ring uses a link from rank 0 to rank 3"):
        borrow(shape, (0, 3), np.zeros((6, 6)))


@given(
    st.integers(3, 8).map(lambda half: 2 * half),
    st.booleans(),
    st.booleans(),
    st.integers(0, 10**4),
)
@settings(max_examples=40)
def test_what_is_borrowed_closes_the_ring_within_the_same_ports(
    n: int, duplex: bool, planes: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    mp = rng.random((n, n)) * all_to_all(n) * 1e8
    lab = Lab(n, 4, duplex=duplex, planes=planes)
    found = find(Demand(n, (Group("dp", tuple(range(n)), 10**7),), mp), lab, seed=seed)
    order = found.shape.rings[0].order
    a, b = list(pairwise((*order, order[0])))[int(rng.integers(n))]
    try:
        leased = borrow(found.shape, (a, b), mp, found.planes if planes else None)
    except Infeasible:
        return
    before, after = found.shape.adjacency, leased.shape.adjacency
    dead = np.zeros((n, n), dtype=int)
    dead[a, b] += 1
    if duplex:
        dead[b, a] += 1
    assert (after.sum(axis=1) <= before.sum(axis=1)).all() and (
        after.sum(axis=0) <= before.sum(axis=0)
    ).all()
    # what is there after, less what survived: links added less links removed
    moved = (after - (before - dead)).sum()
    assert moved == (2 if duplex else 1) * (len(leased.added) - len(leased.removed))
    assert len(check(leased.shape, Lab(n, 4, duplex=duplex))) == len(leased.shape.cables)


def test_a_broken_link_costs_a_detour_now_or_dark_time_for_a_borrowed_one() -> None:
    lab = Lab(12, 4, planes=True)
    shape = find(MIXED, lab).shape
    notified = replan(shape, MIXED, lab, links=[(0, 1)], settle_s=0.025, link_up_s=5.67)
    assert notified.before_s == pytest.approx(iteration_s(shape, MIXED, lab))
    assert notified.reroute is not None and notified.rewire is not None and notified.why_not == ""
    assert notified.reroute.dark_s == 0 and notified.reroute.iteration_s > notified.before_s
    assert (
        notified.rewire.name == "borrow a model parallel link"
        and notified.rewire.dark_s == pytest.approx(5.695)
    )
    iterations = notified.break_even_iterations
    assert notified.reroute.until_s(int(iterations)) < notified.rewire.until_s(int(iterations))
    assert notified.reroute.until_s(int(iterations) + 1) > notified.rewire.until_s(
        int(iterations) + 1
    )


def test_ranks_without_links_to_borrow_exchange_one_of_each_for_one_of_theirs() -> None:
    lab = Lab(12, 4, planes=True)
    demand = Demand(12, (Group("dp", tuple(range(12)), 10**9),), np.zeros((12, 12)))
    notified = replan(
        find(demand, lab).shape, demand, lab, links=[(0, 1)], settle_s=0.025, link_up_s=5.67
    )
    assert notified.rewire is not None and notified.rewire.name == "exchange two links"
    assert (notified.rewire.moves, notified.rewire.dark_s) == (4, pytest.approx(5.695))
    [other] = notified.others
    assert (
        other.name == "rewire at the next checkpoint"
        and other.iteration_s > 1.1 * notified.rewire.iteration_s
    )
    assert (
        notified.reroute is not None
        and notified.before_s < notified.rewire.iteration_s <= notified.reroute.iteration_s
    )


def test_going_round_a_broken_ring_of_one_takes_the_other_way_and_twice_the_time() -> None:
    lab = Lab(4, 2)
    demand = Demand(4, (Group("dp", (0, 1, 2, 3), 10**8),), np.zeros((4, 4)))
    notified = replan(find(demand, lab).shape, demand, lab, links=[(0, 1)])
    assert notified.reroute is not None and notified.reroute.iteration_s == pytest.approx(
        2 * notified.before_s
    )
    assert (
        notified.rewire is None
        and "degree 1: a ring of 4" in notified.why_not
        and notified.break_even_iterations == inf
    )


def test_without_a_host_rings_pass_it_by_and_the_rest_are_planned_anew() -> None:
    notified = replan(
        find(MIXED, Lab(12, 4)).shape, MIXED, Lab(12, 4), hosts=[3], settle_s=0.025, link_up_s=5.67
    )
    assert (
        notified.reroute is not None and notified.rewire is not None and notified.rewire.moves > 0
    )
    assert notified.rewire.iteration_s < notified.reroute.iteration_s
    assert notified.break_even_iterations == pytest.approx(
        5.695 / (notified.reroute.iteration_s - notified.rewire.iteration_s)
    )


def test_an_odd_rest_on_planes_is_planned_at_the_degree_it_can_have() -> None:
    lab = Lab(12, 4, planes=True)
    notified = replan(find(MIXED, lab).shape, MIXED, lab, hosts=[3])
    assert notified.rewire is not None and "22 duplex links among 11 hosts" in notified.why_not


def test_a_host_without_which_others_are_cut_off_leaves_only_rewiring() -> None:
    shape = Shape(4, 2, True, (), ((0, 1), (1, 2), (2, 3)))
    demand = Demand(4, (Group("dp", (0, 1, 2, 3), 10**8),), np.zeros((4, 4)))
    notified = replan(shape, demand, Lab(4, 2), hosts=[1])
    assert notified.reroute is None and "no path leads from rank 0 to rank 2" in notified.why_not
    assert notified.rewire is not None and notified.break_even_iterations == 0


def test_what_has_not_failed_or_leaves_nobody_is_refused() -> None:
    shape = find(MIXED, Lab(12, 4)).shape
    with pytest.raises(Infeasible, match="host 12 has failed; there are 12"):
        replan(shape, MIXED, Lab(12, 4), hosts=[12])
    with pytest.raises(Infeasible, match=r"1 host\(s\) remain"):
        replan(shape, MIXED, Lab(12, 4), hosts=range(11))


def test_a_link_that_is_not_there_cannot_have_failed() -> None:
    shape = find(MIXED, Lab(12, 4, planes=True)).shape
    far = next((0, b) for b in range(1, 12) if not shape.adjacency[0, b])
    for link in (far, (0, 0), (0, 12)):
        with pytest.raises(Infeasible, match=f"no link from rank 0 to rank {link[1]}"):
            replan(shape, MIXED, Lab(12, 4, planes=True), links=[link])


@pytest.mark.parametrize(
    ("moves", "at_once", "seconds"),
    [(0, None, 0.0), (24, None, 5.695), (24, 1, 24 * 0.025 + 5.67), (24, 16, 2 * 0.025 + 5.67)],
)
def test_dark_time_is_settling_as_often_as_the_device_needs_and_the_ports_own_time(
    moves: int, at_once: int | None, seconds: float
) -> None:
    assert dark_s(moves, settle_s=0.025, at_once=at_once, link_up_s=5.67) == pytest.approx(seconds)


def test_a_change_pays_after_dark_time_over_time_saved() -> None:
    change = payoff(24, 6.0, before_s=0.5, after_s=0.2, bytes_per_iteration=1e9)
    assert (change.iterations, change.break_even_s, change.stalled_bytes) == (
        pytest.approx(20),
        pytest.approx(10),
        12e9,
    )
    assert pytest.approx(change.break_even_s) == 20 * 0.5  # as far as without the change
    assert Payoff(1, 1.0, 0.2, 0.2, 0).iterations == inf == Payoff(1, 1.0, 0.2, 0.3, 0).break_even_s
    for wrong in ({"settle_s": float("nan")}, {"settle_s": -1.0}, {"settle_s": 1.0, "at_once": 0}):
        with pytest.raises(Infeasible):
            dark_s(1, **wrong)
