"""A job with a shadow on an emulated lab: every iteration is kept without a checkpoint, through a
turn and the death of a rank.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.drills.job_truth import Job
from tests.end_to_end.conftest import Lab
from tests.end_to_end.test_guard import Watching

pytestmark = [
    pytest.mark.long,
    pytest.mark.lab,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

SMALL = ["--hosts", "6", "--ports", "2", "--free-ports"]
HOSTS = [f"gpu{n:02}" for n in range(1, 5)]


def plan(
    lab: Lab,
    name: str,
    order: list[str],
    shadow: dict[str, Any],
    checkpoint_every: int = 0,
    **more: Any,
) -> Path:
    links = [
        (f"{a}:p{1 + n % 2}", f"{b}:p{1 + n % 2}")
        for n, (a, b) in enumerate(zip(order, order[1:] + order[:1], strict=True))
    ]
    rings = [order, [order[0], *order[:0:-1]]]
    args = {"iterations": 0, "checkpoint_every": checkpoint_every, "hidden": 256}
    job = {
        "name": "mlp",
        "workload": "train",
        "ranks": HOSTS,
        "rings": rings,
        "args": args,
        "shadow": shadow,
    }
    return lab.plan(name, links, job=job, **more)


def judged(lab: Lab, run: str) -> list[dict[str, Any]]:
    [file] = (lab.folder / "state" / "runs" / run).glob("*.shadow.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def shadow_of(job: dict[str, Any]) -> dict[str, Any]:
    return job["attached"]["shadow"][0]  # type: ignore[no-any-return]


def until_equal(lab: Lab, iteration: int) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while (found := lab.testbed("job", "status").must()) and shadow_of(found)[
        "checkpoint"
    ] < iteration:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    return found


def test_a_shadow_holds_every_iteration_through_a_turn_and_a_killed_rank_and_leaves_nothing(
    small: Lab,
) -> None:
    lab, job = small, Job(small, "mlp")
    refused = lab.up(plan(lab, "wrong", HOSTS, {"host": "gpu02"}))
    assert (
        refused.exit_code == 3
        and "gpu02 is a host of the job's ranks" in refused.envelope["message"]
    )
    started = lab.up(plan(lab, "one", HOSTS, {"host": "gpu05"})).must()["job"]
    found = until_equal(lab, 10)
    assert shadow_of(found)["host"] == "gpu05" and shadow_of(found)["state"] == "running"
    changed = lab.up(
        plan(lab, "two", [HOSTS[0], HOSTS[2], HOSTS[1], HOSTS[3]], {"host": "gpu05"})
    ).must()
    assert changed["job"]["run"] == started["run"], "the same job goes on"
    tapped = [host for host in HOSTS if job.taps(host)]
    assert len(tapped) == 2
    os.kill(job.agents(tapped[0])[1], signal.SIGKILL)  # the tap goes on without its agent
    found = until_equal(lab, found["iterations"] + 20)

    for pid in job.ranks("gpu03"):
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while (found := lab.testbed("job", "status").envelope["data"])[
        "state"
    ] != "failed" or shadow_of(found)["state"] == "running":
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    lines = judged(lab, started["run"])
    assert [line["iter"] for line in lines] == list(range(1, len(lines) + 1))
    assert sum(line["equal"] for line in lines) >= 0.95 * len(lines), [
        line for line in lines if not line["equal"]
    ]
    kept = shadow_of(found)["checkpoint"]
    assert kept >= found["iterations"] - 1, "at most one iteration is lost"

    restored = lab.testbed("job", "restore").must()
    assert restored["resumed_from"] == kept and restored["state"] == "running"
    until_equal(lab, kept + 5)
    again = lab.testbed("job", "restore")
    assert again.exit_code != 0 and "nothing to restore" in again.envelope["message"]
    lab.testbed("down", "--yes").must()
    for host in (*HOSTS, "gpu05"):
        space = ["nsenter", "-t", str(job.host(host)), "-n"]
        assert "clsact" not in subprocess.check_output([*space, "tc", "qdisc", "show"], text=True)
        assert job.taps(host) == [] and job.ranks(host) == [], (
            "neither a tap nor a rank nor a shadow"
        )


def test_a_guard_restarts_a_job_and_moves_it_off_a_dead_host_without_a_shadow_whose_host_is_dead_and_says_so(
    small: Lab,
) -> None:
    lab, job = small, Job(small, "mlp")
    lab.up(plan(lab, "three", HOSTS, {"host": "gpu05"}, 5, spares=["gpu06"])).must()
    until_equal(lab, 10)
    guard = Watching(lab, "--jobs", "--restarts", "9/h")
    try:
        guard.wait("watching")
        # it is gone until the lab starts again, so this test is the last one
        lab.ask("host.down", host="gpu05")
        for pid in job.ranks("gpu03"):
            os.kill(pid, signal.SIGKILL)
        assert "gpu05" not in guard.wait("recovered", 90.0)["message"]
        why = guard.wait("without shadow")["message"]
        assert why.startswith(
            "mlp was launched without its shadow on gpu05: gpu05: "
        ) and why.endswith("testbed job stop, then testbed up")
        found = lab.testbed("status").envelope["data"]
        assert (
            why.removeprefix("mlp was ") == shadow_of(found["job"])["missing"]
            and found["job"]["resumed_from"] >= 5
        )
        assert f"job {why}" in found["drift"]
        assert lab.testbed("job", "launch").exit_code != 0, "by hand it is refused"
        lab.ask("host.down", host="gpu03")
        assert guard.wait("recovered", 120.0)["action"] == "evict"
        guard.wait("without shadow")
        found = lab.testbed("job", "status").must()
        assert (
            found["state"] == "running"
            and "gpu05" in shadow_of(found)["missing"]
            and job.ranks("gpu06")
        )
    finally:
        guard.end()
