"""The congestion control of a job: read, written, refused at the place of the mistake; what agents
are told, and when.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from extensions.congestion.plan import Congestion
from optics import BadFile, Refused
from optics.plan import Job, Plan
from optics.ranks import RankName
from orchestrator.change.snapshot import before_of
from orchestrator.hosts.launch import requests
from orchestrator.inventory.lab import Lab
from orchestrator.jobs.attachments import adjust, attachment, extra
from orchestrator.jobs.decision import JobDecision, decide_job
from orchestrator.jobs.record import launched, spec_of
from orchestrator.plan.reader import read_plan
from orchestrator.plan.written import document_of
from orchestrator.store.job_spec import JobSpec
from orchestrator.store.records import JobRecord
from orchestrator.store.store import Store
from tests.change.fleet import plan_text, ring
from tests.change.living import ONE, Living

HOSTS = ["gpu01", "gpu02", "gpu03"]
RING = [
    {"a": f"{a}:p{n}", "b": f"{b}:p{n}"}
    for n, (a, b) in enumerate(zip(HOSTS, HOSTS[1:] + HOSTS[:1], strict=True), 1)
]


def text(congestion: object, **job: object) -> str:
    content = {
        "name": "j",
        "workload": "train",
        "ranks": HOSTS,
        "rings": [HOSTS],
        "congestion": congestion,
        **job,
    }
    return json.dumps(
        {"schema": "testbed.plan/1", "name": "p", "links": RING, "job": content}, indent=1
    )


def read(lab: Lab, congestion: object) -> Plan:
    return read_plan(text(congestion), "plan.json", lab)


def job_of(lab: Lab, congestion: object) -> Job:
    job = read(lab, congestion).job
    assert job is not None
    return job


def record(lab: Lab, job: Job) -> JobRecord:
    spec = JobSpec.of_json(json.loads(json.dumps(spec_of(job, lab, "r").to_json())))
    return JobRecord(1, "lab", "r", "j", spec, "running", 0.0, None, "")


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        (None, None),
        ("bbr", Congestion("bbr")),
        ("mltcp", Congestion("mltcp", 1.75, 0.25, "auto", "auto")),
        (
            {"control": "mltcp", "slope": 4, "bytes": 5_000_000, "gap_ms": 20},
            Congestion("mltcp", 4, 0.25, 5_000_000, 20),
        ),
    ],
)
def test_a_congestion_control_is_read_written_and_read_again_and_kept_with_the_job(
    lab: Lab, raw: object, wanted: Congestion | None
) -> None:
    plan = read(lab, raw)
    assert plan.job is not None
    assert plan.job.attached.get("congestion") == wanted
    assert read_plan(json.dumps(document_of(plan)), "again.json", lab).job == plan.job
    assert record(lab, plan.job).spec.wanted == plan.job


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("vegas", 'plan.json:33:17: job.congestion: wanted cubic, reno, bbr or mltcp, got "vegas"'),
        (
            {"control": "mltcp", "slop": 1},
            "job.congestion.slop: unknown field; did you mean slope?",
        ),
        ({"control": "mltcp", "slope": -1}, "job.congestion.slope: wanted at least 0, got -1"),
        (
            {"control": "mltcp", "intercept": 0},
            "job.congestion.intercept: wanted at least 0.001, got 0",
        ),
        ({"control": "mltcp", "gap_ms": 0}, "job.congestion.gap_ms: wanted "),
        ({"control": "mltcp", "bytes": "many"}, "job.congestion.bytes: wanted "),
        (
            {"control": "cubic", "slope": 1},
            "job.congestion.slope: only mltcp has it; this control is cubic",
        ),
        ({"slope": 1}, "job.congestion: the field control is missing"),
        (7, "job.congestion: wanted "),
    ],
)
def test_one_that_is_none_is_refused_where_it_stands(lab: Lab, raw: object, message: str) -> None:
    with pytest.raises(BadFile) as caught:
        read(lab, raw)
    [line] = caught.value.problems
    assert message in line


def started(lab: Lab, congestion: object) -> dict[RankName, dict[str, Any]]:
    job = job_of(lab, congestion)
    return requests(job, lab, "r1", extra=extra(job, spec_of(job, lab, "r1"), lab))


def test_hosts_are_told_it_when_the_job_starts(lab: Lab) -> None:
    found = started(lab, {"control": "mltcp", "slope": 4})
    parameters = {"slope": 4.0, "intercept": 0.25, "bytes": "auto", "gap_ms": "auto"}
    assert all(
        request["congestion"] == {"control": "mltcp", "parameters": parameters}
        for request in found.values()
    )
    assert started(lab, "reno")["gpu01"]["congestion"] == {"control": "reno", "parameters": {}}
    assert "congestion" not in started(lab, None)["gpu01"]


def test_a_running_job_gets_another_one_without_a_restart_and_the_old_one_back(lab: Lab) -> None:
    before, after = job_of(lab, None), job_of(lab, "mltcp")
    running = record(lab, before)
    assert decide_job(running, after, "prefer") == JobDecision("keep")
    notices: list[dict[str, dict[str, Any]]] = []

    async def ask(requests: dict[str, dict[str, Any]], op: str, timeout_s: float) -> None:
        assert op == "congestion"
        notices.append(requests)

    session: Any = SimpleNamespace(
        hosts=SimpleNamespace(channels=SimpleNamespace(ask=ask)), lab=lab
    )
    result = asyncio.run(adjust(session, JobDecision("keep"), running, after))
    assert result == ["the congestion control of j's connections is mltcp now"]
    assert (
        [*notices[0]] == HOSTS
        and notices[0]["gpu02"].items() >= {"job": "j.r", "control": "mltcp"}.items()
        and len(notices) == 1
    )
    asyncio.run(adjust(session, JobDecision("restart"), running, after))
    asyncio.run(
        adjust(
            session, JobDecision("keep"), running, replace(before, predicted={"iteration_ms": 1.0})
        )
    )
    assert len(notices) == 1, (
        "one that is launched again is reported when it is launched, and nothing is reported twice"
    )
    back = launched(record(lab, after), lab, running.spec.wanted)
    assert not back.attached
    asyncio.run(adjust(session, JobDecision("keep"), record(lab, after), back))
    assert notices[-1]["gpu01"] == {"job": "j.r", "control": "cubic", "back": True}


def test_a_control_that_not_all_hosts_can_have_is_taken_back_from_those_that_have_it(
    lab: Lab,
) -> None:
    running, after = record(lab, job_of(lab, "reno")), job_of(lab, "mltcp")
    notices: list[str] = []

    async def ask(requests: dict[str, dict[str, Any]], op: str, timeout_s: float) -> None:
        notices.append(requests["gpu01"]["control"])
        if notices[-1] == "mltcp":
            raise Refused("gpu02: no struct_ops in this kernel")

    session: Any = SimpleNamespace(
        hosts=SimpleNamespace(channels=SimpleNamespace(ask=ask)), lab=lab
    )
    with pytest.raises(Refused, match="no struct_ops"):
        asyncio.run(adjust(session, JobDecision("keep"), running, after))
    assert notices == ["mltcp", "reno"]


async def test_a_rollback_gives_the_running_job_the_control_back_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Congestion | None] = []

    async def adjusted(_: object, __: object, value: Congestion | None) -> str:
        given.append(value)
        return ""

    async def unsampled(*_: object, **__: object) -> None:
        """These hosts keep no port counters."""

    monkeypatch.setattr(attachment("congestion"), "adjust", adjusted)
    monkeypatch.setattr(attachment("congestion"), "ready", unsampled)
    monkeypatch.setattr("orchestrator.jobs.ports.fetch_samples", unsampled)
    with Store(tmp_path / "store.sqlite3", durable=False) as store:
        living = Living(store, tmp_path)
        await living.up(plan_text("one", *ring(1, 2)))
        living.start()
        await living.change(plan_text("other", *ring(1, 2), job={**ONE, "congestion": "mltcp"}))
        changed = store.get("last")
        assert changed is not None and living.job.spec.wanted.attached["congestion"] == Congestion(
            "mltcp"
        )
        await living.back(before_of(store.journalled(changed.id)[0]))
        assert (
            given == [Congestion("mltcp"), None]
            and not living.job.spec.wanted.attached
            and not living.ranks.launched
        )
