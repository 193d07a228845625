"""What the benchmark of sharing reads out of packets: bursts, iterations, gaps, and the gaps that
are to be expected.
"""

from __future__ import annotations

from itertools import islice

import pytest

from benchmarks.bursts import Burst, bursts, drifting, gaps, together, took


def job(begin_s: float, period_s: float, sends_s: float, count: int) -> list[tuple[float, int]]:
    """Packets of 9000 bytes every 2 ms while it sends, and an acknowledgement in every pause."""
    found = []
    for step in range(count):
        at_s = begin_s + step * period_s
        found += [(at_s + 0.002 * k, 9000) for k in range(round(sends_s / 0.002) + 1)]
        found.append((at_s + (sends_s + period_s) / 2, 66))
    return found


def test_bursts_are_found_between_pauses_and_small_packets_are_none() -> None:
    found = bursts([*job(1.0, 0.5, 0.2, 3), (2.7, 9000)], 0.05)
    assert [round(burst.begin_s, 3) for burst in found] == [1.0, 1.5, 2.0]
    assert [round(burst.end_s - burst.begin_s, 3) for burst in found] == [0.2] * 3 and found[
        0
    ].bytes == 101 * 9000
    assert took(found) == pytest.approx([0.5, 0.5])
    assert bursts([], 0.05) == []


def test_a_gap_is_to_the_nearer_burst_and_before_it_below_zero() -> None:
    one, other = bursts(job(1.0, 0.5, 0.1, 4), 0.05), bursts(job(1.1, 0.45, 0.1, 4), 0.05)
    assert gaps(one, other) == pytest.approx([0.1, 0.05, 0.0, -0.05], abs=1e-9)
    assert gaps(one, [Burst(0.9, 0.95, 1), Burst(2.6, 2.7, 1)]) == [], (
        "no burst before, or none after"
    )


def test_gaps_grow_as_the_equation_says_until_nothing_is_sent_together() -> None:
    found = list(islice(drifting(0.04, 0.4, 1.75, 0.25), 12))
    assert found[0] == pytest.approx(0.04 + 1.75 * 0.04 * 0.36 / (0.4 * 0.25 + 1.75 * 0.04))
    assert found == sorted(found) and found[-1] == pytest.approx(0.4, rel=0.01)
    assert next(drifting(0.5, 0.4, 1.75, 0.25)) == 0.5, "apart already"


def test_what_is_sent_together_is_a_share_of_what_one_sends() -> None:
    one, other = bursts(job(0.0, 1.0, 0.4, 3), 0.05), bursts(job(0.3, 1.0, 0.4, 3), 0.05)
    assert together(one, other) == pytest.approx(0.25, abs=0.01)
    assert together(one, bursts(job(0.5, 1.0, 0.4, 3), 0.05)) == 0 and together([], other) == 0
