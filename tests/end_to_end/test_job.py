"""Jobs: real torch ranks over the emulated fabric, through reconfigurations."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Lab, ring

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

HOSTS = [f"gpu{n:02d}" for n in range(1, 7)]
FORWARD, BACKWARD = HOSTS, [HOSTS[0], *HOSTS[:0:-1]]


def job(rings: list[list[str]], **args: object) -> dict[str, object]:
    return {
        "name": "mlp",
        "workload": "train",
        "ranks": HOSTS,
        "rings": rings,
        "args": {"iterations": 0, "hidden": 64, "checkpoint_every": 10, **args},
    }


def iterations(lab: Lab) -> int:
    return int(lab.testbed("job", "status").must()["iterations"])


@pytest.mark.long
def test_a_job_trains_survives_a_move_of_its_circuit_and_resumes_on_new_rings(lab: Lab) -> None:
    one = lab.plan("one", ring((1, 2)), job=job([FORWARD]))
    started = lab.up(one).must()["job"]
    assert started["state"] == "running" and started["iteration_ms"] > 0

    moved = lab.plan("moved", [*ring((1, 2))[1:], ("gpu01:p3", "gpu02:p3")], job=job([FORWARD]))
    before = iterations(lab)
    report = lab.up(moved).must()
    assert report["made"] == 2 and report["job"]["run"] == started["run"], "the same job goes on"
    time.sleep(1.0)
    assert iterations(lab) > before

    two = lab.plan("two", ring((1, 2)) + ring((3, 4)), job=job([FORWARD, BACKWARD]))
    replaced = lab.up(two, "--job", "restart").must()["job"]
    assert replaced["state"] == "running" and replaced["run"] != started["run"]
    logs = lab.testbed("job", "logs").must()
    assert set(logs["lines"]) == {f"rank {i} ({h})" for i, h in enumerate(HOSTS)}
    assert (
        "iteration" in logs["lines"]["rank 0 (gpu01)"][-1]
        and "ranks met" in logs["lines"]["rank 5 (gpu06)"][0]
    )
    resumed = list((lab.folder / "state" / "runs" / replaced["run"]).glob("*.iterations.jsonl"))
    first = resumed[0].read_text().splitlines()[0]
    assert '"iter": 1,' not in first, "training went on from the checkpoint"

    kept = lab.up(one, "--job", "keep").must()
    assert kept["removed"] == 12 and kept["job"]["run"] == replaced["run"], (
        "it runs on over a change to a plan with another job"
    )
    assert any("keeps running as launched" in note for note in kept["notes"])

    ran = lab.testbed("host", "exec", "gpu02", "cat", "/proc/sys/kernel/hostname", "/nothing")
    assert (
        ran.exit_code == 1
        and ran.envelope["data"]["stdout"] == "gpu02\n"
        and "/nothing" in ran.envelope["data"]["stderr"]
    )

    stopped = lab.testbed("job", "stop").must()
    assert stopped["state"] == "stopped" and stopped["iterations"] > 0


@pytest.mark.long
def test_a_job_that_cannot_start_is_quoted_and_is_tried_again(lab: Lab) -> None:
    """The inventory promises GPUs that the hosts do not have."""
    hosts = lab.inventory / "hosts.yml"
    honest = hosts.read_text()
    hosts.write_text(honest.replace("testbed_gpus: 0", "testbed_gpus: 1"))
    try:
        plan = lab.plan("bad-job", ring((1, 2)), job=job([FORWARD]) | {"backend": "nccl"})
        for _ in range(2):
            answer = lab.up(plan)
            assert (
                answer.exit_code == 7 and "this process sees no GPU" in answer.envelope["message"]
            ), answer
            assert "testbed job logs" in answer.envelope["hint"]
        assert lab.testbed("status").envelope["data"]["job"]["state"] == "failed"
    finally:
        hosts.write_text(honest)


def ranks_of(run: str) -> dict[int, set[int]]:
    """The processes of the ranks of the job three-or-six, each with the user ids it has."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (
                b"workloads.programs.train" in (process / "cmdline").read_bytes()
                and f"three-or-six.{run}".encode() in (process / "environ").read_bytes()
            ):
                (uids,) = [
                    line
                    for line in (process / "status").read_text().splitlines()
                    if line.startswith("Uid:")
                ]
                found[int(process.name)] = set(map(int, uids.split()[1:]))
        except OSError:
            continue  # it is gone
    return {
        pid: uids
        for pid, uids in found.items()
        if "python" in (Path("/proc") / str(pid) / "comm").read_text()
    }


