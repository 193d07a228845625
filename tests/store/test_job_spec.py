"""What the store keeps of a job is read as it was written, and refused where this version does not
know it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from extensions.adapt.plan import Adapt, Region, Regions
from extensions.congestion.plan import Congestion
from extensions.shadow.plan import Shadow
from extensions.storage.plan import Storage
from extensions.switch_functions.plan import Function
from optics import HostPort, StoreFailed
from optics.plan import Job, Traffic, Transfer
from orchestrator.store.job_spec import JobSpec, Pause

TWO = ("gpu01", "gpu02")
JOB = Job(
    "mlp",
    "replay",
    TWO,
    (TWO, TWO[::-1]),
    {"size": 2},
    {"OMP_NUM_THREADS": "1"},
    traffic=Traffic(transfers=(Transfer("gpu01", "gpu02", 8),)),
    predicted={"iteration_ms": 2.0},
    evicted={"gpu03": ""},
    attached={
        "functions": (Function("ideal", "aggregate"),),
        "shadow": Shadow("gpu04", (HostPort("gpu01", 1),)),
        "storage": Storage("gpu04", 200.0),
        "congestion": Congestion("mltcp"),
        "regions": Regions((Region("r", TWO, (HostPort("gpu01", 1),), "ideal"),), Adapt(2)),
    },
    aside=("gpu04",),
)
SPEC = JobSpec(JOB, "mlp.r1", "gloo", {"shadow": {"missing": "no room"}}, True, 4, Pause(4, 9, 1.5))


def stored(spec: JobSpec) -> Any:
    return json.loads(json.dumps(spec.to_json()))


@pytest.mark.parametrize(
    "spec",
    [
        SPEC,
        JobSpec(Job("mlp", "train", TWO), "mlp.r1", "gloo"),
        replace(SPEC, pause=None, given={}),
    ],
)
def test_a_job_is_read_as_it_was_written(spec: JobSpec) -> None:
    assert JobSpec.of_json(stored(spec)) == spec


@pytest.mark.parametrize("without", ["wanted", "on_hosts", "given", "pause"])
def test_a_field_that_is_missing_is_refused_by_name(without: str) -> None:
    data = stored(SPEC)
    del data[without]
    with pytest.raises(StoreFailed, match=without):
        JobSpec.of_json(data)


@pytest.mark.parametrize("where", [(), ("pause",)])
def test_a_field_that_nobody_knows_is_refused_by_name(where: tuple[str, ...]) -> None:
    data = stored(SPEC)
    (data[where[0]] if where else data)["ring_changes"] = 1
    with pytest.raises(
        StoreFailed, match="whose fields are not those of this version: ring_changes"
    ):
        JobSpec.of_json(data)


@pytest.mark.parametrize(
    "part",
    [
        {"given": 3},
        {"given": {"shadow": 3}},
        {"wanted": {**stored(SPEC)["wanted"], "attached": {"lantern": 1}}},
    ],
)
def test_what_no_attachment_wrote_is_refused(part: dict[str, Any]) -> None:
    with pytest.raises(
        StoreFailed, match=r"JobSpec that this version cannot read|no extension of this version"
    ):
        JobSpec.of_json({**stored(SPEC), **part})
