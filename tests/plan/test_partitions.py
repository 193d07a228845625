"""Partitions of hosts in inventories and plans: hosts of the lab with some lanes, which meet at
packet switches.
"""

from __future__ import annotations

import json
from itertools import permutations

import pytest

from optics import BadFile
from optics.plan import Plan
from orchestrator.fabric.rules import Route, rules
from orchestrator.hosts.facts import facts, own_agent
from orchestrator.hosts.launch import requests
from orchestrator.inventory.lab import Lab, read_lab
from orchestrator.plan.design.placement import _chosen_hosts
from orchestrator.plan.reader import read_plan
from orchestrator.plan.target import target
from orchestrator.store.ownership import used_otherwise
from orchestrator.store.scope import reachable_scope
from tests.oracles.walk import walk
from tests.properties.labs import macs
from tests.properties.switches import switched_lab

PARTITIONS = "{a: {lanes: [2, 3], share: 0.5, cpus: 0-1}, b: {lanes: [0], share: 0.25}}"


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("partitions")
    switched_lab(folder)
    found = [(folder / name).read_text() for name in ("hosts.yml", "devices.yml", "fibres.yml")]
    found[0] = found[0].replace("testbed_lanes: 2", "testbed_lanes: 4")
    return found


@pytest.fixture(scope="module")
def lab(texts: list[str]) -> Lab:
    """Six hosts, of which gpu01 to gpu03 have two partitions each."""
    hosts = texts[0]
    for number in (1, 2, 3):
        at = hosts.index("\n", hosts.index(f"testbed_host_id: {number}\n"))
        indent = " " * (at - hosts.rindex("\n", 0, at) - 1 - len(f"testbed_host_id: {number}"))
        hosts = f"{hosts[:at]}\n{indent}testbed_partitions: {PARTITIONS}{hosts[at:]}"
    return read_lab(hosts, *texts[1:])


def read(lab: Lab, *hosts: str, segment: str = "ideal", **more: object) -> Plan:
    text = {
        "schema": "testbed.plan/1",
        "name": "p",
        "segments": [{"name": segment, "hosts": hosts}],
    } | more
    return read_plan(json.dumps(text), "plan.json", lab)


def test_a_slice_is_a_host_with_some_lanes_and_the_ports_at_packet_switches(lab: Lab) -> None:
    assert list(lab.hosts)[:4] == ["gpu01", "gpu01/a", "gpu01/b", "gpu02"]
    part = lab.hosts["gpu01/a"]
    assert (part.machine, part.lanes, part.lane_address(0), part.lane_address(1)) == (
        "gpu01",
        2,
        "10.255.2.1",
        "10.255.3.1",
    )
    assert not {port for port in lab.fibres if "/" in port.host}
    assert (
        "gpu01/a" not in lab.segments["ideal"].ports
        and lab.segments["ideal"].partitions["gpu01/a"].number == 3
    )


def test_a_plan_over_a_whole_segment_means_whole_hosts(lab: Lab) -> None:
    text = json.dumps({"schema": "testbed.plan/1", "name": "p", "segments": [{"name": "ideal"}]})
    plan = read_plan(text, "plan.json", lab)
    assert not any("/" in host for host in plan.hosts)
    found = rules(
        target(plan, lab, {"ocs1": frozenset(), "ocs2": frozenset()}, ()).links, lab, macs(lab)
    )
    assert {rule.lane for rule in found["gpu01"] if isinstance(rule, Route)} == {0, 1, 2, 3}


def test_routes_of_a_slice_are_in_its_lanes_alone_and_reach_every_slice_of_the_plan(
    lab: Lab,
) -> None:
    hosts = ("gpu01/a", "gpu02/a", "gpu03/a")
    goal = target(read(lab, *hosts), lab, {"ocs1": frozenset(), "ocs2": frozenset()}, ())
    found = rules(goal.links, lab, macs(lab))
    assert sorted(found) == list(hosts) and not goal.circuits
    routes = [rule for rule in found["gpu01/a"] if isinstance(rule, Route)]
    assert {rule.source for rule in routes} == {"10.255.2.1", "10.255.3.1"}
    assert {rule.destination for rule in routes} == {
        f"10.255.{lane}.{n}/32" for lane in (2, 3) for n in (2, 3)
    }
    for (a, b), lane in ((pair, lane) for pair in permutations(hosts, 2) for lane in range(2)):
        assert walk(found, lab, macs(lab), goal.links, a, b, lane) == (a, b)