@pytest.mark.long
def test_a_job_of_other_ranks_starts_anew_and_one_that_died_is_launched_again(lab: Lab) -> None:
    """Twice the same name: a ring of three hosts with a batch of its own, then one of six, and
    back.
    """
    three = [("gpu01:p1", "gpu02:p1"), ("gpu02:p2", "gpu03:p2"), ("gpu03:p3", "gpu01:p3")]
    small = lab.plan(
        "three",
        three,
        job=job([HOSTS[:3]], batch=4, checkpoint_every=5)
        | {"ranks": HOSTS[:3], "name": "three-or-six"},
    )
    large = lab.plan(
        "six", ring((1, 2)), job=job([FORWARD], checkpoint_every=5) | {"name": "three-or-six"}
    )
    for plan, ranks in ((small, 3), (large, 6), (small, 3)):
        started = lab.up(plan).must()["job"]
        seen = (started["state"], started["ranks"], started["resumed_from"])
        assert seen == ("running", ranks, 0), "another training is not resumed"
    again = lab.up(small).must()
    assert again["nothing_to_do"] and again["job"]["run"] == started["run"]

    running = ranks_of(started["run"])
    assert len(running) == 3 and all(
        uids == {max(uids)} and 0 not in uids for uids in running.values()
    ), "no rank runs as root"
    while iterations(lab) < 12:
        time.sleep(0.2)
    os.kill(min(running), signal.SIGKILL)
    while lab.testbed("job", "status").envelope["data"]["state"] == "running":
        time.sleep(0.2)
    status = lab.testbed("status")
    assert not status.envelope["data"]["ok"] and "job three-or-six failed: gpu0" in str(
        status.envelope["data"]["drift"]
    ), status
    back = lab.up(small).must()
    assert (
        not back["nothing_to_do"]
        and back["job"]["state"] == "running"
        and back["job"]["run"] == back["run"]
    )
    assert back["job"]["resumed_from"] >= 10
    (reported,) = [phase["detail"] for phase in back["phases"] if phase["name"] == "job"]
    assert f"resumed after iteration {back['job']['resumed_from']}" in reported
    assert lab.testbed("status").envelope["data"]["ok"]


@pytest.mark.long
def test_the_job_before_runs_again_after_every_way_back(lab: Lab) -> None:
    one = lab.plan("one", ring((1, 2)), job=job([FORWARD]))
    moved = [*ring((1, 2))[1:], ("gpu01:p3", "gpu02:p3")]
    other = job([FORWARD], hidden=32) | {"name": "other"}
    first = lab.up(one).must()["job"]["run"]

    # One that fails when its light is looked at: the job goes on as if nothing had been.
    bad = lab.plan("bad", moved, job=other, acceptance={"light_window_db": 0.0001})
    before = iterations(lab)
    answer = lab.up(bad)
    assert answer.exit_code == 6 and "light:" in answer.envelope["message"], answer
    status = lab.testbed("job", "status").must()
    assert (status["name"], status["state"], status["run"]) == ("mlp", "running", first) and status[
        "iterations"
    ] > before

    # A good one with a job of its own, taken back, and once more: now that job was launched by a
    # rollback.
    for _ in range(2):
        assert lab.up(lab.plan("two", moved, job=other)).must()["job"]["name"] == "other"
        back = lab.testbed("rollback").must()
        assert (back["plan"], back["job"]["name"], back["job"]["state"]) == (
            "one",
            "mlp",
            "running",
        ), back
        assert back["job"]["run"] == back["run"]
        (file,) = (lab.folder / "state" / "runs" / back["run"]).glob("*.iterations.jsonl")
        assert '"iter": 1,' not in file.read_text().splitlines()[0], (
            "training went on from the checkpoint"
        )

    # Another job over the same light, taken back too.
    assert lab.up(lab.plan("three", ring((1, 2)), job=other)).must()["job"]["name"] == "other"
    back = lab.testbed("rollback").must()
    assert (back["plan"], back["job"]["name"], back["job"]["state"]) == ("one", "mlp", "running"), (
        back
    )
    assert lab.testbed("verify").must()["ok"]
