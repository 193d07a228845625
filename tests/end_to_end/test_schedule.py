"""A schedule on the emulated lab: slots made and verified, turned, and whole again whatever is killed."""

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

from tests.end_to_end.conftest import Lab

pytestmark = [pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(600)]

HOSTS = [f"gpu0{k}" for k in range(1, 7)]
SCHEDULE = {"dwell_s": 0.45, "guard_s": 0.02, "pattern": "round-robin", "ports": ["p1"], "hosts": HOSTS}


def state(lab: Lab) -> dict[str, Any]:
    [file] = (lab.folder / "data" / "turn").glob("*.json")
    return dict(json.loads(file.read_text().partition("\n")[0]))


def until(lab: Lab, look: Callable[[dict[str, Any]], object], limit_s: float = 60.0) -> dict[str, Any]:
    give_up = time.monotonic() + limit_s
    while not look(found := state(lab)):
        assert time.monotonic() < give_up, found
        time.sleep(0.02)
    return found


def agents(lab: Lab) -> list[int]:
    """The daemons of the lab's hosts, without their watchdogs."""
    listed = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    root = int(lab.ask("status")["pid"])
    rows = [(int(pid), int(parent), words) for pid, parent, words in (line.split(None, 2) for line in listed[1:])]
    parents = {pid: parent for pid, parent, _ in rows}

    def inside(pid: int) -> bool:
        while pid > 1 and pid != root:
            pid = parents.get(pid, 0)
        return pid == root

    named = {pid for pid, _, words in rows if "agent/__main__.py" in words and " attach" not in words}
    return [pid for pid in named if parents[pid] in named and inside(pid)]


@pytest.fixture
def turning(lab: Lab) -> Iterator[Lab]:
    plan = lab.plan("round", [], schedule=SCHEDULE)
    data = lab.up(plan).must()
    assert any("5 slots of 5 made and verified" in note for note in data["notes"])
    yield lab
    lab.testbed("turn", "--stop")


def settled(lab: Lab) -> None:
    """Stop the turner: what is there is a whole slot, confirmed on every host, as the store has it."""
    lab.testbed("turn", "--stop").must()
    verified = lab.testbed("verify").must()
    assert all(rung["ok"] for rung in verified["rungs"]), verified
    status = lab.testbed("status").must()
    assert not status["drift"] and len({host["generation"] for host in status["hosts"]}) == 1


def test_slots_turn_and_the_one_where_they_stop_verifies(turning: Lab) -> None:
    assert turning.testbed("status").must()["slots"].startswith("turning: slot ")
    assert turning.testbed("verify").exit_code != 0
    until(turning, lambda s: s["cycle"] >= 2)
    settled(turning)
    again = turning.testbed("turn", "--once").must()
    assert again["turns"] == 5
    turning.testbed("down", "--yes").must()
    assert not any(turning.glass().values())


@pytest.mark.parametrize("whose", ["turner", "agent", "both", "device"])
def test_whoever_is_killed_whenever_slots_are_whole_again(turning: Lab, whose: str) -> None:
    random.seed(whose)
    for _ in range(5):  # the sixth death of a turner within a minute is its last
        before = until(turning, lambda s: s["state"] == "turning")
        time.sleep(random.random() * 0.6)
        if whose in ("turner", "both"):
            os.kill(before["pid"], signal.SIGKILL)
        if whose in ("agent", "both"):
            os.kill(random.choice(agents(turning)), signal.SIGKILL)
        if whose == "device":
            kind = random.choice(["drop-before", "drop-after", "reboot-lose", "reboot-keep"])
            turning.ask("faults.add", device="ocs1", kind=kind, on="write", count=1)
        turned = turning.writes()
        until(turning, lambda s: s["state"] == "turning" and not s["silent"] and (whose != "turner" or s["pid"] != before["pid"]))  # noqa: B023
        deadline = time.monotonic() + 60
        while turning.writes() == turned:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    time.sleep(2.0)
    settled(turning)


def test_with_the_turner_and_its_keeper_gone_hosts_stay_in_a_slot_and_the_next_command_goes_on(turning: Lab) -> None:
    worker = state(turning)["pid"]
    keeper = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    for pid in (keeper, worker):
        os.kill(pid, signal.SIGKILL)
    time.sleep(5.0)
    status = turning.testbed("status").must()
    assert any(line.startswith("slots: the turner died in slot ") for line in status["drift"])
    assert turning.testbed("turn", "--once").must()["turns"] == 5
    settled(turning)
