"""Functions of packet switches, and sums that lose packets, as an operator meets them on an
emulated lab.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.processes import Daemon
from orchestrator.telemetry import read_points
from tests.drills.job_truth import Job
from tests.end_to_end.conftest import Lab
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.lab,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

SMALL = ["--hosts", "4", "--ports", "2", "--free-ports", "--electrical", "ideal+aggregate+cache"]
SMALL += ["--rate-mbps", "60", "--line", "1:1:200:0.01", "--line", "2:1:200:0.01"]
HOSTS = [f"gpu{n:02}" for n in range(1, 5)]
TRAIN = {"hidden": 64, "batch": 16, "checkpoint_every": 5}


def plan(
    lab: Lab, name: str, functions: list[str], *, workload: str = "train", **args: object
) -> Path:
    """Four hosts at the packet switch, of which the plan asks these functions."""
    job = {"name": name, "workload": workload, "ranks": HOSTS, "args": args}
    return lab.plan(name, [], segments=[{"name": "ideal", "functions": functions}], job=job)


def allocations(lab: Lab) -> list[dict[str, Any]]:
    return list(lab.ask("status")["functions"]["ideal"]["allocations"])


def finished(lab: Lab, job: Job) -> dict[str, Any]:
    """The summary of a job that ends by itself, once that was seen."""
    until(lambda: lab.testbed("job", "status").must()["state"] == "finished")
    return job.summary()


def keeper(lab: Lab) -> Daemon:
    """Who renews the leases of the newest job."""
    return Daemon(
        **json.loads(lab.stored("SELECT spec FROM jobs ORDER BY id DESC LIMIT 1")[0])["keeper"]
    )


def test_sums_of_a_switch_are_those_of_a_ring_and_the_same_bits_though_packets_are_lost(
    small: Lab,
) -> None:
    lab = small
    losses = {}
    for name, functions, args in (
        ("ring", ["aggregate", "cache"], {}),
        ("switch", ["aggregate", "cache"], {"exchange": "aggregate"}),
        ("lossy", ["aggregate"], {"exchange": "aggregate"}),
    ):
        if name == "lossy":
            lab.ask("faults.add", host="ideal", kind="function-loss", percent=1)
        up = lab.up(plan(lab, name, functions, **TRAIN, iterations=15, **args)).must()
        assert ("no job of this plan uses it" in str(up["notes"])) == (name != "lossy"), up["notes"]
        summary = finished(lab, Job(lab, name))
        assert summary["weights_identical"], name
        losses[name] = [line["loss"] for line in Job(lab, name).lines("iterations.jsonl")]
        assert allocations(lab) == [], "it is given back once the end was seen"
    assert len(losses["ring"]) == 15 and losses["switch"] == pytest.approx(losses["ring"], rel=1e-3)
    assert losses["lossy"] == losses["switch"]
    assert lab.ask("status")["functions"]["ideal"]["totals"]["lost"] > 0
    lab.clean()


def test_a_cache_answers_and_its_hits_are_recorded(small: Lab) -> None:
    lab = small
    args = {"iterations": 6, "keys": 500, "lookup_ms": 0}
    started = lab.up(plan(lab, "store", ["cache"], workload="retrieve", **args)).must()["job"]
    summary = finished(lab, Job(lab, "store"))
    assert summary["requests"] == 6 * 4 * 100 and 0.3 < summary["hits"] / summary["requests"] < 1
    recorded = [
        point
        for point in read_points(lab.folder / "state" / "runs" / started["run"])
        if point.measurement == "requests"
    ]
    assert sum(int(point.fields["hits"]) for point in recorded) == summary["hits"]
    lab.testbed("down", "--yes").must()


def test_datagrams_over_lines_that_lose_packets_lack_no_more_than_the_bound(small: Lab) -> None:
    lab = small
    links = [
        (f"{a}:p{1 + n % 2}", f"{b}:p{1 + n % 2}")
        for n, (a, b) in enumerate(zip(HOSTS, HOSTS[1:] + HOSTS[:1], strict=True))
    ]
    args = {**TRAIN, "exchange": "datagrams", "loss_bound": 0.02, "iterations": 40}
    job = {"name": "mlt", "workload": "train", "ranks": HOSTS, "rings": [HOSTS], "args": args}
    lab.up(lab.plan("mlt", links, job=job)).must()
    assert finished(lab, Job(lab, "mlt"))["weights_identical"]
    lines = Job(lab, "mlt").lines("iterations.jsonl")
    assert all(line["lost_share"] <= 0.02 for line in lines) and any(
        line["lost_share"] > 0 for line in lines
    )
    assert sum(line["resent_bytes"] for line in lines) > 0
    lab.testbed("down", "--yes").must()


def test_whatever_is_killed_nobody_hangs_and_nothing_is_left_behind(small: Lab) -> None:
    lab, job = small, Job(small, "ddp")
    adds = plan(lab, "ddp", ["aggregate"], **TRAIN, iterations=0, exchange="aggregate")
    launching = lab.command("up", "--topology", adds)
    until(lambda: bool(allocations(lab)))
    launching.kill()
    launching.wait()
    lab.up(adds).must()
    (own,) = allocations(lab)
    (use,) = lab.testbed("status").must()["job"]["attached"]["functions"]
    assert (use["function"], use["segment"], use["state"]) == ("aggregate", "ideal", "leased")
    assert use["packets_in"] > 0 and use["lease_left_s"] > 0 and own["job"]

    os.kill(job.agents("gpu02")[1], signal.SIGKILL)
    first = keeper(lab)
    os.kill(first.pid, signal.SIGKILL)
    assert job.advances(10)
    until(lambda: bool(lab.testbed("job", "status").must()["attached"]) and keeper(lab) != first)
    until(lambda: allocations(lab)[0]["lease_left_s"] > 40)

    os.kill(job.ranks("gpu03")[0], signal.SIGKILL)
    until(lambda: lab.testbed("job", "status").envelope["data"]["state"] == "failed")
    assert allocations(lab) == [] and not keeper(lab).alive
    again = lab.up(adds).must()["job"]
    assert again["resumed_from"] > 0 and len(allocations(lab)) == 1

    os.kill(lab.ask("status")["functions"]["ideal"]["pid"], signal.SIGKILL)
    seen = lab.testbed("status").must()
    assert "waits for aggregate of segment ideal: functions of ideal: cannot connect" in str(
        seen["drift"]
    )
    refused = lab.testbed("job", "launch")
    assert (
        refused.exit_code == 5
        and "functions of ideal: cannot connect" in refused.envelope["message"]
    )
    assert "exchange wires" in refused.envelope["hint"] and job.ranks("gpu01"), (
        "before anything was stopped"
    )
    lab.up(lab.plan("other", [("gpu01:p1", "gpu02:p1")])).must()
    lab.testbed("job", "stop").must()
    assert not keeper(lab).alive
    back = lab.testbed("rollback").must()
    assert back[
        "plan"
    ] == "ddp" and "its job is not resumed: functions of ideal: cannot connect" in str(
        back["notes"]
    )
    lab.testbed("down", "--yes").must()
    assert [job.ranks(host) for host in HOSTS] == [[], [], [], []]
