"""Traces of requests: when they come, how long they are, and what a list may say."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest

from workloads.serving.drawing import draw, home_of
from workloads.serving.trace import Load, most_tokens, read_list

LOAD = Load("poisson", 50.0, 2.0, 10, 200, 20, 0, 4000, 0.0, 0, 1)


def test_a_trace_repeats_for_its_seed_and_turn_and_differs_for_others() -> None:
    assert draw(LOAD, 50, 3) == draw(LOAD, 50, 3)
    assert draw(LOAD, 50, 3) != draw(LOAD, 50, 4)
    assert draw(LOAD, 50, 3) != draw(replace(LOAD, seed=2), 50, 3)


@pytest.mark.parametrize("kind", ["poisson", "periodic", "bursts"])
def test_requests_come_in_order_at_the_mean_rate(kind: str) -> None:
    found = draw(replace(LOAD, kind=kind), 10_000, 1)
    assert [request.number for request in found] == list(range(10_000))
    times = [request.at_s for request in found]
    assert times == sorted(times)
    assert 10_000 / times[-1] == pytest.approx(50.0, rel=0.1)


def test_a_periodic_trace_has_its_requests_in_the_first_half_of_each_period() -> None:
    times = [request.at_s % 2.0 for request in draw(replace(LOAD, kind="periodic"), 10_000, 1)]
    # a sine from 0 to twice the mean: 1/2 + 1/pi of it lies in the first half
    assert mean(time < 1.0 for time in times) == pytest.approx(0.818, abs=0.03)
    poisson = [request.at_s % 2.0 for request in draw(LOAD, 10_000, 1)]
    assert mean(time < 1.0 for time in poisson) == pytest.approx(0.5, abs=0.03)


def test_bursts_come_ten_at_a_time() -> None:
    times = [request.at_s for request in draw(replace(LOAD, kind="bursts"), 100, 1)]
    assert len(set(times)) == 10


def test_one_request_in_eight_has_a_long_prompt() -> None:
    found = draw(replace(LOAD, long_every=8), 80, 1)
    long = [r.number for r in found if r.prompt == 4000]
    assert long == [8 * n + n % 8 for n in range(10)]
    assert {number % 2 for number in long} == {0, 1}, "they come to all ranks in turn"
    others = [r.prompt for r in found if r.prompt != 4000]
    assert min(others) >= 100 and max(others) <= 300 and mean(others) == pytest.approx(200, rel=0.1)
    assert most_tokens(LOAD, []) == 330
    assert most_tokens(replace(LOAD, long_every=8), []) == 4030


def test_conversations_have_homes_that_move_in_a_cycle_or_anywhere() -> None:
    found = draw(replace(LOAD, home=0.8), 1000, 1)
    assert mean(request.home for request in found) == pytest.approx(0.8, abs=0.04)
    assert not any(request.home for request in draw(LOAD, 100, 1))
    cycle = replace(LOAD, kind="periodic", shift=2)
    assert [home_of(cycle, 1, turn, 3) for turn in range(1, 9)] == [1, 1, 2, 2, 0, 0, 1, 1]
    drawn = [home_of(replace(LOAD, shift=1), 0, turn, 3) for turn in range(1, 301)]
    assert {drawn.count(rank) > 70 for rank in range(3)} == {True}
    assert len({home_of(LOAD, 0, turn, 3) for turn in range(1, 50)}) == 1, "without shift they stay"
    homes = {home_of(replace(LOAD, shift=1), front, 7, 3) for front in range(3)}
    assert homes == {0, 1, 2}, "no two fronts have one home"


def test_a_list_says_when_requests_come_and_is_refused_where_it_says_it_wrongly() -> None:
    found = read_list(" 1.5:100:8  0:20:1 ")
    assert [(r.number, r.at_s, r.prompt, r.output) for r in found] == [
        (0, 0.0, 20, 1),
        (1, 1.5, 100, 8),
    ]
    assert most_tokens(replace(LOAD, kind="list"), found) == 108 and read_list("") == []
    for text, why in (
        ("1:2", "1:2 is not AT_S:PROMPT:OUTPUT"),
        ("1:2:3:4", "wanted three numbers"),
        ("nan:2:3", "from 0 to 86400"),
        ("-1:2:3", "from 0 to 86400"),
        ("1:0:3", "wanted 1 to 1048576 tokens"),
        ("1:2:x", "is not AT_S"),
    ):
        with pytest.raises(ValueError, match=why):
            read_list(text)
    with pytest.raises(ValueError, match="not a text"):
        read_list(3)
