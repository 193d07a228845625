"""Changes that go back by themselves, on real hosts and sockets, with the process that watches
alive and killed.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Lab, ring
from tests.end_to_end.test_job import FORWARD, job
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.lab,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

RING, MOVED = ring((1, 2)), [*ring((1, 2))[1:], ("gpu01:p3", "gpu02:p3")]


def awaited(lab: Lab) -> dict[str, Any]:
    """The newest record, as the store has it."""
    db = sqlite3.connect(f"file:{lab.folder}/data/testbed.sqlite3?mode=ro", uri=True)
    db.row_factory = sqlite3.Row
    try:
        return dict(db.execute("SELECT * FROM awaited ORDER BY rowid DESC LIMIT 1").fetchone())
    finally:
        db.close()


def ended(pid: int) -> bool:
    """Whether the process has ended, perhaps unburied."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except FileNotFoundError:
        return True


def test_unconfirmed_a_plan_and_its_job_give_way_to_the_ones_before(lab: Lab) -> None:
    first = lab.up(lab.plan("ring", RING, job=job([FORWARD]) | {"name": "first"})).must()
    was = lab.light()
    second = lab.plan("moved", MOVED, job=job([FORWARD]) | {"name": "second"})
    report = lab.up(second, "--confirm-within", "20s").must()
    assert (
        report["confirm"]["back"] == "ring"
        and report["confirm"]["watched"]
        and report["job"]["name"] == "second"
    )
    watcher = awaited(lab)["pid"]
    until(lambda: awaited(lab)["state"] != "pending", 120.0)
    until(lambda: ended(watcher))
    assert awaited(lab)["state"] == "reverted" and lab.light() == was
    status = lab.testbed("status").must()
    assert (
        status["ok"]
        and status["plan"] == "ring"
        and status["confirm"] is None
        and not status["locked_by"]
    )
    now = lab.testbed("job", "status").must()
    assert (now["name"], now["state"]) == ("first", "running") and now["run"] != first["run"]
    assert lab.testbed("verify").must()["ok"]
    late = lab.testbed("confirm")
    assert late.exit_code == 9 and "not confirmed in time" in late.envelope["message"]
    lab.testbed("job", "stop").must()


def test_confirmed_in_time_it_stays_and_nothing_comes_after(lab: Lab) -> None:
    lab.up(lab.plan("ring", RING)).must()
    report = lab.up(lab.plan("pair", [("gpu01:p3", "gpu02:p3")]), "--confirm-within", "30s").must()
    moved, watcher = lab.light(), awaited(lab)["pid"]
    assert lab.testbed("confirm").must()["of"] == report["run"]
    until(lambda: ended(watcher), 20.0)
    # longer than everybody would have waited for a word
    until(lambda: awaited(lab)["due"] + 11.0 < time.time())
    status = lab.testbed("status").must()
    assert status["ok"] and status["plan"] == "pair" and lab.light() == moved
    running = {h["name"] for h in status["hosts"] if h["generation"] is not None}
    assert running == {"gpu01", "gpu02"}, "hosts that left are cleared"


def test_killed_with_nobody_left_to_watch_the_hosts_go_back_alone_and_the_next_command_does_the_rest(
    lab: Lab,
) -> None:
    lab.up(lab.plan("ring", RING)).must()
    was = lab.light()
    ring_generation = lab.testbed("status").must()["generation"]
    report = lab.up(lab.plan("moved", MOVED), "--confirm-within", "2s").must()
    os.kill(awaited(lab)["pid"], signal.SIGKILL)

    def back() -> bool:
        hosts = lab.testbed("status").envelope["data"]["hosts"]
        return all(h["generation"] != report_generation for h in hosts)

    report_generation = awaited(lab)["generation"]
    until(back, 60.0)
    assert report_generation != ring_generation and lab.light() != was, (
        "light is not a host's to move"
    )
    status = lab.testbed("status")
    assert (
        status.envelope["data"]["confirm"]["left_s"] < 0
        and not status.envelope["data"]["confirm"]["watched"]
    )
    next_ = lab.up(lab.plan("ring", RING)).must()
    assert next_["notes"][0].startswith(
        f"run {report['run']} (moved) was not confirmed in time; run "
    )
    assert next_["nothing_to_do"] and lab.light() == was
    assert lab.testbed("status").must()["ok"] and lab.testbed("verify").must()["ok"]
    log = lab.folder / "state" / "runs" / report["run"] / "confirm.log"
    assert log.exists() and (log.stat().st_mode & 0o077) == 0
