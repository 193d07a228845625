"""Phases and shifts: the published example, exhaustive search, made-up traffic with a known
period.
"""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from extensions.pacing.phases import (
    Phases,
    SharedLink,
    align,
    of_records,
    of_samples,
    perimeter,
    score,
    shifts,
)
from planner.model.demand import Infeasible
from planner.model.period import period_of


def half(period_ms: float, busy_ms: float, rate: float = 100.0) -> Phases:
    return Phases(period_ms, ((0.0, busy_ms, rate),))


def test_iterations_of_40_and_60_ms_have_a_circle_of_120_ms_and_fit_with_the_second_turned_by_10_ms() -> (
    None
):
    link = SharedLink("uplink", 100.0, {"one": half(40, 10), "two": half(60, 10)})
    found = shifts([link])
    assert perimeter([40, 60]) == 120
    # 30 degrees of 120 ms
    assert (found.perimeters_ms["uplink"], found.shifts_ms) == (120, {"one": 0, "two": 10})
    assert found.score == 1 and score(link, {"one": 0, "two": 0}) < 1


def naive(demands: list[list[float]], rotated: tuple[int, ...], size: int, rate: float) -> float:
    over = 0.0
    for slot in range(size):
        asked = sum(
            one[(slot - shift) % len(one)] for one, shift in zip(demands, rotated, strict=True)
        )
        over += max(0.0, asked - rate)
    return 1 - over / (size * rate)


def test_the_best_rotation_is_the_best_of_all_rotations_slot_by_slot() -> None:
    dice = Random(3)
    for _ in range(12):
        periods = [dice.choice((4, 6, 8, 12)) for _ in range(3)]
        jobs = {}
        for number, period in enumerate(periods):
            begin = dice.randrange(period - 1)
            jobs[f"job{number}"] = Phases(
                period,
                ((begin, dice.randrange(begin + 1, period + 1), dice.choice((40.0, 100.0))),),
            )
        link = SharedLink("uplink", 100.0, jobs)
        size = perimeter(periods)
        demands = [
            [rate if begin <= slot < end else 0.0 for slot in range(period)]
            for period, ((begin, end, rate),) in (
                (job.period_ms, job.bursts) for job in jobs.values()
            )
            for period in [int(period)]
        ]
        best = max(
            naive(demands, rotated, size, 100.0) for rotated in product(*map(range, periods))
        )
        found = shifts([link])
        assert found.score == pytest.approx(best)
        assert score(link, found.shifts_ms) == pytest.approx(best)


def test_a_rotation_is_found_where_there_are_too_many_to_try_all() -> None:
    jobs = {
        name: Phases(600, ((begin, begin + 180, 100.0),))
        for name, begin in (("one", 0), ("two", 7), ("three", 40))
    }
    # three times 30 % of 600 slots: 360 000 rotations
    assert shifts([SharedLink("uplink", 100.0, jobs)]).score == 1


def test_jobs_that_fit_with_room_to_spare_are_put_far_apart() -> None:
    link = SharedLink("uplink", 100.0, {"one": half(100, 30), "two": half(100, 30)})
    assert shifts([link]).shifts_ms["two"] == 50


def test_three_jobs_over_two_links_follow_the_affinity_graph() -> None:
    one, two, three = (Phases(120, ((begin, begin + 60, 100.0),)) for begin in (0, 0, 30))
    links = [
        SharedLink("a", 100.0, {"one": one, "two": two}),
        SharedLink("b", 100.0, {"two": two, "three": three}),
    ]
    found = shifts(links)
    assert found.score == 1
    assert found.shifts_ms == {"one": 0, "two": 60, "three": 90}
    for link in links:
        assert score(link, found.shifts_ms) == 1


def test_a_loop_of_jobs_and_links_is_refused_and_links_of_the_same_jobs_are_none() -> None:
    job = half(120, 40)
    ends = [
        SharedLink(f"{name} {direction}", 100.0, {"one": job, "two": job})
        for name in "ab"
        for direction in ("up", "down")
    ]
    assert shifts(ends).score == 1
    loop = [SharedLink(f"{a}{b}", 100.0, {a: job, b: job}) for a, b in ("xy", "yz", "zx")]
    with pytest.raises(Infeasible, match="loop"):
        shifts(loop)


def test_a_circle_of_too_many_slots_names_the_nearest_grid_on_which_it_fits() -> None:
    with pytest.raises(Infeasible) as refused:
        perimeter([143.0, 211.0])
    assert "30173 slots" in str(refused.value)
    grid = float(refused.value.hint.split()[-1])
    assert perimeter([143.0, 211.0], grid) <= 10_000


def test_periods_that_nearly_fit_are_made_to_fit_at_most_a_twentieth_longer() -> None:
    assert align([143, 145]) == (145, 145)
    assert align([40, 60]) == (40, 60)
    assert align([100.2, 201]) == (101, 202)
    for period, paced in zip([97, 161], align([97, 161]), strict=True):
        assert period <= paced <= 1.05 * period


def test_a_period_shows_in_samples_that_are_noisy_and_not_a_multiple_of_the_step() -> None:
    dice = Random(5)
    counts = []
    for at in range(3000):
        sends = at % 143.4 >= 83.4  # computes first
        counts.append(dice.uniform(9_000, 13_000) if sends else dice.uniform(0, 300))
    period, confidence = period_of(counts, 1.0)
    assert period == pytest.approx(143.4, abs=0.5) and confidence > 0.8
    found = of_samples(counts, 1.0)
    ((begin, end, rate),) = found.bursts
    assert end - begin == pytest.approx(60, abs=4) and begin == pytest.approx(83.4, abs=4)
    assert rate == pytest.approx(88, rel=0.1)


def test_no_period_is_made_up_where_none_shows() -> None:
    dice = Random(7)
    for counts in ([0.0] * 500, [10.0] * 500, [dice.uniform(0, 100) for _ in range(500)], [1.0]):
        with pytest.raises(Infeasible):
            period_of(counts, 1.0)


def test_what_a_contended_exchange_takes_too_long_is_left_out_of_the_phases() -> None:
    # 500 kB at 100 Mb/s are 40 ms; beside another job the exchange took 80
    found = of_records([(160, 80, 80)] * 5, 500_000, 100.0)
    assert (found.period_ms, found.bursts, found.confidence) == (120, ((80, 120, 100.0),), 1.0)
    hidden = of_records([(100, 90, 10)] * 5, 500_000, 100.0)  # 30 ms of it while the job computed
    assert hidden.period_ms == 100 and hidden.bursts == ((60, 100, 100.0),)
    with pytest.raises(Infeasible, match="no period"):
        of_records([(160, 80, 80)], 500_000, 100.0)
    with pytest.raises(Infeasible, match="do not say"):
        of_records([(160, 0, 0)] * 5, 500_000, 100.0)
