"""Matchings for a demand: they fit, every pair meets, and the demand is carried within the stated
bound.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.model.demand import Infeasible
from planner.schedule import decomposition
from planner.schedule.decomposition import for_demand, permutations


@st.composite
def squares(draw: st.DrawFn) -> np.ndarray:
    n = draw(st.integers(2, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    found = rng.random((n, n)) ** draw(st.sampled_from([0.0, 1.0, 6.0])) * (
        rng.random((n, n)) < draw(st.sampled_from([0.4, 1.0]))
    )
    np.fill_diagonal(found, 0.0)
    return found


@pytest.mark.parametrize("search", [True, False], ids=["as found", "as is always possible"])
@given(squares(), st.integers(13, 40), st.booleans())
@settings(max_examples=60, deadline=None)
def test_matchings_carry_the_demand_within_the_bound(
    search: bool, demand: np.ndarray, slots: int, every_pair: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if not search:
            patch.setattr(decomposition, "_coloured", lambda links, slots: None)
        found = for_demand(demand, slots, every_pair=every_pair)
    n = len(demand)
    assert len(found.matchings) == slots
    for matching in found.matchings:
        ends = [rank for pair in matching for rank in pair]
        assert len(ends) == len(set(ends))
    met = Counter(pair for matching in found.matchings for pair in matching)
    for a in range(n):
        for b in range(a + 1, n):
            assert met[a, b] == found.links[a, b] == found.links[b, a]
            assert met[a, b] >= (every_pair or max(demand[a, b], demand[b, a]) > 0)
    weight = np.maximum(demand, demand.T)
    if weight.any():
        cycles = max(weight[pair] / count for pair, count in met.items())
        assert (
            cycles * slots / weight.sum(axis=1).max()
            <= found.slowdown * (1 + 1e-9)
            <= found.bound * (1 + 1e-6)
        )


def test_a_demand_of_few_pairs_gets_nearly_all_slots() -> None:
    demand = np.zeros((4, 4))
    demand[0, 1] = demand[2, 3] = 1.0
    found = for_demand(demand, 30)
    assert found.links[0, 1] == found.links[2, 3] == 28 and found.slowdown == pytest.approx(30 / 28)
    assert for_demand(demand, 30, every_pair=False).slowdown == 1.0


@given(st.integers(1, 6), st.integers(0, 8), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_a_sum_of_permutations_is_taken_apart_into_as_many(n: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = sum(
        (np.eye(n, dtype=np.int64)[rng.permutation(n)] for _ in range(count)),
        np.zeros((n, n), dtype=np.int64),
    )
    found = permutations(counts)
    assert len(found) == count
    assert (
        sum((np.eye(n, dtype=np.int64)[one] for one in found), np.zeros((n, n), dtype=np.int64))
        == counts
    ).all()


def test_too_few_slots_are_refused_with_how_many_would_do() -> None:
    with pytest.raises(Infeasible, match="4 slots do not join 8 ranks") as caught:
        for_demand(np.ones((8, 8)), 4)
    assert "7 slots" in caught.value.alternative
    with pytest.raises(Infeasible, match="no square"):
        for_demand(-np.ones((3, 3)), 9)
