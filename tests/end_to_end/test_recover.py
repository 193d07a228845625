"""Jobs recovered on a real emulated lab: a rank is killed, a rank stands still, a host dies, the
guard dies; and evict by hand.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from tests.end_to_end.conftest import Lab
from tests.end_to_end.test_guard import Watching
from tests.rank_signals import send

pytestmark = [
    pytest.mark.long,
    pytest.mark.lab,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

SMALL = ("--hosts", "6", "--ports", "3", "--free-ports")
"""Six hosts with three ports: a ring of four, two spares."""
FOUR = [f"gpu{n:02d}" for n in range(1, 5)]
LINKS = list(zip(FOUR, FOUR[1:] + FOUR[:1], strict=True))
JOB = {"name": "mlp", "workload": "train", "ranks": FOUR, "rings": [FOUR]}
ARGS = {"iterations": 0, "hidden": 64, "checkpoint_every": 5}


def trained(lab: Lab, least: int) -> dict[str, Any]:
    """The job once it has reached that iteration."""
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        found = lab.testbed("job", "status").envelope["data"]
        if found["state"] == "running" and found["resumed_from"] + found["iterations"] >= least:
            return dict(found)
        time.sleep(0.5)
    raise AssertionError(found)


def test_the_guard_restarts_a_job_replaces_a_host_and_a_second_guard_goes_on_where_it_died(
    small: Lab,
) -> None:
    plan = small.plan("ring", LINKS, job=JOB | {"args": ARGS})
    small.up(plan, "--spares", "gpu05,gpu06").must()
    trained(small, 12)
    guard = Watching(small, "--jobs", "--restarts", "9/h")
    try:
        guard.wait("watching")
        send(small.env, "gpu02", signal.SIGKILL)
        guard.wait("recovered", 60.0)
        first = trained(small, 20)
        assert first["resumed_from"] >= 10, "it goes on from a checkpoint"
        send(small.env, "gpu03", signal.SIGSTOP)
        reply = guard.wait("recovering", 90.0)  # after the pause of a second attempt in a row
        assert "no rank has moved for" in reply["message"]
        guard.wait("recovered", 60.0)
        second = trained(small, first["resumed_from"] + first["iterations"] + 5)
        small.ask("host.down", host="gpu04")
        reply = guard.wait("recovering", 120.0)
        assert reply["action"] == "evict" and "gpu04 -> gpu05" in reply["message"]
        guard.wait("recovered", 120.0)
        third = trained(small, second["resumed_from"] + second["iterations"])
        assert third["resumed_from"] >= second["resumed_from"], "with the weights of the others"
        assert "gpu05" in str(small.testbed("job", "env").must())
        status = small.testbed("status").envelope["data"]
        assert len(status["recoveries"]) == 3 and "evict gpu04 -> gpu05" in status["recoveries"][0]
        history = small.testbed("run", "list").envelope["data"]["runs"]
        assert [run["verb"] for run in history if run["verb"] in ("job restart", "up")][:3] == [
            "up",
            "job restart",
            "job restart",
        ]
        assert (
            history[0]["options"]["evict"] == {"gpu04": "gpu05"}
            and "gpu04" in history[0]["message"]
        )
        guard.process.send_signal(signal.SIGKILL)  # it dies
        guard.process.wait(10)
        send(small.env, "gpu01", signal.SIGKILL)
        guard.end()
        guard = Watching(small, "--jobs", "--restarts", "9/h")
        guard.wait("recovered", 150.0)
        trained(small, third["resumed_from"])
    finally:
        guard.end()
    small.testbed("down", "--yes")


def test_a_person_moves_a_running_job_off_a_host_and_back(small: Lab) -> None:
    three = JOB | {"ranks": FOUR[:3], "rings": [FOUR[:3]], "args": ARGS}
    plan = small.plan(
        "three", [("gpu01", "gpu02"), ("gpu02", "gpu03"), ("gpu03", "gpu01")], job=three
    )
    small.up(plan).must()
    trained(small, 8)
    report = small.testbed("job", "evict", "gpu02", "--spare", "gpu06").must()
    assert report["job"]["resumed_from"] >= 5 and report["job"]["state"] == "running"
    for argv, code in (
        (("gpu02",), 2),
        (("gpu06", "--spare", "gpu01"), 3),
        (("gpu06", "--spare", "gpu99"), 2),
    ):
        refused = small.testbed("job", "evict", *argv)
        assert refused.exit_code == code and refused.envelope["hint"], refused.envelope
    small.testbed("tagout", "gpu05", "--reason", "a fan").must()
    refused = small.testbed("job", "evict", "gpu06", "--spare", "gpu05")
    assert refused.exit_code == 9 and "a fan" in refused.envelope["message"]
    small.testbed("tagout", "remove", "gpu05").must()
    small.testbed("rollback", "--yes").must()
    back = trained(small, report["job"]["resumed_from"])
    assert back["ranks"] == 3 and small.testbed("verify").must()["ok"]
