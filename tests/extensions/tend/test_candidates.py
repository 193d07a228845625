"""Candidates are other circuits for the job that runs: it goes on, whichever is tried."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from extensions.tend import lab as module
from extensions.tend.lab import candidates
from orchestrator.jobs.decision import CHANGES_RINGS, LABELS, differing
from orchestrator.plan.design.match import match
from orchestrator.plan.reader import read_plan
from orchestrator.verbs.design_files import read_prices, read_workload
from tests.house.repository import ROOT
from tests.kit.labs import lab_of


@pytest.mark.parametrize(
    "content",
    [
        {"transfers": [{"among": "all", "bytes": 5_000_000}], "compute_s": 0.01},
        {"collectives": [{"id": "all", "bytes": 50_000_000}], "needs": {"train": {"model": "mlp"}}},
    ],
    ids=["replay", "train"],
)
def test_each_candidate_is_read_like_a_file_and_has_the_running_job_on_other_circuits(
    content: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, prices, workload = lab_of("emulated-packet"), read_prices(), tmp_path / "w.yaml"
    head = {"schema": "testbed.workload/1", "name": "w", "ranks": 4}
    workload.write_text(json.dumps({**head, **content}))
    up = match(read_workload(workload), lab, prices=prices, iterations=77, name="mine").best
    running = read_plan(up.text, "up", lab).job
    assert running is not None
    monkeypatch.setattr(module, "hosts_of_job", lambda record, lab: running.hosts)
    store = SimpleNamespace(latest_job=lambda key: object())
    bench: Any = SimpleNamespace(
        lab=lab,
        prices=prices,
        key="lab/ann",
        command=SimpleNamespace(inventory=ROOT / "inventory" / "emulated-packet", store=store),
        at=lambda: ("", "mine", up.content),
    )
    known = candidates(bench, workload)
    assert len({one["name"] for one in known}) == len(known) > 3
    for one in known:
        plan = read_plan(json.dumps(one["plan"]), one["name"], lab)
        assert plan.job is not None and plan.schedule is None
        assert {*differing(running, plan.job)} <= {*CHANGES_RINGS, *LABELS}, one["name"]
        assert one["predicted_ms"] > 0 and one["watts"] > 0
