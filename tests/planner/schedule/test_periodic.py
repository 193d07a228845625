"""A schedule of matchings: every pair meets, light and dark share the time as said, and a job takes
what the slots carry.
"""

from __future__ import annotations

from math import ceil, inf, nan

import numpy as np
import pytest

from planner.model.demand import Demand, Group, Infeasible
from planner.model.shape import Lab
from planner.schedule.periodic import (
    Periodic,
    RoutedSlots,
    direct,
    fitted,
    mean_s,
    parts,
    ring_mean_s,
)
from planner.schedule.round_robin import round_robin as matchings
from planner.schedule.round_robin import round_robin_slots
from tests.planner.predict.test_routing import all_to_all

RATE = 1e9 / 8


def round_robin(lab: Lab, *, dwell_s: float, dark_s: float) -> Periodic:
    return Periodic(round_robin_slots(lab), dwell_s, dark_s)


@pytest.mark.parametrize(("n", "degree"), [(12, 4), (12, 1), (6, 4), (9, 2)])
def test_every_pair_meets_within_a_cycle_of_as_few_slots_as_can_be(n: int, degree: int) -> None:
    found = round_robin(Lab(n, degree, 1.0), dwell_s=0.1, dark_s=0.02)
    assert (
        len(found.slots) == ceil(len(matchings(n)) / degree) and (found.links + np.eye(n) > 0).all()
    )
    assert all(slot.adjacency.sum(axis=1).max() <= degree for slot in found.slots)
    assert found.cycle_s == pytest.approx(len(found.slots) * 0.12)


def test_a_uniform_exchange_takes_the_cycles_its_bytes_fill() -> None:
    lab = Lab(12, 1, 1.0)
    demand = Demand(12, (), RATE * all_to_all(12), 0.5)  # a second of a link for each pair
    assert round_robin(lab, dwell_s=1.0, dark_s=0.1).iteration_s(demand, lab) == pytest.approx(
        0.5 + 11 * 1.1
    )
    assert round_robin(lab, dwell_s=0.25, dark_s=0.1).iteration_s(demand, lab) == pytest.approx(
        0.5 + 4 * 11 * 0.35
    )
    assert round_robin(lab, dwell_s=4.0, dark_s=0.1).iteration_s(demand, lab) == pytest.approx(
        0.5 + 11 * 4.1
    ), "a whole cycle"


@pytest.mark.parametrize(("dwell", "dark"), [(0.0, 1.0), (nan, 1.0), (1.0, -1.0), (inf, 0.0)])
def test_times_that_no_schedule_can_have_are_refused(dwell: float, dark: float) -> None:
    with pytest.raises(Infeasible, match=r"a dwell of|dark time of"):
        round_robin(Lab(12, 4), dwell_s=dwell, dark_s=dark)


def test_sums_go_from_each_to_each_twice() -> None:
    lab, size = Lab(4, 1, 1.0), round(RATE)
    demand = Demand(4, (Group("a", (0, 1, 2, 3), size), Group("b", (0, 1), size)), np.zeros((4, 4)))
    assert parts(demand)[0, 1] == pytest.approx(0.75 * size) and parts(demand)[
        2, 3
    ] == pytest.approx(0.25 * size)
    assert round_robin(lab, dwell_s=0.75, dark_s=0.05).iteration_s(demand, lab) == pytest.approx(
        2 * 3 * 0.8
    )


def test_the_fitted_dwell_is_the_best_of_many() -> None:
    lab = Lab(8, 2, 1.0)
    demand = Demand(8, (Group("a", tuple(range(8)), round(RATE)),), 3e7 * all_to_all(8), 0.1)
    for dark in (0.0, 1e-3, 0.5):
        best = fitted(demand, lab, dark).iteration_s(demand, lab)
        tried = [
            round_robin(lab, dwell_s=d, dark_s=dark) for d in np.geomspace(0.01, 3, 60).tolist()
        ]
        assert best <= min(one.iteration_s(demand, lab) for one in tried) + 1e-9
    idle = Demand(8, (), np.zeros((8, 8)), 0.1)
    assert fitted(idle, lab, 0.05).iteration_s(idle, lab) == pytest.approx(0.1)


def stepped(
    schedule: Periodic, loads: np.ndarray, rate: float, begin_s: float, step_s: float = 1e-3
) -> float:
    """When the loads have arrived, in small steps of time."""
    left, now, period = loads / rate, begin_s, schedule.dwell_s + schedule.dark_s
    while (left > 1e-9).any():
        slot = int(now / period + 1e-9)
        if now - slot * period < schedule.dwell_s - 1e-9:
            left = left - schedule.slots[slot % len(schedule.slots)].adjacency * step_s
        now += step_s
    return now


@pytest.mark.parametrize("begin_s", [0.0, 0.05, 0.119, 0.31])
@pytest.mark.parametrize("size", [0.01, 0.3])
def test_a_phase_ends_when_its_last_pair_has_had_light_for_long_enough(
    begin_s: float, size: float
) -> None:
    lab = Lab(6, 2, 1.0)
    slots = round_robin_slots(lab)
    schedule, routed = Periodic(slots, 0.1, 0.02), RoutedSlots(direct(slots), 0.1, 0.02)
    loads = np.random.default_rng(1).random((6, 6)) * (1 - np.eye(6)) * size * RATE
    found = routed.end_s(loads, RATE, begin_s)
    assert found == pytest.approx(stepped(schedule, loads, RATE, begin_s), abs=2.5e-3)
    assert found - begin_s <= schedule.phase_s(loads, RATE) + 0.12, (
        "whole cycles, and the slot it began in"
    )


