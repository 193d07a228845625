"""Looks at a job's traffic as viewers show them: words, bars, and what is news."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from extensions.adapt.live import Following
from extensions.adapt.service import AdaptState
from tests.views.web.test_picture import point

TURNED = {
    "iteration": 9,
    "gain": 2.0,
    "dark_ms": 52.0,
    "exposed_ms": 0.4,
    "why": "",
    "skew": 3.0,
    "now_ms": 1800.0,
    "then_ms": 90.0,
}


def look(live: Following, what: str, run: str = "r", **fields: Any) -> Any:
    return live.point(point("adapt", {"plan": "moe", "what": what, "run": run}, fields, 1.0))


def test_a_look_says_what_came_of_it_and_why() -> None:
    live = Following()
    assert live.json() is None and live.words() == "" and not live.taken()
    assert look(live, "turned", **TURNED) == (
        "iteration 9: circuits turned, gain 2.00, dark 52 ms, exposed 0 ms",
        {"what": "turned"},
    )
    assert look(live, "skipped", iteration=12, gain=1.25, why="gain") is None, "what changed nothing is no news"
    last = "iteration 12: skipped, too little gain (gain 1.25)"
    assert live.words() == f"1 turned, 1 skipped; last: {last}; the adapt service does not run"
    assert live.taken() and not live.taken()
    told: Any = live.json()
    assert not told["bad"] and [(bar["what"], bar["share"]) for bar in told["bars"]] == [("turned", 1.0), ("skipped", 0.25)]
    assert (
        told["bars"][0]["title"].endswith("exposed 0 ms, skew 3.0, exchange 1.80 s to 90 ms") and told["bars"][1]["title"] == last
    )


def test_looks_of_an_older_run_are_left_out_and_those_of_a_newer_one_begin_anew() -> None:
    live = Following()
    look(live, "turned", **TURNED)
    live.taken()
    assert look(live, "turned", "a", **TURNED) is None and not live.taken()
    assert look(live, "failed", "s", why="TimedOut") == ("iteration 0: failed, TimedOut", {"what": "failed"})
    told: Any = live.json()
    assert told["bad"] and [bar["share"] for bar in told["bars"]] == [0.0]


def test_that_the_adapter_began_or_ended_is_told_at_once() -> None:
    live, state = Following(), AdaptState(7)
    look(live, "turned", **TURNED)
    live.taken()
    live.standing(replace(state, alive=True))
    assert live.taken() and "does not run" not in live.words()
    live.standing(None)
    assert live.taken() and live.words().endswith("the adapt service does not run")
