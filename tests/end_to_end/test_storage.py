"""A job with a storage on an emulated lab: its checkpoints arrive over either network, and it goes on
when the receiver dies and from the storage when asked.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.drills.job_truth import Job
from tests.end_to_end.conftest import Lab

pytestmark = [
    pytest.mark.long,
    pytest.mark.lab,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

SMALL = ["--hosts", "5", "--ports", "3", "--free-ports"]
HOSTS = [f"gpu{n:02}" for n in range(1, 5)]


def plan(lab: Lab, name: str, over: str) -> Path:
    links = [
        (f"{a}:p{1 + n % 2}", f"{b}:p{1 + n % 2}")
        for n, (a, b) in enumerate(zip(HOSTS, HOSTS[1:] + HOSTS[:1], strict=True))
    ]
    args = {"iterations": 0, "checkpoint_every": 5, "checkpoint": "async", "hidden": 64}
    job = {
        "name": "mlp",
        "workload": "train",
        "ranks": HOSTS,
        "rings": [HOSTS],
        "args": args,
        "storage": {"host": "gpu05", "mbps": 200, "over": over},
    }
    return lab.plan(name, [*links, ("gpu01:p3", "gpu05:p3")], job=job)


def until(lab: Lab, true: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    give_up = time.monotonic() + 60
    while True:
        found = lab.testbed("job", "status").must()
        storage: dict[str, Any] = found["attached"]["storage"][0]
        if true(storage):
            return storage | {"iterations": found["iterations"]}
        assert time.monotonic() < give_up, found
        time.sleep(0.2)


def test_checkpoints_arrive_and_the_job_goes_on_without_its_receiver_and_from_the_storage(
    small: Lab,
) -> None:
    lab, job = small, Job(small, "mlp")
    lab.up(plan(lab, "own", "management")).must()
    found = until(lab, lambda one: one["checkpoint"] >= 10 and one["ranks"] == 4)
    assert (found["state"], found["of"]) == ("running", 4)
    kept = Path(f"/proc/{job.host('gpu05')}/root/var/lib/testbed/checkpoints")
    files = kept.glob("storage-mlp.*/checkpoint-*.pt")
    assert {path.name.split("-")[1] for path in files} == {"0", "1", "2", "3"}
    [receiver] = job.receivers("gpu05")
    os.kill(receiver, signal.SIGKILL)
    lost = until(lab, lambda one: one["state"] != "running")
    assert job.advances(5)

    lab.testbed("job", "stop").must()
    restored = lab.testbed("job", "restore").must()
    assert restored["resumed_from"] >= lost["checkpoint"]
    until(lab, lambda one: one["checkpoint"] > lost["checkpoint"] and one["ranks"] == 4)
    lab.up(plan(lab, "shared", "optical")).must()
    found = until(lab, lambda one: one["over"] == "optical" and one["ranks"] == 4)
    assert found["checkpoint"] > lost["checkpoint"] and not found["unsent"]
    lab.testbed("down", "--yes").must()
    assert job.receivers("gpu05") == [] and not any(job.ranks(host) for host in HOSTS)
