"""What the benchmarks of jobs share."""

from __future__ import annotations

from math import isnan

import pytest

from benchmarks.job_rig import ratio


def test_arms_are_compared_within_rounds_and_one_round_has_no_interval() -> None:
    slow, fast = [[100.0, 101.0, 300.0], [200.0, 202.0, 204.0]], [[50.5], [101.0]]
    assert ratio(slow, fast) == [0.5, 0.5, 0.5], "the second round was slower for both"
    value, low, high = ratio(slow[:1], fast[:1], max)
    assert value == 0.1683 and isnan(low) and isnan(high)


def test_the_interval_of_two_rounds_has_the_width_of_one_degree_of_freedom() -> None:
    found = ratio([[100.0], [100.0]], [[50.0], [52.0]])
    assert found == pytest.approx([0.5099, 0.3974, 0.6542]), "12.706 standard errors either way"


@pytest.mark.parametrize(("over", "of"), [([], [1.0]), ([1.0], []), ([0.0], [1.0])])
def test_a_round_that_gives_no_ratio_is_named(over: list[float], of: list[float]) -> None:
    with pytest.raises(RuntimeError, match="round 2"):
        ratio([[1.0], over], [[1.0], of])
