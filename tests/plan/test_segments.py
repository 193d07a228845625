"""Plans over packet switches: read, routed, and brought beside light."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import pytest

from emulators.generate.defaultlab import generate
from emulators.generate.electrical import parse
from emulators.generate.familylab import Wanted
from optics import BadFile, CrossConnect, HostPort, Link
from optics.plan import Acceptance
from orchestrator.fabric.circuits import circuits, settings
from orchestrator.fabric.rules import drain_rules, rules
from orchestrator.fabric.up_state import UpState
from orchestrator.inventory.lab import Lab, read_lab
from orchestrator.plan.interchangeable import difference, relabelled_text
from orchestrator.plan.reader import read_plan
from orchestrator.plan.target import target
from orchestrator.verify.collective import expected
from orchestrator.verify.qualification import Direction, compared, directions
from orchestrator.verify.report import LinkQuality
from tests.oracles.walk import walk
from tests.properties.labs import inventory, macs
from tests.properties.switches import switched_lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return switched_lab(tmp_path_factory.mktemp("switches"))


def plan_text(**more: object) -> str:
    return json.dumps({"schema": "testbed.plan/1", "name": "p", **more})


RING = [{"a": f"gpu0{n}:p{2 - n % 2}", "b": f"gpu0{n % 6 + 1}:p{2 - n % 2}"} for n in range(1, 7)]


def test_a_generated_lab_has_the_switches_that_were_asked_for(lab: Lab) -> None:
    assert list(lab.segments) == [
        "ideal",
        "fat-tree",
        "oversubscribed",
        "domain1",
        "domain2",
        "domain3",
        "rail1",
        "rail2",
    ]
    tree, over = lab.segments["fat-tree"], lab.segments["oversubscribed"]
    assert (tree.full, over.full, over.link_mbps, [rack.uplink_mbps for rack in over.racks]) == (
        True,
        False,
        40,
        [30, 30],
    )
    assert list(lab.segments["rail2"].ports) == ["gpu02", "gpu04", "gpu06"]
    assert len(lab.fibres) == 12 and not set(lab.fibres) & set(lab.segment_at)


@pytest.mark.parametrize("name", ["ideal", "oversubscribed"])
def test_over_a_switch_every_host_is_one_hop_away_on_every_lane(lab: Lab, name: str) -> None:
    plan = read_plan(plan_text(segments=[{"name": name}]), "plan.json", lab)
    goal = target(plan, lab, {"ocs1": frozenset(), "ocs2": frozenset()}, ())
    assert len(goal.links) == 15 and not goal.circuits and not goal.moving
    wanted = rules(goal.links, lab, macs(lab))
    for (a, b), lane in ((pair, lane) for pair in permutations(lab.hosts, 2) for lane in range(2)):
        assert walk(wanted, lab, macs(lab), goal.links, a, b, lane) == (a, b)


def test_some_hosts_of_a_segment_and_light_make_one_plan(lab: Lab) -> None:
    hosts = ["gpu01", "gpu03", "gpu05"]
    plan = read_plan(
        plan_text(links=RING, segments=[{"name": "ideal", "hosts": hosts}]), "plan.json", lab
    )
    goal = target(plan, lab, {"ocs1": frozenset(), "ocs2": frozenset()}, ())
    assert len(goal.links) == 9 and len(goal.circuits) == 12
    assert walk(
        rules(goal.links, lab, macs(lab)), lab, macs(lab), goal.links, "gpu02", "gpu06"
    ) in {
        ("gpu02", "gpu01", "gpu06"),
    }
    assert {(c.transmitter, c.receiver) for c in UpState(goal.links).circuits(lab)} == {
        (c.transmitter, c.receiver) for c in goal.circuits
    }


def test_traffic_moves_to_the_switch_before_the_light_goes(lab: Lab) -> None:
    ring = read_plan(plan_text(links=RING), "plan.json", lab)
    links = [Link(link.a, link.b) for link in ring.links]  # type: ignore[arg-type]
    held = {
        "ocs1": frozenset[CrossConnect](),
        "ocs2": frozenset[CrossConnect](),
        **settings(circuits(links, lab)),
    }
    goal = target(
        read_plan(plan_text(segments=[{"name": "ideal"}]), "p", lab),
        lab,
        held,
        [s for found in held.values() for s in found],
    )
    assert len(goal.broken_links) == 6 and len(goal.kept_links) == 15
    drain = drain_rules(goal.old_links, goal.kept_links, lab, macs(lab))
    for pair in permutations(lab.hosts, 2):
        assert walk(drain, lab, macs(lab), goal.kept_links, *pair) == pair


def test_bad_segments_of_a_plan_are_refused_at_their_places(lab: Lab) -> None:
    segments = [
        {"name": "idael"},
        {"name": "rail1", "hosts": ["gpu01", "gpu02", "gpu01"]},
        {"name": "rail1"},
        {"name": "ideal", "x": 1},
    ]
    with pytest.raises(BadFile) as refused:
        read_plan(
            plan_text(links=[{"a": "gpu01:p3", "b": "gpu02"}], segments=segments), "plan.json", lab
        )
    argv = [line.partition(": ")[2] for line in str(refused.value).splitlines()]
    assert sorted(argv) == [
        'links[0].a: no fibre is attached to gpu01:p3; it is a port of the packet switch ideal: "segments": [{"name": "ideal"}]',
        "segments[0].name: segment idael is not in the lab (8 segments, domain1..rail2); did you mean ideal?",
        "segments[1].hosts[1]: gpu02 has no port at segment rail1 (3 hosts, gpu01, gpu03, gpu05 have)",
        "segments[1].hosts[2]: host gpu01 is named twice",
        "segments[2].name: segment rail1 is already named by segments[1]",
        "segments[3].x: unknown field",
    ]


def test_hosts_of_different_racks_do_not_take_each_others_place(lab: Lab) -> None:
    assert "p5 at oversubscribed rack 2" in difference("gpu01", "gpu04", lab)
    text = plan_text(segments=[{"name": "ideal", "hosts": ["gpu01", "gpu02"]}])
    assert json.loads(relabelled_text(text, {"gpu01": "gpu03"}))["segments"][0]["hosts"] == [
        "gpu03",
        "gpu02",
    ]


@pytest.mark.parametrize(
    "text", ["idael", "ideal:2", "oversubscribed", "oversubscribed:0.5", "rails:2.5", "fat-tree@0"]
)
def test_a_switch_that_cannot_be_made_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"^'{text}'"):
        parse(text)


def test_domains_that_do_not_divide_the_hosts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="domains:4 do not divide 6 hosts"):
        generate(
            tmp_path, Wanted(tuple(range(22101, 22107)), (25001,), electrical=(parse("domains:4"),))
        )


def test_rings_over_a_tree_share_ports_and_uplinks_in_what_is_expected_of_them(lab: Lab) -> None:
    hosts = list(lab.hosts)
    plan = read_plan(plan_text(segments=[{"name": "oversubscribed"}]), "plan.json", lab)
    tree = lab.segments["oversubscribed"]
    links = tree.links(hosts)
    alone = {
        d: tree.alone_mbps(d.sender.host, d.receiver.host)
        for link in links
        for d in directions(link)
    }
    assert set(alone.values()) == {40.0, 30.0}
    both = expected(plan, links, lab, [hosts, hosts[::-1]], alone)
    assert (both.busbw_mbps, both.link_mbps) == (
        pytest.approx(2 * 15 / 8),
        30,
    ) and "oversubscribed rack" in both.slowest
    inside = expected(plan, links, lab, [hosts[:3], hosts[2::-1]], alone)
    assert (
        inside.busbw_mbps == pytest.approx(2 * 20 / 8)
        and inside.slowest == "gpu01:p5 out by 2 rings' steps"
    )


def test_a_port_of_a_switch_is_qualified_by_its_own_rate(lab: Lab) -> None:
    slow, fast = (
        Direction(HostPort("gpu01", 1), HostPort("gpu02", 1)),
        Direction(HostPort("gpu01", 3), HostPort("gpu02", 3)),
    )
    seen = {
        slow: LinkQuality(str(slow), 20.0, 0.0, 0.0),
        fast: LinkQuality(str(fast), 30.0, 0.0, 0.0),
    }
    found = compared(seen, 20.0, Acceptance(), own={fast: 60.0})
    assert found.bad == {fast} and found.evidence == (
        f"{fast}: 30 Mb/s, 50 % of 60 (at least 80 %)",
    )


def test_rdma_functions_reach_each_other_over_a_switch() -> None:
    hosts, devices, fibres = inventory(4, 3, forwarding="npar-rdma")
    kept = "\n".join(line for line in fibres.splitlines() if "port: 3" not in line)
    ports = ", ".join(f'"gpu0{n}:p3"' for n in range(1, 5))
    npar = read_lab(
        hosts,
        devices,
        f"{kept}\nsegments:\n  - {{name: tree, link_mbps: 100000, ports: [{ports}]}}\n",
    )
    plan = read_plan(plan_text(segments=[{"name": "tree"}]), "plan.json", npar)
    goal = target(plan, npar, {name: frozenset() for name in npar.devices}, ())
    wanted = rules(goal.links, npar, macs(npar))
    for a, b in permutations(npar.hosts, 2):
        assert walk(wanted, npar, macs(npar), goal.links, a, b) == (a, b)
