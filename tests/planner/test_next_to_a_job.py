"""Which hosts another job gets on a lab where plans are up: those that are free, and a clear word
where they are too few.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from optics import Infeasible
from optics.plan import FixedRoute, Job, Plan, WantedLink
from orchestrator.inventory.lab import Lab
from orchestrator.plan.design.placement import (
    chosen_hosts,
    occupied_hosts,
    owner_for,
    taken,
    unused_name,
)
from tests.house.repository import ROOT
from tests.kit.command_line import typed


def plan(*hosts: str, name: str = "one") -> Plan:
    return Plan(name, tuple(WantedLink(a, b) for a, b in pairwise(hosts)))


def test_a_plan_has_the_hosts_it_links_runs_on_or_routes_over() -> None:
    whole = Plan(
        "p", (WantedLink("a", "b"),), Job("j", "train", ("b", "c")), (FixedRoute("a", "e", ("d",)),)
    )
    assert occupied_hosts(whole) == {"a", "b", "c", "d", "e"}


def test_the_next_job_gets_the_first_hosts_that_are_free(lab: Lab) -> None:
    whose = taken({"x.json": plan("gpu01", "gpu03"), "y.json": plan("gpu04", "gpu05")})
    assert chosen_hosts(lab, 3, (), whose) == ("gpu02", "gpu06", "gpu07")
    assert chosen_hosts(lab, 2, ("gpu12", "gpu02"), whose) == ("gpu12", "gpu02")
    for count, named, text, hint in (
        (
            9,
            (),
            "x.json, y.json leave 8 of 12 hosts free",
            "set ranks to 8 in the workload, or take a lab of 13",
        ),
        (2, ("gpu01", "gpu02"), "gpu01 is used by x.json", "free: gpu02, gpu06"),
        (
            2,
            ("gpu02", "gpu06", "gpu07"),
            "3 hosts are named, the workload has 2 ranks",
            "name 2 of them: gpu02,gpu06,",
        ),
    ):
        with pytest.raises(Infeasible) as caught:
            chosen_hosts(lab, count, named, whose)
        assert text in str(caught.value) and caught.value.hint.startswith(hint)


def test_plans_that_need_the_same_host_cannot_both_be_beside() -> None:
    with pytest.raises(Infeasible, match=r"y\.json and x\.json both need gpu02") as caught:
        taken({"x.json": plan("gpu01", "gpu02"), "y.json": plan("gpu02", "gpu03")})
    assert "leave y.json out" in caught.value.hint


def test_a_host_is_used_whole_or_in_slices_whichever_plan_comes_first() -> None:
    whole, first, second = (
        plan("gpu01", "gpu02"),
        plan("gpu01/a", "gpu02/a"),
        plan("gpu01/b", "gpu02/b"),
    )
    for one, two in ((whole, first), (first, whole)):
        with pytest.raises(Infeasible, match="both need gpu01"):
            taken({"x.json": one, "y.json": two})
    assert taken({"x.json": first, "y.json": second})["gpu01/a"] == "x.json"


def test_every_plan_beside_others_gets_a_name_of_its_own() -> None:
    assert (unused_name("a", ["b"]), unused_name("a", ["a", "a-2"])) == ("a", "a-3")
    assert owner_for("x y", ["x-y"]) == "x-y-2" and len(owner_for("a" * 70, ["a" * 64])) <= 64


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (("--hosts", "gpu01,gpu02"), 2, "contradicts --beside"),
        (("--beside", "none.json"), 2, "no such file"),
        (("--beside", "bad.json"), 3, "bad.json:1:1"),
        (("--beside", "first.json"), 3, "both need"),
    ],
)
def test_what_cannot_be_beside_is_refused_and_nothing_is_written(
    argv: tuple[str, ...], code: int, message: str, tmp_path: Path
) -> None:
    for name in ("first.json", "second.json"):
        (tmp_path / name).write_text(
            '{"schema": "testbed.plan/1", "name": "first", "links": [{"a": "gpu01", "b": "gpu02"}]}'
        )
    (tmp_path / "bad.json").write_text("[]")
    (tmp_path / "w.yaml").write_text(
        "{schema: testbed.workload/1, name: w, ranks: 2, compute_s: 0.1}"
    )
    given = ("-w", "w.yaml", "-o", "out.json", "-i", ROOT / "inventory" / "emulated", "--json")
    done = typed("design", "ring", *given, "--beside", "second.json", *argv, at=tmp_path)
    reply = json.loads(done.stdout)
    assert (
        done.returncode == code
        and message in reply["message"]
        and reply["hint"]
        and not (tmp_path / "out.json").exists()
    ), reply
