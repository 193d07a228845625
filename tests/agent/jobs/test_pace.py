"""The pace of a running job: what its ranks are told, also those that connect later, and what
is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.agent.ranks import Job
from tests.kit.waiting import until

pytestmark = pytest.mark.lab

PACE: dict[str, Any] = {
    "epoch_ns": 5,
    "period_ns": 100_000_000,
    "shift_ns": 20_000_000,
    "lease_s": 60,
}


LATE = """
def late():
    while not os.path.exists(folder + "/late"):
        time.sleep(0.02)
    serve(2, 3)
threading.Thread(target=late, daemon=True).start()
"""


def heard(job: Job, rank: int = 0) -> list[dict[str, Any]]:
    return [
        line for line in job.received(rank) if line["do"] in ("pace", "pace.stop", "disconnected")
    ]


def test_every_rank_is_told_its_pace_and_one_that_connects_later_what_is_left_of_the_lease(
    start: Callable[..., Job],
) -> None:
    job = start(EXTRA=LATE).connected()
    answer = job.peer.ask("pace", job=job.name, **PACE)
    assert answer["ok"] and (answer["job"], answer["ranks"]) == (job.name, 2)
    for rank in (0, 1):
        until(lambda rank=rank: heard(job, rank))
        assert heard(job, rank)[0] | {"received_ns": 0} == {"do": "pace", "received_ns": 0, **PACE}
    (job.folder / "late").touch()
    until(lambda: heard(job, 2))
    assert 0 < heard(job, 2)[0]["lease_s"] < 60 and heard(job, 2)[0]["shift_ns"] == PACE["shift_ns"]
    assert job.peer.ask("pace.stop", job=job.name)["ranks"] == 3
    until(lambda: heard(job)[-1]["do"] == "pace.stop")


def test_a_pace_that_makes_no_sense_is_refused_and_tells_nobody(start: Callable[..., Job]) -> None:
    job = start().connected()
    for wrong in (
        {"period_ns": 0},
        {"period_ns": 1 << 40},
        {"shift_ns": -1},
        {"shift_ns": 100_000_000},
        {"lease_s": 0},
        {"lease_s": 1e6},
    ):
        refused = job.peer.ask("pace", job=job.name, **(PACE | wrong))
        assert not refused["ok"] and next(iter(wrong)) in refused["error"]
    assert "does not run" in job.peer.ask("pace", job="other", **PACE)["error"]
    assert not job.peer.ask("pace", job="../x", **PACE)["ok"]
    assert not heard(job)
