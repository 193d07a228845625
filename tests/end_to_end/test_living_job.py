"""A job goes on over a change of its rings, back, and through a pause: the same processes, no
iteration lost or repeated.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest

from tests.end_to_end.conftest import Lab, ring
from tests.end_to_end.test_job import BACKWARD, FORWARD, job

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]


def records(lab: Lab, run: str) -> list[dict[str, Any]]:
    """The iterations of the job that `run` launched, as they were fetched so far."""
    (file,) = (lab.folder / "state" / "runs" / run).glob("*.iterations.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.long
def test_a_running_job_changes_its_rings_there_and_back_and_pauses(lab: Lab) -> None:
    one = lab.plan("one", ring((1, 2)), job=job([FORWARD]))
    two = lab.plan("two", ring((1, 2)) + ring((3, 4)), job=job([FORWARD, BACKWARD]))
    started = lab.up(one).must()["job"]["run"]

    shown = lab.testbed("plan", two).must()["job_change"]
    assert shown == "mlp goes on; its rings change at the end of an iteration"
    other = lab.up(two, "--job", "live").must()
    assert other["job"]["run"] == started and other["job"]["state"] == "running", (
        "the same job goes on"
    )
    ring_change = other["ring_change"]
    assert (
        ring_change["after"] > 0
        and ring_change["note"] == ""
        and ring_change["paused_ms"] is not None
        and ring_change["prepare_ms"] > 0
    )
    assert {"prepare", "rings"} <= {phase["name"] for phase in other["phases"]} and not other[
        "notes"
    ]

    back = lab.testbed("rollback").must()
    assert (
        back["plan"] == "one"
        and back["job"]["run"] == started
        and back["ring_change"]["after"] > ring_change["after"]
    )

    long = lab.testbed("job", "pause", "--for", "2h")
    assert long.exit_code == 7 and "a hold longer than its lease" in long.envelope["message"], long
    paused = lab.testbed("job", "pause", "--for", "5m").must()
    assert paused["state"] == "paused" and "testbed job resume" in paused["detail"]
    again = lab.testbed("job", "pause")
    assert (
        again.exit_code == 7 and "job mlp is paused already, until" in again.envelope["message"]
    ), again
    still = lab.testbed("job", "status").must()
    assert still["iterations"] == paused["iterations"]
    assert lab.testbed("job", "resume").must()["state"] == "running"
    refused = lab.testbed("job", "resume")
    assert (
        refused.exit_code == 7
        and "job mlp is not paused: it is running" in refused.envelope["message"]
    ), refused

    stopped = lab.testbed("job", "stop").must()
    assert stopped["iterations"] > paused["iterations"]
    found = records(lab, started)
    assert [r["iter"] for r in found] == list(range(1, len(found) + 1)), (
        "no iteration is lost or repeated"
    )
    moves = [(r["iter"], r["move"]) for r in found if "move" in r]
    assert [at for at, _ in moves[:2]] == [
        ring_change["after"] + 1,
        back["ring_change"]["after"] + 1,
    ]
    assert [move for _, move in moves[:2]] == [ring_change["move"], back["ring_change"]["move"]]


@pytest.mark.long
def test_an_unconfirmed_change_gives_the_job_its_rings_back(lab: Lab) -> None:
    one = lab.plan("one", ring((1, 2)), job=job([FORWARD]))
    two = lab.plan("two", ring((1, 2)) + ring((3, 4)), job=job([FORWARD, BACKWARD]))
    started = lab.up(one).must()["job"]["run"]
    other = lab.up(two, "--job", "live", "--confirm-within", "4s").must()
    assert other["job"]["run"] == started and other["ring_change"]["after"] > 0
    until = time.monotonic() + 90
    while lab.testbed("status").must()["plan"] != "one":
        assert time.monotonic() < until, "it is not taken back"
        time.sleep(1.0)
    status = lab.testbed("job", "status").must()
    assert (status["run"], status["state"]) == (started, "running")
    found = records(lab, started)
    assert [r["iter"] for r in found] == list(range(1, len(found) + 1)) and len(
        [r for r in found if "move" in r]
    ) == 2


@pytest.mark.long
def test_a_paused_job_goes_on_with_the_next_change_and_turns(lab: Lab) -> None:
    one = lab.plan("one", ring((1, 2)), job=job([FORWARD]))
    two = lab.plan("two", ring((1, 2)) + ring((3, 4)), job=job([FORWARD, BACKWARD]))
    started = lab.up(one).must()["job"]["run"]
    lab.testbed("job", "pause").must()
    other = lab.up(two).must()
    assert other["notes"] == ["job mlp was paused; this change ended its pause"]
    assert (other["job"]["run"], other["job"]["state"]) == (started, "running") and other[
        "ring_change"
    ]["note"] == ""


@pytest.mark.long
def test_the_job_pauses_while_it_is_dark_if_the_plan_says_so(lab: Lab) -> None:
    one = lab.plan("one", ring((1, 2)), job=job([FORWARD]))
    two = lab.plan("two", ring((3, 4)), job=job([FORWARD, BACKWARD]), transition={"hold": "always"})
    started = lab.up(one).must()["job"]["run"]
    other = lab.up(two, "--job", "live").must()
    assert other["job"]["run"] == started and other["ring_change"]["mode"] == "hold"
    assert "hold" in [phase["name"] for phase in other["phases"]]
