"""What the planner's times are compared with: the same links, paths and bytes, given to another
model.
"""

from __future__ import annotations

import json
from collections import defaultdict
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks import second_opinion
from benchmarks.second_opinion import RATE, Case, allreduce, graphs, simulated, transfers
from benchmarks.simgrid_flows import platform

GRAPHS = {f"{graph.family}, {graph.name}": graph for graph in graphs()}
SIMGRID = second_opinion.with_simgrid(second_opinion.PYTHONS)


def cases(name: str) -> list[Case]:
    return [phase(GRAPHS[name], np.random.default_rng(1)) for phase in (transfers, allreduce)]


@pytest.mark.parametrize("name", GRAPHS)
def test_flows_at_the_planners_pace_fill_one_link_and_no_link_more_than_that(name: str) -> None:
    for case in cases(name):
        flows = case.flows(paced=True)
        loads: dict[str, float] = defaultdict(float)
        for chain in flows["chains"]:
            *shared, pace = chain["links"]
            for link in shared:
                loads[link] += flows["links"][pace]
        shares = [load / flows["links"][link] for link, load in loads.items()]
        assert max(shares) == pytest.approx(1, abs=1e-9)


def test_every_flow_has_a_route_of_its_own_over_links_of_the_platform() -> None:
    found = [case.flows(paced=False) for case in cases("trees, 2 racks of 4, 2:1")]
    zones = ElementTree.fromstring(platform(found)).findall("zone/zone")
    for zone, case in zip(zones, found, strict=True):
        links = {link.get("id") for link in zone.findall("link")}
        routes = [(route.get("src"), route.get("dst")) for route in zone.findall("route")]
        assert len({*routes}) == len(routes) == len(case["chains"])
        assert links == {each.get("id") for each in zone.iter("link_ctn")}


def test_without_simgrid_the_benchmark_is_skipped_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["second_opinion.py", "/nowhere/python"])
    assert second_opinion.main() == 0
    text, line = capsys.readouterr().out.splitlines()
    assert "skipped: no Python here has SimGrid (Debian package python3-simgrid)" in text
    assert json.loads(line)["skipped"] and json.loads(line)["value"] is None


@pytest.mark.skipif(not SIMGRID, reason="SimGrid is not installed (Debian package python3-simgrid)")
def test_two_flows_share_a_link_and_steps_wait_for_each_other() -> None:
    links = {"a": RATE, "b": 2 * RATE}
    flow = {"src": "x", "links": ["a"], "bytes": RATE, "steps": 1, "next": 0}
    shared = [flow | {"dst": "y"}, flow | {"dst": "z", "links": ["b", "a"]}]
    slow = {"src": "x", "dst": "y", "links": ["a"], "bytes": RATE, "steps": 2}
    steps = [
        slow | {"next": 1},
        slow | {"src": "y", "dst": "x", "links": ["b"], "steps": 3, "next": 0},
    ]
    found = simulated(SIMGRID, [{"links": links, "chains": chains} for chains in (shared, steps)])
    assert found == pytest.approx([2.0, 2.5], rel=1e-6)
