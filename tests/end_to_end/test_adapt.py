"""Circuits that follow a mixture of experts on an emulated lab; whoever is killed at whatever
point, routes end confirmed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from optics import TestbedError
from orchestrator.hosts import Hello
from orchestrator.session import load_lab, open_session
from tests.drills.job_truth import Job
from tests.end_to_end.conftest import ROOT, Answer, Lab

pytestmark = [
    # every point of a turn, in memory: tests/extensions/adapt/test_region_change.py
    pytest.mark.long,
    pytest.mark.lab,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

HOSTS = [f"gpu{n:02d}" for n in range(1, 5)]
LINKS = [
    ("gpu01:p1", "gpu02:p1"),
    ("gpu03:p1", "gpu04:p1"),
    ("gpu02:p2", "gpu03:p2"),
    ("gpu04:p2", "gpu01:p2"),
]
JOB = {
    "name": "experts",
    "workload": "moe",
    "ranks": HOSTS,
    "args": {"iterations": 0, "tokens": 512, "width": 32, "skew": 4, "drift": 2, "compute_ms": 150},
    "regions": [
        {
            "name": "all",
            "hosts": HOSTS,
            "ports": [f"{h}:p{p}" for h in HOSTS for p in (1, 2)],
            "fallback": "ideal",
        }
    ],
}
ADAPT = {"every": 1, "dark_share": 1.0}
"""Every look at the traffic may change circuits, however slow the machine: what is tested is what
is left behind.
"""
QUIET_S = 15.0


class Site(Lab):
    """The lab, and its job."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.job = Job(self, "experts")

    def bring_up(self) -> None:
        plan = self.plan("experts", LINKS, segments=[{"name": "ideal"}], job=JOB, adapt=ADAPT)
        self.up(plan).must()

    def adapt(self, *argv: str, **env: str) -> Answer:
        """The adapter, to which something happens at one point of its way
        (tests/drills/deadly.py).
        """
        command = [
            sys.executable,
            "-m",
            "tests.drills.deadly",
            "service",
            "run",
            "adapt",
            *argv,
            "--json",
        ]
        process = subprocess.Popen(
            command,
            env=self.env | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        out, err = process.communicate(timeout=120)
        return Answer(process.returncode, json.loads(out.splitlines()[-1]) if out else {}, err)

    def confirmed(self) -> set[int | None]:
        """The generations that hosts run once none of them is going to change by itself. Raises:
        AssertionError - one still is.
        """
        until = time.monotonic() + QUIET_S

        async def look() -> Mapping[str, Hello | TestbedError]:
            async with open_session(
                load_lab(self.inventory), self.inventory, self.folder / "look"
            ) as session:
                return await session.hosts.channels.connect()

        while True:
            hellos = asyncio.run(look())
            counting = [
                h
                for h in HOSTS
                if not isinstance(hello := hellos[h], Hello) or hello.pending_s is not None
            ]
            if not counting:
                return {
                    hello.active
                    for hello in hellos.values()
                    if isinstance(hello, Hello) and hello.active is not None
                }
            assert time.monotonic() < until, f"{counting} are not confirmed: {hellos}"
            time.sleep(0.2)

    def status(self) -> dict[str, Any]:
        return dict(self.testbed("status").envelope["data"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Four hosts with two optical ports and one at a packet switch."""
    lab = Site(tmp_path_factory.mktemp("adapting"))
    argv = [
        "--hosts",
        "4",
        "--ports",
        "2",
        "--electrical",
        "ideal@40",
        "--rate-mbps",
        "100",
        "--free-ports",
    ]
    argv += ["--out", str(lab.inventory), "--state", str(lab.folder / "lab")]
    subprocess.run(
        [sys.executable, "-m", "emulators.generate", *argv],
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    lab.testbed("lab", "start").must()
    try:
        lab.bring_up()
        yield lab
    finally:
        lab.testbed("service", "stop", "adapt")
        lab.testbed("lab", "stop")


def test_an_adapter_killed_with_the_light_gone_leaves_confirmed_routes_and_the_next_one_goes_on(
    site: Site,
) -> None:
    answer = site.adapt(DRILL_LIKE="after .*(add|ent-crs)", DRILL_NTH="1")
    assert answer.exit_code == -signal.SIGKILL, answer
    assert len(site.confirmed()) == 1
    assert site.job.advances()
    again = site.adapt("--turns", "2").must()
    assert (again["changes"], again["failures"]) == (2, 0)
    status = site.status()
    assert {host["generation"] for host in status["hosts"]} == site.confirmed()
    assert not status["unfinished"] and not status["drift"] and not status["locked_by"], status
    assert site.job.gapless() == []


POINTS = [
    ("before gpu03 stage", 1),
    ("after gpu02 arm", 1),
    ("before commit of Store.set_current", 1),
    ("before gpu03 commit", 1),
    ("after gpu04 commit", 1),
    ("before .*(add|ent-crs)", 1),
    ("after .*(add|ent-crs)", 2),
    ("before gpu01 confirm", 1),
    ("after gpu02 confirm", 1),
    ("before commit of Store.set_current", 2),
]


@pytest.mark.parametrize(("like", "nth"), POINTS)
def test_an_adapter_killed_anywhere_leaves_confirmed_routes_over_which_all_hosts_reach_each_other(
    site: Site, like: str, nth: int
) -> None:
    answer = site.adapt(DRILL_LIKE=like, DRILL_NTH=str(nth))
    assert answer.exit_code == -signal.SIGKILL, answer
    site.confirmed()
    assert site.job.advances(), "the job goes on whatever circuits there are"
    [left] = [run for run in site.status()["unfinished"] if run["status"] == "died"]
    site.testbed("rollback", left["run"]).must()
    assert len(site.confirmed()) == 1 and not site.status()["unfinished"]
    site.testbed("verify").must()
    assert site.job.gapless() == []


@pytest.mark.parametrize(
    "like", ["before gpu03 commit", "after .*(add|ent-crs)", "before gpu01 confirm"]
)
def test_an_agent_killed_during_a_turn_costs_one_turn(site: Site, like: str) -> None:
    mark = site.folder / "moment"
    command = [
        sys.executable,
        "-m",
        "tests.drills.deadly",
        "service",
        "run",
        "adapt",
        "--turns",
        "3",
        "--json",
    ]
    env = site.env | {"DRILL_LIKE": like, "DRILL_DO": f"wait {mark}"}
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    until = time.monotonic() + 60
    while not mark.exists() and time.monotonic() < until:
        time.sleep(0.02)
    _, daemon = site.job.agents("gpu03")
    os.kill(daemon, signal.SIGKILL)
    time.sleep(0.5)
    mark.unlink()
    out, err = process.communicate(timeout=120)
    report = json.loads(out.splitlines()[-1])["data"]
    assert process.returncode == 0 and report["changes"] == 3 and report["failures"] <= 2, (
        out,
        err,
    )
    assert len(site.confirmed()) == 1
    assert site.job.gapless() == []


def test_a_device_that_restarts_in_a_turn_costs_one_turn(site: Site) -> None:
    site.ask("faults.add", device="ocs1", kind="reboot-keep", match="conn:add", count=1)
    report = site.adapt("--turns", "2").must()
    assert report["changes"] == 2
    assert len(site.confirmed()) == 1 and site.job.gapless() == []


def test_a_rank_killed_ends_the_adapter_and_routes_stay_confirmed(site: Site) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.drills.deadly", "service", "run", "adapt", "--json"],
        env=site.env | {"DRILL_POINTS": str(site.folder / "points")},
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    time.sleep(5)
    for pid in site.job.ranks("gpu02"):
        os.kill(pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=120)
    assert (
        process.returncode == 0 and "has ended" in json.loads(out.splitlines()[-1])["data"]["last"]
    )
    assert len(site.confirmed()) == 1 and not site.status()["unfinished"]
    site.bring_up()


@pytest.mark.parametrize("like", ["", "after gpu01 arm", "before .*(add|ent-crs)"])
def test_a_fibre_cut_under_a_circuit_costs_its_circuit_and_no_iteration(
    site: Site, like: str
) -> None:
    """Whenever it is cut: before a change waits for its moment, or when light moves, too."""
    mark = site.folder / "moment"
    command = [sys.executable, "-m", "tests.drills.deadly", "service", "run", "adapt", "--jsonl"]
    process = subprocess.Popen(
        [*command, "--turns", "40"],
        env=site.env | {"DRILL_LIKE": like, "DRILL_DO": f"wait {mark}"},
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        events = (json.loads(line) for line in process.stdout)
        assert next(events)["event"] == "adapting"
        while like and not mark.exists():
            time.sleep(0.02)
        for number in (1, 2):
            site.ask("fibre", name=f"f-gpu01-p{number}", cut=True)
        mark.unlink(missing_ok=True)
        mended = next(event for event in events if event["event"] == "mended")
        assert "gpu01:p" in mended["message"]
        assert site.job.advances()
    finally:
        process.terminate()
        process.stdout.close()
        process.wait(30)
        for number in (1, 2):
            site.ask("fibre", name=f"f-gpu01-p{number}", cut=False)
    assert len(site.confirmed()) == 1 and site.job.gapless() == []


def test_an_adapter_in_the_background_stops_after_its_turn_and_before_the_plan_is_taken_down(
    site: Site,
) -> None:
    started = site.testbed("service", "start", "adapt").must()["state"]
    assert started["state"] == "adapting"
    again = site.testbed("service", "start", "adapt").must()
    assert (again["started"], again["state"]["pid"]) == (False, started["pid"])
    second = site.testbed("service", "run", "adapt")
    assert second.exit_code == 4 and "another adapt service" in second.envelope["message"]
    time.sleep(5)
    stopped = site.testbed("service", "stop", "adapt").must()
    assert stopped["stopped"] and stopped["state"]["changes"] > 0
    assert len(site.confirmed()) == 1 and not site.status()["drift"]
    assert not site.testbed("service", "stop", "adapt").must()["stopped"]
