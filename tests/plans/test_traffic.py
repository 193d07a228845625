"""A designed job in a plan file: what its traffic becomes, and what is refused with line and column."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from optics import BadFile
from orchestrator.circuits import assign_ports
from orchestrator.hosts.launch import requests
from orchestrator.jobs import _launched, spec_of
from orchestrator.lab import Lab, read_lab
from orchestrator.paths import plan_rings
from orchestrator.planfile import read_plan
from orchestrator.store import JobRecord

ROOT = Path(__file__).resolve().parents[2]
LINKS = [{"a": "gpu01:p1", "b": "gpu02:p1"}, {"a": "gpu02:p2", "b": "gpu03:p2"}, {"a": "gpu03:p3", "b": "gpu01:p3"}]
HOSTS = ["gpu01", "gpu02", "gpu03"]
TRAFFIC: dict[str, Any] = {
    "groups": [
        {"id": "dp", "bytes": 1200, "rings": [HOSTS, HOSTS[::-1]]},
        {"id": "tp", "bytes": 80, "rings": [["gpu02", "gpu03"]]},
    ],
    "transfers": [{"src": "gpu01", "dst": "gpu03", "bytes": 7, "lane": 2}],
    "compute_s": 0.5,
}


@pytest.fixture(scope="module")
def lab() -> Lab:
    folder = ROOT / "inventory" / "emulated"
    return read_lab(*((folder / part).read_text() for part in ("hosts.yml", "devices.yml", "fibres.yml")))


def text(change: dict[str, Any] | None = None, **job: object) -> str:
    given = {"name": "j", "workload": "replay", "ranks": HOSTS, "traffic": TRAFFIC | (change or {}), **job}
    body = {"schema": "testbed.plan/1", "name": "p", "links": LINKS, "job": given, "predicted": {"iteration_ms": 812.5}}
    return json.dumps(body)


def test_a_replay_reaches_its_ranks_with_a_lane_for_each_ring(lab: Lab) -> None:
    job = read_plan(text(), "p.json", lab).job
    assert job is not None and job.predicted == {"iteration_ms": 812.5}
    request = requests(job, lab, "r1")["gpu02"]
    assert request["argv"] == ["python3", "-m", "workloads.replay"]
    assert json.loads(request["env"]["TESTBED_TRAFFIC"]) == {
        "compute_s": 0.5,
        "groups": [
            {"id": "dp", "bytes": 1200, "rings": [[0, 1, 2], [2, 1, 0]], "lanes": [0, 1]},
            {"id": "tp", "bytes": 80, "rings": [[1, 2]], "lanes": [2]},
        ],
        "transfers": [[0, 2, 7, 2]],
    }


def test_the_rings_of_groups_follow_links_of_their_own(lab: Lab) -> None:
    plan = read_plan(text(), "p.json", lab)
    assert plan.job is not None and len(plan.rings) == 3
    paths = plan_rings(plan.job, assign_ports(plan.links, lab), lab)
    assert [len(path.hops) for path in paths] == [3, 3, 2] and [path.lane for path in paths] == [0, 1, 2]


def test_a_job_is_the_same_after_the_store_has_kept_it(lab: Lab) -> None:
    job = read_plan(text(), "p.json", lab).job
    assert job is not None
    spec = json.loads(json.dumps(spec_of(job, lab, "r1")))
    kept = _launched(JobRecord(1, "l", "r1", "j", spec, "running", "", 0.0, None), lab)
    assert kept == job


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"groups": [{"id": "g", "bytes": -1, "rings": [HOSTS]}]}, "bytes: wanted at least 0"),
        ({"groups": [{"id": "g", "bytes": 1, "rings": [["gpu01", "gpu09"]]}]}, "gpu09 is not a rank of the job"),
        ({"groups": [{"id": "g", "bytes": 1, "rings": [HOSTS, HOSTS[:2]]}]}, "the ring visits 2 of 3 ranks"),
        ({"groups": [{"id": "g", "bytes": 1, "rings": [HOSTS]}, {"id": "g", "bytes": 1, "rings": [HOSTS]}]}, "another group"),
        ({"transfers": [{"src": "gpu01", "dst": "gpu04", "bytes": 1}]}, "gpu04 is not a rank of the job"),
        ({"transfers": [{"src": "gpu01", "dst": "gpu01", "bytes": 1}]}, "both ends are gpu01"),
        ({"transfers": [{"src": "gpu01", "dst": "gpu02", "bytes": 1, "lane": 9}]}, "wanted a lane of 0..3"),
    ],
)
def test_traffic_that_cannot_be_is_refused(change: dict[str, Any], words: str, lab: Lab) -> None:
    with pytest.raises(BadFile, match=words):
        read_plan(text(change), "p.json", lab)


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"traffic": None}, "traffic: a replay needs it"),
        ({"workload": "train"}, "traffic: train has none"),
        ({"rings": [HOSTS]}, "the rings of a replay stand with its groups"),
    ],
)
def test_traffic_and_replay_belong_together(job: dict[str, Any], words: str, lab: Lab) -> None:
    with pytest.raises(BadFile, match=words):
        read_plan(text(**job), "p.json", lab)
