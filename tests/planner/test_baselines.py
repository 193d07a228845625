"""Graphs that take no notice of traffic, and switches, which topologies are compared with."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.baselines import (
    expander,
    random_regular,
    rings,
    round_robin,
    round_robin_slots,
    spectral_gap,
    torus,
)
from planner.demand import Group, Infeasible
from planner.direct import complete
from planner.planes import check
from planner.score import allreduce_s
from planner.shape import Lab

TWELVE = (Group("dp", tuple(range(12)), 10**9),)


def test_one_order_on_all_ports_reduces_as_fast_as_different_rings() -> None:
    lab = Lab(12, 4, planes=True)
    shape = rings(lab, "dp")
    assert allreduce_s(shape, TWELVE, lab) == pytest.approx(0.146666667, rel=1e-8)
    assert len(check(shape, lab)) == 24 and shape.diameter == 6
    assert rings(Lab(2, 3)).adjacency[0, 1] == 3
    with pytest.raises(Infeasible, match="degree 1: a duplex ring takes 2 ports"):
        rings(Lab(12, 1))


@pytest.mark.parametrize(("n", "degree", "diameter"), [(12, 4, 3), (16, 4, 4), (27, 6, 3), (12, 2, 6)])
def test_a_torus_has_sides_as_equal_as_can_be(n: int, degree: int, diameter: int) -> None:
    shape = torus(Lab(n, degree))
    assert (shape.degree, shape.diameter) == (degree, diameter)
    assert (shape.adjacency.sum(axis=0) == degree).all()


def test_ranks_that_make_no_torus_are_refused() -> None:
    with pytest.raises(Infeasible, match="10 ranks make no duplex torus of 2 sides"):
        torus(Lab(10, 4))


@given(st.integers(3, 20), st.integers(2, 5), st.booleans(), st.integers(0, 50))
@settings(max_examples=40)
def test_a_random_graph_is_regular_simple_connected_and_the_seeds(n: int, degree: int, duplex: bool, seed: int) -> None:
    lab = Lab(n, degree, duplex=duplex)
    if degree >= n or (duplex and n * degree % 2):
        with pytest.raises(Infeasible):
            random_regular(lab, seed=seed)
        return
    shape = random_regular(lab, seed=seed)
    assert (shape.adjacency.sum(axis=0) == degree).all() and (shape.adjacency.sum(axis=1) == degree).all()
    assert shape.adjacency.max() == 1 and not shape.adjacency.diagonal().any() and shape.connected
    assert shape == random_regular(lab, seed=seed)


def test_an_expander_is_the_best_of_some_and_near_the_best_there_is() -> None:
    lab = Lab(32, 4)
    best = spectral_gap(expander(lab, seed=1))
    assert best >= max(spectral_gap(random_regular(lab, seed=16 + number)) for number in range(16))
    assert 0.8 * (4 - 2 * sqrt(3)) < best <= 4
    assert spectral_gap(complete(6)) == pytest.approx(4)  # eigenvalues 5 and -1


@pytest.mark.parametrize("n", [2, 5, 8, 12, 13])
def test_in_a_round_robin_every_pair_meets_once(n: int) -> None:
    rounds = round_robin(n)
    assert len(rounds) == (n - 1 if n % 2 == 0 else n)
    met = [pair for matching in rounds for pair in matching]
    assert len(met) == len(set(met)) == n * (n - 1) // 2
    assert all(len({rank for pair in matching for rank in pair}) == 2 * (n // 2) for matching in rounds)


@pytest.mark.parametrize(("duplex", "degree", "slots"), [(True, 4, 3), (False, 4, 3), (True, 11, 1), (True, 16, 1), (True, 1, 11)])
def test_slots_of_a_round_robin_fill_the_ports_and_join_every_pair(duplex: bool, degree: int, slots: int) -> None:
    lab = Lab(12, degree, duplex=duplex, planes=True)
    shapes = round_robin_slots(lab)
    assert len(shapes) == slots
    assert (sum(shape.adjacency for shape in shapes) + np.eye(12) >= 1).all()
    for shape in shapes:
        assert shape.adjacency.sum(axis=0).max() == min(degree, 11) and len(set(check(shape, lab))) == min(degree, 11)


@pytest.mark.parametrize(
    ("condition", "make"),
    [
        ("degree 12 among 12 ranks", lambda: random_regular(Lab(12, 12))),
        ("odd number of ports", lambda: random_regular(Lab(11, 3))),
        ("degree 1 joins no more than pairs", lambda: random_regular(Lab(12, 1))),
    ],
)
def test_what_no_baseline_can_be_is_refused(condition: str, make: object) -> None:
    with pytest.raises(Infeasible, match=condition) as caught:
        make()  # type: ignore[operator]
    assert caught.value.alternative