@pytest.mark.parametrize(
    ("hosts", "more", "text"),
    [
        (
            ("gpu01/a", "gpu02/b"),
            {},
            "segments[0].hosts[1]: gpu02/b has lane 0, gpu01/a has lanes 2, 3",
        ),
        (
            ("gpu01/a", "gpu04"),
            {},
            "segments[0].hosts[1]: gpu04 has lanes 0, 1, 2, 3, gpu01/a has lanes 2, 3",
        ),
        (
            ("gpu01/a", "gpu01/b"),
            {},
            "segments[0].hosts[1]: gpu01/b beside gpu01/a: a plan uses one partition of a host",
        ),
        (("gpu01/a", "gpu02/c"), {}, "host gpu02/c is not in the lab"),
        (
            ("gpu01/a", "gpu02/a"),
            {"spares": ["gpu03/a"]},
            "spares: gpu01/a is a partition of a host: name whole hosts",
        ),
        (("gpu01/a", "gpu02/a"), {"links": [{"a": "gpu01/a:p1", "b": "gpu02/a:p1"}]}, "links[0].a"),
    ],
)
def test_a_plan_that_slices_cannot_carry_is_refused_with_the_place(
    lab: Lab, hosts: tuple[str, ...], more: dict[str, object], text: str
) -> None:
    with pytest.raises(BadFile) as refused:
        read(lab, *hosts, **more)
    assert text in str(refused.value)


def test_ranks_of_slices_are_numbered_like_those_of_hosts_and_use_its_lanes(lab: Lab) -> None:
    ranks = ["gpu01/a/0", "gpu01/a/1", "gpu02/a/0", "gpu02/a/1"]
    job = {"name": "j", "workload": "train", "ranks": ranks, "rings": [["gpu01/a", "gpu02/a"]]}
    plan = read(lab, "gpu01/a", "gpu02/a", job=job)
    assert plan.job is not None and plan.job.hosts == ("gpu01/a", "gpu02/a")
    started = requests(plan.job, lab, "2026-01-01-0001")
    env = started["gpu02/a/1"]["env"]
    assert started["gpu02/a/1"]["name"] == "j.2026-01-01-0001.1"
    assert (env["RANK"], env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"]) == ("3", "1", "2")
    assert json.loads(env["TESTBED_LANES"]) == ["10.255.2.2", "10.255.3.2"]
    alone = read(
        lab, "gpu01/b", "gpu02/b", job=job | {"ranks": ["gpu01/b", "gpu02/b"], "rings": []}
    )
    assert alone.job is not None
    other = requests(alone.job, lab, "2026-01-01-0001")
    assert other["gpu01/b"]["env"]["MASTER_PORT"] != env["MASTER_PORT"], (
        "both may have rank 0 on one machine"
    )


def test_facts_of_a_slice_are_those_of_its_host_and_a_host_without_slices_has_no_new_fact(
    lab: Lab, texts: list[str]
) -> None:
    whole = facts(lab.hosts["gpu01"])
    assert facts(lab.hosts["gpu01/b"]) == whole
    assert whole["partitions"]["a"] == {
        "index": 0,
        "lanes": ["10.255.2.1", "10.255.3.1"],
        "cpus": "0-1",
        "share": 0.5,
    }
    assert whole["echo"] == ["10.255.1.1"]
    port = lab.segments["ideal"].ports["gpu01"].number
    assert [p["mbps"] for p in whole["ports"] if p["number"] in (1, port)] == [None, 60.0]
    assert facts(lab.hosts["gpu04"]) == facts(read_lab(*texts).hosts["gpu04"])
    assert own_agent(lab.hosts["gpu01"]) == ""
    assert own_agent(lab.hosts["gpu01/b"]).startswith(
        "env TESTBED_VAR=/var/lib/testbed/partitions/b TESTBED_RUN="
    )


def test_locks_of_two_slices_do_not_meet_and_that_of_the_host_meets_both(lab: Lab) -> None:
    a, b, whole = (reachable_scope(lab, [name]) for name in ("gpu01/a", "gpu01/b", "gpu01"))
    assert not a.overlaps(b) and a.overlaps(whole) and b.overlaps(whole)


def test_a_host_in_use_whole_is_not_used_in_slices_and_the_reverse(lab: Lab) -> None:
    hosts = lab.hosts
    assert used_otherwise([hosts["gpu01/a"]], {"gpu01": None, "gpu01/b": 7}, {}) == []
    assert used_otherwise([hosts["gpu01/a"]], {"gpu01": 7}, {}) == [
        "gpu01/a: routes are active on gpu01"
    ]
    assert used_otherwise([hosts["gpu01"]], {"gpu01": 3, "gpu01/b": 7}, {}) == [
        "gpu01: routes are active on gpu01/b"
    ]


def test_designs_are_made_for_whole_hosts(lab: Lab) -> None:
    assert _chosen_hosts(lab, 6, (), {}, 1) == tuple(f"gpu0{n}" for n in range(1, 7))
