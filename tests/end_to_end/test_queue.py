"""The queue on an emulated lab: jobs start beside another owner's plan, give way, go on from
checkpoints, survive its death.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Lab, ring
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

HOSTS = [f"gpu{n:02d}" for n in range(1, 7)]
ANN, BOB = {"TESTBED_OWNER": "ann"}, {"TESTBED_OWNER": "bob"}
WORKLOAD = """
schema: testbed.workload/1
name: small
ranks: 2
collectives: [{id: all, bytes: 400000}]
compute_s: 0.02
rate_gbps: 0.2
"""

ONCE = "SELECT count(*) FROM jobs WHERE lab LIKE '%ann.q1' AND state != 'failed'"
"""A launch that was killed before its ranks began is in the store as one that failed: it is
recorded before it is made.
"""


@pytest.fixture
def queue(lab: Lab) -> Iterator[Lab]:
    """The lab with an empty queue; what was in it is stopped afterwards."""
    yield lab
    for row in rows(lab).values():
        if row["state"] not in ("done", "failed"):
            lab.testbed("job", "queue", "drop", str(row["number"]), "--as", row["owner"])
    lab.testbed("service", "start", "queue")
    until(lambda: all(row["state"] in ("done", "failed") for row in rows(lab).values()))
    lab.testbed("service", "stop", "queue")
    lab.testbed("down", "--yes", **BOB).must()


def rows(lab: Lab) -> dict[int, dict[str, Any]]:
    return {
        row["number"]: row
        for row in lab.testbed("job", "queue", "--explain", "--all").must()["rows"]
    }


def state(lab: Lab, number: int, *wanted: str) -> dict[str, Any]:
    """The row of a job, once it is in one of these states."""

    def other() -> dict[str, Any]:
        row = rows(lab)[number]
        assert row["state"] != "failed" or "failed" in wanted, row["why"]
        return row if row["state"] in wanted else {}

    return dict(until(other))


def circuits(lab: Lab) -> int:
    return sum(len(pairs) for pairs in lab.light().values())


def worker(lab: Lab) -> int:
    """The process that serves, which a keeper starts again."""
    [file] = (lab.folder / "data" / "queue").glob("*.json")
    return int(json.loads(file.read_text().splitlines()[0])["pid"])


def kill(lab: Lab) -> None:
    before = worker(lab)
    os.kill(before, signal.SIGKILL)
    until(lambda: worker(lab) != before)


def test_jobs_wait_start_beside_others_give_way_go_on_and_survive_the_death_of_the_queue(
    queue: Lab, tmp_path: Path
) -> None:
    lab, workload = queue, tmp_path / "small.yaml"
    workload.write_text(WORKLOAD)
    lab.up(lab.plan("bobs", [("gpu05:p1", "gpu06:p1")]), "--no-job", **BOB).must()
    bobs = lab.light()
    job = {"name": "mlp", "workload": "train", "ranks": HOSTS, "rings": [HOSTS]}
    args = {"iterations": 0, "hidden": 64, "checkpoint_every": 10}
    training = lab.plan("training", ring((1, 2)), job={**job, "args": args})

    first = lab.testbed(
        "job", "queue", "add", training, "--for", "1h", "--preemptible", **ANN
    ).must()
    assert first["number"] == 1 and first["tenancy"] == "ann.q1"
    row = rows(lab)[1]
    assert row["state"] == "waiting" and "gpu05: held by bob (bobs)" in row["why"]

    lab.testbed(
        "job",
        "queue",
        "add",
        workload,
        "--hosts",
        "4",
        "--for",
        "10m",
        "--iterations",
        "600",
        "--method",
        "ring",
        **ANN,
    ).must()
    neighbours = state(lab, 2, "running")
    assert (
        set(neighbours["hosts"]) == set(HOSTS[:4])
        and lab.testbed("verify", "--as", "ann.q2").must()
    )
    assert all(pairs <= lab.light()[device] for device, pairs in bobs.items()), "bob's light stays"
    assert "finished after 600 iterations" in state(lab, 2, "done")["why"]
    assert lab.light() == bobs

    lab.testbed("down", "--yes", **BOB).must()
    state(lab, 1, "starting")
    kill(lab)
    assert state(lab, 1, "running")["hosts"] == HOSTS
    status = lab.testbed("job", "status", "--as", "ann.q1").must()
    assert status["state"] == "running" and lab.stored(ONCE) == [1]

    lab.testbed(
        "job", "queue", "add", workload, "--hosts", "4", "--for", "8s", "--method", "ring", **ANN
    ).must()
    state(lab, 1, "stopping", "waiting")
    kill(lab)
    state(lab, 3, "running")
    assert lab.testbed("job", "status", "--as", "ann.q1").must()["state"] == "stopped"
    assert "its time is over" in state(lab, 3, "done", "stopping")["why"]
    state(lab, 1, "running")
    again = lab.testbed("job", "status", "--as", "ann.q1").must()
    assert again["state"] == "running" and again["resumed_from"] >= status["iterations"] > 0

    lab.testbed("job", "queue", "drop", "1", **ANN).must()
    assert "dropped by" in state(lab, 1, "done")["why"]
    assert circuits(lab) == 0
    until(lambda: lab.testbed("job", "queue").must()["process"] is None)
