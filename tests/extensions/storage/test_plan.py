"""The storage of a job: read, written, refused at the place of the mistake."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extensions.storage.plan import Storage
from optics import BadFile
from optics.plan import Plan
from orchestrator.change.locking import plan_hosts
from orchestrator.extensions import job_of
from orchestrator.inventory.lab import Lab
from orchestrator.plan.evict import why_no_spare
from orchestrator.plan.interchangeable import relabelled_text
from orchestrator.plan.reader import read_plan
from orchestrator.plan.written import document_of
from orchestrator.results import to_json

HOSTS = ["gpu01", "gpu02", "gpu03"]
RING = [
    {"a": f"{a}:p{n}", "b": f"{b}:p{n}"}
    for n, (a, b) in enumerate(zip(HOSTS, HOSTS[1:] + HOSTS[:1], strict=True), 1)
]
SPUR = {"a": "gpu02:p4", "b": "gpu07:p4"}


def text(storage: object, *more: object, **job: object) -> str:
    content: dict[str, Any] = {
        "name": "j",
        "workload": "train",
        "ranks": HOSTS,
        "args": {"checkpoint_every": 10},
        "storage": storage,
        **job,
    }
    plan = {"schema": "testbed.plan/1", "name": "p", "links": [*RING, *more], "job": content}
    return json.dumps(plan)


def read(lab: Lab, storage: object, *more: object, **job: object) -> Plan:
    return read_plan(text(storage, *more, **job), "plan.json", lab)


def test_a_storage_is_read_written_and_read_again_and_its_host_is_locked_with_the_plan(
    lab: Lab,
) -> None:
    over = {"host": "gpu07", "mbps": 50.5, "over": "optical"}
    for raw, more, wanted in (
        ({"host": "gpu07", "mbps": 200}, (), Storage("gpu07", 200.0)),
        (over, (SPUR,), Storage("gpu07", 50.5, "optical")),
    ):
        plan = read(lab, raw, *more)
        assert plan.job is not None and plan.job.attached == {"storage": wanted}
        assert read_plan(json.dumps(document_of(plan)), "again.json", lab).job == plan.job
        assert job_of(json.loads(json.dumps(to_json(plan.job)))) == plan.job
        assert plan_hosts(plan) == {*HOSTS, "gpu07"} == set(plan.job.needed)
        assert "in use by p already" in why_no_spare("gpu01", "gpu07", plan, lab)


def test_a_storage_follows_hosts_that_change_places_and_may_be_where_the_shadow_is(
    lab: Lab,
) -> None:
    moved = relabelled_text(text({"host": "gpu07", "mbps": 9}), {"gpu07": "gpu08"})
    assert json.loads(moved)["job"]["storage"] == {"host": "gpu08", "mbps": 9}
    both = read(lab, {"host": "gpu07", "mbps": 9}, shadow={"host": "gpu07"}, rings=[HOSTS]).job
    assert both is not None and both.aside == ("gpu07",)


@pytest.mark.parametrize(
    ("storage", "job", "message"),
    [
        ({"host": "gpu02"}, {}, "job.storage.host: gpu02 is a host of the job's ranks"),
        ({"host": "gpu99"}, {}, "job.storage.host: host gpu99 is not in the lab"),
        ({"mbps": 0}, {}, "job.storage.mbps: wanted"),
        ({"mbps": -4}, {}, "job.storage.mbps: wanted"),
        ({"over": "air"}, {}, "job.storage.over: wanted"),
        ({"over": "optical"}, {}, "no links of the plan lead from gpu01, gpu02, gpu03 to gpu07"),
        ({}, {"args": {}}, "job.storage: the job would write no checkpoints"),
        ({}, {"args": {"checkpoint_every": 0}}, "write checkpoint_every in job.args"),
        ({}, {"workload": "allreduce", "args": {}}, "this job is allreduce: leave storage out"),
    ],
)
def test_what_cannot_be_is_refused_at_its_place(
    lab: Lab, storage: dict[str, object], job: dict[str, object], message: str
) -> None:
    with pytest.raises(BadFile) as caught:
        read(lab, {"host": "gpu07", "mbps": 200} | storage, **job)
    [line] = caught.value.problems
    assert message in line


def test_a_link_of_one_direction_leads_nowhere_back(lab: Lab) -> None:
    with pytest.raises(BadFile, match="to gpu07 and back: add some"):
        read(lab, {"host": "gpu07", "mbps": 9, "over": "optical"}, SPUR | {"kind": "simplex"})
