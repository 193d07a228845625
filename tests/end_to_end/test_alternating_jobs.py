"""Jobs of several owners over the uplinks of a tree, on an emulated lab: shifted, told, and free
once who shifted them is dead.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Lab
from tests.end_to_end.test_switches import started
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.lab,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]


def up(lab: Lab, owner: str, a: str, b: str) -> None:
    """A job that computes for 0.3 s and then sends for 0.2 s in each direction."""
    sends = [{"src": x, "dst": y, "bytes": 1_000_000, "lane": 0} for x, y in ((a, b), (b, a))]
    job = {
        "name": "exchange",
        "workload": "replay",
        "ranks": [a, b],
        "args": {"iterations": 100_000},
        "traffic": {"compute_s": 0.3, "groups": [], "transfers": sends},
    }
    plan = lab.plan(owner, [], segments=[{"name": "oversubscribed", "hosts": [a, b]}], job=job)
    lab.up(plan, TESTBED_OWNER=owner).must()


def latest(lab: Lab, host: str) -> list[dict[str, Any]]:
    """The last five iterations that the job's first rank, on this host, has written."""
    root = Path(f"/proc/{lab.ask('status')['hosts'][host]['pid']}/root/var/lib/testbed/jobs")
    lines = next(root.glob("exchange.*/iterations.jsonl")).read_text().splitlines()
    return [json.loads(line) for line in lines[-5:]]


def test_three_jobs_take_turns_and_are_free_when_who_shifts_them_is_killed(tmp_path: Path) -> None:
    lab = started(
        tmp_path,
        8,
        "--ports",
        "1",
        "--rack",
        "2",
        "--electrical",
        "oversubscribed:2@40",
        "--queue",
        "128:job",
    )
    firsts = ("gpu01", "gpu04", "gpu06")
    try:
        up(lab, "ann", "gpu01", "gpu03")
        assert "runs alone" in lab.testbed("service", "start", "pacing").envelope["message"]
        up(lab, "bob", "gpu04", "gpu05")  # ann and bob share rack 2, bob and cat rack 3
        up(lab, "cat", "gpu06", "gpu07")
        found = lab.testbed("job", "phases").must()
        assert {job["name"]: (job["source"], job["takes_part"]) for job in found["jobs"]} == {
            f"{owner}:exchange": ("records", True) for owner in ("ann", "bob", "cat")
        }
        shared = {link["name"]: sorted(link["rates"]) for link in found["links"]}
        assert shared == {
            f"oversubscribed rack {rack} {direction}": [f"{a}:exchange", f"{b}:exchange"]
            for rack, a, b in ((2, "ann", "bob"), (3, "bob", "cat"))
            for direction in ("up", "down")
        }
        assert found["score"] >= 0.95, found
        begun = lab.testbed("service", "start", "pacing").must()["state"]
        assert begun["state"] == "pacing"
        assert (
            "pacing"
            in lab.testbed("status", TESTBED_OWNER="ann").envelope["data"]["services"]["pacing"]
        )
        until(
            lambda: all(
                any("paced_ms" in record for record in latest(lab, host)) for host in firsts
            )
        )
        os.kill(begun["pid"], signal.SIGKILL)
        until(
            lambda: (
                not any("paced_ms" in record for host in firsts for record in latest(lab, host))
            ),
            90,
        )
        again = lab.testbed("service", "start", "pacing").must()["state"]
        assert again["pid"] != begun["pid"]
        off = lab.testbed("service", "stop", "pacing").must()
        assert off["stopped"] and sorted(off["details"]["released"]) == [
            "ann:exchange",
            "bob:exchange",
            "cat:exchange",
        ]
        # from rack 4, where cat is, to rack 1, where ann is: a loop
        up(lab, "dan", "gpu08", "gpu02")
        loop = lab.testbed("job", "phases").must()
        assert "a loop" in loop["refused"]
        refused = lab.testbed("service", "start", "pacing")
        assert (
            refused.exit_code == 3
            and "a loop" in refused.envelope["message"]
            and "--by mltcp" in refused.envelope["hint"]
        )
    finally:
        lab.testbed("service", "stop", "pacing")
        for owner in ("ann", "bob", "cat", "dan"):
            lab.testbed("down", "--yes", TESTBED_OWNER=owner)
        lab.testbed("lab", "stop").must()
