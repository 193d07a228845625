"""Requests to a language model on an emulated lab, over circuits that change."""

from __future__ import annotations

import os

import pytest

from tests.drills.job_truth import Job
from tests.end_to_end.conftest import Lab
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.lab,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

SMALL = ["--hosts", "4", "--ports", "2", "--free-ports", "--rate-mbps", "60"]
SMALL += ["--electrical", "ideal@20"]
HOSTS = [f"gpu{n:02}" for n in range(1, 5)]
ARGS = {"iterations": 0, "prefill": 2, "requests": 32, "rate": 40, "output": 6, "prompt_us": 40}
JOB = {"name": "chat", "workload": "serve", "ranks": HOSTS, "args": ARGS}


def links(first: int) -> list[tuple[str, str]]:
    """Each host that computes prompts with each that makes tokens; gpu01 and gpu03 at this port."""
    other = 3 - first
    return [
        (f"gpu01:p{first}", f"gpu03:p{first}"),
        (f"gpu01:p{other}", f"gpu04:p{other}"),
        (f"gpu02:p{other}", f"gpu03:p{other}"),
        (f"gpu02:p{first}", f"gpu04:p{first}"),
    ]


def goes_on(job: Job) -> None:
    """Two more iterations are through."""
    before = len(job.lines("iterations.jsonl"))
    until(lambda: len(job.lines("iterations.jsonl")) > before + 1)


def test_no_request_is_lost_while_all_circuits_change(small: Lab) -> None:
    lab, job = small, Job(small, "chat")
    plans = [lab.plan(f"at-{first}", links(first), job=JOB) for first in (1, 2)]
    lab.up(plans[0]).must()
    goes_on(job)
    for plan in (plans[1], plans[0]):
        lab.up(plan, "--job", "keep").must()
        goes_on(job)
    assert lab.testbed("job", "status").must()["state"] == "running"
    lab.testbed("job", "stop").must()
    lines = job.lines("iterations.jsonl")
    assert {(line["served"], line["lost"]) for line in lines} == {(32, 0)}
    assert [line["iter"] for line in lines] == list(range(1, len(lines) + 1)), "one launch"
    lab.testbed("down", "--yes").must()


def test_circuits_follow_conversations_that_move_in_a_cycle_and_no_request_is_lost(
    small: Lab,
) -> None:
    lab, job = small, Job(small, "moving")
    moves = {"trace": "periodic", "home": 1, "shift": 1, "pause_ms": 400, "requests": 12}
    region = {
        "name": "all",
        "hosts": HOSTS,
        "ports": [f"{host}:p1" for host in HOSTS],
        "fallback": "ideal",
    }
    moving = {**JOB, "name": "moving", "args": {**ARGS, **moves}, "regions": [region]}
    plan = lab.plan(
        "moving",
        [("gpu01:p1", "gpu03:p1"), ("gpu02:p1", "gpu04:p1")],
        segments=[{"name": "ideal"}],
        job=moving,
        adapt={"every": 1, "predict": "period", "dark_share": 1.0},
    )
    lab.up(plan).must()
    report = lab.testbed("service", "run", "adapt", "--turns", "24").must()
    assert report["changes"] == 24 and report["failures"] == 0, report
    lines = job.lines("iterations.jsonl")
    assert {(line["served"], line["lost"]) for line in lines} == {(12, 0)}
    lab.testbed("job", "stop").must()
    lab.testbed("down", "--yes").must()
