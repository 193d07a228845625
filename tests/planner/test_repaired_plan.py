"""The repaired plan: rings are closed again with borrowed ports, and the lab takes it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from optics import HostPort, Infeasible, Missing
from optics.plan import Plan, ring_steps
from orchestrator.inventory.lab import Lab
from orchestrator.plan.design.design import design
from orchestrator.plan.design.document import document
from orchestrator.plan.design.repair import Repaired, repaired
from orchestrator.plan.ports import assign_ports
from orchestrator.plan.reader import read_plan
from planner.topology.methods import Wanted
from tests.planner.test_designing import WORKLOADS, workload
from tests.properties.labs import lab

HERE = lab(6, 4)
SIX = [f"gpu{k:02d}" for k in range(1, 7)]
MATCHED = [("gpu01", "gpu03"), ("gpu02", "gpu05"), ("gpu04", "gpu06")]


def text(ported: bool, kind: str = "duplex", **more: Any) -> str:
    """A ring on ports 1 and 2, a matched pair for each host on port 3."""
    steps = [(a, b, 1 + k % 2) for k, (a, b) in enumerate(ring_steps(SIX))] + [
        (a, b, 3) for a, b in MATCHED
    ]
    links = [
        {"a": f"{a}:p{p}", "b": f"{b}:p{p}"} if ported else {"a": a, "b": b} for a, b, p in steps
    ]
    body = {"schema": "testbed.plan/1", "name": "six", "links": links}
    return json.dumps(
        body | {"job": {"name": "mlp", "workload": "train", "ranks": SIX, "rings": [SIX]}} | more
    )


def fixed(
    written: str, *links: tuple[str, str], hosts: tuple[str, ...] = (), where: Lab = HERE
) -> tuple[Plan, Repaired]:
    found = repaired(read_plan(written, "six", where), written, where, links, hosts)
    plan = read_plan(found.text, "six", where)
    assert len(assign_ports(plan.links, where)) == len(plan.links)
    return plan, found


@pytest.mark.parametrize("ported", [True, False])
def test_a_ring_is_closed_with_a_port_of_each_side_and_their_partners_are_joined(
    ported: bool,
) -> None:
    plan, found = fixed(text(ported), ("gpu01", "gpu02"))
    assert plan.job is not None and plan.job.rings == (tuple(SIX),) and not plan.warnings
    assert len(plan.links) == 8, "one link fewer: its ports are dead"
    ends = [link.hosts for link in plan.links]
    assert ("gpu01", "gpu02") in ends and ("gpu03", "gpu05") in ends
    assert not {("gpu01", "gpu03"), ("gpu02", "gpu05")} & set(ends) and ("gpu04", "gpu06") in ends
    assert (
        "gpu01--gpu02 is closed with the ports of gpu01--gpu03 and gpu02--gpu05" in found.message[0]
    )
    assert (
        found.ports == ((HostPort("gpu01", 1), HostPort("gpu02", 1)) if ported else ())
        and found.open is not ported
    )
    if ported:
        assert [str(link) for link in plan.links][-2:] == [
            "gpu01:p3 -- gpu02:p3",
            "gpu03:p3 -- gpu05:p3",
        ]


def test_links_at_two_switches_are_not_joined() -> None:
    body = json.loads(text(True))
    body["links"][7] = {"a": "gpu02:p4", "b": "gpu05:p4"}
    with pytest.raises(Infeasible, match="no two model parallel links on one switch to borrow"):
        fixed(json.dumps(body), ("gpu01", "gpu02"))


def test_a_matched_link_that_failed_is_left_out_and_a_parallel_one_carries_the_ring() -> None:
    plan, found = fixed(text(True), ("gpu04", "gpu06"))
    assert len(plan.links) == 8 and "no ring uses it" in found.message[0]
    body = json.loads(text(False))
    body["links"].append({"a": "gpu01", "b": "gpu02"})
    plan, found = fixed(json.dumps(body), ("gpu02", "gpu01"))
    assert (
        len(plan.links) == 9 and "the other link between them carries the ring" in found.message[0]
    )


def test_two_failures_are_repaired_one_after_the_other_and_a_host_is_gone_round() -> None:
    plan, found = fixed(text(True), ("gpu03", "gpu04"), hosts=("gpu02",))
    assert plan.job is not None and plan.job.rings == (
        ("gpu01", "gpu03", "gpu04", "gpu05", "gpu06"),
    )
    assert len(found.message) == 2 and "gpu02 is left out" in found.message[0] and not plan.warnings


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(Infeasible, match="no such link from gpu01 to gpu05") as refused:
        fixed(text(True), ("gpu01", "gpu05"))
    assert refused.value.hint == "one of its links, as --link gpu01:gpu02"
    body = json.loads(text(True))
    del body["job"]
    with pytest.raises(Missing, match="no rings to close"):
        fixed(json.dumps(body), ("gpu01", "gpu02"))


@pytest.mark.parametrize("name", sorted(path.stem for path in WORKLOADS.glob("*.yaml")))
def test_a_designed_plan_is_repaired_or_says_why_not(name: str) -> None:
    where = lab(12, 4)
    plan = read_plan(
        written := json.dumps(document(design(workload(name), where, Wanted("topoopt")))),
        "six",
        where,
    )
    assert plan.job is not None
    a, b = next(step for order in plan.rings for step in ring_steps(order))
    try:
        after, _ = fixed(written, (a, b), where=where)
    except Infeasible as error:
        assert "to borrow" in str(error) or "plane" in str(error) or "ports" in str(error), error
    else:
        assert after.job is not None and after.job.predicted["iteration_ms"] > 0
