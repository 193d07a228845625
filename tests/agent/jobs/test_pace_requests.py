"""Whose word on a job's pace counts, without a job."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from agent.basics import Failure
from agent.daemon import Server
from agent.jobs import handoff

PACE: dict[str, Any] = {
    "job": "j",
    "epoch_ns": 5,
    "period_ns": 100_000_000,
    "shift_ns": 20_000_000,
    "lease_s": 60,
}


def test_a_job_follows_one_coordinator_until_its_word_ends_and_anybody_may_end_it() -> None:
    lines: list[dict[str, Any]] = []
    made = handoff.Handoff(cast(Server, SimpleNamespace()))
    job = SimpleNamespace(name="j", pace=None, paced_until_ns=0, send=lines.append, ranks=list)
    made.jobs["j"] = cast(handoff.JobSocket, job)
    made.pace(PACE | {"by": "ann@here"})
    made.pace(PACE | {"by": "ann@here", "epoch_ns": 6})
    with pytest.raises(Failure, match="job j is paced by ann@here, for 60 s more"):
        made.pace(PACE | {"by": "bob@here"})
    with pytest.raises(Failure, match="by: "):
        made.pace(PACE | {"by": ["bob"]})
    with pytest.raises(Failure, match="paced by ann@here"):
        made.unpace({"job": "j", "by": "bob@here"})
    assert [word["epoch_ns"] for word in lines] == [5, 6] and "by" not in lines[0]
    job.paced_until_ns = 0
    made.pace(PACE | {"by": "bob@here"})
    made.unpace({"job": "j"})
    made.pace(PACE | {"by": "ann@here"})
    assert len(lines) == 5
