"""Hosts at two leaf switches in two planes: what is left when a leaf switch goes dark, and when a
second one does.
"""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from emulators.generate.command import main
from emulators.generate.defaultlab import generate
from emulators.generate.electrical import parse
from emulators.generate.familylab import Wanted
from optics import HostName, Link
from optics.plan import Plan
from orchestrator.fabric.detour import Detour, dead_links, detour
from orchestrator.fabric.rules import rules
from orchestrator.inventory.lab import Lab
from orchestrator.plan.design.design import Read, design
from orchestrator.plan.reader import read_plan
from orchestrator.plan.target import target
from orchestrator.session import Session
from orchestrator.verify.degraded import packet_switches
from orchestrator.verify.symptoms import DiagnosedJob, wires
from planner.model.demand import Demand, Group
from planner.model.workload import Workload
from planner.topology.methods import Wanted as WantedDesign
from tests.kit.labs import lab_in
from tests.oracles.walk import walk
from tests.properties.labs import macs

PLAN = json.dumps(
    {
        "schema": "testbed.plan/1",
        "name": "planes",
        "segments": [{"name": "plane1"}, {"name": "plane2"}],
    }
)
RACKS = (("gpu01", "gpu02"), ("gpu03", "gpu04"), ("gpu05", "gpu06"))


def dual(folder: Path, hosts: int = 6) -> Lab:
    """Leaf switches of two hosts in two planes, and an optical port a host."""
    ports = tuple(range(22101, 22101 + hosts))
    generate(folder, Wanted(ports, (25001,), rate_mbps=40, electrical=(parse("dual:2"),)))
    return lab_in(folder)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return dual(tmp_path_factory.mktemp("dual"))


def links_of(lab: Lab) -> tuple[Link, ...]:
    return target(read_plan(PLAN, "plan.json", lab), lab, {"ocs1": frozenset()}, ()).links


def lost(lab: Lab, *switches: tuple[str, int]) -> Detour:
    """The detour when these leaf switches, a plane and a rack each, take the carrier of their
    ports.
    """
    links = links_of(lab)
    dark = [
        lab.segments[plane].ports[host]
        for plane, rack in switches
        for host in lab.segments[plane].racks[rack].hosts
    ]
    return detour(links, dead_links(links, dict.fromkeys(dark, False)), lab, macs(lab))


def path(found: Detour, lab: Lab, a: HostName, b: HostName, lane: int = 0) -> tuple[HostName, ...]:
    return walk(found.rules, lab, macs(lab), found.alive, a, b, lane)


def test_every_host_is_at_a_leaf_switch_of_each_plane_and_its_lanes_use_both(lab: Lab) -> None:
    assert list(lab.segments) == ["plane1", "plane2"]
    for number, plane in enumerate(lab.segments.values(), 2):
        assert (
            tuple(rack.hosts for rack in plane.racks) == RACKS
            and plane.full
            and plane.link_mbps == 20
        )
        assert {port.number for port in plane.ports.values()} == {number}
    plain = rules(links_of(lab), lab, macs(lab))
    for a, b in permutations(lab.hosts, 2):
        first, other = (
            [link for link in links_of(lab) if link.a.number == number] for number in (2, 3)
        )
        assert (
            walk(plain, lab, macs(lab), first, a, b, 0)
            == walk(plain, lab, macs(lab), other, a, b, 1)
            == (a, b)
        )


def test_without_one_leaf_switch_all_pairs_stay_one_hop_apart(lab: Lab) -> None:
    found = lost(lab, ("plane1", 0))
    assert (found.lost, len(found.groups), len(found.dead)) == (0, 1, 9)
    for lane in range(4):
        assert all(path(found, lab, *pair, lane) == pair for pair in permutations(lab.hosts, 2))


def test_without_leaf_switches_of_different_planes_pairs_of_their_racks_go_through_a_host_at_both(
    lab: Lab,
) -> None:
    found = lost(lab, ("plane1", 0), ("plane2", 1))
    assert (found.lost, len(found.groups)) == (0, 1)
    relayed = {pair for pair in permutations(lab.hosts, 2) if len(path(found, lab, *pair)) > 2}
    assert relayed == {pair for a in RACKS[0] for b in RACKS[1] for pair in ((a, b), (b, a))}
    assert all(path(found, lab, *pair)[1] in RACKS[2] for pair in relayed)


def test_without_both_its_leaf_switches_a_rack_is_cut_off_and_named(lab: Lab) -> None:
    found = lost(lab, ("plane1", 0), ("plane2", 0))
    assert found.text()[0] == "cut off: gpu01; 4 hosts stay joined" and found.lost == 18
    assert all(path(found, lab, *pair) == pair for pair in permutations([*RACKS[1], *RACKS[2]], 2))


def test_a_leaf_switch_whose_ports_are_all_dark_is_named_instead_of_its_cables(lab: Lab) -> None:
    one, other = lab.segments["plane1"].ports, lab.segments["plane2"].ports
    assert packet_switches([one["gpu03"], one["gpu01"], one["gpu02"], other["gpu01"]], lab) == [
        "the packet switch of rack 1 of plane1 is down, or all its cables: gpu01:p2, gpu02:p2",
        "gpu03:p2 is down: its cable to the packet switch plane1, or a port at its ends",
        "gpu01:p3 is down: its cable to the packet switch plane2, or a port at its ends",
    ]


def test_a_diagnosis_is_told_the_leaf_switch_at_both_ends_of_a_link(lab: Lab) -> None:
    plane = lab.segments["plane2"]
    subject = DiagnosedJob(Plan("both", ()), plane.links(["gpu01", "gpu02", "gpu03"]), ())
    found = wires(subject, cast(Session, SimpleNamespace(lab=lab)))
    near, far = ("rack 1 of plane2", "rack 1 of plane2"), ("rack 1 of plane2", "rack 2 of plane2")
    assert [(wire.segment, wire.switches) for wire in found] == [
        ("plane2", near),
        ("plane2", far),
        ("plane2", far),
    ]


def test_two_racks_at_one_plane_each_have_nobody_between_them(tmp_path: Path) -> None:
    small = dual(tmp_path, 4)
    found = lost(small, ("plane1", 0), ("plane2", 1))
    assert sorted(found.groups) == [RACKS[0], RACKS[1]] and found.lost == 8


def test_a_sum_of_all_hosts_goes_round_both_planes(lab: Lab) -> None:
    given = Demand(6, (Group("all", tuple(range(6)), 10**8),), np.zeros((6, 6)))
    read = Read(
        Workload.model_validate({"schema": "testbed.workload/1", "name": "w", "ranks": 6}),
        given,
        "",
    )
    one, both = (
        design(read, lab, WantedDesign("electrical", segments=(names,)))
        for names in ("plane1", "plane*")
    )
    assert (
        both.own.allreduce_s == pytest.approx(one.own.allreduce_s / 2)
        and len(both.orders["all"]) == 4
    )


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["--electrical", "dual"], "'dual': dual takes a number, such as dual:2"),
        (["--electrical", "dual:1.5"], "dual of 1.5 hosts: wanted a whole number"),
        (
            ["--hosts", "1", "--electrical", "dual:2"],
            "dual:2 of a single host: a switch joins two or more",
        ),
        (["--electrical", "dual:2"] * 5, "at most 8 ports by --electrical"),
    ],
)
def test_planes_that_cannot_be_made_are_refused(
    argv: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*argv, "--out", str(tmp_path / "lab")])
    assert problem in capsys.readouterr().err and not (tmp_path / "lab").exists()
