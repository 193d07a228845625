"""Functions of packet switches in plans: read, written again, refused at the place of the
mistake.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from emulators.generate.command import main
from extensions.switch_functions.plan import PLANNED, Function
from optics import BadFile
from optics.plan import Plan
from orchestrator.extensions import job_of
from orchestrator.inventory.lab import Lab
from orchestrator.plan.reader import read_plan
from orchestrator.plan.written import document_of
from orchestrator.results import to_json
from tests.kit.labs import lab_in
from tests.plan.test_segments import plan_text

HOSTS = [f"gpu0{n}" for n in range(1, 5)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """Four hosts at two packet switches, of which `ideal` can add."""
    folder = tmp_path_factory.mktemp("functions")
    argv = [
        "--hosts",
        "4",
        "--ports",
        "1",
        "--electrical",
        "ideal+aggregate",
        "--electrical",
        "fat-tree",
        "--rack",
        "2",
    ]
    assert main([*argv, "--out", str(folder)]) == 0
    return lab_in(folder)


def read(
    lab: Lab,
    *segments: dict[str, Any],
    ranks: list[str] = HOSTS,
    args: dict[str, Any] | None = None,
) -> Plan:
    job = {
        "name": "j",
        "workload": "train",
        "ranks": ranks,
        "args": {"exchange": "aggregate"} if args is None else args,
    }
    return read_plan(plan_text(segments=list(segments), job=job), "plan.json", lab)


def test_a_function_belongs_to_the_job_and_is_written_again(lab: Lab) -> None:
    plan = read(lab, {"name": "ideal", "functions": ["aggregate"]})
    assert plan.job is not None and plan.job.attached[PLANNED.key] == (
        Function("ideal", "aggregate"),
    )
    assert plan.segments == ("ideal",)
    document = json.loads(json.dumps(document_of(plan)))
    assert (
        document["segments"][0]["functions"] == ["aggregate"] and "functions" not in document["job"]
    )
    assert read_plan(json.dumps(document), "again.json", lab).job == plan.job
    assert job_of(json.loads(json.dumps(to_json(plan.job)))) == plan.job


def test_a_function_that_no_job_uses_is_said_and_not_taken(lab: Lab) -> None:
    plan = read(lab, {"name": "ideal", "functions": ["aggregate"]}, args={})
    assert (
        plan.job is not None
        and not plan.job.attached
        and "aggregate is for train with args.exchange aggregate" in plan.warnings[0]
    )
    assert (
        "segments[0].functions[0]: no job of this plan uses it, so nothing of it is taken"
        in plan.warnings[0]
    )


@pytest.mark.parametrize(
    ("segments", "more", "message"),
    [
        (
            [{"name": "ideal", "functions": ["cache"]}],
            {"args": {}},
            "segment ideal cannot cache .functions in fibres.yml: aggregate",
        ),
        (
            [{"name": "fat-tree", "functions": ["aggregate"]}],
            {},
            r"segments\[0\].functions\[0\]: .* fat-tree cannot aggregate .*none",
        ),
        ([{"name": "ideal"}], {}, "no packet switch of the plan is to add .1 segment, ideal can"),
        (
            [
                {"name": "ideal", "hosts": HOSTS[:3], "functions": ["aggregate"]},
                {"name": "fat-tree"},
            ],
            {},
            "gpu04 of the job is not at segment ideal in this plan",
        ),
        (
            [{"name": "ideal", "functions": ["aggregate", "aggregate"]}],
            {},
            "aggregate is already asked of segment ideal",
        ),
        (
            [{"name": "ideal", "functions": ["aggregate"]}],
            {"ranks": [f"{host}/{n}" for host in HOSTS for n in range(17)]},
            "68 ranks; a packet switch takes at most 64 workers",
        ),
        ([{"name": "ideal", "functions": ["add"]}], {}, "wanted aggregate or cache"),
    ],
)
def test_functions_that_cannot_be_are_refused(
    lab: Lab, segments: list[dict[str, Any]], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadFile, match=message):
        read(lab, *segments, **more)
