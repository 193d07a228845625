"""`testbed design periodic`: both predictions, a plan that reads, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from optics import BadFile
from orchestrator.plan.design.periodic import forecast
from orchestrator.plan.reader import read_plan
from tests.house.repository import ROOT
from tests.kit.labs import lab_of

AT = ("--inventory", ROOT / "inventory" / "emulated")
DLRM = ("--workload", ROOT / "examples" / "workloads" / "dlrm.yaml")
PAGE = (ROOT / "docs" / "how-to" / "run-a-schedule.md").read_text()


def test_a_schedule_is_shown_beside_the_plan_without_one_as_on_its_page(
    cli: Any, tmp_path: Path
) -> None:
    result = cli(
        "design", "periodic", *AT, *DLRM, "--dwell", "0.45", "--out", tmp_path / "plan.json"
    )
    assert result.code == 0, result.err
    assert result.out in PAGE
    assert f"up --inventory {AT[1]} --topology {tmp_path / 'plan.json'}" in result.err
    plan = read_plan((tmp_path / "plan.json").read_text(), "plan.json", lab_of("emulated"))
    assert plan.schedule is not None and len(plan.schedule.slots) == 3 and not plan.links
    assert plan.job is not None and plan.job.traffic is not None
    assert {
        (one.step, one.begin, one.end)
        for group in plan.job.traffic.groups
        for one in group.schedule
    } == {(1, 0.0, 1.0)}
    assert plan.job.predicted["iteration_ms"] == pytest.approx(2880, rel=0.02)
    found = forecast(plan, lab_of("emulated"))
    assert found == pytest.approx({key: plan.job.predicted[key] for key in found}, rel=1e-3), (
        "also without what the file says"
    )


def test_without_a_dwell_light_is_there_for_nine_tenths_of_the_time(cli: Any) -> None:
    data = cli("design", "periodic", *AT, *DLRM, "--guard", "0.01", "--json").json["data"]
    assert data["plan"]["schedule"] == {
        "pattern": "staggered",
        "ports": ["p1", "p2", "p3", "p4"],
        "dwell_s": 0.64,
        "guard_s": 0.01,
    }
    assert data["duty"] == 0.9 and data["dark_ms"] == 60
    assert data["iteration_ms"]["static"] < data["iteration_ms"]["periodic"]


def test_a_guard_may_be_as_long_as_packets_wait(cli: Any) -> None:
    result = cli("design", "periodic", *AT, *DLRM, "--dwell", "0.45", "--guard", "auto")
    assert "dwell 450 ms, guard 4.0 ms, dark 60 ms" in result.out
    data = cli(
        "design", "periodic", *AT, *DLRM, "--dwell", "0.45", "--guard", "auto", "--json"
    ).json["data"]
    assert data["plan"]["schedule"]["guard_s"] == "auto"
    for text in ("never", "-1", "nan"):
        assert (
            f"--guard {text}: wanted a time of 0 to 3600 s, or auto"
            in cli("design", "periodic", *AT, *DLRM, "--guard", text).err
        )


def test_all_ports_may_show_the_same_pairs(cli: Any) -> None:
    argv = (
        "design",
        "periodic",
        *AT,
        *DLRM,
        "--dwell",
        "0.45",
        "--pattern",
        "round-robin",
        "--ports",
        "2",
        "--name",
        "n",
    )
    data = cli(*argv, "--json").json["data"]
    assert (
        data["slots"] == 11
        and data["plan"]["schedule"]["ports"] == ["p1", "p2"]
        and data["plan"]["name"] == "n"
    )


def test_ports_that_move_one_at_a_time_are_dark_for_a_part_of_the_nights(cli: Any) -> None:
    argv = ("design", "periodic", *AT, *DLRM, "--dwell", "0.45", "--ports", "2", "--json")
    found = {name: cli(*argv, "--pattern", name).json["data"] for name in ("opera", "staggered")}
    assert found["opera"]["plan"]["schedule"] == {
        "pattern": "opera",
        "ports": ["p1", "p2"],
        "dwell_s": 0.45,
    }
    assert found["opera"]["slots"] == 2 * found["staggered"]["slots"] == 12
    lost = {name: 1 - data["duty"] for name, data in found.items()}
    assert lost["opera"] == pytest.approx(lost["staggered"] / 2, rel=0.01)


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        ((*DLRM, "--dwell", "0.1"), "schedule.dwell_s: ocs1 takes 50 ms from slot to slot"),
        ((*DLRM, "--dwell", "0"), "--dwell 0: wanted a time above 0"),
        (
            (*DLRM, "--dwell", "0.45", "--guard", "0.5"),
            "a guard of 0.5 s leaves nothing of a dwell of 0.45 s",
        ),
        (
            (*DLRM, "--pattern", "oprea"),
            "--pattern oprea: not one of staggered, round-robin, opera, demand",
        ),
        ((), "design periodic: no workload given"),
    ],
)
def test_what_cannot_be_scheduled_is_refused_before_a_file_is_written(
    cli: Any, tmp_path: Path, argv: tuple[object, ...], problem: str
) -> None:
    result = cli("design", "periodic", *AT, *argv, "--out", tmp_path / "made.json")
    assert (
        result.code not in (0, 1)
        and problem in result.err
        and not (tmp_path / "made.json").exists()
    )


def test_two_hosts_are_told_that_they_need_no_schedule(cli: Any, tmp_path: Path) -> None:
    workload = {"schema": "testbed.workload/1", "name": "w", "ranks": 2, "compute_s": 0.01}
    (tmp_path / "w.yaml").write_text(
        json.dumps({**workload, "transfers": [{"src": 0, "dst": 1, "bytes": 1_000_000}]})
    )
    for pattern in ("staggered", "demand"):
        argv = (
            "--workload",
            tmp_path / "w.yaml",
            "--pattern",
            pattern,
            "--out",
            tmp_path / "made.json",
        )
        result = cli("design", "periodic", *AT, *argv)
        assert (
            result.code == 3
            and "two hosts need no schedule" in result.err
            and not (tmp_path / "made.json").exists()
        )


def test_pairs_with_more_bytes_meet_more_often(cli: Any, tmp_path: Path) -> None:
    transfers = [
        {"src": a, "dst": b, "bytes": 200_000_000 if (a, b) == (0, 3) else 1_000_000}
        for a in range(4)
        for b in range(4)
        if a != b
    ]
    workload = {
        "schema": "testbed.workload/1",
        "name": "w",
        "ranks": 4,
        "compute_s": 0.01,
        "transfers": transfers,
    }
    (tmp_path / "w.yaml").write_text(json.dumps(workload))
    argv = ("--workload", tmp_path / "w.yaml", "--dwell", "0.3", "--ports", "2", "--scale", "1")
    found = {
        name: cli("design", "periodic", *AT, *argv, "--pattern", name, "--json").json["data"]
        for name in ("demand", "staggered")
    }
    met = [
        {link["a"][:5], link["b"][:5]}
        for slot in found["demand"]["plan"]["schedule"]["slots"]
        for link in slot["links"]
    ]
    assert met.count({"gpu01", "gpu04"}) == 6 and met.count({"gpu01", "gpu02"}) == 1
    assert (
        found["demand"]["iteration_ms"]["periodic"] < found["staggered"]["iteration_ms"]["periodic"]
    )


def test_the_plan_on_the_page_is_one_of_the_lab_and_its_mistake_is_named_as_shown() -> None:
    text = PAGE.partition("```json\n")[2].partition("```")[0]
    plan = read_plan(text, "plan.json", lab_of("emulated"))
    assert plan.schedule is not None and len(plan.schedule.slots) == 2
    with pytest.raises(BadFile) as caught:
        read_plan(text.replace("0.45", "0.1"), "plan.json", lab_of("emulated"))
    assert caught.value.problems[0] in PAGE
