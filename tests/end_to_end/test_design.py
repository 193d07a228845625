"""A designed topology on the lab: the job moves the workload's traffic, and what was predicted
stands beside what is measured.
"""

from __future__ import annotations

import json
import os

import pytest

from tests.end_to_end.conftest import Lab

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(400),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

WORKLOAD = """\
schema: testbed.workload/1
name: small
ranks: 6
batch: 4
layers:
  - {kind: dense, parameters: 30000000}
  - {kind: embedding, tables: 6, rows: 1000, width: 65536}
compute_s: 0.004
"""


@pytest.mark.long
def test_a_designed_plan_comes_up_and_ends_with_prediction_beside_measurement(lab: Lab) -> None:
    workload, plan = lab.folder / "small.yaml", lab.folder / "small.json"
    workload.write_text(WORKLOAD)
    designed = lab.testbed(
        "design", "topoopt", "--workload", workload, "--out", plan, "--iterations", "5"
    ).must()
    assert designed["plan"] == json.loads(plan.read_text())
    job = lab.up(plan).must()["job"]
    predicted = json.loads(plan.read_text())["predicted"]
    assert job["state"] in ("running", "finished") and job["workload"] == "replay"
    assert (job["iteration_expected_ms"], job["busbw_expected_mbps"]) == (
        predicted["iteration_ms"],
        predicted["busbw_mbps"],
    )
    assert job["iteration_ms"] >= predicted["iteration_ms"] * 0.9, (
        "nothing is faster than the links"
    )
    while job["state"] == "running":
        job = lab.testbed("job", "status").must()
    assert job["state"] == "finished"
    logs = lab.testbed("job", "logs").must()["lines"]
    assert not [line for lines in logs.values() for line in lines if "Traceback" in line]
    result = lab.testbed("design", "compare").must()
    figures = {row["figure"]: row for row in result["figures"]}
    assert result["run"] == job["run"] and figures["iteration"]["measured"] == pytest.approx(
        job["iteration_ms"], rel=0.01
    )
    assert figures["all-reduce"]["off"] == pytest.approx(
        figures["all-reduce"]["measured"] / predicted["allreduce_ms"] - 1, abs=1e-3
    )
    for name in ("diameter", "mean hops"):
        assert figures[name]["measured"] == pytest.approx(figures[name]["predicted"], abs=1e-3), (
            "asked of the hosts"
        )
    assert abs(figures["bandwidth tax"]["off"]) < 0.1, "by the counters of the ports"


@pytest.mark.long
def test_a_second_job_is_designed_beside_the_first_and_leaves_its_circuits_and_its_job_alone(
    lab: Lab,
) -> None:
    first, second = (lab.folder / f"job-{number}.json" for number in (1, 2))
    workloads = [lab.folder / f"job-of-{ranks}.yaml" for ranks in (4, 2)]
    for path, ranks in zip(workloads, (4, 2), strict=True):
        path.write_text(WORKLOAD.replace("ranks: 6", f"ranks: {ranks}"))
    design = ("design", "topoopt", "--scale", "0.1", "--workload")
    lab.testbed(*design, workloads[0], "--out", first, "--iterations", "0").must()
    answer = lab.testbed(
        *design, workloads[1], "--out", second, "--beside", first, "--iterations", "4"
    )
    name = answer.must()["plan"]["name"]
    assert json.loads(second.read_text())["job"]["ranks"] == ["gpu05", "gpu06"], (
        "the hosts that are free"
    )
    assert (
        answer.envelope["hint"] == f"testbed up --topology {second} --as {name}"
        and name == "small-topoopt-2"
    )

    lab.up(first).must()
    light, before = lab.light(), lab.testbed("job", "status").must()
    own = {"TESTBED_OWNER": name}
    try:
        job = lab.up(second, **own).must()["job"]
        assert job["workload"] == "replay" and job["ranks"] == 2
        both, writes = lab.light(), lab.writes()
        assert all(pairs <= both[device] for device, pairs in light.items()), (
            "nothing of the first was touched"
        )
        assert sum(map(len, both.values())) == sum(map(len, light.values())) + 2 * 4
        after = lab.testbed("job", "status").must()
        assert (after["state"], after["name"]) == ("running", before["name"]) and after[
            "iterations"
        ] > before["iterations"]
    finally:
        lab.testbed("down", "--yes", **own).must()
    assert (
        lab.light() == light
        and lab.writes() != writes
        and lab.testbed("job", "status").must()["state"] == "running"
    )


@pytest.mark.long
def test_a_running_job_is_profiled_and_a_change_is_weighed_before_it_is_made(lab: Lab) -> None:
    workload, ring, better = (
        lab.folder / "small.yaml",
        lab.folder / "ring.json",
        lab.folder / "better.json",
    )
    workload.write_text(WORKLOAD)
    lab.testbed(
        "design", "ring", "-w", workload, "-o", ring, "--iterations", "0", "--scale", "0.2"
    ).must()
    lab.testbed(
        "design", "topoopt", "-w", workload, "-o", better, "--iterations", "0", "--scale", "0.2"
    ).must()
    lab.up(ring).must()
    first = {row["figure"]: row for row in lab.testbed("design", "compare").must()["figures"]}
    assert abs(first["bandwidth tax"]["off"]) < 0.1, "counted now, as nobody had before"

    out = lab.folder / "measured.yaml"
    found = lab.testbed("job", "profile", "--iterations", "3", "--out", out).must()
    assert found["iterations"] >= 3 and len(found["links"]) == 24
    predicted = json.loads(ring.read_text())["predicted"]
    assert found["tax"] == pytest.approx(predicted["bandwidth_tax"], rel=0.1), (
        "what ports carried is what was reckoned"
    )
    again = lab.testbed("design", "topoopt", "-w", out).must()
    assert again["plan"]["name"].startswith("small-ring-measured")
    figures = {row["figure"]: row for row in lab.testbed("design", "compare").must()["figures"]}
    assert figures["bandwidth tax"]["measured"] == pytest.approx(found["tax"], rel=0.05)

    weighed = lab.testbed("design", "rewire", "-t", better, "--link-up-s", "5").must()
    assert weighed["up"] == "small-ring" and weighed["made"] > 0 and weighed["dark_s"] > 5
    saved = weighed["before_s"] - weighed["after_s"]
    assert weighed["before_s"] == pytest.approx(predicted["iteration_ms"] / 1e3, rel=0.05)
    assert (weighed["iterations"] is None) == (saved <= 0)
    if saved > 0:
        assert weighed["iterations"] == pytest.approx(weighed["dark_s"] / saved)
    lab.testbed("job", "stop").must()
    assert lab.testbed("job", "profile").envelope["code"] == "E-MISSING"
