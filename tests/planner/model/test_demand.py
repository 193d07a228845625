"""What a demand refuses, with which alternative; what it drops."""

from __future__ import annotations

import numpy as np
import pytest

from optics import TestbedError
from planner.model.demand import Demand, Group, Infeasible
from planner.model.shape import Lab

NONE = np.zeros((4, 4))


def with_entry(src: int, dst: int, value: float) -> np.ndarray:
    matrix = np.zeros((4, 4))
    matrix[src, dst] = value
    return matrix


BAD_DEMANDS = {
    "rank 4; there are 4": lambda: Demand(4, (Group("dp", (0, 4), 1),), NONE),
    "rank 1 twice": lambda: Demand(4, (Group("dp", (0, 1, 1), 1),), NONE),
    "has no members": lambda: Demand(4, (Group("dp", (), 1),), NONE),
    "-1 bytes": lambda: Demand(4, (Group("dp", (0, 1), -1),), NONE),
    "nan bytes to rank 2": lambda: Demand(4, (), with_entry(1, 2, float("nan"))),
    "inf bytes": lambda: Demand(4, (), with_entry(1, 2, float("inf"))),
    "rank 3 sends -5.0 bytes": lambda: Demand(4, (), with_entry(3, 2, -5)),
    "sends bytes to itself": lambda: Demand(4, (), with_entry(2, 2, 1)),
    "3 x 4 for 4 ranks": lambda: Demand(4, (), np.zeros((3, 4))),
    "computes for -1.0 s": lambda: Demand(4, (), NONE, -1.0),
    "exchange no traffic": lambda: Demand(1, (), np.zeros((1, 1))),
    "2 groups are named dp": lambda: Demand(
        4, (Group("dp", (0, 1), 1), Group("dp", (2, 3), 1)), NONE
    ),
    "degree 0": lambda: Lab(4, 0),
    "nan Gb/s": lambda: Lab(4, 4, float("nan")),
    "1 host": lambda: Lab(1, 4),
    "a step costs -1.0 s": lambda: Lab(4, 4, alpha_s=-1.0),
}


@pytest.mark.parametrize("condition", BAD_DEMANDS)
def test_what_cannot_be_is_refused_with_the_condition_and_a_way_out(condition: str) -> None:
    with pytest.raises(Infeasible, match=condition.replace(".", r"\.")) as caught:
        BAD_DEMANDS[condition]()
    assert caught.value.alternative == caught.value.hint != ""
    assert isinstance(caught.value, TestbedError) and isinstance(caught.value, ValueError)


def test_groups_of_one_rank_carry_nothing_and_are_dropped() -> None:
    demand = Demand(4, (Group("alone", (2,), 10**9), Group("dp", (0, 1, 2, 3), 100)), NONE)
    assert [group.id for group in demand.groups] == ["dp"]
    assert demand.allreduce_bytes == 2 * 3 * 100


def test_a_demand_does_not_change_with_the_matrix_it_was_made_of() -> None:
    matrix = with_entry(0, 1, 7)
    demand = Demand(4, (), matrix)
    matrix[0, 1] = 8
    assert demand.mp_bytes == 7
    with pytest.raises(ValueError, match="read-only"):
        demand.mp[0, 1] = 9
