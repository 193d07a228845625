"""Matchings compared with networkx's, how demand weakens, and that the answer is the seed's."""

from __future__ import annotations

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.model.demand import Infeasible
from planner.topology import matching
from planner.topology.matching import matchings


def random_demand(n: int, seed: int, levels: int = 1000) -> np.ndarray:
    matrix = np.random.default_rng(seed).integers(levels, size=(n, n)).astype(float)
    np.fill_diagonal(matrix, 0)
    return matrix


@given(st.integers(3, 14), st.integers(0, 10**6), st.sampled_from([3, 1000]))
@settings(max_examples=60, deadline=None)
def test_a_round_serves_as_much_as_networkx_does(n: int, seed: int, levels: int) -> None:
    demand = random_demand(n, seed, levels)
    (found,) = matchings(demand, np.ones(n, dtype=int)) or [None]
    graph = networkx.Graph()
    graph.add_weighted_edges_from(
        (a, b, demand[a, b] + demand[b, a])
        for a in range(n)
        for b in range(a)
        if demand[a, b] + demand[b, a]
    )
    best = sum(graph[a][b]["weight"] for a, b in networkx.max_weight_matching(graph))
    assert best == (found.weight if found else 0)
    assert not found or found.weight <= found.bound


@given(
    st.integers(2, 10),
    st.integers(0, 4),
    st.integers(0, 10**6),
    st.sampled_from(["paper", "artifact"]),
)
@settings(max_examples=60, deadline=None)
def test_no_rank_gets_more_links_than_it_has_free_ports(
    n: int, most: int, seed: int, rules: str
) -> None:
    n -= n % 2
    free = np.random.default_rng(seed).integers(most + 1, size=n)
    used = np.zeros(n, dtype=int)
    for match in matchings(random_demand(n, seed), free, rules=rules):
        assert len({rank for pair in match.pairs for rank in pair}) == 2 * len(match.pairs)
        for pair in match.pairs:
            used[list(pair)] += 1
    assert (used <= free).all()


def test_a_matched_pair_counts_half_by_the_paper_and_a_harmonic_part_by_the_released_code() -> None:
    demand = np.zeros((4, 4))
    demand[0, 1] = demand[2, 3] = 100
    free = np.full(4, 3)
    assert [match.weight for match in matchings(demand, free)] == [200, 100, 50]
    assert [match.weight for match in matchings(demand, free, rules="artifact")] == [
        200,
        100,
        pytest.approx(200 / 3),
    ]
    demand[0, 2] = demand[1, 3] = 60  # now better than half, not better than the whole
    assert [match.pairs for match in matchings(demand, free, rounds=2)] == [
        ((0, 1), (2, 3)),
        ((0, 2), (1, 3)),
    ]


def test_an_odd_number_of_ranks_cannot_all_be_paired() -> None:
    with pytest.raises(Infeasible, match="5 ranks cannot all be paired") as caught:
        matchings(random_demand(5, 1), np.ones(5, dtype=int), rules="artifact")
    assert "4 or 6 ranks" in caught.value.alternative


def test_equal_choices_are_made_by_the_seed_alone() -> None:
    demand = np.ones((12, 12)) - np.eye(12)
    free = np.full(12, 3)
    assert matchings(demand, free, seed=5) == matchings(demand, free, seed=5)
    assert len({matchings(demand, free, seed=seed)[0].pairs for seed in range(6)}) > 1


KINDS = {
    "as it comes": lambda rng, n: rng.random((n, n)),
    "uneven": lambda rng, n: rng.lognormal(sigma=2, size=(n, n)),
    "of hubs": lambda rng, n: np.add.outer(*[rng.lognormal(size=n)] * 2),
    "of the larger": lambda rng, n: np.maximum.outer(*[rng.lognormal(size=n)] * 2),
    "alike": lambda rng, n: np.ones((n, n)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("assigned", "reaches"), [(512, 0.995), (0, 0.96)])
def test_large_demands_are_served_nearly_as_well_as_can_be_and_the_bound_holds(
    monkeypatch: pytest.MonkeyPatch, kind: str, assigned: int, reaches: float
) -> None:
    demand = KINDS[kind](np.random.default_rng(3), 61)
    np.fill_diagonal(demand, 0)
    free = np.full(61, 3)
    exact = matchings(demand, free, rounds=1)[0]
    monkeypatch.setattr(matching, "EXACT", 16)
    monkeypatch.setattr(matching, "ASSIGNED", assigned)
    quick = matchings(demand, free, rounds=3)
    assert (
        reaches * exact.weight
        <= quick[0].weight
        <= exact.weight * (1 + 1e-9)
        <= quick[0].bound * (1 + 2e-9)
    )
    assert len(quick) == 3 and all(match.weight <= match.bound for match in quick)
    assert all(len({rank for pair in match.pairs for rank in pair}) == 60 for match in quick)
    assert quick == matchings(demand, free, rounds=3)


def test_few_pairs_are_matched_exactly_however_many_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    demand = np.zeros((40, 40))
    demand[np.arange(39), np.arange(1, 40)] = np.random.default_rng(1).random(39)  # a pipeline
    exact = matchings(demand, np.ones(40, dtype=int))
    monkeypatch.setattr(matching, "EXACT", 4)
    assert matchings(demand, np.ones(40, dtype=int)) == exact and exact[0].weight == exact[0].bound


def test_pairs_without_traffic_get_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    demand = np.zeros((40, 40))
    demand[:9, 10:30] = np.random.default_rng(1).random((9, 20))
    monkeypatch.setattr(matching, "EXACT", 4)
    (found,) = matchings(demand, np.ones(40, dtype=int))
    assert len(found.pairs) == 9 and all(a < 9 and 10 <= b < 30 for a, b in found.pairs)
