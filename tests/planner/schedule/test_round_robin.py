"""Schedules of matchings: every pair meets, no port is used twice in a slot, and light is there as
long as said.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.model.demand import Infeasible
from planner.model.planes import check
from planner.model.shape import Lab
from planner.schedule.round_robin import (
    PATTERNS,
    duty,
    expanded,
    fewest_slots,
    round_robin,
    round_robin_slots,
)


@pytest.mark.parametrize("n", [2, 5, 8, 12, 13])
def test_in_a_round_robin_every_pair_meets_once(n: int) -> None:
    rounds = round_robin(n)
    assert len(rounds) == (n - 1 if n % 2 == 0 else n)
    met = [pair for matching in rounds for pair in matching]
    assert len(met) == len(set(met)) == n * (n - 1) // 2
    assert all(
        len({rank for pair in matching for rank in pair}) == 2 * (n // 2) for matching in rounds
    )


@pytest.mark.parametrize(
    ("duplex", "degree", "slots"),
    [(True, 4, 3), (False, 4, 3), (True, 11, 1), (True, 16, 1), (True, 1, 11)],
)
def test_slots_of_a_round_robin_fill_the_ports_and_join_every_pair(
    duplex: bool, degree: int, slots: int
) -> None:
    lab = Lab(12, degree, duplex=duplex, planes=True)
    shapes = round_robin_slots(lab)
    assert len(shapes) == slots
    assert (sum(shape.adjacency for shape in shapes) + np.eye(12) >= 1).all()
    for shape in shapes:
        assert shape.adjacency.sum(axis=0).max() == min(degree, 11) and len(
            set(check(shape, lab))
        ) == min(degree, 11)


@given(st.sampled_from(sorted(PATTERNS)), st.integers(2, 17), st.integers(1, 6))
def test_in_every_pattern_all_pairs_meet_and_no_port_is_used_twice_in_a_slot(
    pattern: str, n: int, planes: int
) -> None:
    slots = expanded(pattern, n, planes)
    assert {pair for slot in slots for matching in slot for pair in matching} == {
        *combinations(range(n), 2)
    }
    assert len(slots) >= fewest_slots(n, planes)
    for slot in slots:
        assert len(slot) == planes
        for matching in slot:
            ends = [rank for pair in matching for rank in pair]
            assert len(ends) == len(set(ends)) == 2 * (n // 2) and set(ends) <= set(range(n))


@given(st.integers(2, 17), st.integers(1, 6))
def test_staggered_planes_take_as_few_slots_as_can_be(n: int, planes: int) -> None:
    assert len(expanded("staggered", n, planes)) == fewest_slots(n, planes)
    assert len(expanded("round-robin", n, planes)) == fewest_slots(n, 1)


@given(st.integers(3, 17), st.integers(1, 6))
def test_in_the_opera_pattern_one_plane_moves_at_a_time(n: int, planes: int) -> None:
    slots = expanded("opera", n, planes)
    if len(slots) > 1:
        moved = [
            {p for p in range(planes) if slots[k - 1][p] != slot[p]} for k, slot in enumerate(slots)
        ]
        assert all(len(dark) == 1 for dark in moved) and set().union(*moved) == set(range(planes))


def test_duty_counts_dark_time_and_guard() -> None:
    assert duty(0.45, 0.05) == pytest.approx(0.9)
    assert duty(0.45, 0.05, 0.01) == pytest.approx(0.88)


@pytest.mark.parametrize(("n", "planes"), [(1, 1), (4, 0)])
def test_a_schedule_needs_hosts_and_ports(n: int, planes: int) -> None:
    with pytest.raises(Infeasible, match="a schedule over"):
        expanded("staggered", n, planes)
