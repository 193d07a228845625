"""What a run left, and the ways on and back, on real hosts and sockets; judged by the devices' own
glass.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Answer, Lab, ring
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]


def stopped(
    lab: Lab, number: signal.Signals, settle_s: float = 3.0
) -> tuple[Answer | None, dict[str, int]]:
    """Bring a second plan up, and send the signal when its first command has reached a device."""
    plan = lab.plan("moved", [*ring((1, 2))[1:], ("gpu01:p3", "gpu02:p3")])
    before = lab.writes()
    with lab.settling(settle_s):
        process = lab.command("up", "--topology", plan)
        until(lambda: lab.writes() != before or process.poll() is not None)
        process.send_signal(number)
        out, err = process.communicate(timeout=100)
    import json

    return (Answer(process.returncode, json.loads(out), err) if out else None), before


def test_rollback_brings_back_exactly_what_was_and_a_second_one_undoes_it(lab: Lab) -> None:
    lab.up(lab.plan("ring", ring((1, 2)))).must()
    was = lab.light()
    lab.up(lab.plan("moved", [*ring((1, 2))[1:], ("gpu01:p3", "gpu02:p3")])).must()
    moved = lab.light()
    back = lab.testbed("rollback").must()
    assert (back["verb"], back["plan"], back["pairs_ok"]) == ("rollback", "ring", 30)
    assert lab.light() == was and lab.testbed("verify").must()["ok"]
    assert lab.testbed("rollback").must()["plan"] == "moved" and lab.light() == moved


@pytest.mark.long
def test_rollback_of_the_first_plan_leaves_nothing(lab: Lab) -> None:
    run = lab.up(lab.plan("ring", ring((1, 2)))).must()["run"]
    assert lab.testbed("rollback", run).must()["left"] == []
    status = lab.testbed("status").must()
    assert (
        not status["plan"]
        and not status["drift"]
        and {h["generation"] for h in status["hosts"]} == {None}
    )
    assert not any(lab.light().values())


@pytest.mark.long
@pytest.mark.parametrize("direction", ["resume", "rollback"])
def test_what_a_killed_run_left_is_told_and_both_ways_on_converge(lab: Lab, direction: str) -> None:
    lab.up(lab.plan("ring", ring((1, 2)))).must()
    was = lab.light()
    stopped(lab, signal.SIGKILL)
    (left,) = lab.testbed("status").envelope["data"]["unfinished"]
    assert (
        left["status"] == "died"
        and left["what"] == "up moved"
        and left["undo"] == f"testbed rollback {left['run']}"
    )
    report = lab.testbed(direction, left["run"]).must()
    assert left["run"] in report["notes"][0], "the command begins by saying what was left"
    status = lab.testbed("status").must()
    assert (
        status["ok"]
        and not status["unfinished"]
        and status["plan"] == ("moved" if direction == "resume" else "ring")
    )
    assert (lab.light() == was) == (direction == "rollback")
    assert lab.testbed("verify").must()["ok"]


@pytest.mark.long
def test_an_interrupted_change_is_taken_back_and_says_so(lab: Lab) -> None:
    lab.up(lab.plan("ring", ring((1, 2)))).must()
    was = lab.light()
    answer, _ = stopped(lab, signal.SIGINT, 1.0)
    assert answer is not None and answer.exit_code == 130, answer
    assert "rolled back, everything is as before" in answer.envelope["message"]
    assert lab.light() == was and lab.testbed("verify").must()["ok"]


def pair(lab: Lab) -> Path:
    """A plan with a job of two ranks."""
    job = {
        "name": "mlp",
        "workload": "train",
        "ranks": ["gpu01", "gpu02"],
        "rings": [["gpu01", "gpu02"]],
    }
    return lab.plan("pair", ring((1, 2)), job=job | {"args": {"iterations": 0, "hidden": 64}})


def test_after_a_power_cut_hosts_run_no_job_and_down_ends_well(lab: Lab) -> None:
    lab.up(pair(lab)).must()
    lab.testbed("lab", "stop").must()
    lab.testbed("lab", "start").must()
    down = lab.testbed("down", "--yes")
    assert down.exit_code == 0, down.envelope["data"]["left"]
    status = lab.testbed("status").must()
    assert (
        not status["plan"]
        and not status["unfinished"]
        and (status["job"] or {}).get("state") != "running"
    )


@pytest.mark.long
def test_a_user_of_jobs_who_was_deleted_is_missed_and_the_next_up_adds_it_again(lab: Lab) -> None:
    lab.up(pair(lab), "--no-job").must()
    for host in ("gpu01", "gpu02"):
        lab.testbed("host", "exec", host, "userdel", "testbed-job").must()
    checks = {check["name"]: check for check in lab.testbed("doctor").envelope["data"]["checks"]}
    assert (
        checks["gpu01"]["state"] == "fail"
        and "the user that its jobs run as is gone" in checks["gpu01"]["detail"]
    )
    assert checks["gpu03"]["state"] == "ok"
    refused = lab.testbed("job", "launch")
    wanted = "gpu01, gpu02: no user testbed-job on this host to run jobs as; testbed up adds it"
    assert refused.exit_code == 7 and wanted in refused.envelope["message"], refused
    assert lab.up(pair(lab)).must()["job"]["state"] == "running"


@pytest.mark.long
def test_after_a_power_cut_of_everything_the_plan_is_restored(lab: Lab) -> None:
    lab.up(lab.plan("ring", ring((1, 2)))).must()
    was = lab.light()
    lab.testbed("lab", "stop").must()
    report = lab.testbed("restore").must()
    assert (report["verb"], report["plan"], report["pairs_ok"]) == ("restore", "ring", 30)
    assert lab.light() == was and lab.testbed("status").must()["ok"]
