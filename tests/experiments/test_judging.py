"""How a scenario is judged: rounds against each other, intervals against bands, claims apart from
controls. On made-up figures.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from math import exp, isclose
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as bounded
from hypothesis import strategies as st

from orchestrator.experiments.files.scenario.values import Compared
from orchestrator.experiments.scenario.judging import (
    JudgedComparison,
    judge_comparison,
    narrow,
    result_of,
)
from orchestrator.experiments.scenario.paired import Interval, paired_ratio

RATIO = Compared("x", "iteration_ms", "b", "a", "ann", 0.9, 1.1)
Rounds = Sequence[tuple[float, float]]
"""Of each round the medians of arms b and a."""


def judged(
    rounds: Rounds, compared: Compared = RATIO, states: Mapping[int, str] | None = None
) -> JudgedComparison:
    """states: those that are not done, by place: 0 is b of the first round, 1 a of it."""
    slots: list[dict[str, Any]] = []
    samples: dict[tuple[str, str, str, int], dict[int, list[float]]] = {}
    for number, (of, over) in enumerate(rounds, 1):
        for arm, value in (("b", of), ("a", over)):
            state = (states or {}).get(len(slots), "done")
            if state == "done":
                samples.setdefault((arm, "ann", compared.metric, 0), {})[len(slots)] = [
                    value * 0.9,
                    value,
                    value * 1.2,
                ]
            slots.append({"arm": arm, "round": number, "state": state})
    return judge_comparison(compared, samples, slots)


# --- ratios of rounds


POSITIVE = st.floats(0.01, 100)


@given(
    st.lists(st.tuples(POSITIVE, POSITIVE), min_size=5, max_size=9),
    st.lists(st.floats(0.05, 20), min_size=9, max_size=9),
)
def test_what_slows_a_whole_round_down_cancels(rounds: Rounds, slower: list[float]) -> None:
    calm = judged(rounds)
    loaded = judged([(of * by, over * by) for (of, over), by in zip(rounds, slower, strict=False)])
    assert calm.found is not None and loaded.found is not None
    for before, after in (
        (calm.found.value, loaded.found.value),
        (calm.found.low, loaded.found.low),
    ):
        assert before is not None and after is not None and isclose(before, after, rel_tol=1e-9)


def test_a_slow_hour_widens_nothing_that_an_unpaired_comparison_would_take_for_a_difference() -> (
    None
):
    generator, drift = random.Random(3), [1.0, 1.1, 1.4, 2.0, 3.0]
    rounds = [
        (by * 70 * generator.gauss(1, 0.01), by * 100 * generator.gauss(1, 0.01)) for by in drift
    ]
    found = judged(rounds, replace(RATIO, low=0.67, high=0.73))
    assert found.holds and found.found is not None and found.n == 5 and found.how == "t", (
        found.message
    )


@given(st.lists(st.floats(0, 50), min_size=2, max_size=6), st.randoms())
def test_the_order_of_the_rounds_changes_nothing(
    ratios: list[float], shuffle: random.Random
) -> None:
    before = paired_ratio(ratios)
    shuffled = ratios.copy()
    shuffle.shuffle(shuffled)
    assert paired_ratio(shuffled) == before, (
        "to the last bit, so that no interval can be had by measuring in another order"
    )


def test_every_order_of_five_rounds_gives_the_same_outcome() -> None:
    rounds = [(70.1, 100.0), (0.3, 0.43), (9.0, 13.1), (141.0, 200.0), (35.0, 50.0)]
    band = replace(RATIO, low=0.69, high=0.71)
    assert (
        len(
            {(f.outcome, f.found) for order in permutations(rounds) for f in (judged(order, band),)}
        )
        == 1
    )


@given(st.lists(POSITIVE, min_size=2, max_size=9))
def test_the_arms_the_other_way_round_have_the_inverse_interval(ratios: list[float]) -> None:
    one, other = paired_ratio(ratios).found, paired_ratio([1 / ratio for ratio in ratios]).found
    assert one.low is not None and other.high is not None
    assert isclose(one.value * other.value, 1, rel_tol=1e-9) and isclose(
        one.low * other.high, 1, rel_tol=1e-9
    )


def test_where_a_ratio_is_zero_the_mean_is_taken_and_told() -> None:
    found = judged(
        [(0.0, 10.0), (0.1, 10.0), (0.0, 10.0), (0.2, 10.0), (0.1, 10.0)],
        replace(RATIO, low=None, high=0.03),
    )
    assert (
        found.how == "arithmetic"
        and found.found is not None
        and found.found.low is not None
        and found.found.high is not None
    )
    assert found.found.low == 0.0 and isclose(found.found.value, 0.008) and found.holds
    assert isclose(found.found.high, 0.008 + 2.776445 * 0.00836660 / 5**0.5, rel_tol=1e-6)


def test_about_nineteen_of_twenty_intervals_over_five_rounds_hold_the_truth_whatever_the_scatter() -> (
    None
):
    for scatter in (0.02, 0.15):
        generator, hits = random.Random(7), 0
        for _ in range(1000):
            found = paired_ratio([0.7 * exp(generator.gauss(0, scatter)) for _ in range(5)]).found
            assert found.low is not None and found.high is not None
            hits += found.low <= 0.7 <= found.high
        assert 930 <= hits <= 970, scatter


def test_nothing_is_said_of_no_rounds_and_no_interval_is_made_of_one() -> None:
    with pytest.raises(ValueError, match="no round"):
        paired_ratio([])
    assert paired_ratio([0.5]).found == Interval(0.5, None, None)
    assert paired_ratio([0.0]).found == Interval(0.0, None, None)


# --- intervals and bands

SAME = [(100.0, 100.0), (101.0, 100.0), (99.0, 100.0), (100.5, 100.0), (99.5, 100.0)]


def test_a_comparison_holds_inside_is_refuted_outside_and_shows_nothing_across_an_end_of_its_band() -> (
    None
):
    assert judged(SAME).outcome == "holds"
    assert judged(SAME, replace(RATIO, low=0.2, high=0.8)).outcome == "refuted"
    assert judged(SAME, replace(RATIO, low=1.2, high=None)).outcome == "refuted"
    across = judged(SAME, replace(RATIO, low=None, high=1.0))
    assert (across.outcome, across.why) == (
        "not shown",
        "an end of the band is inside the interval",
    )
    wide = judged(
        [(60.0, 100.0), (140.0, 100.0), (60.0, 100.0), (140.0, 100.0), (119.0, 100.0)],
        replace(RATIO, low=0.99),
    )
    assert (
        wide.outcome == "not shown" and wide.found is not None and 0.9 < wide.found.value < 1.1
    ), "the middle alone does not count"


@bounded(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(POSITIVE, POSITIVE), min_size=5, max_size=8),
    st.floats(0.1, 10),
    st.floats(1.0, 10),
)
def test_an_outcome_is_the_place_of_the_interval_and_nothing_else(
    rounds: Rounds, low: float, factor: float
) -> None:
    found = judged(rounds, replace(RATIO, low=low, high=low * factor))
    assert found.found is not None and found.found.low is not None and found.found.high is not None
    inside = low <= found.found.low and found.found.high <= low * factor
    outside = found.found.high < low or found.found.low > low * factor
    assert found.outcome == ("holds" if inside else "refuted" if outside else "not shown")


def test_four_rounds_are_starved_whatever_they_are() -> None:
    found = judged(SAME[:4])
    assert (found.outcome, found.n) == ("starved", 4) and "4 of the 5 rounds" in found.why
    assert judged([]).outcome == "starved" and judged([]).found is None


def test_a_void_measurement_takes_its_round_away_and_no_other_arm_takes_its_place() -> None:
    six = [*SAME, (300.0, 100.0)]
    void = judged(six, states={10: "void"})
    assert void.n == 5 and void.holds, "the one beside it has nothing to be compared with"
    assert void == judged(SAME)
    assert judged(SAME, states={3: "void"}).outcome == "starved"


def test_with_a_stall_nothing_is_shown_and_how_often_is_a_figure_of_its_own() -> None:
    found = judged(SAME, states={2: "stalled"})
    assert (found.outcome, found.why) == ("not shown", "arm b stalled in 1 of 5 measurements")
    none = replace(RATIO, metric="stalled", over="", low=None, high=0.0)
    share = judged(SAME, none, {2: "stalled"})
    assert share.found is not None and (share.found.value, share.outcome) == (0.2, "refuted")
    assert judged(SAME, none).holds and judged(SAME[:4], none).outcome == "starved"
    assert judged(SAME, none, {2: "void"}).outcome == "starved", (
        "a void measurement does not tell whether the arm stalls"
    )


def test_a_metric_that_was_not_recorded_or_is_divided_by_nothing_shows_nothing() -> None:
    lost = replace(RATIO, metric="loss")
    slots = [{"arm": arm, "round": n, "state": "done"} for n in range(6) for arm in "ba"]
    loss = {number: [1.0] for number in range(12)}
    samples = {("b", "ann", "loss", 0.0): loss, ("a", "ann", "loss", 0.0): loss | {3: []}}
    found = judge_comparison(lost, samples, slots)
    assert (found.outcome, found.why) == (
        "not shown",
        "loss of arm a was not recorded in 1 of 6 rounds",
    ), "five others have it, and may be the good ones"
    assert judged([*SAME[:4], (1.0, 0.0)]).why == "iteration_ms of arm a was 0 in a round"
    assert judged([(0.0, 0.0)] * 5, replace(RATIO, metric="circuits_moved")).holds
    assert judged([(0.0, 0.0)] * 5, replace(RATIO, metric="goodput")).outcome == "not shown"


@pytest.mark.parametrize("ratio", [3.0, 0.1, 5.0, 1 / 3])
def test_rounds_that_are_all_alike_give_their_ratio_to_the_last_bit(ratio: float) -> None:
    band = replace(RATIO, low=ratio, high=ratio)
    assert judged([(ratio, 1.0)] * 5, band).holds


# --- when measuring ends


def test_measuring_ends_by_the_width_and_never_by_what_was_found() -> None:
    ratios = [
        [(70.0, 100.0)] * 5,
        SAME,
        [(99.0, 10.0), (98.0, 10.0), (99.5, 10.0), (98.7, 10.0), (99.1, 10.0)],
    ]
    for rounds in ratios:
        ends = {
            narrow([judged(rounds, replace(RATIO, low=low, high=high))], 0.05)
            for low, high in ((0.0, 0.5), (0.69, 0.71), (0.9, 1.1))
        }
        assert ends == {True}, "narrow is narrow: holding, refuted, or across the end of the band"
    scattered = [(60.0, 100.0), (140.0, 100.0), (90.0, 100.0), (120.0, 100.0), (80.0, 100.0)]
    assert not narrow([judged(scattered, replace(RATIO, low=0.1, high=2.0))], 0.05), (
        "that it holds ends nothing"
    )
    assert not narrow([judged(SAME), judged(scattered)], 0.05), (
        "every comparison counts, those of controls too"
    )


def test_fewer_than_five_rounds_are_never_enough_and_what_has_stalled_keeps_nothing_waiting() -> (
    None
):
    assert not narrow([judged([(70.0, 100.0)] * 4)], 0.05)
    assert not narrow([judged([])], 0.05)
    assert narrow([judged(SAME), judged(SAME, states={2: "stalled"})], 0.05)
    tiny = [(0.010, 1.0), (0.012, 1.0), (0.011, 1.0), (0.013, 1.0), (0.012, 1.0)]
    assert narrow([judged(tiny, replace(RATIO, low=None, high=0.3))], 0.05), (
        "a hundredth needs no five per cent of a hundredth"
    )


# --- the result


def of(role: str, outcome: str) -> JudgedComparison:
    return JudgedComparison(replace(RATIO, role=role), Interval(1.0, 1.0, 1.0), outcome, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("claims", "controls", "result"),
    [
        (["holds"], [], "claim holds"),
        (["holds", "holds"], ["holds"], "claim holds"),
        (["holds"], ["refuted"], "claim holds, control does not"),
        (["holds"], ["holds", "not shown"], "claim holds, control does not"),
        (["holds"], ["starved"], "starved"),
        (["holds", "not shown"], ["holds"], "not shown"),
        (["not shown"], ["refuted"], "not shown"),
        (["holds", "refuted"], ["holds"], "refuted"),
        (["refuted"], ["refuted"], "not shown"),
        (["refuted"], ["starved"], "starved"),
        (["refuted", "starved"], [], "refuted"),
        (["holds", "starved"], ["holds"], "starved"),
        (["not shown", "starved"], [], "starved"),
    ],
)
def test_a_claim_is_judged_apart_from_its_controls(
    claims: list[str], controls: list[str], result: str
) -> None:
    found = [
        *(of("claim", outcome) for outcome in claims),
        *(of("control", outcome) for outcome in controls),
    ]
    for ablation in ("holds", "not shown", "refuted", "starved"):
        assert result_of([*found, of("ablation", ablation)]) == result, (
            "an ablation shows why, not whether"
        )
    assert result_of(found[::-1]) == result


@pytest.mark.parametrize(
    ("found", "band", "shown"),
    [
        ((1.03, 1.0, 1.0504), (0.95, 1.05), "1.030 (95 % 1.000 to 1.0504)"),
        ((1.03, 0.94996, 1.04), (0.95, None), "1.03 (95 % 0.94996 to 1.04)"),
        ((0.021, 0.019, 0.024), (None, 0.03), "0.021 (95 % 0.019 to 0.024)"),
        ((1.0, 0.95, 1.05), (0.95, 1.05), "1 (95 % 0.95 to 1.05)"),
    ],
)
def test_a_verdict_has_as_many_digits_as_show_its_reason_and_says_n(
    found: tuple[float, float, float], band: tuple[float | None, float | None], shown: str
) -> None:
    one = Compared("x", "iteration_ms", "a", "b", "ann", *band)
    holds = (band[0] is None or found[1] >= band[0]) and (band[1] is None or found[2] <= band[1])
    text = JudgedComparison(
        one, Interval(*found), "holds" if holds else "not shown", 6, "", "t"
    ).message
    assert "; n = 6)" in text and ("holds" in text) == holds
    low, high = (float(part) for part in text.partition("95 % ")[2].partition(";")[0].split(" to "))
    assert holds == (
        (band[0] is None or low >= band[0]) and (band[1] is None or high <= band[1])
    ), text
    assert [float(n) for n in re.findall(r"[0-9.]+", shown)] == [
        float(n) for n in re.findall(r"[0-9.]+", text.partition(";")[0])
    ]
