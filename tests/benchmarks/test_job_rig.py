"""What the benchmarks of jobs share."""

from __future__ import annotations

from math import isnan

from benchmarks.job_rig import ratio


def test_arms_are_compared_within_rounds_and_one_round_has_no_interval() -> None:
    slow, fast = [[100.0, 101.0, 300.0], [200.0, 202.0, 204.0]], [[50.5], [101.0]]
    assert ratio(slow, fast) == [0.5, 0.5, 0.5], "the second round was slower for both"
    value, low, high = ratio(slow[:1], fast[:1], max)
    assert value == 0.1683 and isnan(low) and isnan(high)
