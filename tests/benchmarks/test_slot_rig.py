"""What the benchmarks of schedules predict of a job."""

from __future__ import annotations

import json

import pytest

from benchmarks.slot_rig import ring_iteration_s
from orchestrator.plan.reader import read_plan
from tests.kit.labs import lab_of


def test_a_ring_job_on_a_schedule_has_a_prediction_that_waits_for_slots() -> None:
    lab = lab_of("emulated")
    hosts = ["gpu01", "gpu02", "gpu03", "gpu04"]
    schedule = {"pattern": "round-robin", "ports": ["p1"], "dwell_s": 0.45}
    job = {"name": "j", "workload": "train", "ranks": hosts, "rings": [hosts]}
    plan = read_plan(
        json.dumps({"schema": "testbed.plan/1", "name": "p", "schedule": schedule, "job": job}),
        "p",
        lab,
    )
    short, long = (
        ring_iteration_s(plan, lab, size, compute_s=0.05, dark_s=0.07) for size in (1e5, 1e8)
    )
    assert 1.0 < short < long, "every step waits for its pair"
    with pytest.raises(ValueError, match="no schedule with a job"):
        ring_iteration_s(plan.slot(0), lab, 1e5, 0.05, 0.07)
