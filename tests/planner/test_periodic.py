"""A schedule of matchings: every pair meets, light and dark share the time as said, and a job takes what the slots carry."""

from __future__ import annotations

from math import ceil, inf, nan

import numpy as np
import pytest

from planner.baselines import round_robin as matchings
from planner.baselines import round_robin_slots
from planner.demand import Demand, Group, Infeasible
from planner.periodic import Periodic, fitted, parts
from planner.shape import Lab
from tests.planner.test_routing import all_to_all

RATE = 1e9 / 8


def round_robin(lab: Lab, *, dwell_s: float, dark_s: float) -> Periodic:
    return Periodic(round_robin_slots(lab), dwell_s, dark_s)


@pytest.mark.parametrize(("n", "degree"), [(12, 4), (12, 1), (6, 4), (9, 2)])
def test_every_pair_meets_within_a_cycle_of_as_few_slots_as_can_be(n: int, degree: int) -> None:
    found = round_robin(Lab(n, degree, 1.0), dwell_s=0.1, dark_s=0.02)
    assert len(found.slots) == ceil(len(matchings(n)) / degree) and (found.links + np.eye(n) > 0).all()
    assert all(slot.adjacency.sum(axis=1).max() <= degree for slot in found.slots)
    assert found.cycle_s == pytest.approx(len(found.slots) * 0.12)


def test_a_uniform_exchange_takes_the_cycles_its_bytes_fill() -> None:
    lab = Lab(12, 1, 1.0)
    demand = Demand(12, (), RATE * all_to_all(12), 0.5)  # a second of a link for each pair
    assert round_robin(lab, dwell_s=1.0, dark_s=0.1).iteration_s(demand, lab) == pytest.approx(0.5 + 11 * 1.1)
    assert round_robin(lab, dwell_s=0.25, dark_s=0.1).iteration_s(demand, lab) == pytest.approx(0.5 + 4 * 11 * 0.35)
    assert round_robin(lab, dwell_s=4.0, dark_s=0.1).iteration_s(demand, lab) == pytest.approx(0.5 + 11 * 4.1), "a whole cycle"


@pytest.mark.parametrize(("dwell", "dark"), [(0.0, 1.0), (nan, 1.0), (1.0, -1.0), (inf, 0.0)])
def test_times_that_no_schedule_can_have_are_refused(dwell: float, dark: float) -> None:
    with pytest.raises(Infeasible, match=r"a dwell of|dark time of"):
        round_robin(Lab(12, 4), dwell_s=dwell, dark_s=dark)


def test_sums_go_from_each_to_each_twice() -> None:
    lab, size = Lab(4, 1, 1.0), round(RATE)
    demand = Demand(4, (Group("a", (0, 1, 2, 3), size), Group("b", (0, 1), size)), np.zeros((4, 4)))
    assert parts(demand)[0, 1] == pytest.approx(0.75 * size) and parts(demand)[2, 3] == pytest.approx(0.25 * size)
    assert round_robin(lab, dwell_s=0.75, dark_s=0.05).iteration_s(demand, lab) == pytest.approx(2 * 3 * 0.8)


def test_the_fitted_dwell_is_the_best_of_many() -> None:
    lab = Lab(8, 2, 1.0)
    demand = Demand(8, (Group("a", tuple(range(8)), round(RATE)),), 3e7 * all_to_all(8), 0.1)
    for dark in (0.0, 1e-3, 0.5):
        best = fitted(demand, lab, dark).iteration_s(demand, lab)
        tried = [round_robin(lab, dwell_s=d, dark_s=dark) for d in np.geomspace(0.01, 3, 60).tolist()]
        assert best <= min(one.iteration_s(demand, lab) for one in tried) + 1e-9
    idle = Demand(8, (), np.zeros((8, 8)), 0.1)
    assert fitted(idle, lab, 0.05).iteration_s(idle, lab) == pytest.approx(0.1)
