"""A designed job in a plan file: what its traffic becomes, and what is refused with line and
column.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from optics import BadFile
from optics.plan import Job
from orchestrator.hosts.launch import requests
from orchestrator.inventory.lab import Lab
from orchestrator.jobs.record import launched, spec_of
from orchestrator.plan.interchangeable import relabelled_text
from orchestrator.plan.ports import assign_ports
from orchestrator.plan.reader import read_plan
from orchestrator.results import to_json
from orchestrator.store.job_spec import JobSpec
from orchestrator.store.records import JobRecord
from tests.oracles.rings import plan_rings
from workloads.programs.options import conflicts

LINKS = [
    {"a": "gpu01:p1", "b": "gpu02:p1"},
    {"a": "gpu02:p2", "b": "gpu03:p2"},
    {"a": "gpu03:p3", "b": "gpu01:p3"},
]
HOSTS = ["gpu01", "gpu02", "gpu03"]
TRAFFIC: dict[str, Any] = {
    "groups": [
        {"id": "dp", "bytes": 1200, "rings": [HOSTS, HOSTS[::-1]]},
        {"id": "tp", "bytes": 80, "rings": [["gpu02", "gpu03"]]},
    ],
    "transfers": [{"src": "gpu01", "dst": "gpu03", "bytes": 7, "lane": 2}],
    "compute_s": 0.5,
}


def text(change: dict[str, Any] | None = None, **job: object) -> str:
    given = {
        "name": "j",
        "workload": "replay",
        "ranks": HOSTS,
        "traffic": TRAFFIC | (change or {}),
        **job,
    }
    body = {
        "schema": "testbed.plan/1",
        "name": "p",
        "links": LINKS,
        "job": given,
        "predicted": {"iteration_ms": 812.5},
    }
    return json.dumps(body)


def test_a_replay_reaches_its_ranks_with_a_lane_for_each_ring(lab: Lab) -> None:
    job = read_plan(text(), "p.json", lab).job
    assert job is not None and job.predicted == {"iteration_ms": 812.5}
    request = requests(job, lab, "r1")["gpu02"]
    assert request["argv"] == ["python3", "-m", "workloads.programs.replay"]
    assert json.loads(request["env"]["TESTBED_TRAFFIC"]) == {
        "compute_s": 0.5,
        "groups": [
            {
                "id": "dp",
                "bytes": 1200,
                "rings": [[0, 1, 2], [2, 1, 0]],
                "lanes": [0, 1],
                "schedule": [],
            },
            {"id": "tp", "bytes": 80, "rings": [[1, 2]], "lanes": [2], "schedule": []},
        ],
        "transfers": [[0, 2, 7, 2]],
    }


def test_a_transfer_names_the_rank_that_passes_it_on(lab: Lab) -> None:
    on = {"src": "gpu01", "dst": "gpu03", "bytes": 7, "lane": 0, "via": "gpu02"}
    plan = read_plan(text({"transfers": [on]}), "p.json", lab)
    assert plan.job is not None
    env = requests(plan.job, lab, "r1")["gpu02"]["env"]
    assert json.loads(env["TESTBED_TRAFFIC"])["transfers"] == [[0, 2, 7, 0, 1]]
    assert Job.of(to_json(plan.job)) == plan.job
    by = {"gpu01": "gpu02", "gpu02": "gpu03", "gpu03": "gpu01"}
    moved = json.loads(relabelled_text(text({"transfers": [on]}), by))
    assert moved["job"]["traffic"]["transfers"] == [
        {"src": "gpu02", "dst": "gpu01", "bytes": 7, "lane": 0, "via": "gpu03"}
    ]
    body = json.loads(text({"groups": [], "transfers": [on]}))
    with pytest.raises(BadFile, match="no link leads from gpu02 to gpu03, so gpu02 cannot pass on"):
        read_plan(json.dumps(body | {"links": [LINKS[0], LINKS[2]]}), "p.json", lab)


def test_credits_are_refused_where_nothing_waits_for_them(lab: Lab) -> None:
    args = {"credits": "48K"}
    job = read_plan(text(args=args), "p.json", lab).job
    assert job is not None and requests(job, lab, "r1")["gpu02"]["argv"][-2:] == [
        "--credits",
        "48K",
    ]
    with pytest.raises(BadFile, match="credits: this traffic has no transfers, which alone wait"):
        read_plan(text({"transfers": []}, args=args), "p.json", lab)
    assert read_plan(text({"transfers": []}, args={"credits": 0}), "p.json", lab).job
    on = {"src": "gpu01", "dst": "gpu03", "bytes": 7, "lane": 0, "via": "gpu02"}
    with pytest.raises(BadFile, match="credits: a transfer that another rank passes on has no"):
        read_plan(text({"transfers": [on]}, args=args), "p.json", lab)
    assert [name for name, _ in conflicts("replay", args, nccl=True)] == ["credits"]
    assert not list(conflicts("replay", {"credits": 0}, nccl=True))


def test_ranks_are_told_their_part_of_the_rate_at_which_their_host_keeps_checkpoints(
    lab: Lab,
) -> None:
    job = read_plan(
        text(ranks=[f"{host}/{n}" for host in HOSTS for n in (0, 1)]), "p.json", lab
    ).job
    assert job is not None
    slow = replace(
        lab, hosts={**lab.hosts, "gpu02": replace(lab.hosts["gpu02"], storage_mbps=320.0)}
    )
    reply = {
        rank: request["env"].get("TESTBED_STORAGE_MBPS")
        for rank, request in requests(job, slow, "r1").items()
    }
    assert reply == {rank: "160" if rank.startswith("gpu02/") else None for rank in job.ranks}


def test_the_rings_of_groups_follow_links_of_their_own(lab: Lab) -> None:
    plan = read_plan(text(), "p.json", lab)
    assert plan.job is not None and len(plan.rings) == 3
    paths = plan_rings(plan.job, assign_ports(plan.links, lab), lab)
    assert [len(path.hops) for path in paths] == [3, 3, 2] and [path.lane for path in paths] == [
        0,
        1,
        2,
    ]


def test_a_job_is_the_same_after_the_store_has_kept_it(lab: Lab) -> None:
    job = read_plan(text(), "p.json", lab).job
    assert job is not None
    spec = JobSpec.of_json(json.loads(json.dumps(spec_of(job, lab, "r1").to_json())))
    kept = launched(JobRecord(1, "l", "r1", "j", spec, "running", 0.0, None, ""), lab)
    assert kept == job


def swapped(**send: object) -> dict[str, Any]:
    """A schedule of two on one link, each getting the other's piece; its first send changed."""
    sends = [{"step": 1, "src": "gpu01", "dst": "gpu02", "shard": "gpu01"} | send]
    sends.append({"step": 1, "src": "gpu02", "dst": "gpu01", "shard": "gpu02"})
    return {"groups": [{"id": "g", "bytes": 8, "rings": [HOSTS[:2]], "schedule": sends}]}


