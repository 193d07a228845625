"""Spreading links over one switch for each port index."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.model.demand import Infeasible
from planner.model.planes import assign, check, most_links
from planner.model.shape import Lab, Ring, Shape
from planner.model.totient import ring, strides, walecki


def proper(shape: Shape, colours: tuple[int, ...], planes: int) -> bool:
    """No two links of a host on one plane; in simplex shapes transmitters and receivers are
    apart.
    """
    at = [(int(a), "tx", c) for (a, _), c in zip(shape.cables, colours, strict=True)]
    at += [
        (int(b), "tx" if shape.duplex else "rx", c)
        for (_, b), c in zip(shape.cables, colours, strict=True)
    ]
    return len(at) == len(set(at)) and set(colours) <= set(range(planes))


@given(st.integers(2, 12), st.integers(1, 5), st.integers(0, 10**6))
@settings(max_examples=80, deadline=None)
def test_simplex_links_within_the_degree_always_spread_properly(
    n: int, degree: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    paths = []
    for _ in range(degree):
        order = rng.permutation(n)
        paths += [
            (int(a), int(b))
            for a, b in zip(order, np.roll(order, -1), strict=True)
            if rng.random() < 0.8
        ]
    shape = Shape(n, degree, False, (), tuple(paths[i] for i in rng.permutation(len(paths))))
    assert proper(shape, assign(shape, degree), degree)


@given(st.integers(2, 12).map(lambda half: 2 * half), st.integers(1, 3), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_duplex_rings_and_matchings_of_even_shards_spread_properly(
    n: int, rings: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    orders = tuple(Ring("dp", tuple(rng.permutation(n).tolist())) for _ in range(rings))
    order = rng.permutation(n).tolist()
    shape = Shape(n, 2 * rings + 1, True, orders, tuple(zip(order[::2], order[1::2], strict=True)))
    degree = 2 * rings + 1 if n > 2 else rings + 1
    assert proper(shape, assign(shape, degree), degree)


def test_loose_links_are_recoloured_along_chains() -> None:
    cycles, pairs = walecki(12)
    loose = tuple(
        sorted(
            {tuple(sorted((c[i], c[i - 1]))) for c in cycles for i in range(12)}
            | {tuple(sorted(p)) for p in pairs}
        )
    )
    # the complete graph of 12: 11 colours and not one to spare
    shape = Shape(12, 11, True, (), loose)
    assert proper(shape, assign(shape, 11), 11)


def test_an_odd_shard_at_even_degree_does_not_fit_on_planes_but_on_one_switch() -> None:
    shape = Shape(11, 4, True, tuple(Ring("dp", ring(range(11), s), s) for s in (1, 3)))
    assert most_links(11, 4) == 20
    with pytest.raises(
        Infeasible, match=r"22 duplex links among 11 hosts.*4 \* floor\(11/2\) = 20"
    ) as caught:
        check(shape, Lab(11, 4, planes=True))
    assert "one switch" in caught.value.alternative and "12 hosts" in caught.value.alternative
    assert check(shape, Lab(11, 4)) == (0,) * 22


def test_an_odd_shard_fits_on_planes_in_simplex_permutations() -> None:
    shape = Shape(11, 4, False, tuple(Ring("dp", ring(range(11), s), s) for s in strides(11)[:4]))
    colours = check(shape, Lab(11, 4, duplex=False, planes=True))
    assert proper(shape, colours, 4) and all(
        len(set(colours[i * 11 : i * 11 + 11])) == 1 for i in range(4)
    )


def test_an_odd_ring_with_a_plane_to_spare_uses_three() -> None:
    shape = Shape(11, 4, True, (Ring("dp", tuple(range(11)), 1),))
    assert proper(shape, assign(shape, 4), 4) and len(set(assign(shape, 4))) == 3


def test_two_odd_rings_apart_want_three_planes_though_two_could_carry_as_many_links() -> None:
    shape = Shape(6, 2, True, (Ring("a", (0, 1, 2), 1), Ring("b", (3, 4, 5), 1)))
    with pytest.raises(Infeasible, match="found no assignment of 6 links to 2 planes"):
        assign(shape, 2)
    assert proper(shape, assign(shape, 3), 3)


def test_what_the_lab_has_not_is_named() -> None:
    shape = Shape(4, 2, True, (Ring("dp", (0, 1, 2, 3), 1), Ring("dp", (0, 1, 2, 3), 1)))
    with pytest.raises(Infeasible, match="host 0 would have 4 links on 2 ports"):
        check(shape, Lab(4, 2))
    with pytest.raises(Infeasible, match="4 ranks on 3 hosts"):
        check(shape, Lab(3, 4))
    with pytest.raises(Infeasible, match="duplex links in a lab of simplex"):
        check(shape, Lab(4, 4, duplex=False))
