"""TopologyFinder under both rule sets: the split, the rings, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.model.demand import Demand, Group, Infeasible
from planner.model.shape import Lab
from planner.model.totient import Rules
from planner.topology.topofinder import BASE, Finding, find


def uniform(n: int, total: float) -> np.ndarray:
    matrix = np.full((n, n), total / (n * (n - 1)))
    np.fill_diagonal(matrix, 0)
    return matrix


def whole(n: int, mp_share: float = 0.0, size: int = 10**9) -> Demand:
    """One group of all ranks, and as much traffic between pairs as makes up `mp_share` of all bytes
    on the wire.
    """
    wire = 2 * (n - 1) * size
    return Demand(
        n, (Group("dp", tuple(range(n)), size),), uniform(n, wire * mp_share / (1 - mp_share))
    )


def strides_of(found: Finding, group: str = "dp") -> list[int | None]:
    return [ring.stride for ring in found.shape.rings if ring.group == group]


def test_all_degree_goes_to_rings_where_all_traffic_is_all_reduce() -> None:
    found = find(whole(12), Lab(12, 4))
    assert (found.split.degree_allreduce, found.split.degree_mp) == (4, 0)
    assert strides_of(found) == [1, 5] and not found.shape.matched
    assert found.shape.diameter == 3 and found.shape.adjacency.sum() == 48


def test_the_degree_is_divided_by_traffic_and_rounded_up_to_whole_rings() -> None:
    found = find(whole(12, mp_share=0.6), Lab(12, 4))
    assert found.split.allreduce_share == pytest.approx(0.4)
    assert (found.split.degree_allreduce, found.split.degree_mp) == (2, 2)  # ceil(4 * 0.4)
    assert strides_of(found) == [1] and [len(match.pairs) for match in found.matches] == [6, 6]
    rounded = find(whole(12, mp_share=0.4), Lab(12, 4))
    assert (rounded.split.degree_allreduce, rounded.split.degree_mp) == (4, 0)
    assert rounded.notes == (
        "all-reduce gets 4 ports instead of 3: a ring takes 2 ports of each host",
    )
    simplex = find(whole(12, mp_share=0.4), Lab(12, 4, duplex=False))
    assert (simplex.split.degree_allreduce, simplex.split.degree_mp) == (3, 1)
    assert strides_of(simplex) == [1, 5, 7]


def test_traffic_between_pairs_alone_still_gets_a_ring_for_connection() -> None:
    found = find(Demand(12, (), uniform(12, 1e9)), Lab(12, 4))
    assert [ring.group for ring in found.shape.rings] == [BASE] and found.shape.connected
    assert len(found.matches) == 2


@pytest.mark.parametrize("rules", ["paper", "artifact"])
def test_a_collective_may_be_called_all(rules: Rules) -> None:
    ranks = tuple(range(12))
    found = find(
        Demand(12, (Group("all", ranks, 10**9),), np.zeros((12, 12))), Lab(12, 4), rules=rules
    )
    assert strides_of(found, "all") == strides_of(find(whole(12), Lab(12, 4), rules=rules))


def test_a_collective_of_some_ranks_called_all_is_told_from_the_ring_that_joins_all() -> None:
    groups = (Group("all", tuple(range(6)), 10**9), Group("rest", tuple(range(6, 12)), 10**9))
    found = find(Demand(12, groups, uniform(12, 1e6)), Lab(12, 4))
    assert {ring.group: len(ring.order) for ring in found.shape.rings} == {
        "all-ranks": 12,
        "all": 6,
        "rest": 6,
    }


def test_groups_of_all_ranks_divide_the_rings_by_traffic() -> None:
    ranks = tuple(range(12))
    groups = (
        Group("small", ranks[::2], 1),
        Group("dp", ranks, 10**9),
        Group("odd", ranks[1::2], 10**8),
    )
    found = find(Demand(12, groups, np.zeros((12, 12))), Lab(12, 8, duplex=False))
    # ceil(8 * 0.99...) and nothing is left: the published rule
    assert dict(found.split.rings)["dp"] == 8
    assert found.notes[:2] == tuple(
        f"group {g} gets no links of its own and goes over the others'" for g in ("odd", "small")
    )


def test_groups_with_common_hosts_divide_the_rings_by_what_each_host_sends() -> None:
    ranks = tuple(range(12))
    groups = (
        Group("dp", ranks, 109 * 10**7),
        Group("a", ranks[:6], 12 * 10**8),
        Group("b", ranks[6:], 12 * 10**8),
    )
    found = find(Demand(12, groups, np.zeros((12, 12))), Lab(12, 8))
    assert dict(found.split.rings) == {"dp": 2, "a": 2, "b": 2}  # 1.998 and 2 GB out of every host


def test_groups_apart_use_all_their_ports_and_need_no_ring_between_them_without_traffic() -> None:
    halves = (Group("a", tuple(range(6)), 10**9), Group("b", tuple(range(6, 12)), 10**9))
    apart = find(Demand(12, halves, np.zeros((12, 12))), Lab(12, 4, planes=True))
    assert dict(apart.split.rings) == {"a": 2, "b": 2} and not apart.shape.connected
    joined = find(Demand(12, halves, uniform(12, 1e8)), Lab(12, 4, planes=True))
    assert dict(joined.split.rings) == {BASE: 1, "a": 1, "b": 1} and joined.shape.connected
    assert "a ring through all ranks joins groups" in joined.notes[0]


def test_groups_of_the_same_ranks_share_rings_under_the_first_ones_name() -> None:
    ranks = tuple(range(12))
    demand = Demand(
        12, (Group("g0", ranks, 10**8), Group("g1", ranks[::-1], 10**9)), np.zeros((12, 12))
    )
    found = find(demand, Lab(12, 4))
    assert found.merged == (("g0", ("g0", "g1")),) and strides_of(found, "g0") == [1, 5]


@pytest.mark.parametrize(
    ("n", "degree", "stride_free", "note"),
    [(6, 4, 2, "no stride"), (4, 4, 2, "parallel"), (2, 4, 4, "parallel")],
)
def test_small_shards_get_other_cycles_or_parallel_links_instead_of_failing(
    n: int, degree: int, stride_free: int, note: str
) -> None:
    found = find(whole(n), Lab(12, degree, planes=True))
    assert strides_of(found) == [None] * stride_free and note in found.notes[0]
    assert (np.bincount(found.shape.cables.reshape(-1)) == degree).all()


def test_the_released_rules_give_everything_to_the_largest_group() -> None:
    ranks = tuple(range(12))
    # more than half of all together
    halves = (Group("even", ranks[::2], 12 * 10**8), Group("odd", ranks[1::2], 12 * 10**8))
    found = find(
        Demand(12, (Group("dp", ranks, 10**9), *halves), uniform(12, 1e12)),
        Lab(12, 4),
        rules="artifact",
    )
    assert dict(found.split.rings) == {"dp": 2} and strides_of(found) == [1, 5]
    assert not found.matches and found.split.degree_mp == 0  # whatever the traffic between pairs
    assert strides_of(find(whole(128), Lab(128, 4), rules="artifact")) == [1, 13]


def test_the_released_rules_keep_one_ring_through_all_for_connection() -> None:
    halves = (Group("a", tuple(range(0, 12, 2)), 10**9), Group("b", tuple(range(1, 12, 2)), 10**8))
    found = find(Demand(12, halves, uniform(12, 1e6)), Lab(12, 4), rules="artifact")
    assert dict(found.split.rings) == {BASE: 1, "a": 1, "b": 1}


BAD = {
    "a job of 16 ranks on 12 hosts": (whole(16), Lab(12, 4), "paper"),
    "degree 1: a ring of 12": (whole(12), Lab(12, 1), "paper"),
    "22 duplex links among 11 hosts": (whole(11), Lab(12, 4, planes=True), "paper"),
    "degree 3 is odd": (whole(12), Lab(12, 3), "artifact"),
    "group five has 5 ranks, which does not divide 12": (
        Demand(12, (Group("five", (0, 1, 2, 3, 4), 10),), np.zeros((12, 12))),
        Lab(12, 4),
        "artifact",
    ),
}


@pytest.mark.parametrize("condition", BAD)
def test_what_cannot_be_met_is_named_with_what_could(condition: str) -> None:
    demand, lab, rules = BAD[condition]
    with pytest.raises(Infeasible, match=condition) as caught:
        find(demand, lab, rules=rules)
    assert caught.value.alternative


@given(st.integers(2, 20), st.integers(2, 6), st.booleans(), st.floats(0, 0.9), st.integers(0, 100))
@settings(max_examples=80)
def test_rings_are_permutations_and_the_degree_is_respected(
    n: int, degree: int, duplex: bool, mp_share: float, seed: int
) -> None:
    found = find(whole(n, mp_share), Lab(n, degree, duplex=duplex), seed=seed)
    assert all(sorted(ring.order) == list(range(n)) for ring in found.shape.rings)
    ends = found.shape.cables if duplex else found.shape.cables + np.array([0, n])
    assert np.bincount(ends.reshape(-1)).max() <= degree
    assert found.shape.connected


def test_a_seed_gives_the_same_answer() -> None:
    def answer(seed: int) -> str:
        found = find(whole(24, 0.5), Lab(24, 6), seed=seed)
        return repr((found.shape, found.choices, found.matches, found.notes))

    assert answer(3) == answer(3) != answer(4)
