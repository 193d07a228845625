"""A host joins a running job on a real emulated lab; a rank or a host that dies meanwhile leaves the
job as it was.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.end_to_end.conftest import Lab
from tests.end_to_end.test_recover import FOUR, JOB, SMALL, trained

__all__ = ["SMALL"]
pytestmark = [
    pytest.mark.long,
    pytest.mark.lab,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]
THREE = FOUR[:3]
LINKS = list(zip(THREE, THREE[1:] + THREE[:1], strict=True))
ARGS = {"iterations": 0, "hidden": 64, "compute_ms": 100}
STARTED = """import glob, json, os, time
while not (found := glob.glob("/var/lib/testbed/started/*.json")):
    time.sleep(0.02)
"""
KILL = f"""{STARTED}
os.killpg(json.load(open(found[0]))["pid"], 9)"""


def records(lab: Lab, run: str) -> list[dict[str, Any]]:
    (file,) = (lab.folder / "state" / "runs" / run).glob("*.iterations.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def summary(lab: Lab, host: str) -> dict[str, Any]:
    """What rank 0 wrote when the job ended."""
    shown = lab.testbed("host", "exec", host, "cat /var/lib/testbed/jobs/*/summary.json").must()
    found: dict[str, Any] = json.loads(shown["stdout"])
    return found


def test_a_host_joins_a_running_job_and_one_that_dies_leaves_it_as_it_was(small: Lab) -> None:
    job = JOB | {"ranks": THREE, "rings": [THREE], "args": ARGS}
    started = small.up(small.plan("three", LINKS, job=job)).must()["job"]["run"]
    trained(small, 5)

    for host, code, why in (
        ("gpu99", 2, "not in the lab"),
        ("gpu02", 3, "is in job mlp already"),
    ):
        refused = small.testbed("job", "join", host)
        assert refused.exit_code == code and why in refused.envelope["message"], refused.envelope

    killer = small.command("host", "exec", "gpu04", "--", "python3", "-c", KILL)
    refused = small.testbed("job", "join", "gpu04")
    assert refused.exit_code and "gpu04 cannot join mlp" in refused.envelope["message"], refused
    killer.communicate(timeout=30)
    status = trained(small, small.testbed("job", "status").must()["iterations"] + 5)
    assert (status["run"], status["state"], status["ranks"]) == (started, "running", 3)

    report = small.testbed("job", "join", "gpu04").must()
    assert report["job"]["run"] == started and report["job"]["ranks"] == 4
    after = report["ring_change"]["after"]
    trained(small, after + 10)
    assert small.testbed("verify").must()["ok"]

    lost = small.command("job", "join", "gpu05")
    begun = small.command("host", "exec", "gpu05", "--", "python3", "-c", STARTED)
    begun.communicate(timeout=60)
    small.ask("host.down", host="gpu05")
    said = "".join(lost.communicate(timeout=240))
    assert lost.returncode and "so the rings are closed without it again" in said, said
    status = trained(small, small.testbed("job", "status").must()["iterations"] + 5)
    assert (status["run"], status["state"], status["ranks"]) == (started, "running", 4)
    small.testbed("job", "stop").must()

    found = records(small, started)
    made = [each["iter"] for each in found]
    assert made == list(range(1, len(made) + 1)), "no iteration is lost or repeated"
    assert len({each["samples"] for each in found[:after]}) == 1
    assert found[after]["samples"] == found[0]["samples"] * 4 // 3, "the fourth takes part"
    ended = summary(small, "gpu01")
    assert ended["weights_identical"] and ended["world"] == 4
