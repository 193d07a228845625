"""Scenario files: every mistake with its place, arms put together as written, and no difference
that is not declared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from emulators.inventory.config import read_config
from optics import BadFile
from orchestrator.experiments.files.scenario.documents import differing_fields, undeclared
from orchestrator.experiments.files.scenario.edges import scenario_schema
from orchestrator.experiments.files.scenario.reader import read_scenario
from orchestrator.experiments.files.scenario.values import Scenario, WantedLab
from orchestrator.experiments.scenario import record
from orchestrator.experiments.scenario.lab import prepare_lab
from orchestrator.session import load_lab
from tests.house.repository import ROOT, scenarios

SHIPPED = [*scenarios().values()]
JOB = {"name": "j", "workload": "train", "ranks": ["gpu01", "gpu02"], "args": {"iterations": 0}}


def plan(name: str, ends: str = "p1", **more: Any) -> dict[str, Any]:
    links = [{"a": f"gpu01:{ends}", "b": f"gpu02:{ends}"}]
    return {
        "schema": "testbed.plan/1",
        "name": name,
        "description": name,
        "links": links,
        "job": JOB,
        **more,
    }


FILES: dict[str, Mapping[str, Any]] = {
    "a.json": plan("a"),
    "b.json": plan("b", "p2"),
    "other.json": plan(
        "other",
        job={**JOB, "args": {"iterations": 0, "model": "mlp"}, "env": {"OMP_NUM_THREADS": "1"}},
    ),
    "idle.json": plan("idle", job=None),
    "job.json": {**JOB, "workload": "allreduce", "args": {"loop": True}},
}
GOOD = """\
schema: testbed.scenario/1
name: s
title: A scenario
source: [a paper]
claim: b is as fast as a
label: native
lab: {hosts: 2, settle_ms: 20}
tenants:
  ann: {plan: a.json}
arms:
  a: {}
  b: {plan: b.json}
differs: [plan.links]
compare:
  - {metric: iteration_ms, of: b, over: a, band: {min: 0.9, max: 1.1}}
