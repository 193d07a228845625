"""Two receivers of a ring see every sum, one does not."""

from __future__ import annotations

import itertools

import pytest

from planner.operate.taps import receivers, unseen


@pytest.mark.parametrize("size", [2, 3, 4, 7, 12])
def test_any_two_members_receive_every_chunk_complete_and_one_lacks_the_chunk_that_it_completes(
    size: int,
) -> None:
    order = list(range(size))
    for at in order:
        assert unseen(order, [at]) == [(at + 1) % size]
    assert all(not unseen(order, pair) for pair in itertools.combinations(order, 2))
    assert unseen(order, []) == order
    assert unseen([5], []) == []


def test_the_first_two_that_are_preferred_are_chosen_for_all_rings_at_once() -> None:
    orders = [[0, 1, 2, 3], [2, 0, 3, 1]]
    assert receivers(orders, [3, 1, 0, 2]) == (3, 1)
    assert receivers([["a", "b"]], ["b", "a"]) == ("b", "a")
    assert receivers([["a", "b", "c"], ["c", "d", "e"]], "abcde") == ("a", "c", "d"), "c is in both"
    with pytest.raises(ValueError, match="no choice"):
        receivers(orders, [2])
