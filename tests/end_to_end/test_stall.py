"""The stall curve of a real emulated lab: what is measured, what is kept, and that circuits and
routes are as before.
"""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.drills.truth import routes
from tests.end_to_end.conftest import Lab, ring
from tests.end_to_end.test_job import FORWARD, job

pytestmark = [
    pytest.mark.long,
    pytest.mark.lab,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]


def test_the_stall_curve_is_measured_and_the_lab_is_as_before(lab: Lab) -> None:
    lab.up(lab.plan("ring", ring((1, 2)))).must()
    before = lab.light(), routes(lab)
    found = lab.testbed("verify", "--stall", "--dark", "0", "--dark", "300ms").must()
    assert (lab.light(), routes(lab)) == before
    points = found["points"]
    assert len(points) == 18 and {p["mode"] for p in points} == {"drained", "sending", "held"}
    assert all(p["dark_ms"] > 0 for p in points) and all(
        p["dark_ms"] >= 250 for p in points if p["asked_ms"] == 300
    )
    for mode in ("sending", "held"):  # what is sent into the dark cannot arrive
        assert all(
            p["lost_ms"] > 0.9 * p["dark_ms"] - 25
            for p in points
            if p["mode"] == mode and p["asked_ms"] == 300
        ), points
    status = lab.testbed("status").must()
    assert status["plan"] == "ring" and not status["unfinished"] and not status["drift"]
    kept = lab.testbed("verify", "--history").must()["earlier"]
    assert [p for p in kept if p["run"] == found["run"]] == points
    lab.testbed("verify").must()
    lab.testbed("rollback").must()
    assert not lab.testbed("status").must()["plan"], (
        "a measurement is no change: `up` is rolled back"
    )


@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGKILL])
def test_an_end_in_the_dark_leaves_a_lab_that_comes_back(lab: Lab, ended_by: int) -> None:
    lab.up(lab.plan("ring", ring((1, 2)))).must()
    before = lab.light(), routes(lab)
    process = lab.command("verify", "--stall", "--dark", "5s")
    give_up = time.monotonic() + 60
    while lab.light() == before[0]:
        assert time.monotonic() < give_up and process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(ended_by)
    out, _ = process.communicate(timeout=100)
    if ended_by == signal.SIGKILL:
        (left,) = lab.testbed("status").envelope["data"]["unfinished"]
        lab.testbed("resume", left["run"]).must()
    else:
        assert process.returncode == 130 and "rolled back, everything is as before" in out
    assert lab.light() == before[0]
    status = lab.testbed("status").must()
    assert status["plan"] == "ring" and not status["unfinished"] and not status["drift"]


def test_it_is_refused_without_a_plan_and_while_a_job_runs(lab: Lab) -> None:
    nothing = lab.testbed("verify", "--stall")
    assert nothing.exit_code == 2 and "no plan is up" in nothing.envelope["message"]
    lab.up(lab.plan("one", ring((1, 2)), job=job([FORWARD]))).must()
    light = lab.light()
    busy = lab.testbed("verify", "--stall")
    assert (
        busy.exit_code == 9
        and "job mlp runs" in busy.envelope["message"]
        and "testbed job stop" in busy.envelope["hint"]
    )
    assert lab.light() == light
