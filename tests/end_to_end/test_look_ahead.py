"""A patch panel behind 1x2 switches: the robot wires the next plan while the first carries its
traffic, then light is flipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import ROOT, Lab

pytestmark = [
    pytest.mark.long,
    pytest.mark.lab,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

SCALE = 240
HOSTS = [f"gpu{number:02d}" for number in range(1, 7)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    lab = Lab(tmp_path_factory.mktemp("lookahead"))
    argv = [
        "--look-ahead",
        "--free-ports",
        "--out",
        str(lab.inventory),
        "--state",
        str(lab.folder / "lab"),
    ]
    subprocess.run(
        [sys.executable, "-m", "emulators.generate", *argv],
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    page = lab.inventory / "devices.yml"
    page.write_text(page.read_text().replace("time_scale: 60", f"time_scale: {SCALE}"))
    lab.testbed("lab", "start").must()
    yield lab
    lab.testbed("lab", "stop")


@pytest.fixture
def ahead(running: Lab) -> Iterator[Lab]:
    running.clean()
    yield running
    running.clean()


def ring(lab: Lab, name: str, order: list[int], **more: object) -> Path:
    hosts = [HOSTS[number - 1] for number in order]
    return lab.plan(
        name,
        [(f"{a}:p2", f"{b}:p1") for a, b in zip(hosts, [*hosts[1:], hosts[0]], strict=True)],
        **more,
    )


def heard(lab: Lab) -> dict[str, str | None]:
    return {
        f"{host}:p{port}": facts["light_from"]
        for host, seen in lab.ask("status")["hosts"].items()
        for port, facts in seen["ports"].items()
    }


def plugged(lab: Lab) -> set[tuple[str, str]]:
    """The fibres in the panel, lit or not, by all that ever happened to it."""
    found: set[tuple[str, str]] = set()
    for _, what, ingress, egress in lab.ask("truth", device="robot1")["history"]:
        (found.add if what == "lit" else found.discard)((ingress, egress))
    return found


def joined(order: list[int]) -> dict[str, str]:
    hosts = [HOSTS[number - 1] for number in order]
    found = {}
    for a, b in zip(hosts, [*hosts[1:], hosts[0]], strict=True):
        found |= {f"{a}:p2": f"{b}:p1", f"{b}:p1": f"{a}:p2"}
    return found


def moves(report: dict[str, Any]) -> int:
    return sum(part["phase"] == "move" for part in report["parts"])


def test_the_robot_works_ahead_and_the_change_itself_is_a_flip(ahead: Lab) -> None:
    first, second = (
        ring(ahead, "first", [1, 2, 3, 4, 5, 6]),
        ring(ahead, "second", [1, 2, 4, 3, 5, 6]),
    )
    report = ahead.up(first).must()
    assert heard(ahead) == joined([1, 2, 3, 4, 5, 6])
    assert [p["name"] for p in report["phases"]].index("prewire") < [
        p["name"] for p in report["phases"]
    ].index("switch"), "the first up flips after the robot too"

    writes = ahead.writes()["flip1"]
    wired = ahead.testbed("plan", "--prewire", "--topology", second).must()
    assert (wired["made"], wired["removed"], wired["waiting"], wired["flips"]) == (
        6,
        0,
        0,
        12,
    ) and moves(wired) == 6
    assert heard(ahead) == joined([1, 2, 3, 4, 5, 6]) and ahead.writes()["flip1"] == writes
    seen = {d["name"]: d for d in ahead.testbed("status").must()["devices"]}
    assert len(seen["robot1"]["prewired"]) == 6 and ahead.testbed("status").must()["ok"]
    assert ahead.testbed("verify").must()["ok"]

    before = ahead.writes()
    assert (
        ahead.testbed("plan", "--prewire", "--topology", second).must()["nothing_to_do"]
        and ahead.writes() == before
    )
    expected = ahead.testbed("plan", "--topology", second).must()
    assert expected["dark_ms_expected"] == 50.0 and expected["dark_time_scale"] == 1.0

    report = ahead.up(second).must()
    assert (
        heard(ahead) == joined([1, 2, 4, 3, 5, 6]) and ahead.writes()["robot1"] == before["robot1"]
    )
    assert moves(report) == 0 and report["pairs_ok"] == 30
    assert not any(ahead.ask("writes")["violations"].values())
    assert ahead.testbed("verify").must()["ok"] and ahead.testbed("status").must()["ok"]

    before = ahead.writes()
    report = ahead.up(first).must()
    assert (
        heard(ahead) == joined([1, 2, 3, 4, 5, 6]) and ahead.writes()["robot1"] == before["robot1"]
    ), "the way back stayed plugged"
    assert moves(report) == 0


def test_what_is_wired_ahead_is_taken_out_by_rollback_and_by_down(ahead: Lab) -> None:
    first, second = (
        ring(ahead, "first", [1, 2, 3, 4, 5, 6]),
        ring(ahead, "second", [1, 2, 4, 3, 5, 6]),
    )
    ahead.up(first).must()
    before = plugged(ahead)
    ahead.testbed("plan", "--prewire", "--topology", second).must()
    assert len(before) == 12 and len(plugged(ahead)) == 18
    ahead.testbed("rollback").must()
    assert plugged(ahead) == before and heard(ahead) == joined([1, 2, 3, 4, 5, 6])
    ahead.testbed("plan", "--prewire", "--topology", second).must()
    ahead.testbed("down", "--yes").must()
    assert ahead.light()["flip1"] == plugged(ahead) == set()


def test_a_robot_that_fails_while_it_wires_ahead_harms_nobody_and_is_asked_again(
    ahead: Lab,
) -> None:
    first, second = (
        ring(ahead, "first", [1, 2, 3, 4, 5, 6]),
        ring(ahead, "second", [1, 2, 4, 3, 5, 6]),
    )
    ahead.up(first).must()
    wanted = ahead.testbed("plan", "--topology", second).must()
    label = next(row for row in wanted["diff"] if row["device"] == "robot1")["made"][0].partition(
        "->"
    )[0]
    ahead.ask("faults.add", device="robot1", kind="stuck-port", port=label)
    answer = ahead.testbed("plan", "--prewire", "--topology", second)
    assert (
        not answer.envelope["ok"]
        and "every circuit that was lit still is" in answer.envelope["message"]
    )
    assert heard(ahead) == joined([1, 2, 3, 4, 5, 6])
    for fault in ahead.ask("faults.list")["faults"]["robot1"]:
        ahead.ask("faults.remove", device="robot1", number=fault["number"])
    ahead.testbed("resume", "last").must()
    report = ahead.up(second).must()
    assert moves(report) == 0 and heard(ahead) == joined([1, 2, 4, 3, 5, 6])


def test_a_plan_that_is_up_under_other_names_needs_no_switching_when_hosts_are_interchangeable(
    ahead: Lab,
) -> None:
    ahead.up(ring(ahead, "ring", [1, 2, 3, 4, 5, 6])).must()
    order = [1, 4, 2, 5, 3, 6]
    job = {"name": "j", "workload": "train", "ranks": [HOSTS[number - 1] for number in order]}
    other = ring(ahead, "renamed", order, interchangeable="all", job=job)
    plain = ahead.testbed("plan", "--topology", other).must()
    found = ahead.testbed("plan", "--topology", other, "--relabel").must()
    assert plain["made"] > 0 and found["made"] == found["removed"] == 0
    assert (
        found["relabel"]["moves"] == 0
        and found["relabel"]["moves_as_written"] == plain["made"] + plain["removed"]
    )
    before = ahead.writes()
    report = ahead.up(other, "--relabel", "--no-job").must()
    assert ahead.writes() == before and report["relabel"]["labels"] == found["relabel"]["labels"]
    assert heard(ahead) == joined([1, 2, 3, 4, 5, 6])
    labels = {host: report["relabel"]["labels"].get(host, host) for host in HOSTS}
    kept = json.loads((ahead.folder / "state" / "runs" / report["run"] / "plan.json").read_text())
    assert kept["job"]["ranks"] == [labels[host] for host in job["ranks"]]
    assert ahead.up(other, "--relabel", "--no-job").must()["nothing_to_do"]
