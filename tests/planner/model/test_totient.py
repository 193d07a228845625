"""Strides, their selection, coin change and Walecki's cycles; the worked values of TopoOpt's
descriptions.
"""

from __future__ import annotations

from itertools import combinations_with_replacement, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.model.demand import Infeasible
from planner.model.totient import Choice, coin_change, ring, select, strides, walecki


def test_strides_are_those_coprime_to_the_size() -> None:
    assert strides(12) == (1, 5, 7, 11)
    assert strides(16) == tuple(range(1, 16, 2))
    assert (len(strides(64)), len(strides(128))) == (32, 64)
    assert strides(12, duplex=True) == (1, 5) and strides(2, duplex=True) == (1,)


def test_a_stride_visits_the_hosts_in_the_known_order() -> None:
    assert ring(range(12), 5) == (0, 5, 10, 3, 8, 1, 6, 11, 4, 9, 2, 7)
    assert ring(range(12), 7) == (0, 7, 2, 9, 4, 11, 6, 1, 8, 3, 10, 5)


@given(st.integers(2, 60), st.data())
def test_a_ring_is_a_permutation_whatever_the_stride(size: int, data: st.DataObject) -> None:
    stride = data.draw(st.sampled_from(strides(size)))
    order = ring(range(100, 100 + size), stride)
    assert sorted(order) == list(range(100, 100 + size))
    assert {(b - a) % size for a, b in pairwise((*order, order[0]))} == {stride % size}


def test_a_stride_that_leaves_members_out_is_refused_and_a_near_one_named() -> None:
    with pytest.raises(Infeasible, match="stride 4 returns") as caught:
        ring(range(12), 4)
    assert caught.value.alternative == "take stride 5"


def test_published_selection_grows_by_a_real_number_and_takes_the_nearest_unused() -> None:
    assert [c.stride for c in select(12, 2, duplex=True)] == [1, 5]
    assert [c.stride for c in select(128, 2, duplex=True)] == [1, 11]
    # wanted 1, 2.29, 5.24: 5 is used
    assert [c.stride for c in select(12, 3, duplex=False)] == [1, 5, 7]


def test_the_smaller_of_two_strides_as_near_is_taken_and_the_tie_is_recorded() -> None:
    assert select(4096, 4, duplex=True)[1:] == (
        Choice(8.0, 7, 9),
        Choice(64.0, 63, 65),
        Choice(512.0, 511, 513),
    )


def test_released_selection_takes_the_first_candidate_not_below() -> None:
    # ratio 11^(1/2)
    assert [c.stride for c in select(12, 2, duplex=True, rules="artifact")] == [1, 5]
    assert [c.stride for c in select(12, 3, duplex=False, rules="artifact")] == [1, 5, 11]
    # a stride and its reverse
    assert [c.stride for c in select(4, 2, duplex=True, rules="artifact")] == [1, 3]
    assert [c.stride for c in select(12, 1, duplex=False, rules="artifact")] == [1]


@given(st.integers(2, 300), st.integers(1, 12))
def test_released_selection_never_asks_for_more_than_the_last_candidate(
    size: int, count: int
) -> None:
    if count <= len(strides(size)):
        for duplex in (False, True):
            chosen = select(size, count, duplex=duplex, rules="artifact")
            assert (
                len({c.stride for c in chosen}) == count
                and max(c.wanted for c in chosen) <= size - 1
            )


def test_more_rings_than_strides_are_refused() -> None:
    with pytest.raises(Infeasible, match=r"3 ring.*12 has 2") as caught:
        select(12, 3, duplex=True)
    assert caught.value.alternative == "take 1 to 2 rings"


@given(st.integers(2, 14), st.sets(st.integers(1, 13), min_size=1, max_size=3), st.booleans())
def test_coin_change_spends_the_fewest_coins_there_are(
    size: int, chosen: set[int], duplex: bool
) -> None:
    coins = coin_change(size, sorted(c % size or 1 for c in chosen), duplex=duplex)
    for distance in range(size):
        least = next(
            (
                k
                for k in range(size)
                for spent in combinations_with_replacement(coins.coins, k)
                if sum(spent) % size == distance
            ),
            -1,
        )
        assert coins.hops[distance] == least
        if least >= 0:
            assert (
                len(coins.steps(distance)) == least
                and sum(coins.steps(distance)) % size == distance
            )


def test_the_coins_spent_are_the_route() -> None:
    coins = coin_change(12, [1, 5], duplex=True)
    assert coins.coins == (1, 5, 7, 11)
    assert coins.path(3, 9) == (3, 8, 9) and coins.path(9, 3) == (9, 2, 3)
    with pytest.raises(Infeasible, match="never go 1 further"):
        coin_change(12, [2, 4], duplex=True).steps(1)


def test_ties_between_coins_are_the_seeds_alone() -> None:
    def paths(seed: int) -> list[tuple[int, ...]]:
        coins = coin_change(60, [1, 7, 11], duplex=True, rng=np.random.default_rng(seed))
        return [coins.steps(distance) for distance in range(60)]

    assert paths(1) == paths(1)
    assert len({tuple(paths(seed)) for seed in range(8)}) > 1


@pytest.mark.parametrize("size", range(3, 26))
def test_waleckis_cycles_and_matching_are_the_complete_graph(size: int) -> None:
    cycles, pairs = walecki(size)
    edges = [frozenset(pair) for cycle in cycles for pair in pairwise((*cycle, cycle[0]))] + [
        frozenset(pair) for pair in pairs
    ]
    assert all(sorted(cycle) == list(range(size)) for cycle in cycles)
    assert (
        len(cycles) == (size - 1) // 2 and len(edges) == len(set(edges)) == size * (size - 1) // 2
    )
