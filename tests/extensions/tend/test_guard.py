"""The guard of trials: whatever is proposed, what harms is taken back within a window, no budget is
passed, and a process that dies at any step leaves the plan before or a confirmed one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extensions.tend.budget import HOUR_S, Budget, Spent
from extensions.tend.guard import BACK, FAILED, KEPT, REFUSED, Guard, Trial, verdict
from optics import StoreFailed
from tests.extensions.tend.simulated import Killed, SimLab, plan

WINDOW = 20


def guard(lab: SimLab, saved: list[Sequence[Spent]] | None = None, **more: Any) -> Guard:
    budget = Budget(more.pop("moves", 1000), more.pop("dark_ms", 1e6))
    kept = [] if saved is None else saved
    usual: dict[str, Any] = {"watts": 0.0, "window": WINDOW, "say": lambda *_, **__: None}
    return Guard(lab, budget, save=lambda spent: kept.append(tuple(spent)), **(usual | more))


def tried(one: Guard, *names: str) -> list[Trial]:
    async def work() -> list[Trial]:
        return [await one.trial(n, name, plan(name)) for n, name in enumerate(names, 1)]

    return asyncio.run(work())


def test_twenty_harmful_proposals_are_all_taken_back_within_one_window() -> None:
    times = {"base": 100.0} | {f"harm{n}": 99.5 + n * n for n in range(20)}
    lab = SimLab([times])
    found = tried(guard(lab), *list(times)[1:])
    assert [one.ended for one in found] == [BACK] * 20 and lab.plan == "base"
    assert all(lab.on[f"harm{n}"] <= WINDOW for n in range(20)), "a window and no more"
    assert lab.seen == {*times}, "all were really tried"


def test_a_plan_that_is_faster_by_more_than_noise_stays() -> None:
    lab = SimLab([{"base": 100.0, "good": 90.0}])
    [one] = tried(guard(lab), "good")
    assert (one.ended, lab.plan, lab.before) == (KEPT, "good", "")
    assert one.moves == 4 and one.dark_ms == 50.0
    assert one.after_ms == pytest.approx(90, rel=0.02)


def test_noise_is_no_gain_and_few_iterations_are_none() -> None:
    assert (
        verdict([100.0, 140.0, 60.0, 120.0, 80.0], [95.0, 60.0, 130.0, 75.0, 115.0], 5)[0] is False
    )
    assert verdict([100.0] * 5, [99.5] * 5, 5)[0] is False
    assert verdict([100.0] * 5, [98.0] * 5, 5)[0] is True
    assert verdict([100.0] * 5, [50.0] * 4, 5) == (False, "only 4 of 5 iterations in time")


def test_what_is_refused_moves_nothing_and_costs_nothing() -> None:
    costs = {"hungry": (4, 50.0, 90.0), "large": (30, 50.0, 30.0), "dark": (4, 900.0, 30.0)}
    lab = SimLab([dict.fromkeys(["base", "breaks", *costs], 50.0)], costs=costs, breaks=["breaks"])
    one = guard(lab, watts=60.0, moves=40, dark_ms=1000.0)
    found = tried(one, "hungry", "large", "dark", "breaks", "unknown")
    assert [each.ended for each in found] == [REFUSED] * 5 and not lab.spent
    assert [each.why for each in found] == [
        "its network takes 90 W, 60 W are allowed",
        "over budget: 60 moves there and back, 40 of 40 are left this hour",
        "over budget: 1800 ms dark there and back, 1000 of 1000 ms are left this hour",
        "it failed in rehearsal: dark",
        "unknown: no such plan",
    ]
    assert one.budget.left(lab.now()) == (40, 1000.0)


def test_a_plan_that_moves_no_circuit_is_refused_as_nothing_would_take_it_back() -> None:
    lab = SimLab([{"base": 100.0, "words": 50.0}], costs={"words": (0, 0.0, 30.0)})
    [one] = tried(guard(lab), "words")
    assert (one.ended, lab.plan) == (REFUSED, "base")
    assert one.why == "it moves no circuit, so nothing would take it back"


def test_a_change_of_another_command_is_not_taken_back() -> None:
    lab = SimLab([{"base": 100.0, "good": 80.0, "theirs": 120.0}], theirs="theirs")
    [one] = tried(guard(lab), "good")
    assert (one.ended, one.why) == (REFUSED, "theirs waits to be confirmed")
    assert (lab.plan, lab.before) == ("theirs", "base"), "it still waits for its own operator"


@pytest.mark.parametrize("stops", [1, 3])
def test_stopped_while_it_goes_back_it_goes_back_wholly_and_then_ends(stops: int) -> None:
    lab = SimLab([{"base": 100.0, "worse": 130.0}], stops=stops)
    with pytest.raises(asyncio.CancelledError):
        tried(guard(lab), "worse")
    assert (lab.plan, lab.before) == ("base", "") and "worse" in lab.seen


def test_a_window_longer_than_a_change_may_wait_is_refused_before_anything_moves() -> None:
    lab = SimLab([{"base": 1e7, "good": 1e6}])
    saved: list[Sequence[Spent]] = []
    [one] = tried(guard(lab, saved), "good")
    assert one.ended == REFUSED and "waits 43200 s at most to be confirmed" in one.why
    assert not saved and not lab.spent


def test_a_change_that_fails_on_the_lab_is_charged_there_and_back() -> None:
    lab = SimLab([{"base": 100.0, "worse": 50.0}], fails=["worse"])
    one = guard(lab, moves=100)
    [trial] = tried(one, "worse")
    assert (trial.ended, trial.moves, trial.dark_ms, lab.plan) == (FAILED, 8, 100.0, "base")
    assert one.budget.left(lab.now())[0] == 92


def test_a_lab_that_is_dark_for_longer_than_rehearsed_is_booked_so_the_next_time() -> None:
    lab = SimLab([{"base": 100.0, "worse": 120.0}], slower=3.0)
    one = guard(lab, dark_ms=500.0)
    first, second = tried(one, "worse", "worse")
    assert (first.ended, first.dark_ms) == (BACK, 300.0)
    assert second.why.startswith("over budget: 300 ms dark there and back, 200 of 500")
    lab.clock += HOUR_S
    [third] = tried(one, "worse")
    assert third.ended == BACK, "an hour forgets it"


@pytest.mark.parametrize("name", ["good", "worse", "breaks", "fails"])
def test_killed_at_any_step_it_leaves_the_plan_before_or_a_confirmed_one(name: str) -> None:
    """The deadline of `up --confirm-within` is the one way back that needs no process of tend."""
    times = {"base": 100.0, "good": 80.0, "worse": 130.0, "breaks": 50.0, "fails": 50.0}
    reached = set()
    for doom in range(1, 30):
        lab = SimLab([times], breaks=["breaks"], fails=["fails"], doom=doom)
        saved: list[Sequence[Spent]] = []
        try:
            tried(guard(lab, saved), name)
        except Killed:
            reached.add(doom)
        lab.later()
        confirmed = name == "good" and lab.steps >= 9 and lab.plan == "good"
        assert lab.plan == "base" or confirmed, doom
        moves = sum(each[1] for each in lab.spent)
        booked = sum(one.moves for one in saved[-1]) if saved else 0
        assert moves <= booked, "what it moved was written before"
        assert not lab.spent or saved[-1][-1].at >= lab.spent[-1][0] or doom not in reached
    assert reached == set(range(1, max(reached) + 1)) and max(reached) >= 2


def test_what_is_booked_outlasts_a_slow_change_whose_way_back_is_the_deadline() -> None:
    lab = SimLab([{"base": 100.0, "worse": 130.0}], takes_s=590.0)
    lab.longest_s = 600.0
    saved: list[Sequence[Spent]] = []

    def killed(event: str, *_: object, **__: object) -> None:
        if event == "up":
            raise Killed

    with pytest.raises(Killed):
        tried(guard(lab, saved, say=killed), "worse")
    lab.plan, lab.before = "worse", "base"  # nothing of the process went back
    lab.later()
    assert lab.plan == "base" and saved[-1][-1].at >= lab.spent[-1][0]


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 12),
            st.floats(0, 400),
            st.floats(10, 90),
            st.sampled_from([60.0, 95.0, 105.0, 200.0]),
            st.floats(0, 900),
        ),
        max_size=25,
    ),
    st.integers(0, 40),
    st.floats(0, 1500),
    st.floats(20, 80),
)
def test_no_hour_has_more_moves_or_darkness_and_no_plan_more_watts_than_allowed(
    proposals: Sequence[tuple[int, float, float, float, float]],
    moves: int,
    dark_ms: float,
    watts: float,
) -> None:
    times = {"base": 100.0} | {f"p{n}": each[3] for n, each in enumerate(proposals)}
    costs = {f"p{n}": each[:3] for n, each in enumerate(proposals)}
    lab = SimLab([times], costs=costs)
    one = guard(lab, moves=moves, dark_ms=dark_ms, watts=watts, window=5)
    for n, each in enumerate(proposals):
        tried(one, f"p{n}")
        lab.clock += each[4]
    for at, _, _ in lab.spent:
        within = [each for each in lab.spent if at - HOUR_S < each[0] <= at]
        assert sum(each[1] for each in within) <= moves
        assert sum(each[2] for each in within) <= dark_ms + 1e-6
    assert all(lab.cost(name)[2] <= watts for name in lab.seen - {"base"})


def test_what_was_spent_outlives_the_process_and_an_hour_forgets_it() -> None:
    spent = [Spent(1000.0, 3, 20.5, 1.5), Spent(2000.0, 1, 0.0)]
    file = Path("ann.json")
    assert [Spent.of(str(one), file) for one in spent] == spent
    budget = Budget(10, 100.0, [Spent.of(str(one), file) for one in spent])
    assert budget.left(1000.0 + HOUR_S - 1) == (6, 79.5)
    assert budget.left(1000.0 + HOUR_S) == (9, 100.0)
    with pytest.raises(StoreFailed, match=r"ann\.json: 'yesterday 3' is no cost of a trial"):
        Spent.of("yesterday 3", file)