def test_iterations_that_follow_each_other_take_no_more_than_whole_cycles() -> None:
    lab = Lab(12, 4, 1.0)
    demand = Demand(12, (Group("g", tuple(range(12)), int(0.12 * RATE)),), np.zeros((12, 12)), 0.05)
    schedule = round_robin(lab, dwell_s=0.1, dark_s=0.02)
    routed = RoutedSlots(direct(schedule.slots), 0.1, 0.02)
    transfers_s, sums_s = mean_s(routed, routed, demand, RATE)
    assert transfers_s == 0.0
    assert (
        0.6 * schedule.iteration_s(demand, lab)
        < demand.compute_s + sums_s
        < schedule.iteration_s(demand, lab)
    )
    with pytest.raises(Infeasible, match="never meets"):
        mean_s(routed, RoutedSlots(routed.shares[:1], 0.1, 0.02), demand, RATE)


def test_a_long_phase_is_a_multiple_of_a_part_of_it() -> None:
    lab = Lab(6, 2, 1.0)
    routed = RoutedSlots(direct(round_robin_slots(lab)), 0.01, 0.002)
    loads = np.random.default_rng(1).random((6, 6)) * (1 - np.eye(6)) * RATE
    assert routed.end_s(loads * 4, RATE, 0.0) == pytest.approx(
        stepped(Periodic(round_robin_slots(lab), 0.01, 0.002), loads * 4, RATE, 0.0), rel=0.02
    )


def test_where_hosts_forward_nobody_waits_and_every_link_carries_more() -> None:
    chain = np.zeros((2, 3, 3))
    chain[0, 0, 1] = chain[0, 0, 2] = chain[1, 1, 2] = chain[1, 0, 2] = 1.0
    still = np.zeros((1, 3, 3))
    still[0, 0, 1] = 1.0
    loads = np.zeros((3, 3))
    loads[0, 1] = loads[0, 2] = loads[1, 2] = 0.05
    assert RoutedSlots((chain, still), 0.2, 0.1).end_s(loads, 1.0, 0.0) == pytest.approx(0.1)
    assert RoutedSlots((chain, still), 0.2, 0.1).end_s(loads, 1.0, 0.3) == pytest.approx(0.6 + 0.1)
    assert RoutedSlots((chain, still), 0.05, 0.1).end_s(loads, 1.0, 0.0) == pytest.approx(
        0.3 + 0.05
    )


def test_links_that_stay_carry_through_the_dark() -> None:
    paths = np.zeros((2, 3, 3))
    paths[0, 0, 1] = paths[1, 1, 2] = 1.0
    stays = np.zeros((1, 3, 3))
    stays[0, 0, 1] = 1.0
    routed = RoutedSlots((paths, paths), 0.2, 0.1, (stays, stays))
    loads = np.zeros((3, 3))
    loads[0, 1] = 0.8
    assert routed.end_s(loads, 1.0, 0.05) == pytest.approx(0.85), "all the time"
    loads[0, 1], loads[1, 2] = 0.0, 0.3
    assert routed.end_s(loads, 1.0, 0.25) == pytest.approx(0.7), (
        "the other waits for the next slot, and the one after"
    )


def test_a_ring_waits_for_each_of_its_links_and_each_part_for_the_one_before() -> None:
    ring = np.zeros((4, 4, 4))
    for rank in range(4):
        ring[rank, rank, (rank + 1) % 4] = 1.0
    lit = RoutedSlots((ring,), 1.0, 0.0)
    assert lit.ring_end_s(range(4), 0.4, 1.0, 0.0) == pytest.approx(0.6), (
        "2 (k - 1) / k of the buffer"
    )
    assert lit.ring_end_s(range(4), 0.4, 1.0, 7.95) == pytest.approx(8.55)
    assert RoutedSlots((ring,), 0.25, 0.05).ring_end_s(range(4), 0.4, 1.0, 0.0) == pytest.approx(
        0.6 + 2 * 0.05
    )
    even, odd = ring.copy(), ring.copy()
    even[[1, 3]], odd[[0, 2]] = 0.0, 0.0
    steps = RoutedSlots((even, odd), 0.5, 0.1)
    # Ranks 0 and 2 send step 1 in slot 0; 1 and 3 steps 1 and 2 in slot 1; 0 and 2 steps 2 and 3;
    # ...; 0 and 2 step 6 in slot 6.
    assert steps.ring_end_s(range(4), 0.4, 1.0, 0.0) == pytest.approx(6 * 0.6 + 0.1)
    assert ring_mean_s(steps, [range(4)], 0.4, 1.0, compute_s=0.0) == pytest.approx(3.6, rel=0.05)
    # Light for a part and a half: what came in of a part goes on before the rest of it.
    assert RoutedSlots((even, odd), 0.15, 0.1).ring_end_s(range(4), 0.4, 1.0, 0.0) == pytest.approx(
        8 * 0.25 + 0.05
    )
    with pytest.raises(Infeasible, match="rank 1 never meets rank 2"):
        RoutedSlots((even,), 0.5, 0.1).ring_end_s(range(4), 0.4, 1.0, 0.0)


def test_steps_of_a_ring_that_share_a_link_are_slower_by_as_much() -> None:
    shared = np.zeros((2, 3, 3))
    shared[0, 0, 1] = shared[0, 1, 2] = shared[1, 2, 0] = 1.0
    assert RoutedSlots((shared,), 10.0, 0.0).ring_end_s(range(3), 0.3, 1.0, 0.0) == pytest.approx(
        0.8
    )
