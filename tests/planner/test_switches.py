"""Designs over packet switches, reckoned against the planner's own model of them."""

from __future__ import annotations

import json
from itertools import permutations

import numpy as np
import pytest

from optics import Infeasible
from orchestrator import methods
from orchestrator.designing import PAYLOAD, Read, design, document
from orchestrator.lab import Lab
from orchestrator.planfile import read_plan
from planner import baselines
from planner.demand import Demand, Group
from planner.shape import Lab as PlannerLab
from planner.workload import Workload
from tests.properties.switches import switched_lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return switched_lab(tmp_path_factory.mktemp("switches"))


def demand_of(mp: list[tuple[int, int, float]], groups: tuple[Group, ...]) -> Demand:
    matrix = np.zeros((6, 6))
    for src, dst, size in mp:
        matrix[src, dst] = size
    return Demand(6, groups, matrix, 0.001)


@pytest.mark.parametrize(("method", "gbps"), [("ideal", 75), ("fat-tree", 37.5), ("oversubscribed", 50)])
def test_a_design_over_switches_is_reckoned_as_the_planner_reckons_them(lab: Lab, method: str, gbps: float) -> None:
    pairs = [(a, b, 1e6 * (1 + (3 * a + b) % 5)) for a, b in permutations(range(6), 2)]
    given = demand_of(pairs, (Group("all", (0, 1, 2, 3, 4, 5), 50_000_000),))
    read = Read(Workload.model_validate({"schema": "testbed.workload/1", "name": "w", "ranks": 6}), given, "")
    found = design(read, lab, methods.Wanted(method))
    rate = read.workload.rate_gbps * PAYLOAD * gbps / 25
    whole = PlannerLab(6, 1, rate)
    model = (
        baselines.oversubscribed(whole, 4, 3)
        if method == "oversubscribed"
        else baselines.Electrical(method, whole.port_bytes_per_s)
    )
    assert found.home.iteration_s == pytest.approx(model.iteration_s(given), rel=1e-6)
    plan = read_plan(json.dumps(document(found)), "plan.json", lab)
    assert plan.segments == (method,) and len(plan.links) == 15 and plan.job is not None
    assert all(t.dst != t.src for t in plan.job.traffic.transfers) and found.home.tax == pytest.approx(1)  # type: ignore[union-attr]


def test_domains_and_rails_are_a_topology_of_two_stages(lab: Lab) -> None:
    given = demand_of([(0, 3, 1e6)], ())
    read = Read(Workload.model_validate({"schema": "testbed.workload/1", "name": "w", "ranks": 6}), given, "")
    found = design(read, lab, methods.Wanted("electrical", segments=("domain*", "rail*")))
    assert found.shape.diameter == 2 and found.home.hops == pytest.approx(2)
    rates = {t.way[0].speed for t in found.transfers}  # type: ignore[attr-defined]
    assert rates <= {8.0, 1.0}


@pytest.mark.parametrize(
    ("method", "segments", "words"),
    [
        ("ideal", ("oversubscribed",), "is not ideal: that is a packet switch without racks"),
        ("ideal", ("nonesuch",), "segment nonesuch is not in the lab (8 segments"),
        ("electrical", (), "no packet switch is named"),
        ("electrical", ("rail1",), "no way leads from rank 0 to rank 1"),
    ],
)
def test_a_switch_that_is_not_what_is_wanted_is_refused(lab: Lab, method: str, segments: tuple[str, ...], words: str) -> None:
    read = Read(
        Workload.model_validate({"schema": "testbed.workload/1", "name": "w", "ranks": 6}), demand_of([(0, 1, 1e6)], ()), ""
    )
    with pytest.raises(Infeasible) as refused:
        design(read, lab, methods.Wanted(method, segments=segments))
    assert words in str(refused.value) and refused.value.hint
