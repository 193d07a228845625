"""Scenarios on emulated labs, from the file to the page: on the lab that is up, and on a lab of
their own.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.emulated import is_running
from tests.end_to_end.conftest import Lab, ring
from tests.end_to_end.test_report import JOB, RANKS, recomputed
from tests.views.report.page import Page

pytestmark = [
    *(pytest.mark.lab, pytest.mark.long, pytest.mark.timeout(900)),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]
HEAD = """\
schema: testbed.scenario/1
name: small
title: Two rings
source: [this test]
claim: one ring is as good as the other
label: native
width: 1
budget_s: 200
iterations: 8
warm_up: 2
"""


def starved(found: dict[str, Any]) -> bool:
    """Whether the machine was too busy for five rounds that count, which no test here judges;
    nothing else may be missing.
    """
    few = [one for one in found["findings"] if one["n"] < 5]
    assert found["ended"] == "budget" if few else found["ended"] in ("width", "budget")
    return bool(few)


def test_a_scenario_on_the_lab_that_is_up_is_judged_and_everything_is_as_before(
    lab: Lab, tmp_path: Path
) -> None:
    lab.up(lab.plan("first", ring((3, 4)))).must()
    before = lab.light()
    a, b = lab.plan("a", ring((1, 2)), job=JOB), lab.plan("b", ring((1, 2), 5), job=JOB)
    arms = f"lab: any\ntenants: {{me: {{plan: {a}}}}}\narms: {{a: {{}}, b: {{plan: {b}}}}}\ndiffers: [plan.links]\n"
    file = tmp_path / "scenario.yaml"
    for band, code in (("{min: 0.001, max: 1000}", 0), ("{max: 0.001}", 8)):
        file.write_text(
            f"{HEAD}{arms}compare: [{{metric: iteration_ms, of: b, over: a, band: {band}}}]\n"
        )
        answer = lab.testbed("experiment", "reproduce", file, "--yes", within_s=400)
        found = answer.envelope["data"]
        outcome = "starved" if starved(found) else "refuted" if code else "claim holds"
        assert found["outcome"] == outcome and answer.exit_code == (
            0 if outcome == "claim holds" else 8
        )
    assert [slot["arm"] for slot in found["slots"]][:2] == ["a", "b"]
    waits = [slot["slowed"] for slot in found["slots"]]
    assert any(each["known"] == 1.0 for each in waits) and all(
        each["share"] > 0 and each["rank"].startswith("gpu") if each["known"] else not each["rank"]
        for each in waits
    )
    assert found["left"] == "as it was before: me: first is up" and lab.light() == before
    assert (
        found["environment"]["offloads"]["of"] == "gpu01:opt1"
        and found["environment"]["cores"] == os.cpu_count()
    )
    page = Page(Path(found["report"]).read_text())
    assert (starved(found) or "Refuted." in page.text) and "waited for processors" in page.text
    recomputed(lab, page, tmp_path)


def test_a_scenario_with_a_lab_of_its_own_changes_under_a_job_and_leaves_nothing_running(
    lab: Lab, tmp_path: Path
) -> None:
    job = {**JOB, "ranks": RANKS, "rings": []}
    for name, port in (("a", 1), ("b", 2)):
        links = [{"a": f"gpu01:p{port}", "b": f"gpu02:p{port}"}]
        (tmp_path / f"{name}.json").write_text(
            json.dumps({"schema": "testbed.plan/1", "name": name, "links": links, "job": job})
        )
    file = tmp_path / "scenario.yaml"
    file.write_text(
        f"{HEAD}lab: {{hosts: 2, ports: 2, settle_ms: 20}}\ntenants: {{me: {{plan: a.json}}}}\n"
        "arms: {stay: {}, go: {then: b.json, sweep: {lab.settle_ms: [10, 300]}}}\ndiffers: [then, lab.settle_ms]\n"
        "compare:\n  - {metric: dark_ms, of: go@300, over: go@10, band: {min: 2}}\n"
        "  - {metric: span_ms, of: go@300, over: stay, band: {min: 0.01}}\n"
    )
    answer = lab.testbed("experiment", "reproduce", file, within_s=400)
    found = answer.envelope["data"]
    assert found["outcome"] == ("starved" if starved(found) else "claim holds")
    assert {slot["state"] for slot in found["slots"]} <= {"done", "void"} and found[
        "left"
    ] == "nothing is up"
    recomputed(lab, Page(Path(found["report"]).read_text()), tmp_path)
    assert not is_running(Path(found["file"]).parents[2] / "scenarios" / "small" / "inventory")