def test_a_schedule_reaches_the_ranks_and_takes_no_lane_of_rings(lab: Lab) -> None:
    plan = read_plan(text(swapped()), "p.json", lab)
    assert plan.job is not None and not plan.rings and not plan.warnings
    group = json.loads(requests(plan.job, lab, "r1")["gpu01"]["env"]["TESTBED_TRAFFIC"])["groups"][
        0
    ]
    assert group["schedule"] == [[1, 0, 1, 0, 0.0, 1.0], [1, 1, 0, 1, 0.0, 1.0]]
    assert Job.of(json.loads(json.dumps(to_json(plan.job)))) == plan.job


@pytest.mark.parametrize(
    ("send", "message"),
    [
        ({"dst": "gpu03"}, "gpu03 is not in the group's ring"),
        ({"end": 0.5}, "gpu02 does not get gpu01's piece exactly once and complete"),
        ({"shard": "gpu02"}, "empty send"),
        (
            {"src": "gpu02", "dst": "gpu01", "shard": "gpu02"},
            "gpu01 does not get gpu02's piece exactly once",
        ),
        ({"step": 0}, "step: wanted at least 1"),
    ],
)
def test_a_schedule_that_does_not_gather_is_refused(
    send: dict[str, object], message: str, lab: Lab
) -> None:
    with pytest.raises(BadFile, match=message):
        read_plan(text(swapped(**send)), "p.json", lab)


def test_a_piece_is_passed_on_only_by_who_has_it(lab: Lab) -> None:
    path = [("gpu01", "gpu02"), ("gpu02", "gpu03"), ("gpu03", "gpu01")]
    sends = [
        {"step": step, "src": a, "dst": b, "shard": path[k - step + 1][0]}
        for step in (1, 2)
        for k, (a, b) in enumerate(path)
    ]
    group = {"id": "g", "bytes": 9, "rings": [HOSTS], "schedule": sends}
    assert read_plan(text({"groups": [group]}), "p.json", lab).job is not None
    late = [{**send, "step": 3 - int(str(send["step"]))} for send in sends]
    with pytest.raises(BadFile, match="has not received that part of gpu01's piece before step 1"):
        read_plan(text({"groups": [{**group, "schedule": late}]}), "p.json", lab)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": [{"id": "g", "bytes": -1, "rings": [HOSTS]}]}, "bytes: wanted at least 0"),
        (
            {"groups": [{"id": "g", "bytes": 1, "rings": [["gpu01", "gpu09"]]}]},
            "gpu09 is not a host of the job",
        ),
        (
            {"groups": [{"id": "g", "bytes": 1, "rings": [HOSTS, HOSTS[:2]]}]},
            "the ring visits 2 of 3 hosts",
        ),
        (
            {
                "groups": [
                    {"id": "g", "bytes": 1, "rings": [HOSTS]},
                    {"id": "g", "bytes": 1, "rings": [HOSTS]},
                ]
            },
            "group id g is already used",
        ),
        (
            {"transfers": [{"src": "gpu01", "dst": "gpu04", "bytes": 1}]},
            "gpu04 is not a host of the job",
        ),
        (
            {"transfers": [{"src": "gpu01", "dst": "gpu01", "bytes": 1}]},
            "src and dst are both gpu01",
        ),
        (
            {"transfers": [{"src": "gpu01", "dst": "gpu02", "bytes": 1, "lane": 9}]},
            "wanted a lane of 0..3",
        ),
        (
            {"transfers": [{"src": "gpu01", "dst": "gpu02", "bytes": 1, "via": "gpu01"}]},
            "via: gpu01 is an end of the transfer; omit via, or name another",
        ),
        (
            {"transfers": [{"src": "gpu01", "dst": "gpu02", "bytes": 1, "via": "gpu04"}]},
            "via: gpu04 is not a host of the job",
        ),
    ],
)
def test_traffic_that_cannot_be_is_refused(change: dict[str, Any], message: str, lab: Lab) -> None:
    with pytest.raises(BadFile, match=message):
        read_plan(text(change), "p.json", lab)


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({"traffic": None}, "traffic: a replay needs traffic"),
        ({"workload": "train"}, "traffic: only a replay has traffic"),
        ({"rings": [HOSTS]}, "the rings of a replay belong to its groups"),
    ],
)
def test_traffic_and_replay_belong_together(job: dict[str, Any], message: str, lab: Lab) -> None:
    with pytest.raises(BadFile, match=message):
        read_plan(text(**job), "p.json", lab)
