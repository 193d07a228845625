"""What the benchmark `storm` holds against a job: lost and repeated iterations, recoveries without
a fault, budgets exceeded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.storm import (
    Round,
    Row,
    budget_problems,
    fault_problems,
    journal_problems,
    kept_share,
    reached,
)
from orchestrator.services.guard.policy import Budget


def launch(*numbers: int, at: float = 0.0) -> list[tuple[int, float]]:
    return [(number, at + number) for number in numbers]


@pytest.mark.parametrize(
    ("launches", "problems", "again"),
    [
        ([launch(*range(1, 48)), launch(*range(41, 70))], 0, [7]),
        ([launch(*range(1, 42)), launch(*range(21, 70))], 0, [21]),
        ([launch(*range(1, 43)), launch(*range(21, 70))], 1, [22]),
        ([launch(*range(1, 48)), launch(*range(61, 70))], 1, [-13]),
        ([launch(*range(1, 48)), launch(*range(44, 70))], 1, [4]),
        ([launch(1, 2, 4), launch(*range(1, 9))], 1, [4]),
        ([launch(1, 2, 2, 3)], 1, []),
        ([launch(2, 3)], 1, []),
        ([], 0, []),
    ],
    ids=[
        "back to 40",
        "20 and one in flight",
        "one more",
        "a gap",
        "no checkpoint",
        "a hole",
        "twice",
        "a late start",
        "nothing",
    ],
)
def test_iterations_are_lost_back_to_a_checkpoint_only(
    launches: Sequence[Any], problems: int, again: list[int]
) -> None:
    found, made = journal_problems(launches)
    assert (len(found), made) == (problems, again), found


def row(at: float, *hosts: str, took: float = 10.0) -> Row:
    return Row(at, at + took, hosts, "restart", "gpu02: killed", "ok")


def begun(at: float, host: str, kind: str, event: str = "begin") -> dict[str, object]:
    return {"t_wall_ns": int(at * 1e9), "host": host, "kind": kind, "event": event}


@pytest.mark.parametrize(
    ("log", "rows", "problems"),
    [
        ([begun(10, "gpu02", "kill-rank")], [row(11, "gpu02")], 0),
        ([begun(10, "gpu02", "kill-rank")], [], 1),
        ([begun(10, "gpu02", "kill-rank")], [row(5)], 1),
        ([begun(4, "gpu03", "loss"), begun(10, "gpu02", "kill-rank")], [row(5)], 0),
        ([begun(10, "gpu05", "kill-rank", "missed")], [], 0),
        ([begun(10, "gpu03", "hang-rank")], [row(16, "gpu02")], 1),
        ([begun(10, "gpu02", "link-down")], [row(16, "gpu02")], 1),
        ([begun(10, "gpu02", "link-down")], [row(16)], 0),
        ([begun(10, "all", "storm")], [row(16)], 1),
        ([begun(10, "gpu02", "hang-rank")], [row(9, "gpu02")], 1),
        ([begun(10, "gpu02", "hang-rank")], [], 0),
    ],
)
def test_every_recovery_has_a_fault_and_every_killed_rank_a_recovery(
    log: Any, rows: list[Row], problems: int
) -> None:
    assert len(fault_problems(log, rows)) == problems


def test_a_period_with_more_recoveries_than_the_budget_is_a_problem() -> None:
    rows = [row(at) for at in (0.0, 20.0, 59.0, 61.0)]
    assert (
        not budget_problems(rows, Budget(3, 60.0))
        and budget_problems(rows, Budget(2, 60.0)) == ["3 recoveries in 60 s"] * 2
    )


def test_the_goodput_is_of_iterations_kept_by_the_pace_without_faults() -> None:
    assert Round(500, 100.0, 10.0).goodput == 0.5
    launches = [launch(1, 2, 3), launch(2, 3, 4, at=10.0)]
    assert [reached(launches, at) for at in (0.5, 2.0, 12.5, 99.0)] == [0, 2, 3, 4]


def test_the_figure_is_the_geometric_mean_of_the_storms_with_its_interval() -> None:
    share = kept_share([Round(kept, 100.0, 10.0) for kept in (500, 600, 720)])
    assert (share.value, share.low, share.high) == pytest.approx((0.6, 0.38146, 0.94373), rel=1e-4)
