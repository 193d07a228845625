"""A loop that is left alone, on an emulated lab: what makes the job faster stays, what does not goes."""

from __future__ import annotations

import json
import os
import signal
from itertools import pairwise
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Lab
from tests.end_to_end.test_switches import started
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.lab,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

PROPOSER = """
import json, pathlib

def propose(view):
    name = ["good", "harm", "broken"][len(view["trials"])]
    return {"name": name, "plan": json.loads(pathlib.Path(FOLDER, name + ".json").read_text())}
"""
SENDS = (("gpu01", "gpu02"), ("gpu03", "gpu04"))


def line(lab: Lab, name: str, order: str) -> Path:
    """A plan of these hosts in this order, and a job of two pairs that send to each other."""
    hosts = [f"gpu0{number}" for number in order]
    sends = [
        {"src": x, "dst": y, "bytes": 250_000, "lane": 0}
        for a, b in SENDS
        for x, y in ((a, b), (b, a))
    ]
    job = {
        "name": "pairs",
        "workload": "replay",
        "ranks": sorted(hosts),
        "args": {"iterations": 1_000_000},
        "traffic": {"compute_s": 0.02, "groups": [], "transfers": sends},
    }
    return lab.plan(name, [*pairwise(hosts)], job=job)


def test_a_good_plan_stays_and_a_harmful_one_goes_back_even_if_the_loop_is_killed_on_it(
    tmp_path: Path,
) -> None:
    """In the lines 1324 and 1342 the pairs meet on a link, in 1234 each has its own."""
    lab = started(tmp_path, 4, "--ports", "2", "--rate-mbps", "20")
    (tmp_path / "mine.py").write_text(PROPOSER.replace("FOLDER", repr(str(tmp_path))))
    line(lab, "good", "1234")
    line(lab, "harm", "1342")
    (tmp_path / "broken.json").write_text('{"schema": "testbed.plan/9", "name": "broken"}')
    log = tmp_path / "tend.jsonl"
    options = ("--proposer", "mine:propose", "--trials", "3", "--window", "8", "--log", log)
    try:
        refused = lab.testbed("service", "run", "tend", *options)
        assert refused.exit_code != 0 and "no plan is up" in refused.envelope["message"]
        lab.up(line(lab, "base", "1324")).must()
        done = lab.testbed(
            "service", "run", "tend", *options, within_s=600, PYTHONPATH=str(tmp_path)
        ).must()
        events = [json.loads(line) for line in log.read_text().splitlines()]
        trials = [event for event in events if event["event"] == "trial"]
        assert [(each["name"], each["ended"]) for each in trials] == [
            ("good", "kept"),
            ("harm", "taken back"),
            ("broken", "refused"),
        ], trials
        assert (done["kept"], done["back"], done["refused"]) == (1, 1, 1)
        assert trials[2]["moves"] == 0
        status = lab.testbed("status").envelope["data"]
        assert status["plan"] == "good" and "pairs" in str(status["job"])
        assert not lab.stored("SELECT run FROM awaited WHERE state='pending'")
        assert lab.testbed("verify").must()["ok"]
        log.unlink()
        begun = lab.testbed(
            *("service", "start", "tend", "--proposer", "mine:propose", "--window", "60"),
            *("--log", log),
            PYTHONPATH=str(tmp_path),
        )
        until(lambda: '"event": "up"' in (log.read_text() if log.exists() else ""), 200)
        assert lab.testbed("status").must()["plan"] == "harm"
        os.kill(begun.must()["state"]["pid"], signal.SIGKILL)
        until(lambda: lab.testbed("status").must()["plan"] == "good", 240)
        assert lab.testbed("verify").must()["ok"]
    finally:
        lab.testbed("down", "--yes")
        lab.testbed("lab", "stop").must()
