"""The generator as testbed calls it, checks included."""

from __future__ import annotations

import numpy as np
import pytest

from planner.model.demand import Demand, Group, Infeasible
from planner.model.shape import Lab
from planner.registry import TOPOLOGIES, method, plugins
from planner.topology.methods import Wanted

WANTED = Wanted("acme-chords")


def demand(n: int) -> Demand:
    return Demand(n, (Group("all", tuple(range(n)), 1 << 20),), np.zeros((n, n)))


def test_testbed_finds_it() -> None:
    (found,) = [one for one in plugins(TOPOLOGIES) if one.name == "acme-chords"]
    assert not found.problem and str(found).startswith("acme-chords (acme_topology:chords of ")


@pytest.mark.parametrize(
    ("n", "degree", "strides"), [(12, 4, [1, 5]), (8, 4, [1, 3]), (7, 6, [1, 2, 3]), (2, 1, [1])]
)
def test_every_ring_has_a_stride_of_its_own(n: int, degree: int, strides: list[int]) -> None:
    (found,) = method("acme-chords")(demand(n), Lab(n, degree), WANTED)
    assert [ring.order[1] - ring.order[0] for ring in found.shape.rings] == strides
    assert found.shape.connected


def test_too_few_ports_are_refused_with_the_number_that_would_do() -> None:
    with pytest.raises(Infeasible) as caught:
        method("acme-chords")(demand(12), Lab(12, 1), WANTED)
    assert caught.value.alternative == "give each host 2 ports"
