"""What was predicted of a job beside what its records, its hosts' answers and its ports' counters
say.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from optics import Missing
from orchestrator.cli import designtext, render
from orchestrator.jobs.report import JobStatus
from orchestrator.plan.design.design import PAYLOAD
from orchestrator.verbs.profile import HOPS, versus
from tests.kit.labs import lab_of

PLAN = {
    "job": {
        "name": "sum",
        "traffic": {
            "groups": [{"id": "all", "bytes": 1000, "rings": [["a", "b", "c"]]}],
            "transfers": [{"src": "a", "dst": "b", "bytes": 500, "lane": 0}],
        },
    },
    "predicted": {
        "iteration_ms": 100.0,
        "allreduce_ms": 80.0,
        "bandwidth_tax": 1.5,
        "diameter": 2.0,
        "mean_hops": 1.25,
    },
}
SENT = 2 * 2 * 1000 + 500
LAB = lab_of("emulated")


def ran(folder: Path, iteration_ms: float, busy: float) -> None:
    """Leave the records of a job whose first iteration took twice as long."""
    rows = [
        {
            "iter": n,
            "iter_ms": ms,
            "comm_ms": ms - 5,
            "allreduce_ms": 80.0,
            "wire_bytes": 2 * SENT,
            "busy": busy,
        }
        for n, ms in enumerate((2 * iteration_ms, iteration_ms, iteration_ms), 1)
    ]
    (folder / "sum.r1.iterations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_tax_is_what_ports_sent_for_what_the_job_sends_and_hops_are_what_hosts_answered(
    tmp_path: Path,
) -> None:
    ran(tmp_path, 104.0, 0.3)
    figures = {
        one.figure: one for one in versus("r1", "sum", json.dumps(PLAN), tmp_path, LAB).figures
    }
    assert figures["iteration"].off == pytest.approx(0.04)
    assert figures["bandwidth tax"].measured == pytest.approx(2 * PAYLOAD, abs=1e-4)
    assert figures["mean hops"].measured is None, "nobody has asked yet"
    (tmp_path / HOPS).write_text(json.dumps({"diameter": 2.0, "mean_hops": 1.5, "pairs": 6}))
    figures = {
        one.figure: one for one in versus("r1", "sum", json.dumps(PLAN), tmp_path, LAB).figures
    }
    assert figures["diameter"].off == 0.0
    assert figures["mean hops"].off == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("iteration_ms", "busy", "reported"),
    [(150.0, 0.97, True), (150.0, 0.4, False), (104.0, 0.97, False), (80.0, 0.97, False)],
)
def test_a_slow_job_on_busy_processors_is_said_to_be_one(
    tmp_path: Path, iteration_ms: float, busy: float, reported: bool
) -> None:
    ran(tmp_path, iteration_ms, busy)
    wanted = "the hosts' processors were busy 97% of the time: they, and not the links, may have set the pace"
    assert (
        wanted in designtext.versus(versus("r1", "sum", json.dumps(PLAN), tmp_path, LAB))
    ) is reported
    status = JobStatus(
        "sum",
        "running",
        iterations=3,
        iteration_ms=iteration_ms,
        iteration_expected_ms=100.0,
        busy=busy,
    )
    assert (wanted in render.job(status)) is reported


def test_a_plan_with_a_schedule_is_predicted_where_its_file_says_nothing(tmp_path: Path) -> None:
    hosts = ["gpu01", "gpu02", "gpu03", "gpu04"]
    transfers = [
        {"src": a, "dst": b, "bytes": 3_000_000, "lane": 1} for a in hosts for b in hosts if a != b
    ]
    plan = {
        "schema": "testbed.plan/1",
        "name": "slots",
        "schedule": {"pattern": "round-robin", "ports": ["p1"], "dwell_s": 0.45},
        "job": {
            "name": "all",
            "workload": "replay",
            "ranks": hosts,
            "traffic": {"groups": [], "transfers": transfers},
        },
    }
    ran(tmp_path, 1600.0, 0.3)
    figures = {
        one.figure: one for one in versus("r1", "slots", json.dumps(plan), tmp_path, LAB).figures
    }
    assert figures["iteration"].measured == 1600.0
    assert figures["iteration"].predicted == pytest.approx(2 * 510, abs=0.1), (
        "a pair has its 96 ms, and the last of the next is two slots later"
    )
    plan["job"]["workload"] = "allreduce"  # type: ignore[index]
    del plan["job"]["traffic"]  # type: ignore[attr-defined]
    with pytest.raises(Missing, match="slots predicts nothing"):
        versus("r1", "slots", json.dumps(plan), tmp_path, LAB)
