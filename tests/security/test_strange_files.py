"""A campaign or a scenario of a stranger may name any file that the operator can read: what it
holds is not shown.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from optics import BadFile
from orchestrator.cli.reproduce import read as read_scenario
from orchestrator.experiments.sweep.verb import load_campaign
from orchestrator.verbs.design_files import read_workload

CAMPAIGN = (
    "schema: testbed.sweep/1\nname: x\nkind: prediction\nlab: {hosts: 4}\nbase: {workload: named}\n"
)
SCENARIO = """schema: testbed.scenario/1
name: x
title: x
source: [x]
claim: x
label: native
lab: any
tenants: {ann: {plan: named}}
arms: {a: {}, b: {job: named}}
differs: [plan.job]
compare: [{metric: iteration_ms, of: a, over: b, band: {max: 1}}]
"""
TEXTS = (
    "t0p:*:20228:0:99999:7:::\nx:*",
    "t0p:*:20228:\n",
    "t0p: 20228",
    "- t0p",
    "7 t0p",
    "20228",
    "[t0p",
    '"t0p"',
    "'t0p'",
)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["campaign", "scenario", "workload"])
def test_a_named_file_that_is_not_what_it_should_be_is_not_quoted(
    tmp_path: Path, kind: str, text: str
) -> None:
    (tmp_path / "named").write_text(text)
    page = tmp_path / f"{kind}.yaml"
    page.write_text({"campaign": CAMPAIGN, "scenario": SCENARIO, "workload": text}[kind])
    with pytest.raises(BadFile) as refused:
        {"campaign": load_campaign, "scenario": read_scenario, "workload": read_workload}[kind](
            page
        )
    message = str(refused.value).replace(str(tmp_path), "")
    assert "t0p" not in message and "20228" not in message, message
