"""Looks at a job's traffic as viewers show them: words, bars, and what is news."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from extensions.adapt.live import Following
from extensions.adapt.service import AdaptState
from tests.views.web.test_picture import point

CHANGED = {
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
    assert live.json() is None and live.text() == "" and not live.taken()
    assert look(live, "changed", **CHANGED) == (
        "iteration 9: circuits changed, gain 2.00, dark 52 ms, exposed 0 ms",
        {"what": "changed"},
    )
    assert look(live, "skipped", iteration=12, gain=1.25, why="gain") is None, (
        "what changed nothing is no news"
    )
    last = "iteration 12: skipped, too little gain (gain 1.25)"
    assert live.text() == f"1 changed, 1 skipped; last: {last}; the adapt service does not run"
    assert live.taken() and not live.taken()
    reply: Any = live.json()
    assert not reply["bad"] and [(bar["what"], bar["share"]) for bar in reply["bars"]] == [
        ("changed", 1.0),
        ("skipped", 0.25),
    ]
    assert (
        reply["bars"][0]["title"].endswith("exposed 0 ms, skew 3.0, exchange 1.80 s to 90 ms")
        and reply["bars"][1]["title"] == last
    )


def test_looks_of_an_older_run_are_left_out_and_those_of_a_newer_one_begin_anew() -> None:
    live = Following()
    look(live, "changed", **CHANGED)
    live.taken()
    assert look(live, "changed", "a", **CHANGED) is None and not live.taken()
    assert look(live, "failed", "s", why="TimedOut") == (
        "iteration 0: failed, TimedOut",
        {"what": "failed"},
    )
    reply: Any = live.json()
    assert reply["bad"] and [bar["share"] for bar in reply["bars"]] == [0.0]


def test_that_the_adapter_began_or_ended_is_told_at_once() -> None:
    live, state = Following(), AdaptState(7)
    look(live, "changed", **CHANGED)
    live.taken()
    live.update(replace(state, alive=True))
    assert live.taken() and "does not run" not in live.text()
    live.update(None)
    assert live.taken() and live.text().endswith("the adapt service does not run")
