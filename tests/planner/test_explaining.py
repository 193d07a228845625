"""What `--explain` says of routing: whose routes hosts take, what next hops cannot do, and what
else was computed.
"""

from __future__ import annotations

import re

import pytest

from orchestrator.cli.explaining import against_planner, divided, explained, scheduled, taken
from orchestrator.fabric.next_hops import lanes_of
from orchestrator.inventory.lab import Lab
from orchestrator.plan.design.design import design
from planner.predict.routing import k_shortest
from planner.topology.methods import Wanted
from tests.planner.test_designing import workload


@pytest.mark.parametrize(("name", "strides"), [("bert", 132), ("dlrm", 0), ("moe", 96)])
def test_hosts_ways_are_held_against_the_planner_s_own(name: str, strides: int, lab: Lab) -> None:
    found = design(workload(name), lab, Wanted("topoopt"))
    notices = against_planner(found, lab)
    assert notices[0].startswith(
        f"TopoOpt's routing (paper): {strides} pairs by strides (coin change), {132 - strides} by up to 4"
    )
    assert notices[0].endswith("and longer ones between none"), "shortest ways are as short as any"
    assert any("next hops can express them" in line for line in notices) == bool(strides)
    assert any("depend on the source" in line for line in notices) == (strides < 132)
    if strides == 0:  # all pairs go by shortest paths: counted here by another road
        paths = {
            pair: {path for path, _ in paths}
            for pair, paths in k_shortest(found.shape, 4).paths.items()
        }
        _, routed = taken(found, lab, lanes_of(lab))
        same = sum({*routes} <= paths[pair] for pair, routes in routed.items())
        assert f"between {same} of 132 pairs" in notices[0]


def test_links_parallel_to_one_ring_have_no_strides_to_go_by(lab: Lab) -> None:
    assert (
        "parallel to one of them"
        in against_planner(
            design(workload("dlrm"), lab, Wanted("topoopt", backend="single-order")), lab
        )[0]
    )
    assert against_planner(design(workload("dlrm"), lab, Wanted("ring")), lab) == []


def test_transfers_over_several_ways_are_held_against_a_division_over_all_paths(lab: Lab) -> None:
    found = design(workload("dlrm"), lab, Wanted("topoopt"))
    paths: dict[tuple[int, int], list[int]] = {}
    for one in found.transfers:
        paths.setdefault((one.src, one.dst), []).append(one.bytes)
    several = sum(sum(parts) for parts in paths.values() if len(parts) > 1) / sum(
        map(sum, paths.values())
    )
    [line] = divided(found)
    assert f"{several:.0%} of the bytes use several paths" in line and 0.02 < several < 0.5
    share = int(re.search(r"would carry (\d+)%", line)[1])  # type: ignore[index]
    assert 50 < share <= 100, "no way of hosts is better than all of them"
    assert divided(design(workload("vgg16"), lab, Wanted("topoopt"))) == []


def test_a_round_robin_stands_beside_as_reckoned_only(lab: Lab) -> None:
    found = design(workload("vgg16"), lab, Wanted("ring"))
    [line] = scheduled(found, lab)
    assert line.startswith("analytic: a round robin of matchings, 3 slots, dark 50 ms each")
    assert explained(found, lab)[-1] == line
