"""Regions of a job, whose circuits follow its traffic: read, refused at the place of the mistake,
and joined anew.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from extensions.adapt.circuits import proposed
from extensions.adapt.plan import PLANNED, Adapt, Regions, regions_of
from extensions.adapt.region import circuits_of, fabric, links_of, planes
from optics import BadFile
from optics.plan import Plan
from orchestrator.inventory.lab import Lab
from orchestrator.jobs.decision import JobDecision, decide_job, differing
from orchestrator.plan.evict import plan_without_host
from orchestrator.plan.interchangeable import relabelled_text
from orchestrator.plan.reader import read_plan
from orchestrator.plan.target import target
from orchestrator.plan.written import document_of
from orchestrator.results import to_json
from orchestrator.store.job_spec import JobSpec
from orchestrator.store.records import JobRecord
from tests.properties.switches import switched_lab

HOSTS = [f"gpu0{n}" for n in range(1, 7)]
PORTS = [f"{host}:p{port}" for host in HOSTS for port in (1, 2)]
REGION: dict[str, Any] = {"name": "r", "hosts": HOSTS, "ports": PORTS, "fallback": "ideal"}
FOUR = [{"name": "ideal", "hosts": HOSTS[:4]}]
RING = [{"a": f"gpu0{n}:p{2 - n % 2}", "b": f"gpu0{n % 6 + 1}:p{2 - n % 2}"} for n in range(1, 7)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return switched_lab(tmp_path_factory.mktemp("switches"))


def text(*regions: dict[str, Any], **more: object) -> str:
    job = {"name": "j", "workload": "train", "ranks": HOSTS, "regions": list(regions)}
    content = {
        "links": RING,
        "segments": [{"name": "ideal"}],
        "job": job,
        "adapt": {"every": 4},
        **more,
    }
    return json.dumps({"schema": "testbed.plan/1", "name": "p", **content})


def read(lab: Lab, *regions: dict[str, Any], **more: object) -> Plan:
    return read_plan(text(*regions, **more), "plan.json", lab)


def test_a_region_is_read_written_and_read_again(lab: Lab) -> None:
    plan = read(lab, REGION)
    found = regions_of(plan.job)
    assert found.how == Adapt(4, "last", 1.1, 0.05)
    region = found.regions[0]
    assert (region.name, list(map(str, region.ports)), region.fallback) == ("r", PORTS, "ideal")
    assert PLANNED.of(json.loads(json.dumps(to_json(found)))) == found
    still = Regions(found.regions)
    assert PLANNED.of(json.loads(json.dumps(to_json(still)))) == still
    again = read_plan(json.dumps(document_of(plan)), "again.json", lab)
    assert again.job == plan.job


def test_regions_are_no_reason_to_restart_a_job(lab: Lab) -> None:
    job = read(lab, REGION).job
    assert job is not None and differing(replace(job, attached={}), job) == ["regions"]
    record = JobRecord(
        1, "lab", "r", job.name, JobSpec(job, "j.r", "gloo"), "running", 0.0, None, ""
    )
    assert decide_job(record, replace(job, attached={}), "never") == JobDecision("keep")


def test_circuits_for_a_demand_become_links_at_the_regions_ports(lab: Lab) -> None:
    plan = read(lab, REGION)
    region = regions_of(plan.job).regions[0]
    now = circuits_of(region, lab, plan.links)
    assert planes(region, lab) == ("ocs1", "ocs2") and len(now) == 6
    optical = {link for link in plan.links if not lab.electrical(link)}
    assert {*links_of(region, lab, now, plan.links)} == optical, "what stays keeps its ports"
    demand = np.ones((6, 6)) - np.eye(6)
    demand[0, 3] = demand[1, 4] = demand[2, 5] = 20.0
    best = proposed(demand, fabric(region, lab, circuit_mbps=20, packet_mbps=20), now)
    assert {(0, 3), (1, 4), (2, 5)} <= {circuit[:2] for circuit in best.circuits}
    changed = replace(plan, links=links_of(region, lab, best.circuits, plan.links))
    assert circuits_of(region, lab, changed.links) == best.circuits
    assert len(
        target(changed, lab, {device: frozenset() for device in lab.devices}, ()).circuits
    ) == 2 * len(best.circuits)


def test_a_segments_rate_is_what_packets_get_unless_it_is_given(lab: Lab) -> None:
    region = regions_of(read(lab, REGION).job).regions[0]
    assert fabric(region, lab, 20).packet_bytes_per_s == pytest.approx(60e6 / 8)


def test_other_hosts_take_their_places_in_a_region_and_one_that_failed_leaves_it(lab: Lab) -> None:
    small = {**REGION, "hosts": HOSTS[:3], "ports": PORTS[:6]}
    swapped = json.loads(relabelled_text(text(small), {"gpu01": "gpu06", "gpu06": "gpu01"}))["job"][
        "regions"
    ][0]
    assert swapped["hosts"][0] == "gpu06" and swapped["ports"][0] == "gpu06:p1"
    plan = read_plan(plan_without_host(text(REGION), read(lab, REGION), lab, "gpu03"), "p", lab)
    region = regions_of(plan.job).regions[0]
    assert "gpu03" not in region.hosts and len(region.ports) == 10


@pytest.mark.parametrize(
    ("message", "regions", "more"),
    [
        ("adapt: no circuits to adapt", [], {}),
        ("regions[0].fallback: segment fat-tree is not a segment of this plan", [{**REGION, "fallback": "fat-tree"}], {}),
        ("regions[0].fallback: segment none is not in the lab", [{**REGION, "fallback": "none"}], {}),
        ("regions[0].fallback: segment ideal does not join gpu05, gpu06", [REGION], {"segments": FOUR}),
        ("regions[1].ports[0]: gpu01:p1 is a port of region r too", [REGION, {**REGION, "name": "s"}], {}),
        ("regions[1].name: region r is already there", [REGION, REGION], {}),
        ("regions[0].ports[1]: gpu01:p1 is named twice", [{**REGION, "ports": ["gpu01:p1", *PORTS[:1], *PORTS[1:]]}], {}),
        ("regions[0].ports[11]: gpu06 is not a host of region r", [{**REGION, "hosts": HOSTS[:5]}], {}),
        ("regions[0].hosts[1]: host gpu09 is not", [{**REGION, "hosts": ["gpu01", "gpu09"]}], {}),
        ("regions[0].hosts[1]: host gpu01 is named twice", [{**REGION, "hosts": ["gpu01", "gpu01"]}], {}),
        ("links[2]: one end is a port of region r", [{**REGION, "hosts": HOSTS[:3], "ports": PORTS[:6]}], {}),
        ("links[0].a: name a port of gpu01", [REGION], {"links": [{"a": "gpu01", "b": "gpu02:p1"}]}),
    ],
)  # fmt: skip
def test_a_mistake_in_a_region_is_reported_at_its_place(
    lab: Lab, message: str, regions: list[dict[str, Any]], more: dict[str, Any]
) -> None:
    with pytest.raises(BadFile) as caught:
        read(lab, *regions, **more)
    message = message.replace("regions[", "job.regions[")
    assert any(message in line for line in caught.value.problems), caught.value.problems


def test_a_host_outside_the_job_has_no_traffic_to_follow(lab: Lab) -> None:
    job = {"name": "j", "workload": "train", "ranks": HOSTS[:5], "regions": [REGION]}
    with pytest.raises(
        BadFile, match="gpu06 is not a host of the job, so it has no traffic to follow"
    ):
        read(lab, job=job)