"""
COMPARED = GOOD.splitlines(keepends=True)[-1]


def fetch(name: str) -> str:
    if name not in FILES:
        raise FileNotFoundError(2, "No such file or directory", name)
    return json.dumps(FILES[name])


def read(text: str, name: str = "s.yaml") -> Scenario:
    return read_scenario(text, name, fetch)


def wrong(text: str) -> list[str]:
    with pytest.raises(BadFile) as caught:
        read(text)
    return caught.value.problems


def test_a_scenario_is_read_from_yaml_and_from_json_alike() -> None:
    found = read(GOOD)
    assert found == read(json.dumps(yaml.safe_load(GOOD)), "s.json")
    assert (
        [*found.arms] == ["a", "b"]
        and found.lab is not None
        and found.lab.settle_ms == 20
        and not found.changes
    )
    assert json.loads(found.arms["b"].setups["ann"].plan.text)["name"] == "b"
    assert found.compared[0].band == "0.9 to 1.1" and found.compared[0].tenant == "ann"


WRONG = {
    "an unknown field": (
        ("label: native", "label: native\nrepeat: 3"),
        "s.yaml:7:1: repeat: unknown field; did you mean repeats?",
    ),
    "an unknown label": (
        ("label: native", "label: nativ"),
        "s.yaml:6:8: label: wanted native, dilated, analytic or stand-in",
    ),
    "one arm": (("  b: {plan: b.json}\n", ""), "wanted at least 2 items, got 1"),
    "no such plan": (
        ("plan: b.json", "plan: c.json"),
        "s.yaml:12:13: arms.b.plan: c.json: No such file or directory",
    ),
    "an arm that is not there": (("of: b", "of: c"), "compare[0].of: there is no arm c"),
    "two comparisons of one name": (
        (COMPARED, COMPARED * 2),
        "compare[1]: another comparison is called 'iteration_ms b / a', too",
    ),
    "an arm over itself": (("over: a", "over: b"), "compare[0].over: arm b is divided by itself"),
    "an absolute value": (
        (", over: a", ""),
        "says nothing about another lab: name the arm to divide by (`over`)",
    ),
    "no band": (
        ("band: {min: 0.9, max: 1.1}", "band: {}"),
        "compare[0].band: a band has min, max, or both",
    ),
    "a band upside down": (
        ("min: 0.9", "min: 1.9"),
        "compare[0].band.min: min 1.9 is above max 1.1",
    ),
    "a change where there is none": (
        ("iteration_ms", "lost_ms"),
        "compare[0].of: lost_ms is of a change, and arm b changes to no",
    ),
    "iterations of another metric": (
        ("of: b", "of: b, iterations: 5"),
        "only span_ms is of a number of iterations",
    ),
    "more iterations than measured": (
        ("metric: iteration_ms, of: b", "metric: span_ms, iterations: 99, of: b"),
        "a measurement has 20 iterations, not 99",
    ),
    "a time of another metric": (
        ("of: b", "of: b, seconds: 5"),
        "compare[0].seconds: only loss is of a time, not iteration_ms",
    ),
    "a time that the watchdog ends": (
        ("metric: iteration_ms, of: b", "metric: loss, seconds: 120, of: b"),
        "compare[0].seconds: the watchdog of arm a ends a measurement after 120 s",
    ),
    "an unknown tenant": (
        ("of: b", "of: b, tenant: bob"),
        "compare[0].tenant: there is no tenant bob",
    ),
    "a tenant that only an arm has": (
        ("b: {plan: b.json}", "b: {tenants: {bob: {plan: b.json}}}"),
        "there is no tenant bob",
    ),
    "an arm without tenants": (
        ("b: {plan: b.json}", "b: {tenants: {ann: null}}"),
        "arms.b.tenants: no tenant takes part",
    ),
    "a tenant that takes no part": (
        ("b: {plan: b.json}", "b: {tenants: {ann: null}}"),
        "tenant ann takes no part in arm b",
    ),
    "a mode without a change": (
        ("b: {plan: b.json}", "b: {plan: b.json, mode: live}"),
        "which `then` names",
    ),
    "a plan without a job": (
        ("plan: b.json", "plan: idle.json"),
        "idle.json has no job, so nothing can be measured",
    ),
    "a difference that is not declared": (
        ("differs: [plan.links]", "differs: []"),
        "the arms differ in plan.links, too",
    ),
    "a difference that is none": (
        ("differs: [plan.links]", "differs: [plan.links, plan.routes]"),
        "s.yaml:13:23: differs[1]: the arms do not differ in plan.routes",
    ),
    "a share of no queue": (
        ("b: {plan: b.json}", "b: {plan: b.json, lab: {share: job}}"),
        "arms.b.lab.share: the lab has no `queue` whose share could be another",
    ),
    "one repeat": (
        ("label: native", "label: native\nrepeats: 1"),
        "repeats: wanted at least 2, got 1",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_every_mistake_is_refused_with_its_place(name: str) -> None:
    (old, new), text = WRONG[name]
    assert old in GOOD
    assert any(text in line for line in wrong(GOOD.replace(old, new))), wrong(
        GOOD.replace(old, new)
    )


def test_an_arm_may_share_uplinks_in_another_way_and_says_so() -> None:
    text = GOOD.replace("settle_ms: 20", "queue: {kb: 128}").replace(
        "{plan: b.json}", "{lab: {share: job}}"
    )
    assert any("the arms differ in lab.share, too" in line for line in wrong(text))
    found = read(text.replace("[plan.links]", "[lab.share]"))
    assert found.lab is not None and found.lab.queue == "128:fifo"
    assert [arm.share for arm in found.arms.values()] == [None, "job"]


def test_a_tenant_takes_no_part_in_an_arm_that_says_so() -> None:
    text = GOOD.replace(
        "  ann: {plan: a.json}\n", "  ann: {plan: a.json}\n  bob: {plan: b.json}\n"
    ).replace("of: b", "of: b, tenant: ann")
    text = text.replace("\n  b: {plan: b.json}", "\n  b: {tenants: {bob: null}}").replace(
        "[plan.links]", "[tenants]"
    )
    found = read(text)
    assert [*found.arms["a"].setups] == ["ann", "bob"] and [*found.arms["b"].setups] == ["ann"]
    assert any(
        "the arms differ in tenants, too" in line for line in wrong(text.replace("[tenants]", "[]"))
    )


def test_all_mistakes_are_reported_at_once() -> None:
    text = GOOD.replace("of: b", "of: x").replace("plan: b.json", "plan: y.json")
    assert len(wrong(text)) == 2


def test_arms_that_differ_in_the_job_without_saying_so_are_refused_field_by_field() -> None:
    problems = wrong(
        GOOD.replace("b: {plan: b.json}", "b: {plan: other.json}").replace("[plan.links]", "[]")
    )
    fields = [line.partition("differ in ")[2].partition(",")[0] for line in problems]
    assert fields == ["plan.job.args.model", "plan.job.env.OMP_NUM_THREADS"]
    # the whole job may
    read(
        GOOD.replace("b: {plan: b.json}", "b: {plan: other.json}").replace(
            "[plan.links]", "[plan.job]"
        )
    )


def test_a_name_a_description_and_a_prediction_are_no_difference() -> None:
    a, b = plan("a", predicted={"iteration_ms": 1.0}), {**plan("b"), "$schema": "x"}
    assert differing_fields([a, b], "plan") == []
    assert differing_fields([a, None], "then") == ["then"]
    assert undeclared(["plan.job.args.model"], ["plan.job.args"]) == ([], [])


def test_what_an_arm_says_replaces_what_its_tenant_says_and_what_is_said_of_one_tenant_replaces_both() -> (
    None
):
    text = GOOD.replace(
        "  ann: {plan: a.json}",
        "  ann: {plan: a.json, args: {model: mlp}}\n  bob: {plan: a.json, args: {batch: 8}}",
    )
    text = text.replace(
        "b: {plan: b.json}", "b: {args: {batch: 1, seed: 2}, tenants: {bob: {args: {batch: 2}}}}"
    )
    text = text.replace("differs: [plan.links]", "differs: [plan.job.args]").replace(
        "of: b", "of: b, tenant: bob"
    )
    arm = read(text).arms["b"]
    assert {t: json.loads(s.plan.text)["job"]["args"] for t, s in arm.setups.items()} == {
        "ann": {"iterations": 0, "model": "mlp", "batch": 1, "seed": 2},
        "bob": {"iterations": 0, "batch": 2, "seed": 2},
    }


def test_a_job_file_replaces_the_job_and_leaves_the_rings() -> None:
    arm = read(GOOD.replace("ann: {plan: a.json}", "ann: {plan: a.json, job: job.json}")).arms["a"]
    assert json.loads(arm.setups["ann"].plan.text)["job"] == {**FILES["job.json"]}


def test_a_sweep_becomes_an_arm_for_each_value() -> None:
    text = GOOD.replace(
        "b: {plan: b.json}", "b: {then: b.json, sweep: {lab.settle_ms: [1, 2.5, 100]}}"
    )
    text = text.replace("differs: [plan.links]", "differs: [then, lab.settle_ms]").replace(
        "of: b", "of: b@2.5"
    )
    found = read(text.replace("iteration_ms", "span_ms"))
    assert [*found.arms] == ["a", "b@1", "b@2.5", "b@100"] and found.arms["b@100"].swept == (
        "lab.settle_ms",
        100.0,
    )
    assert found.changes and found.compared[0].iterations == found.iterations
    assert any(
        "lab is any" in line
        for line in wrong(text.replace("lab: {hosts: 2, settle_ms: 20}", "lab: any"))
    )


def test_a_plan_that_nothing_was_added_to_keeps_its_text_so_that_errors_have_its_lines() -> None:
    assert read(GOOD).arms["b"].setups["ann"].plan.text == fetch("b.json")
    changed = (
        read(GOOD.replace("ann: {plan: a.json}", "ann: {plan: a.json, transition: {live: never}}"))
        .arms["a"]
        .setups["ann"]
        .plan
    )
    assert (
        json.loads(changed.text)["transition"] == {"live": "never"}
        and "with the fields added" in changed.file
    )


def test_the_committed_schema_is_the_one_the_program_uses() -> None:
    committed = json.loads((ROOT / "docs" / "reference" / "scenario.schema.json").read_text())
    assert committed == scenario_schema(), (
        "write it again: testbed examples schema scenario > docs/reference/scenario.schema.json"
    )


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.parent.name)
def test_a_shipped_scenario_is_named_like_its_folder_fits_the_schema_and_has_its_page(
    path: Any,
) -> None:
    document = yaml.safe_load(path.read_text())
    jsonschema.validate(document, scenario_schema(), cls=jsonschema.Draft202012Validator)
    found = read_scenario(
        path.read_text(), str(path), lambda word: (path.parent / word).read_text()
    )
    assert found.name == path.parent.name and found.lab is not None
    page = (path.parent / "README.md").read_text()
    assert f"testbed experiment reproduce {found.name}" in page and f"**{found.label}" in page
    assert all(one.band in page for one in found.compared), "the page states every band"
    result = path.parent / record.SHIPPED
    assert not result.exists() or record.shipped(path, found).outcome, (
        "its result is of other plans, bands or numbers: measure again, or remove found.json"
    )


def test_the_hosts_of_a_lab_keep_checkpoints_at_the_rate_that_the_scenario_says(
    tmp_path: Path,
) -> None:
    for rate in (0.0, 320.5):
        lab = load_lab(
            prepare_lab(tmp_path / "lab", WantedLab(hosts=2, ports=1, storage_mbps=rate))
        )
        assert {host.storage_mbps for host in lab.hosts.values()} == {rate}


def test_hosts_stand_in_the_sites_of_a_lab_which_its_lines_join_at_their_rate(
    tmp_path: Path,
) -> None:
    wanted = WantedLab(hosts=5, ports=2, sites=2, lines=("2:50:100:0:10",))
    for lab, mbps in ((wanted, 10), (replace(wanted, dilation=10), 1)):
        inventory = prepare_lab(tmp_path / "lab", lab)
        hosts = load_lab(inventory).hosts.values()
        assert [host.site for host in hosts] == ["site1"] * 3 + ["site2"] * 2
        (line,) = read_config(inventory).lines
        assert line.rate_bps == mbps * 1e6 and len(line.ports) == 5


@pytest.mark.parametrize(
    "path",
    [path for path in SHIPPED if "lines:" in path.read_text()],
    ids=lambda path: path.parent.name,
)
def test_the_emulators_bear_the_lines_of_a_scenario_that_ships(path: Path, tmp_path: Path) -> None:
    found = read_scenario(
        path.read_text(), str(path), lambda word: (path.parent / word).read_text()
    )
    assert found.lab is not None
    assert read_config(prepare_lab(tmp_path / "lab", found.lab)).lines, (
        "the lab starts: nothing is refused"
    )


def test_jobs_are_coordinated_only_where_two_tenants_have_one_and_stay_on_their_plans() -> None:
    with pytest.raises(BadFile) as refused:
        read_scenario(GOOD.replace("a: {}", "a: {coordinate: shift}"), "s.yaml", fetch)
    assert "two tenants are needed" in str(refused.value)
    two = GOOD.replace(
        "  ann: {plan: a.json}\n", "  ann: {plan: a.json}\n  bob: {plan: a.json}\n"
    ).replace("of: b", "tenant: ann, of: b")
    with pytest.raises(BadFile, match="differ in coordinate, too"):
        read_scenario(two.replace("a: {}", "a: {coordinate: shift}"), "s.yaml", fetch)
    with pytest.raises(BadFile, match="changes to another plan is not paced"):
        read_scenario(two.replace("a: {}", "a: {coordinate: shift, then: b.json}"), "s.yaml", fetch)
    right = two.replace("a: {}", "a: {coordinate: shift}").replace(
        "[plan.links]", "[plan.links, coordinate]"
    )
    assert read_scenario(right, "s.yaml", fetch).arms["a"].asked == {"coordinate": "shift"}


def test_the_scenarios_promised_are_there() -> None:
    assert [path.parent.name for path in SHIPPED] == [
        *(
            "aggregation",
            "cache",
            "cassini-incompatible",
            "cassini-pair",
            "checkmate",
            "checkmate-2",
            "compression",
            "compression-2",
        ),
        *(
            "diloco-wan",
            "direct-connect-small",
            "direct-connect-small-2",
            "incast-credits",
            "live-vs-restart",
            "live-vs-restart-2",
            "local-sgd-wan",
            "local-sgd-wan-2",
            "mixnet-moe",
            "mlt-loss",
            "mltcp-pair",
            "mltcp-single",
        ),
        *(
            "rail-only",
            "rail-only-exchange",
            "reconfiguration-latency",
            "reconfiguration-latency-2",
            "ring-wavelengths",
            "rotor-12",
            "rotor-12-2",
            "rotor-12-3",
        ),
        *(
            "serve-apart",
            "serve-predict",
            "shards-vs-tree",
            "shards-vs-tree-2",
            "storage-class",
            "swss-two-tenants",
            "tdtcp",
            "tdtcp-2",
            "topoopt-vs-trees",
        ),
    ]
