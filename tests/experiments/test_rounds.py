"""When measuring ends and which measurements do not count: rounds on a lab of fakes, waits for
processors as ranks report them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.experiments.scenario.record import ComparisonRecord
from orchestrator.experiments.scenario.void import WAIT_LIMIT, Slowed, slowed
from orchestrator.inventory.lab import Lab
from orchestrator.settings import Settings
from tests.experiments.test_scenario import STAY, Fake, ready, settings

__all__ = ["settings"]
EACH_S = 7.35
"""How long a measurement of the fake takes: two iterations of warm-up and five, one a second."""


def row(rank: str, share: float | None, **more: Any) -> dict[str, Any]:
    waited = None if share is None else share * 50.0
    return {
        "rank": rank,
        "iter_ms": 50.0,
        "processor_ms": waited,
        "rwnd_limited_ms": None,
        "retransmitted": None,
        "refused": None,
    } | more


# --- what voids a measurement


def test_the_worst_rank_decides_by_the_median_of_its_iterations() -> None:
    calm, busy = [row("gpu01", 0.02)] * 5, [row("gpu02", 0.9)] * 2 + [row("gpu02", 0.1)] * 3
    assert slowed([*calm, *busy]).share == pytest.approx(0.1), (
        "two iterations of five are no median"
    )
    found = slowed([*calm, *busy, row("gpu02", 0.9), row("gpu02", 0.9)])
    assert (found.rank, found.void) == ("gpu02", True) and found.share == pytest.approx(0.9)
    assert found.message == "gpu02 waited for processors 90% of an iteration, 20% are the most"


def test_exactly_the_limit_still_counts() -> None:
    assert not Slowed(WAIT_LIMIT).void and Slowed(WAIT_LIMIT + 1e-9).void


def test_what_no_rank_says_voids_nothing_and_is_not_said_to_be_nothing() -> None:
    found = slowed([row("gpu01", None)] * 4)
    assert found.share is None and not found.void and "not known" in found.message
    assert slowed([]) == Slowed()
    assert slowed([row("gpu01", None), row("gpu02", 0.3)]).rank == "gpu02"


def test_waits_that_are_known_of_few_iterations_are_said_to_be_so_and_void_what_they_show() -> None:
    assert slowed([row("gpu01", 0.1)], 0.5).message == ""
    few = slowed([row("gpu01", 0.1)], 0.49)
    assert not few.void and "is not known of 51% of the iterations" in few.message
    assert few.to_json()["known"] == 0.49
    assert slowed([row("gpu01", 0.3)], 0.49).void


@given(
    st.lists(
        st.tuples(st.sampled_from(["gpu01", "gpu02/0", "gpu02/1"]), st.floats(0, 3)),
        min_size=1,
        max_size=20,
    ),
    st.randoms(),
)
def test_only_the_waits_decide_and_neither_order_nor_speed_nor_other_causes(
    rows: list[tuple[str, float]], shuffle: Any
) -> None:
    plain = [row(rank, share) for rank, share in rows]
    other = [
        {
            **one,
            "iter_ms": 500.0,
            "processor_ms": one["processor_ms"] * 10,
            "retransmitted": 99,
            "refused": 9,
        }
        for one in plain
    ]
    shuffle.shuffle(other)
    assert slowed(other).void == slowed(plain).void


def test_other_causes_are_summed_and_what_a_host_refused_is_counted_once_for_all_of_its_ranks() -> (
    None
):
    rows = [
        row(rank, 0.0, refused=4, retransmitted=3, rwnd_limited_ms=1.5)
        for rank in ("gpu01/0", "gpu01/1", "gpu02")
    ]
    found = slowed(rows)
    assert (found.refused, found.retransmitted, found.rwnd_limited_ms) == (8, 9, 4.5)


def test_a_measurement_that_may_be_void_unknown_counts_and_is_told(
    settings: Settings, lab: Lab
) -> None:
    runner, _, record = ready(settings, lab)
    told: list[str] = []
    runner.emit = told.append
    runner.slowed = lambda slot: slowed([row("gpu01", 0.1)], 0.3)
    runner.measure_rounds(lambda: True)
    assert record.slots[0]["state"] == "done"
    assert any(text.startswith("measurement 1 done: how long ranks waited") for text in told)


# --- rounds


def measured(
    settings: Settings,
    lab: Lab,
    waits: Callable[[ComparisonRecord, Mapping[str, Any]], float | None] = lambda record, slot: 0.0,
    narrow: Callable[[ComparisonRecord], bool] = lambda record: True,
    budget_s: float = 3600.0,
    fake: Fake | None = None,
    metric: str = "iteration_ms",
) -> ComparisonRecord:
    text = STAY.replace("metric: iteration_ms", f"metric: {metric}").replace(
        "arms: {a: {}, b: {plan: b.json}, c: {plan: c.json, watchdog_s: 30}}",
        "arms: {a: {}, b: {plan: b.json}}",
    )
    runner, _, record = ready(settings, lab, text, fake=fake)
    record.data |= {"least": 5, "budget_s": budget_s}
    runner.slowed = lambda slot: Slowed(waits(record, slot), "gpu01")
    runner.measure_rounds(lambda: narrow(record))
    return record


def states(record: ComparisonRecord) -> str:
    """`a1 b1 b2* a2 b2`: arms with their round, `*`: void."""
    return " ".join(
        f"{slot['arm']}{slot['round']}{'*' if slot['state'] == 'void' else ''}"
        for slot in record.slots
    )


def test_five_rounds_are_measured_if_the_intervals_are_narrow_then(
    settings: Settings, lab: Lab
) -> None:
    record = measured(settings, lab)
    assert states(record) == "a1 b1 b2 a2 a3 b3 b4 a4 a5 b5" and record.data["ended"] == "width"


def test_rounds_are_added_until_the_intervals_are_narrow(settings: Settings, lab: Lab) -> None:
    asked: list[int] = []
    record = measured(
        settings, lab, narrow=lambda kept: asked.append(kept.rounds) or kept.rounds == 8
    )
    assert record.rounds == 8 and record.data["ended"] == "width"
    assert asked == [5, 6, 7, 8], "the intervals are not even looked at before the fifth round"


def test_no_round_begins_when_the_budget_is_spent_and_one_that_began_is_finished(
    settings: Settings, lab: Lab
) -> None:
    record = measured(settings, lab, narrow=lambda kept: False, budget_s=13 * EACH_S)
    assert record.rounds == 7 and record.data["ended"] == "budget" and len(record.slots) == 14
    few = measured(settings, lab, budget_s=5.5 * EACH_S)
    assert few.rounds == 3 and few.data["ended"] == "budget", (
        "five rounds are no reason to overdraw it"
    )


def test_a_void_measurement_is_kept_and_another_round_is_measured(
    settings: Settings, lab: Lab
) -> None:
    record = measured(
        settings,
        lab,
        lambda kept, slot: 0.21 if slot["round"] == 2 and slot["arm"] == "b" else 0.2,
        lambda kept: sum(slot["state"] == "done" for slot in kept.slots) > 10,
    )
    assert states(record) == "a1 b1 b2* a2 a3 b3 b4 a4 a5 b5 b6 a6"
    void = record.slots[2]
    assert (
        void["slowed"]["share"] == 0.21 and void["slowed"]["limit"] == WAIT_LIMIT and void["jobs"]
    ), "with its figure and its runs"


def test_a_scenario_that_compares_losses_alone_has_no_void_measurements(
    settings: Settings, lab: Lab
) -> None:
    record = measured(settings, lab, lambda kept, slot: 3.0, metric="loss")
    assert states(record) == "a1 b1 b2 a2 a3 b3 b4 a4 a5 b5"
    assert record.slots[0]["slowed"]["share"] == 3.0, "the waits are noted all the same"
    for timed in ("busbw_gbps", "loss, seconds: 8"):
        assert "*" in states(measured(settings, lab, lambda kept, slot: 3.0, metric=timed))


def test_a_measurement_counts_only_once_it_is_known_what_slowed_it(
    settings: Settings, lab: Lab
) -> None:
    runner, _, record = ready(settings, lab)

    def interrupted(slot: Mapping[str, Any]) -> Slowed:
        raise KeyboardInterrupt

    runner.slowed = interrupted
    with pytest.raises(KeyboardInterrupt):
        runner.measure_rounds(lambda: True)
    assert record.slots[0]["state"] == "failed"


@pytest.mark.parametrize("arm", ["a", "b"])
def test_the_rule_is_the_same_for_every_arm(settings: Settings, lab: Lab, arm: str) -> None:
    record = measured(
        settings,
        lab,
        lambda kept, slot: 2.0 if slot["arm"] == arm and slot["round"] < 3 else 0.0,
        lambda kept: kept.rounds > 6,
    )
    other = {"a": "b", "b": "a"}[arm]
    assert states(record).split()[:4] == (
        ["a1*", "b1", "b2", "a2*"] if arm == "a" else ["a1", "b1*", "b2*", "a2"]
    )
    assert record.rounds == 7 and all(
        slot["state"] == "done" for slot in record.slots if slot["arm"] == other
    )


def test_a_machine_that_is_never_free_ends_by_the_budget_with_everything_listed(
    settings: Settings, lab: Lab
) -> None:
    record = measured(
        settings, lab, lambda kept, slot: 3.0, lambda kept: False, budget_s=9.5 * EACH_S
    )
    assert record.data["ended"] == "budget" and {slot["state"] for slot in record.slots} == {"void"}
    assert len(record.slots) == 10 and record.spent_s == pytest.approx(10 * EACH_S), (
        "a void measurement costs its time"
    )


def test_a_stall_of_ranks_without_processors_is_void_and_of_others_a_stall(
    settings: Settings, lab: Lab
) -> None:
    starved = measured(
        settings,
        lab,
        lambda kept, slot: 0.5 if slot["arm"] == "b" else 0.0,
        budget_s=60.0,
        fake=Fake(slow={"b"}),
    )
    assert {slot["state"] for slot in starved.slots if slot["arm"] == "b"} == {
        "void"
    } and "made 0 of 7" in starved.slots[1]["error"]
    stuck = measured(settings, lab, lambda kept, slot: None, budget_s=60.0, fake=Fake(slow={"b"}))
    assert {slot["state"] for slot in stuck.slots if slot["arm"] == "b"} == {"stalled"}


def test_a_round_that_an_interrupt_broke_off_is_not_finished_later_but_followed_by_another(
    settings: Settings, lab: Lab
) -> None:
    runner, _, record = ready(settings, lab, fake=Fake(fail={14: KeyboardInterrupt()}))
    with pytest.raises(KeyboardInterrupt):
        runner.measure_rounds(lambda: True)
    assert [slot["state"] for slot in record.slots] == ["done"] * 4 + [
        "failed",
        "waiting",
    ] and record.data["ended"] == ""
    runner.measure_rounds(lambda: record.rounds > 2)
    assert states(record) == "a1 b1 c1 c2 b2 a3 b3 c3" and record.data["ended"] == "width"
    assert record.slots[4]["error"] == "interrupted", "it stays listed"
