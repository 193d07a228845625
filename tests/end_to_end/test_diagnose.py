"""`testbed job diagnose` on a real emulated lab: a healthy job, faults of hosts and links under it,
and no job at all.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Answer, Lab

pytestmark = [
    pytest.mark.long,
    pytest.mark.lab,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

SMALL = ("--hosts", "4", "--ports", "2")
"""Four hosts in a ring."""
HOSTS = [f"gpu{n:02d}" for n in range(1, 5)]
LINKS = [
    ("gpu01:p1", "gpu02:p1"),
    ("gpu02:p2", "gpu03:p2"),
    ("gpu03:p1", "gpu04:p1"),
    ("gpu04:p2", "gpu01:p2"),
]
JOB = {
    "name": "mlp",
    "workload": "train",
    "ranks": HOSTS,
    "rings": [HOSTS],
    "args": {"iterations": 0, "hidden": 64},
}


def training(lab: Lab, iterations: int = 40) -> None:
    """The job runs and has made this many iterations, by which its usual pace is known."""
    lab.up(lab.plan("ring", LINKS, job=JOB)).must()
    give_up = time.monotonic() + 100
    while lab.testbed("job", "status").must()["iterations"] < iterations:
        assert time.monotonic() < give_up, "the job makes no iterations"


def found(answer: Answer) -> tuple[str, str]:
    verdict: dict[str, Any] = answer.envelope["data"]["verdict"]
    assert answer.exit_code == (0 if verdict["kind"] == "none" else 8), answer.envelope
    return verdict["kind"], verdict["component"]


def until(lab: Lab, kind: str, *options: str) -> tuple[str, str]:
    """The verdict once it is of this kind, or what it is after a minute: a busy machine may hide
    it, but shows no other fault.
    """
    give_up = time.monotonic() + 60
    while (seen := found(lab.testbed("job", "diagnose", *options)))[0] in {"none", "unknown"} - {
        kind
    }:
        if time.monotonic() > give_up:
            break
    return seen


def test_a_job_that_runs_has_no_fault_and_its_faults_are_named(small: Lab) -> None:
    training(small)
    assert until(small, "none", "--no-traffic") == ("none", ""), "a healthy job"

    number = small.testbed(
        "lab", "fault", "add", "gpu02", "slow-link", "--port", "2", "--mbps", "10"
    ).must()["number"]
    assert until(small, "slow-link") == ("slow-link", "link gpu02:p2 - gpu03:p2")
    small.testbed("lab", "fault", "remove", "gpu02", str(number)).must()

    small.ask("fibre", name="f-gpu03-p1", cut=True)
    kind, component = found(small.testbed("job", "diagnose", "--no-traffic"))
    assert kind == "dark-circuit" and component.startswith("circuit ocs")
    small.ask("fibre", name="f-gpu03-p1", cut=False)

    number = small.testbed("lab", "fault", "add", "gpu02", "hang-rank").must()["number"]
    deadline = time.monotonic() + 60
    while (seen := found(small.testbed("job", "diagnose", "--no-traffic")))[0] != "hung-rank":
        assert time.monotonic() < deadline, seen
    assert seen == ("hung-rank", "rank gpu02")
    small.testbed("lab", "fault", "remove", "gpu02", str(number)).must()

    small.testbed("lab", "fault", "add", "gpu04", "kill-rank").must()
    deadline = time.monotonic() + 60
    while (seen := found(small.testbed("job", "diagnose", "--no-traffic")))[0] != "dead-rank":
        assert time.monotonic() < deadline, seen
    assert seen == ("dead-rank", "rank gpu04")


def test_without_a_plan_there_is_nothing_to_diagnose(small: Lab, tmp_path: Path) -> None:
    small.testbed("down", "--yes")
    answer = small.testbed("job", "diagnose")
    assert answer.exit_code == 2 and "no plan is up" in answer.envelope["message"]
