"""Colours of arcs on a ring, against every colouring of small rings, and places of ranks."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest

from planner.model.demand import Demand, Group
from planner.topology.wavelengths import (
    Span,
    coloured,
    cuts,
    first_fit,
    fit,
    flows,
    linked,
    placed,
    ring_order,
    routed,
    steps_of,
)


def demand(
    n: int, *groups: tuple[int, ...], pairs: dict[tuple[int, int], float] | None = None
) -> Demand:
    mp = np.zeros((n, n))
    for (a, b), size in (pairs or {}).items():
        mp[a, b] = size
    return Demand(n, tuple(Group(f"g{k}", members, 1000) for k, members in enumerate(groups)), mp)


def chromatic(spans: list[Span], n: int) -> int:
    """The least number of colours, by trying all."""
    masks = [span.mask(n) for span in spans]
    clashes = [(a, b) for b in range(len(spans)) for a in range(b) if masks[a] & masks[b]]
    for count in range(1, len(spans) + 1):
        if any(
            all(c[a] != c[b] for a, b in clashes) for c in product(range(count), repeat=len(spans))
        ):
            return count
    return 0


def proper(spans: list[Span], colours: tuple[int, ...], n: int) -> bool:
    pairs = [(a, b) for b in range(len(spans)) for a in range(b)]
    return all(
        colours[a] != colours[b] or not spans[a].mask(n) & spans[b].mask(n) for a, b in pairs
    )


@pytest.mark.parametrize("seed", range(60))
def test_no_colouring_of_a_small_ring_has_fewer_wavelengths_than_the_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 8))
    spans = [
        Span(int(rng.integers(n)), int(rng.integers(1, n))) for _ in range(int(rng.integers(1, 7)))
    ]
    found = coloured(spans, n)
    assert proper(spans, found.colours, n)
    assert found.least and found.count == chromatic(spans, n)
    assert max(cuts(spans, n)) == found.cut <= found.count <= found.most


@pytest.mark.parametrize("seed", range(40))
def test_links_that_leave_a_stretch_empty_need_as_many_wavelengths_as_the_largest_cut(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, 15, size=30)
    # none over the stretch from 15 to 0
    spans = [Span(int(a), int(rng.integers(1, 16 - a))) for a in starts]
    found = coloured(spans, 16)
    assert proper(spans, found.colours, 16)
    assert found.count == found.cut == max(cuts(spans, 16)) and found.least


def test_three_arcs_of_two_thirds_have_a_cut_of_two_and_need_three_wavelengths() -> None:
    found = coloured([Span(0, 2), Span(1, 2), Span(2, 2)], 3)
    assert (found.cut, found.count, found.most, found.least) == (2, 3, 4, True)
    assert fit([Span(0, 2), Span(1, 2), Span(2, 2)], 3, [0, 0]) == (None, True)
    # without a search
    assert fit([Span(0, 2), Span(1, 2), Span(2, 2)], 3, [0, 0, 0], steps=1)[0] is not None


def test_a_search_that_gives_up_does_not_say_that_there_is_no_colouring() -> None:
    spans = [Span(k, 5) for k in range(12)] * 2
    assert fit(spans, 12, [0] * 10, steps=3) == (None, False)
    assert not coloured(spans, 12, steps=3).least


def test_a_wavelength_in_use_on_a_stretch_is_not_used_there_again() -> None:
    spans = [Span(0, 2), Span(4, 2)]
    found, sure = fit(spans, 8, [0b11, 0b110000])
    assert found == (1, 0) and sure
    assert fit(spans, 8, [0b11]) == (None, True)
    # not from left to right: the search must leave the empty one alone
    some = [Span(4, 1), Span(1, 2), Span(3, 2), Span(2, 2)]
    assert fit(some, 5, [0, 0b101, 0b11000]) == ((0, 2, 1, 0), True)


@pytest.mark.parametrize("seed", range(8))
def test_wavelengths_in_use_here_and_there_are_filled_wherever_any_colouring_fits(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    answers = set()
    for _ in range(100):
        n = int(rng.integers(4, 8))
        spans = [Span(int(rng.integers(n)), int(rng.integers(1, n // 2 + 1))) for _ in range(5)]
        taken = [int(rng.integers(1 << n)) & int(rng.integers(1 << n)) for _ in range(3)]
        found, sure = fit(spans, n, taken)
        possible = any(
            not clash(spans, colours, n, taken) for colours in product(range(3), repeat=5)
        )
        assert (
            sure
            and (found is not None) == possible
            and (found is None or not clash(spans, found, n, taken))
        )
        answers.add(possible)
    assert answers == {True, False}


def clash(spans: list[Span], colours: tuple[int, ...], n: int, taken: list[int]) -> bool:
    inside = any(span.mask(n) & taken[colour] for span, colour in zip(spans, colours, strict=True))
    return inside or not proper(spans, colours, n)


@pytest.mark.parametrize("seed", range(30))
def test_the_way_round_never_fills_the_fullest_stretch_more_than_the_shorter_way(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(4, 9))
    pairs = [
        tuple(map(int, rng.choice(n, 2, replace=False))) for _ in range(int(rng.integers(1, 9)))
    ]
    spans = routed(pairs, n)
    for (a, b), span in zip(pairs, spans, strict=True):
        assert {span.start, (span.start + span.length) % n} == {a, b}
    best = min(
        max(cuts(path, n))
        for path in product(*((Span(a, (b - a) % n), Span(b, (a - b) % n)) for a, b in pairs))
    )
    assert best <= max(cuts(spans, n)) <= max(best + 1, 1)
    assert max(cuts(spans, n)) <= first_fit(pairs, n).cut


def test_a_ring_of_all_ranks_needs_one_wavelength_wherever_they_are() -> None:
    order = ring_order(range(8), (0, 4, 1, 5, 2, 6, 3, 7))
    assert order == (0, 2, 4, 6, 1, 3, 5, 7)
    assert (
        coloured(
            routed(
                [
                    ((0, 4, 1, 5, 2, 6, 3, 7)[a], (0, 4, 1, 5, 2, 6, 3, 7)[b])
                    for a, b in steps_of(order)
                ],
                8,
            ),
            8,
        ).count
        == 1
    )


def test_shards_beside_each_other_share_wavelengths_and_scattered_ones_do_not() -> None:
    members = [tuple(range(k, 12, 4)) for k in range(4)]
    shards = demand(12, *members)
    at = placed(shards, range(12), 12)

    def pairs(at: tuple[int, ...]) -> list[tuple[int, int]]:
        return [(at[a], at[b]) for one in members for a, b in steps_of(ring_order(one, at))]

    assert coloured(routed(pairs(at), 12), 12).count == 2
    assert first_fit(pairs(tuple(range(12))), 12).count == 4


@pytest.mark.parametrize("seed", range(6))
def test_no_order_of_few_ranks_has_fewer_bytes_over_the_fullest_stretch(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mp = np.triu(rng.integers(0, 9, size=(5, 5)), 1).astype(float)
    wanted = Demand(5, (Group("g", (0, 2, 4), 6),), mp)

    def fullest(at: tuple[int, ...]) -> float:
        load = np.zeros(5)
        for flow in flows(wanted):
            for a, b in steps_of(ring_order(flow.members, at)):
                one, other = Span(at[a], (at[b] - at[a]) % 5), Span(at[b], (at[a] - at[b]) % 5)
                for k in range((one if one.length < other.length else other).length):
                    load[((one if one.length < other.length else other).start + k) % 5] += (
                        flow.bytes
                    )
        return round(float(load.max()), 3)

    assert fullest(placed(wanted, range(5), 5)) == min(map(fullest, permutations(range(5))))


def test_many_ranks_are_placed_by_exchanges_from_the_order_given() -> None:
    pairs = {(k, (k + 6) % 12): 100.0 for k in range(6)}  # neighbours once they are exchanged
    at = placed(demand(12, pairs=pairs), range(12), 12)
    assert sorted(at) == list(range(12))
    assert {min((at[a] - at[b]) % 12, (at[b] - at[a]) % 12) for a, b in pairs} == {1}


def test_links_are_added_where_most_bytes_are_while_a_wavelength_is_left() -> None:
    wanted = demand(6, (0, 1, 2, 3, 4, 5), pairs={(0, 3): 5000.0, (1, 2): 1.0})
    (one,) = linked(wanted, range(6), 6, [0], "base")
    assert one.matched == () and len(one.rings) == 1
    (two,) = linked(wanted, range(6), 6, [0, 0], "base")
    assert two.matched[0] == (0, 3) and len(two.rings) == 1
    assert proper(list(two.spans), two.colours, 6) and max(two.colours) == 1
    assert linked(wanted, range(6), 6, [1 << 2], "base") == []
    (other,) = linked(
        demand(6, (0, 1, 2, 3, 4, 5), pairs={(0, 3): 5000.0, (1, 4): 4000.0, (3, 4): 7000.0}),
        range(6),
        6,
        [0, 0],
        "base",
    )
    assert other.matched == ((0, 3), (3, 4)), "the second one does not fit, the third does"
    (rings,) = linked(wanted, range(6), 6, [0, 0], "base", transfers=0.0)
    assert rings.matched == () and len(rings.rings) == 2


def test_shards_are_joined_by_their_heaviest_pair_or_by_a_ring_through_all_ranks() -> None:
    apart = linked(demand(6, (0, 1, 2), (3, 4, 5)), range(6), 6, [0, 0, 0], "base")
    assert all("base" in {name for name, _ in one.rings} for one in apart)
    paired, *_ = linked(
        demand(6, (0, 1, 2), (3, 4, 5), pairs={(2, 3): 9.0, (0, 5): 8.0}),
        range(6),
        6,
        [0, 0],
        "base",
    )
    assert "base" not in {name for name, _ in paired.rings} and (2, 3) in paired.matched


def test_where_the_rings_of_all_groups_do_not_fit_one_ring_through_all_ranks_is_left() -> None:
    (found,) = linked(demand(6, (0, 2, 4), (1, 3, 5)), range(6), 6, [0], "base")
    assert found.rings == (("base", (0, 1, 2, 3, 4, 5)),) and found.colours == (0,) * 6
    pairs_too = demand(6, (0, 3), (1, 4), (2, 5), (0, 1, 2, 3, 4, 5))
    (found,) = linked(pairs_too, range(6), 6, [0], "base")
    assert [name for name, _ in found.rings] == ["g3"], (
        "no second ring through all ranks, and no pair on the same wavelength"
    )
