"""A schedule on the emulated lab: slots made and verified, turned, and whole again whatever is
killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.drills.job_truth import HOSTS, Job
from tests.end_to_end.conftest import Lab, ring

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(600)]

SCHEDULE = {
    "dwell_s": 0.45,
    "guard_s": 0.02,
    "pattern": "round-robin",
    "ports": ["p1"],
    "hosts": HOSTS,
}


def state(lab: Lab) -> dict[str, Any]:
    [file] = (lab.folder / "data" / "schedule").glob("*.json")
    return dict(json.loads(file.read_text().partition("\n")[0]))


def until(
    lab: Lab, look: Callable[[dict[str, Any]], object], limit_s: float = 60.0
) -> dict[str, Any]:
    give_up = time.monotonic() + limit_s
    while not look(found := state(lab)):
        assert time.monotonic() < give_up, found
        time.sleep(0.02)
    return found


def agents(lab: Lab) -> list[int]:
    """The daemons of the lab's hosts, without their watchdogs."""
    listed = subprocess.run(
        ["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    root = int(lab.ask("status")["pid"])
    rows = [
        (int(pid), int(parent), text)
        for pid, parent, text in (line.split(None, 2) for line in listed[1:])
    ]
    parents = {pid: parent for pid, parent, _ in rows}

    def inside(pid: int) -> bool:
        while pid > 1 and pid != root:
            pid = parents.get(pid, 0)
        return pid == root

    named = {pid for pid, _, text in rows if "agent/__main__.py" in text and " attach" not in text}
    return [pid for pid in named if parents[pid] in named and inside(pid)]


@pytest.fixture
def changing(lab: Lab) -> Iterator[Lab]:
    plan = lab.plan("round", [], schedule=SCHEDULE)
    data = lab.up(plan).must()
    assert any("5 slots of 5 made and verified" in note for note in data["notes"])
    yield lab
    lab.testbed("service", "stop", "schedule")


def settled(lab: Lab) -> None:
    """Stop the scheduler: what is there is a whole slot, confirmed on every host, as the store has
    it.
    """
    lab.testbed("service", "stop", "schedule").must()
    verified = lab.testbed("verify").must()
    assert all(level["ok"] for level in verified["levels"]), verified
    status = lab.testbed("status").must()
    assert (
        not status["drift"] and len({host["generation"] for host in status["hosts"]} - {None}) == 1
    )


def test_slots_turn_and_the_one_where_they_stop_verifies(changing: Lab) -> None:
    assert changing.testbed("status").must()["slots"].startswith("turning: slot ")
    assert changing.testbed("verify").exit_code != 0
    until(changing, lambda s: s["cycle"] >= 2)
    settled(changing)
    again = changing.testbed("service", "run", "schedule", "--once").must()
    assert again["ring_changes"] == 5
    changing.testbed("down", "--yes").must()
    assert not any(changing.light().values())


def test_slots_are_whole_after_the_turner_an_agent_and_a_device_were_killed_in_the_midst_of_them(
    lab: Lab,
) -> None:
    """One of each of the drill below, in slots of four hosts."""
    lab.up(lab.plan("round", [], schedule=SCHEDULE | {"hosts": HOSTS[:4]})).must()
    before = until(lab, lambda s: s["cycle"] >= 1)
    os.kill(before["pid"], signal.SIGKILL)
    os.kill(agents(lab)[0], signal.SIGKILL)
    lab.ask("faults.add", device="ocs1", kind="reboot-lose", on="write", count=1)
    until(
        lab,
        lambda s: (
            s["pid"] != before["pid"]
            and s["state"] == "switching"
            and s["cycle"] >= 1
            and not s["silent"]
        ),
    )
    settled(lab)


def test_an_up_that_was_killed_between_slots_is_completed_by_the_next(lab: Lab) -> None:
    plan = lab.plan("round", [], schedule=SCHEDULE)
    first, deadline = lab.command("up", "--topology", plan), time.monotonic() + 60
    while not any('"made": [1, 2]' in text for text in lab.stored("SELECT up FROM current")):
        assert time.monotonic() < deadline and first.poll() is None
        time.sleep(0.01)
    first.kill()
    first.communicate()
    assert "were not made and verified" in lab.testbed("status").must()["slots"]
    assert (
        "were not made and verified"
        in lab.testbed("service", "start", "schedule").envelope["message"]
    )
    again = lab.up(plan).must()
    assert again["notes"][0].startswith("3 slots of 5 made and verified")
    settled(lab)
    lab.testbed("rollback").must()
    assert not any(lab.light().values())


def test_a_job_lives_beside_slots_is_paused_and_dies_and_is_launched_without_touching_them(
    lab: Lab,
) -> None:
    job = {
        "name": "living",
        "workload": "allreduce",
        "ranks": HOSTS,
        "rings": [HOSTS],
        "args": {"loop": True, "minbytes": "64K"},
    }
    lab.up(lab.plan("both", ring((2, 3)), schedule=SCHEDULE, job=job), "--no-job").must()
    try:
        pid, living = state(lab)["pid"], Job(lab)
        assert lab.testbed("job", "launch").must()["state"] == "running"
        os.kill(living.ranks("gpu02")[0], signal.SIGKILL)
        before = state(lab)["cycle"]
        until(
            lab, lambda s: s["cycle"] > before + 1 and s["state"] == "switching" and not s["silent"]
        )
        assert lab.testbed("job", "launch").must()["state"] == "running" and living.advances()
        [rank] = living.ranks("gpu02")
        assert (
            b"TESTBED_SLOTS=/var/lib/testbed/slots/" in Path(f"/proc/{rank}/environ").read_bytes()
        )
        paused = lab.testbed("job", "pause", "--for", "5m").must()
        before = state(lab)["cycle"]
        until(lab, lambda s: s["cycle"] > before + 1 and s["state"] == "switching")
        still = lab.testbed("job", "status").must()
        assert (still["state"], still["iterations"]) == ("paused", paused["iterations"])
        assert lab.testbed("job", "resume").must()["state"] == "running" and living.advances()
        assert lab.testbed("job", "stop").must()["state"] == "stopped"
        assert state(lab)["pid"] == pid and state(lab)["state"] == "switching"
        settled(lab)
    finally:
        lab.testbed("service", "stop", "schedule")


@pytest.mark.parametrize("whose", ["turner", "agent", "both", "device"])
def test_whoever_is_killed_whenever_slots_are_whole_again(changing: Lab, whose: str) -> None:
    random.seed(whose)
    for _ in range(5):  # the sixth death of a turner within a minute is its last
        before = until(changing, lambda s: s["state"] == "switching")
        time.sleep(random.random() * 0.6)
        if whose in ("scheduler", "both"):
            os.kill(before["pid"], signal.SIGKILL)
        if whose in ("agent", "both"):
            os.kill(random.choice(agents(changing)), signal.SIGKILL)
        if whose == "device":
            kind = random.choice(["drop-before", "drop-after", "reboot-lose", "reboot-keep"])
            changing.ask("faults.add", device="ocs1", kind=kind, on="write", count=1)
        changed = changing.writes()
        until(
            changing,
            lambda s: (
                s["state"] == "switching"
                and not s["silent"]
                and (whose != "scheduler" or s["pid"] != before["pid"])  # noqa: B023
            ),
        )
        deadline = time.monotonic() + 60
        while changing.writes() == changed:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    time.sleep(2.0)
    settled(changing)


def test_with_the_turner_and_its_keeper_gone_hosts_stay_in_a_slot_and_the_next_command_goes_on(
    changing: Lab,
) -> None:
    worker = state(changing)["pid"]
    keeper = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (keeper, worker):
        os.kill(pid, signal.SIGKILL)
    time.sleep(5.0)
    status = changing.testbed("status").must()
    assert any(
        line.startswith("slots: the schedule service died in slot ") for line in status["drift"]
    )
    assert [run["resume"] for run in status["unfinished"]] == ["testbed service start schedule"]
    assert changing.testbed("service", "run", "schedule", "--once").must()["ring_changes"] == 5
    settled(changing)
