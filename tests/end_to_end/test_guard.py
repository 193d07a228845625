"""Fibres cut on a real emulated lab while a job runs: the guard says where, traffic is rerouted,
planned routes come back.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import ROOT, TESTBED, Lab
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.lab,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

SMALL = ("--hosts", "4", "--ports", "3", "--free-ports")
"""Four hosts with three ports: port 3 is spare."""
HOSTS = [f"gpu{n:02d}" for n in range(1, 5)]
LINKS = [
    ("gpu01:p1", "gpu02:p1"),
    ("gpu02:p2", "gpu03:p2"),
    ("gpu03:p1", "gpu04:p1"),
    ("gpu04:p2", "gpu01:p2"),
]
JOB = {
    "name": "mlp",
    "workload": "train",
    "ranks": HOSTS,
    "rings": [HOSTS],
    "args": {"iterations": 0, "hidden": 64},
}


class Watching:
    """A guard in the foreground and what it says."""

    def __init__(self, lab: Lab, *argv: str) -> None:
        command = [
            str(TESTBED),
            "service",
            "run",
            "guard",
            "--jsonl",
            "--hold",
            "300ms",
            "--look",
            "500ms",
            *argv,
        ]
        self.process = subprocess.Popen(
            command,
            env=lab.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.reported: list[dict[str, Any]] = []
        self._news: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._news.put(json.loads(line))

    def wait(self, kind: str, limit_s: float = 20.0) -> dict[str, Any]:
        give_up = time.monotonic() + limit_s
        while time.monotonic() < give_up:
            try:
                event = self._news.get(timeout=give_up - time.monotonic())
            except queue.Empty:
                break
            self.reported.append(event)
            if event["event"] == kind:
                return event
        raise AssertionError(
            f"no {kind!r} within {limit_s} s, but {[e['message'] for e in self.reported]}"
        )

    def end(self) -> int:
        self.process.terminate()
        code = self.process.wait(20)
        self._reader.join(5)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        return code


@pytest.fixture
def watching(small: Lab) -> Iterator[Watching]:
    """The ring up and guarded, its job running."""
    small.up(small.plan("ring", LINKS, job=JOB)).must()
    guard = Watching(small)
    try:
        guard.wait("watching")
        yield guard
    finally:
        guard.end()
        for fibre in small.ask("status")["fibres"]:
            if fibre["cut"]:
                small.ask("fibre", name=fibre["name"], cut=False)


def generations(lab: Lab) -> set[int]:
    return {h["generation"] for h in lab.testbed("status").envelope["data"]["hosts"]}


def iterations(lab: Lab) -> int:
    report = lab.testbed("job", "status").must()
    assert report["state"] == "running"
    return int(report["iterations"])


def test_a_cut_fibre_is_said_traffic_goes_round_it_and_the_job_goes_on(
    small: Lab, watching: Watching
) -> None:
    planned = generations(small)
    small.ask("fibre", name="f-gpu03-p1", cut=True)
    dark = watching.wait("dark")
    assert dark["link"] == "gpu03:p1--gpu04:p1"
    rerouted = watching.wait("rerouted")
    assert rerouted["around"] == ["gpu03:p1--gpu04:p1"] and not rerouted["cut_off"]
    where = [e for e in watching.reported if e["event"] == "where"] or [watching.wait("where")]
    assert "ocs1:3" in where[0]["message"] or "ocs1:19" in where[0]["message"]

    status = small.testbed("status", "--exit-code")
    assert status.exit_code == 8
    [line] = status.envelope["data"]["dark"]
    assert (
        line.startswith("gpu03:p1--gpu04:p1 is dark: no light at gpu03:p1, gpu04:p1")
        and "ocs1:3" in line
    )
    assert (
        f"routes: traffic is rerouted around gpu03:p1--gpu04:p1 (generation {rerouted['generation']})"
        in status.envelope["data"]["drift"]
    )
    assert generations(small) == {rerouted["generation"]}
    before = iterations(small)
    assert iterations(small) > before

    small.ask("fibre", name="f-gpu03-p1", cut=False)
    watching.wait("restored")
    assert generations(small) == planned
    assert small.testbed("status", "--exit-code").exit_code == 0
    runs = small.testbed("run", "list", "--limit", "2").must()["runs"]
    assert [(r["verb"], r["status"]) for r in runs] == [("guard", "ok")] * 2
    assert watching.end() == 0


def test_a_host_that_is_cut_off_is_named_and_the_others_stay_joined(
    small: Lab, watching: Watching
) -> None:
    for name in ("f-gpu03-p1", "f-gpu03-p2"):
        small.ask("fibre", name=name, cut=True)
    while not (found := watching.wait("rerouted"))["cut_off"]:
        pass
    assert (
        found["cut_off"] == ["gpu03"] and "cut off: gpu03; 3 hosts stay joined" in found["message"]
    )
    small.ask("fibre", name="f-gpu03-p1", cut=False)
    small.ask("fibre", name="f-gpu03-p2", cut=False)
    watching.wait("restored", 30.0)


def test_an_up_that_avoids_the_fibre_takes_over_and_the_guard_stands_back_meanwhile(
    small: Lab, watching: Watching
) -> None:
    small.ask("fibre", name="f-gpu03-p1", cut=True)
    watching.wait("rerouted")
    plan = small.folder / "ring.json"
    report = small.up(plan, "--avoid", "f-gpu03-p1").must()
    assert report["made"] == 2 and ("1.1.3", "1.1.4") in small.light()["ocs3"]
    assert watching.wait("watching")["plan"] == "ring"
    small.ask("fibre", name="f-gpu03-p3", cut=True)
    assert watching.wait("rerouted")["around"] == ["gpu03:p3--gpu04:p3"], (
        "it guards the ports the links have now"
    )
    small.ask("fibre", name="f-gpu03-p3", cut=False)
    watching.wait("restored")
    assert small.up(plan, "--avoid", "gpu03:p1").must()["nothing_to_do"]
    refused = small.up(plan, "--avoid", "gpu03:p1", "--avoid", "gpu03:p3")
    assert (
        refused.exit_code == 3
        and "gpu03:p1 is to be avoided, and gpu03 has no spare port" in refused.envelope["message"]
    )
    small.ask("fibre", name="f-gpu03-p1", cut=False)


def test_a_device_that_does_not_answer_is_said_and_everything_else_goes_on(
    small: Lab, watching: Watching
) -> None:
    small.ask("faults.add", device="ocs2", kind="hang")
    try:
        lost = watching.wait("device lost", 40.0)
        assert lost["device"] == "ocs2" and "its light stays as it is" in lost["message"]
        status = small.testbed("status")
        assert (
            status.exit_code == 5
            and "ocs2" in status.envelope["message"]
            and len(status.envelope["data"]["hosts"]) == 4
        )
        before = iterations(small)
        assert iterations(small) > before
    finally:
        for fault in small.ask("faults.list")["faults"]["ocs2"]:
            small.ask("faults.remove", device="ocs2", number=fault["number"])
    assert watching.wait("device back", 40.0)["device"] == "ocs2"


def test_up_guard_starts_one_in_the_background_and_down_ends_it(small: Lab) -> None:
    plan = small.plan("pair", [("gpu01:p1", "gpu02:p1"), ("gpu01:p2", "gpu02:p2")])
    run = small.up(plan, "--guard", "--jobs", "--restarts", "5/h").must()["run"]
    guard = small.testbed("status").must()["guard"]
    assert guard.startswith("watching, pid ") and guard.endswith("recovers the job up to 5/h")
    other = small.up(plan, "--guard", "--jobs")
    assert other.exit_code == 4 and "up to 5/h, not 3/h" in other.envelope["message"], (
        "it is not said to do what it does not"
    )
    second = small.testbed("service", "run", "guard")
    assert (
        second.exit_code == 4
        and "another guard service runs for this plan" in second.envelope["message"]
    )
    small.ask("fibre", name="f-gpu01-p1", cut=True)
    log = small.folder / "state" / "runs" / run / "guard.jsonl"
    until(lambda: "rerouted" in log.read_text())
    small.ask("fibre", name="f-gpu01-p1", cut=False)
    until(lambda: "restored" in log.read_text())
    pid = int(guard.split("pid ")[1].split()[0])
    small.testbed("down", "--yes").must()
    # it has ended; its parent, the first process, may have yet to notice
    until(lambda: not Path(f"/proc/{pid}").exists())
    assert small.testbed("status").must()["guard"] == ""
    assert small.testbed("service", "run", "guard").exit_code == 2, (
        "nothing is up, so there is nothing to guard"
    )


def test_a_host_without_power_is_said_and_traffic_of_the_others_goes_round_it(small: Lab) -> None:
    small.up(small.plan("ring", LINKS)).must()
    guard = Watching(small)
    try:
        guard.wait("watching")
        # it is gone until the lab starts again, so this test is the last one
        small.ask("host.down", host="gpu04")
        while (found := guard.wait("rerouted", 40.0))["cut_off"] != ["gpu04"]:
            pass
        assert (
            "host lost" in {e["event"] for e in guard.reported}
            or guard.wait("host lost", 40.0)["host"] == "gpu04"
        )
        status = small.testbed("status")
        assert status.exit_code == 5 and "gpu04" in status.envelope["message"]
        hosts = {h["name"]: h for h in status.envelope["data"]["hosts"]}
        assert [hosts[name]["generation"] for name in HOSTS[:3]] == [
            found["generation"]
        ] * 3 and not hosts["gpu04"]["ok"]
    finally:
        guard.end()
