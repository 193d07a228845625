"""The figures of the benchmark `job_pause`, from records made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.job_pause import NoFigure, lost, lost_by_restart


def records(took: list[float], first: int = 1, begin: float = 0.0) -> list[dict[str, Any]]:
    """Iterations one after the other (ms)."""
    found, at = [], begin
    for i, ms in enumerate(took):
        found.append({"iter": first + i, "t_wall_ns": at * 1e6, "iter_ms": ms})
        at += ms
    return found


def test_what_iterations_took_beyond_the_usual_is_lost() -> None:
    seen = records([100.0] * 30 + [190.0, 130.0] + [80.0] * 30)
    assert lost(seen, 3050.0, 31) == (pytest.approx(90 + 50), 100), (
        "the turned one counts against the new usual"
    )


def test_a_pause_between_two_iterations_counts_and_a_slow_one_before_it_does_not() -> None:
    seen = records([100.0] * 28 + [150.0, 100.0])
    later = records([100.0] * 30, first=31, begin=seen[-1]["t_wall_ns"] / 1e6 + 100 + 1000)
    cost, usual = lost(seen + later, seen[-1]["t_wall_ns"] / 1e6 + 100 + 5, 30)
    assert (cost, usual) == (pytest.approx(1000), 100)


def test_a_turn_that_no_iteration_follows_and_too_few_iterations_give_no_figure() -> None:
    with pytest.raises(NoFigure, match="after 60"):
        lost(records([100.0] * 60), 3000.0, 60)
    with pytest.raises(NoFigure, match="too few"):
        lost(records([100.0] * 32), 3000.0, 30)


def test_a_restart_loses_the_time_between_and_what_is_trained_twice() -> None:
    old = records([100.0] * 50)
    assert lost_by_restart(old, records([300.0], first=51, begin=15000.0)) == pytest.approx(
        10000 + 300 - 100
    )
    assert lost_by_restart(old, records([300.0], first=41, begin=15000.0)) == pytest.approx(
        10000 + 300 - 100 + 1000
    )
