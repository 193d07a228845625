"""The schedule as testbed calls it, checks included."""

from __future__ import annotations

import pytest

from planner.model.demand import Infeasible
from planner.model.shape import Ring, Shape
from planner.registry import SCHEDULES, plugins, schedule


def test_testbed_finds_it() -> None:
    (found,) = [one for one in plugins(SCHEDULES) if one.name == "acme-trees"]
    assert not found.problem and str(found).startswith("acme-trees (acme_schedule:trees of ")


@pytest.mark.parametrize("n", [2, 5, 12])
def test_every_rank_receives_every_shard_once_from_a_rank_that_has_it(n: int) -> None:
    sends = schedule("acme-trees", Shape(n, 2, True, (Ring("all", tuple(range(n))),)))
    has = {(rank, rank) for rank in range(n)}
    for step in range(1, max(send.step for send in sends) + 1):
        now = [send for send in sends if send.step == step]
        assert all((send.src, send.shard) in has for send in now)
        has |= {(send.dst, send.shard) for send in now}
    assert len(sends) == n * (n - 1) == len(has) - n


def test_what_is_not_connected_is_refused() -> None:
    with pytest.raises(Infeasible, match="rank 0 cannot send to all others"):
        schedule("acme-trees", Shape(4, 1, True, (), ((0, 1), (2, 3))))
