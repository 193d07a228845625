"""Graphs that take no notice of traffic, and switches, which topologies are compared with."""

from __future__ import annotations

from itertools import product
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.model.demand import Group, Infeasible
from planner.model.planes import check
from planner.model.shape import Lab
from planner.predict.flow import fullest
from planner.predict.score import allreduce_s
from planner.topology.baselines import (
    expander,
    random_regular,
    rings,
    spectral_gap,
    torus,
    torus_hops,
    twisted_torus,
)
from planner.topology.direct import complete
from planner.topology.direct import torus as torus_of
from planner.topology.direct import twisted_torus as twisted_of

TWELVE = (Group("dp", tuple(range(12)), 10**9),)


def test_one_order_on_all_ports_reduces_as_fast_as_different_rings() -> None:
    lab = Lab(12, 4, planes=True)
    shape = rings(lab, "dp")
    assert allreduce_s(shape, TWELVE, lab) == pytest.approx(0.146666667, rel=1e-8)
    assert len(check(shape, lab)) == 24 and shape.diameter == 6
    assert rings(Lab(2, 3)).adjacency[0, 1] == 3
    with pytest.raises(Infeasible, match="degree 1: a duplex ring takes 2 ports"):
        rings(Lab(12, 1))


@pytest.mark.parametrize(
    ("n", "degree", "diameter"), [(12, 4, 3), (16, 4, 4), (27, 6, 3), (12, 2, 6)]
)
def test_a_torus_has_sides_as_equal_as_can_be(n: int, degree: int, diameter: int) -> None:
    shape = torus(Lab(n, degree))
    assert (shape.degree, shape.diameter) == (degree, diameter)
    assert (shape.adjacency.sum(axis=0) == degree).all()


def test_ranks_that_make_no_torus_are_refused() -> None:
    with pytest.raises(Infeasible, match="10 ranks make no duplex torus of 2 sides"):
        torus(Lab(10, 4))


def lattice_hops(sides: tuple[int, ...]) -> list[int]:
    """Hops from rank 0 to all in the lattice of k and 2k: a vector is as far as the shortest that
    differs by whole periods.

    The periods are those of the lattice graphs RTT, FCC and BCC: 2k along a long side, and k along
    a short one with k along all long ones.
    """
    k = min(sides)
    periods = [
        tuple(2 * k * (a == axis) for a in range(len(sides)))
        for axis, side in enumerate(sides)
        if side > k
    ]
    periods += [
        tuple(k if a == axis or sides[a] > k else 0 for a in range(len(sides)))
        for axis, side in enumerate(sides)
        if side == k
    ]
    zero = (0,) * len(sides)
    shifts = {
        tuple(sum(c) for c in zip(*some, strict=True))
        for some in product(*([zero, p, *[tuple(-x for x in p)]] for p in periods))
    }
    return [
        min(sum(abs(x + s) for x, s in zip(at, shift, strict=True)) for shift in shifts)
        for at in product(*map(range, sides))
    ]


@pytest.mark.parametrize(
    "sides", [(2, 4), (3, 6), (4, 8), (2, 2, 4), (2, 4, 4), (4, 4, 8), (4, 8, 8)]
)
def test_a_torus_of_k_and_2k_is_twisted_to_the_lattice_of_tpu_v4_with_all_links_alike(
    sides: tuple[int, ...],
) -> None:
    shape = twisted_of(*sides)
    assert (
        shape.degree == 2 * len(sides)
        and (shape.adjacency.sum(axis=0) == shape.degree).all()
        and shape.adjacency.max() == 1
    )
    assert shape.hops[0].tolist() == lattice_hops(sides)
    assert (np.sort(shape.hops, axis=1) == np.sort(shape.hops[0])).all()
    assert shape.mean_hops() < torus_hops(sides)


@pytest.mark.parametrize(
    ("sides", "ratio"), [((3, 6), 8.75 / 13.5), ((4, 8), 21 / 32), ((3, 4), 14 / 18)]
)
def test_all_to_all_on_a_twisted_torus_takes_its_hops_over_all_links_evenly_where_sides_are_k_and_2k(
    sides: tuple[int, ...], ratio: float
) -> None:
    plain, twisted = torus_of(*sides), twisted_of(*sides)
    everybody = 1.0 - np.eye(plain.n)
    full = [fullest(shape, everybody)[0] for shape in (plain, twisted)]
    assert full[1] / full[0] == pytest.approx(
        ratio, rel=1e-6
    ) and plain.mean_hops() == pytest.approx(torus_hops(sides))
    if sides[-1] == 2 * sides[0]:
        assert full[1] == pytest.approx(twisted.hops.sum() / len(twisted.arcs), rel=1e-6)


@pytest.mark.parametrize(
    ("n", "degree", "sides"),
    [
        (12, 4, (3, 4)),
        (16, 4, (2, 8)),
        (18, 4, (3, 6)),
        (32, 4, (4, 8)),
        (32, 6, (2, 4, 4)),
        (54, 6, (3, 3, 6)),
    ],
)
def test_a_twisted_torus_is_as_square_as_it_can_be_with_a_side_to_twist_along(
    n: int, degree: int, sides: tuple[int, ...]
) -> None:
    shape, found = twisted_torus(Lab(n, degree))
    assert found == sides and shape == twisted_of(*sides)


@pytest.mark.parametrize(
    ("lab", "text"),
    [
        (Lab(9, 4), "9 ranks of degree 4 make no duplex twisted torus"),
        (Lab(12, 2), "12 ranks of degree 2 make no duplex twisted torus"),
        (Lab(12, 4, duplex=False), "make no duplex twisted torus"),
    ],
)
def test_ranks_that_make_no_twisted_torus_are_refused(lab: Lab, text: str) -> None:
    with pytest.raises(Infeasible, match=text):
        twisted_torus(lab)
    with pytest.raises(Infeasible, match="a torus of 3x3 has no longer side to twist along"):
        twisted_of(3, 3)


@given(st.integers(3, 20), st.integers(2, 5), st.booleans(), st.integers(0, 50))
@settings(max_examples=40)
def test_a_random_graph_is_regular_simple_connected_and_the_seeds(
    n: int, degree: int, duplex: bool, seed: int
) -> None:
    lab = Lab(n, degree, duplex=duplex)
    if degree >= n or (duplex and n * degree % 2):
        with pytest.raises(Infeasible):
            random_regular(lab, seed=seed)
        return
    shape = random_regular(lab, seed=seed)
    assert (shape.adjacency.sum(axis=0) == degree).all() and (
        shape.adjacency.sum(axis=1) == degree
    ).all()
    assert shape.adjacency.max() == 1 and not shape.adjacency.diagonal().any() and shape.connected
    assert shape == random_regular(lab, seed=seed)


def test_an_expander_is_the_best_of_some_and_near_the_best_there_is() -> None:
    lab = Lab(32, 4)
    best = spectral_gap(expander(lab, seed=1))
    assert best >= max(spectral_gap(random_regular(lab, seed=16 + number)) for number in range(16))
    assert 0.8 * (4 - 2 * sqrt(3)) < best <= 4
    assert spectral_gap(complete(6)) == pytest.approx(4)  # eigenvalues 5 and -1


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
