"""What a job sends over which limit, from its plan."""

from __future__ import annotations

import json

import pytest

from extensions.pacing.links import flows, use
from optics import HostPort
from optics.plan import Job, RingGroup, Send, Traffic, Transfer
from orchestrator.inventory.lab import Lab
from orchestrator.plan.reader import read_plan
from tests.properties.switches import switched_lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return switched_lab(tmp_path_factory.mktemp("switches"))


def test_a_ring_over_two_racks_uses_each_uplink_once_in_each_direction(lab: Lab) -> None:
    hosts = ["gpu01", "gpu02", "gpu04"]
    job = {"name": "one", "workload": "train", "ranks": hosts, "rings": [hosts]}
    text = json.dumps(
        {
            "schema": "testbed.plan/1",
            "name": "p",
            "segments": [{"name": "oversubscribed", "hosts": hosts}],
            "job": job,
        }
    )
    plan = read_plan(text, "plan.json", lab)
    found = use(plan, lab.segments["oversubscribed"].links(hosts), lab)
    assert found is not None and not found.declared
    racks = {name for name in found.over if "rack" in name}
    assert racks == {
        f"oversubscribed rack {rack} {direction}" for rack in (1, 2) for direction in ("up", "down")
    }
    assert {found.mbps[name] for name in racks} == {30} and found.mbps["gpu01:p5 out"] == 40
    sent = {HostPort(host, 5): 1000.0 for host in hosts}
    # gpu02's alone: gpu01 sends within its rack
    assert found.bytes_over("oversubscribed rack 1 up", sent) == 1000
    assert found.over["oversubscribed rack 1 up"].keys() == {HostPort("gpu02", 5)}


def test_a_plan_without_a_job_sends_nothing(lab: Lab) -> None:
    plan = read_plan(
        json.dumps({"schema": "testbed.plan/1", "name": "p", "segments": [{"name": "ideal"}]}),
        "plan.json",
        lab,
    )
    assert use(plan, (), lab) is None


def test_declared_traffic_is_counted_in_bytes_of_an_iteration() -> None:
    groups = (
        RingGroup("data", 3000, (("a", "b", "c"), ("c", "b", "a"))),
        RingGroup(
            "few",
            1200,
            (("a", "b"),),
            (Send(0, "a", "b", "a", 0.0, 1.0), Send(0, "b", "a", "b", 0.0, 1.0)),
        ),
    )
    transfers = (Transfer("a", "c", 30, 0, via="b"), Transfer("a", "c", 70, 1))
    job = Job("j", "replay", ("a", "b", "c"), traffic=Traffic(groups, transfers))
    found = list(flows(job, 2))
    # 2 * 2/3 of a half each
    assert found.count(("a", "b", 0, 2000.0)) == 1 and found.count(("b", "a", 1, 2000.0)) == 1
    # gathered by one send, reduced by the other backwards
    assert found.count(("a", "b", 0, 600.0)) == 2
    # the first over both of its legs
    assert found[-3:] == [("a", "b", 0, 30.0), ("b", "c", 0, 30.0), ("a", "c", 1, 70.0)]
