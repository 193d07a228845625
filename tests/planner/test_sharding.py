"""Several jobs on one lab."""

from __future__ import annotations

import numpy as np
import pytest

from planner.demand import Demand, Group, Infeasible
from planner.shape import Lab
from planner.sharding import place, sizes


def job(n: int) -> Demand:
    return Demand(n, (Group("dp", tuple(range(n)), 10**8),), np.zeros((n, n)))


def test_jobs_get_hosts_of_their_own_and_all_ports_used() -> None:
    shards = place([job(6), job(4), job(2)], Lab(14, 4, planes=True), taken=[1, 3])
    assert [shard.hosts for shard in shards] == [(0, 2, 4, 5, 6, 7), (8, 9, 10, 11), (12, 13)]
    assert all((np.bincount(shard.finding.shape.cables.reshape(-1)) == 4).all() for shard in shards)


def test_jobs_too_large_together_are_refused_with_what_to_leave_out() -> None:
    with pytest.raises(Infeasible, match=r"jobs of 8 \+ 6 ranks on 12 free hosts") as caught:
        place([job(8), job(6)], Lab(12, 4))
    assert "leave out 2 rank(s)" in caught.value.alternative
    with pytest.raises(Infeasible, match="host 12 is taken; there are 12"):
        place([job(2)], Lab(12, 4), taken=[12])


def test_on_planes_only_even_shards_can_use_all_ports() -> None:
    assert sizes(Lab(8, 4, planes=True)) == (2, 4, 6, 8)
    assert sizes(Lab(8, 4)) == sizes(Lab(8, 4, duplex=False, planes=True)) == (2, 3, 4, 5, 6, 7, 8)
