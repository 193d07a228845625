"""Campaign files: which trials they are, and what is refused with its place."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from optics import BadFile
from orchestrator.experiments.files.sweep.edges import sweep_schema
from orchestrator.experiments.files.sweep.reader import read_campaign
from orchestrator.experiments.files.sweep.values import Campaign
from tests.house.repository import ROOT

HEAD = "schema: testbed.sweep/1\nname: x\n"
BERT, DLRM = (
    (ROOT / "examples" / "workloads" / f"{name}.yaml").read_text() for name in ("bert", "dlrm")
)
PLAN = '{"schema": "testbed.plan/1", "name": "a", "links": []}'
FILES = {"w.yaml": BERT, "v.yaml": DLRM, "a/p.json": PLAN, "b/p.json": PLAN.replace('"a"', '"b"')}


def read(text: str, files: dict[str, str] | None = None) -> Campaign:
    other = FILES if files is None else files

    def fetch(name: str) -> str:
        if name not in other:
            raise FileNotFoundError(2, "No such file or directory")
        return other[name]

    return read_campaign(HEAD + text, "c.yaml", fetch)


def refused(text: str) -> str:
    with pytest.raises(BadFile) as caught:
        read(text)
    return "\n".join(caught.value.problems)


PREDICTION = "kind: prediction\nbase: {workload: w.yaml}\n"


def test_the_trials_are_every_row_of_the_list_with_every_combination_of_the_grid() -> None:
    found = read(
        PREDICTION
        + "grid: {method: [ring, torus], lab.ports: [2, 4]}\nlist: [{seed: 1}, {seed: 2, ports: 2}]"
    )
    assert len(found.trials) == 8 and len({trial.key for trial in found.trials}) == 8
    assert found.parameters == ("workload", "method", "lab.ports", "seed", "ports")
    assert found.trials[1].labels == {"workload": "w", "method": "ring", "lab.ports": 4, "seed": 1}
    assert found.trials[1].task["lab"]["wanted"]["ports"] == 4 and found.trials[1].task[
        "parameters"
    ] == {
        "method": "ring",
        "seed": 1,
    }
    assert {trial.resource for trial in found.trials} == {""}


def test_a_key_follows_the_inputs_and_nothing_else() -> None:
    text = PREDICTION + "grid: {method: [ring]}"
    (one,), (again,) = (
        read(text).trials,
        read(text.replace("w.yaml", "v.yaml"), {"v.yaml": BERT}).trials,
    )
    assert one.key == again.key
    for other in (
        read(text, FILES | {"w.yaml": DLRM}),
        read(text + "\nlab: {hosts: 8}"),
        read(text.replace("[ring]", "[torus]")),
        read(text + "\nlist: [{seed: 1}]"),
        read(text + "\nlist: [{repeat: 1}]"),
    ):
        assert other.trials[0].key != one.key
    for same in (
        read(text + "\nretries: 1\nwatchdog_s: 5"),
        read(text + "\nlab: {hosts: 12}"),
        read(text + "\ntitle: other words"),
    ):
        assert same.trials[0].key == one.key


def test_a_trial_that_a_grid_and_a_list_both_have_is_one() -> None:
    assert (
        len(
            read(
                PREDICTION + "grid: {method: [ring]}\nlist: [{seed: 1}, {seed: 1}, {seed: 2}]"
            ).trials
        )
        == 2
    )


def test_the_seed_of_a_lab_is_that_of_its_losses_and_labs_take_turns_at_a_resource() -> None:
    found = read(
        "kind: lab\nbase: {plan: a/p.json}\ngrid: {seed: [3, 4], faults: {none: [], cut: [{at: ocs1, kind: reboot-lose}]}}"
    )
    assert [trial.task["lab"]["wanted"]["seed"] for trial in found.trials] == [3, 3, 4, 4]
    assert [trial.labels["faults"] for trial in found.trials[:2]] == ["none", "cut"]
    assert found.trials[1].task["parameters"]["faults"] == [{"at": "ocs1", "kind": "reboot-lose"}]
    assert found.trials[0].resource == "lab"
    existing = read(
        "kind: lab\nlab: {inventory: /srv/lab, resource: lab_a}\nbase: {plan: a/p.json}"
    )
    assert existing.trials[0].resource == "lab_a" and existing.trials[0].task["lab"] == {
        "inventory": "/srv/lab"
    }


def test_trials_of_a_campaign_may_be_of_several_kinds_and_share_its_grid() -> None:
    found = read(
        "kind: prediction\nlist: [{workload: w.yaml, method: ring}, {kind: lab, plan: a/p.json}, {kind: devices, plan: a/p.json}]\n"
        "grid: {seed: [1, 2]}"
    )
    assert found.kinds == {"prediction": 2, "lab": 2, "devices": 2} and found.parameters[:2] == (
        "kind",
        "seed",
    )
    assert [(trial.labels["kind"], trial.resource) for trial in found.trials[::2]] == [
        ("prediction", ""), ("lab", "lab"), ("devices", "")]  # fmt: skip
    assert [trial.task["lab"]["wanted"]["seed"] for trial in found.trials[:4]] == [1, 1, 1, 2]
    output = refused(
        "kind: lab\nbase: {job: false}\nlist: [{plan: a/p.json}, {kind: devices, plan: a/p.json}, {kind: labs}]"
    )
    assert (
        "base.job: no parameter of kind devices" in output
        and "list[2].kind: 'labs': wanted one of prediction" in output
    )


def test_a_file_that_is_neither_a_workload_nor_a_plan_is_not_sent_to_workers() -> None:
    files = FILES | {"/etc/shadow": "root:*:20228", "key.json": '"secret"'}
    for text in (
        "kind: prediction\nbase: {workload: /etc/shadow, method: ring}",
        "kind: devices\nbase: {plan: key.json}",
    ):
        with pytest.raises(BadFile, match=r"c\.yaml:4:"):
            read(text, files)


def test_files_of_one_name_in_two_folders_are_told_apart() -> None:
    found = read("kind: devices\ngrid: {plan: [a/p.json, b/p.json]}")
    assert [trial.labels["plan"] for trial in found.trials] == ["a/p.json", "b/p.json"]


def test_everything_wrong_is_said_at_its_place() -> None:
    output = refused(
        PREDICTION
        + "grid:\n  method: [ring, 3]\n  lab.hosts: [12, 900]\n  sed: [1]\n  ports: []\nlist: [{workload: no.yaml}]"
    )
    assert "c.yaml:6:18: grid.method[1]: wanted text, got 3" in output
    assert "c.yaml:7:19: grid.lab.hosts[1]: wanted at most 64, got 900" in output
    assert "grid.sed[0]: no parameter of kind prediction; did you mean seed?" in output
    assert "grid.ports: no values" in output
    assert "c.yaml:10:19: list[0].workload: no.yaml: No such file or directory" in output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: prediction\ngrid: {method: [ring]}", "workload is missing"),
        ("kind: devices\ngrid: {seed: [1]}", "plan is missing"),
        (
            "kind: devices\nlab: {inventory: x}\nbase: {plan: a/p.json}",
            "devices without hosts are those of a generated lab",
        ),
        ("kind: lab\nlab: {inventory: x}\nbase: {plan: a/p.json}", "resource is missing"),
        (
            "kind: lab\nlab: {inventory: x, resource: r}\nbase: {plan: a/p.json, lab.hosts: 4}",
            "only a generated lab has parameters",
        ),
        ("kind: lab\nbase: {plan: a/p.json, repeats: 3}", "repeats is of a scenario"),
        ("kind: lab\nlab: {hots: 3}", "lab.hots: unknown field; did you mean hosts?"),
        ("kind: lab\nlab: {dilation: 2}", "lab.dilation: unknown field"),
        ("kind: lap", "wanted prediction, devices or lab"),
    ],
)
def test_a_campaign_that_cannot_be_run_is_refused(text: str, message: str) -> None:
    assert message in refused(text)


def test_a_grid_that_explodes_is_refused_with_its_size_before_it_is_made() -> None:
    many = ", ".join(map(str, range(1000)))
    reported = refused(PREDICTION + f"grid: {{seed: [{many}], repeat: [{many}], ports: [1, 2, 3]}}")
    assert (
        reported
        == "c.yaml: 3000000 trials (1000 seed x 1000 repeat x 3 ports), at most 100000 are possible"
    )


def test_a_scenario_travels_with_its_plans_and_must_have_a_lab_of_its_own() -> None:
    folder = ROOT / "examples" / "scenarios"

    def fetch(name: str) -> str:
        return (folder / name).read_text()

    def any_lab(text: str) -> str:
        return re.sub(r"(?m)^lab:.*(\n +.*)*", "lab: any", text)

    text = HEAD + "kind: lab\nbase: {scenario: rail-only/scenario.yaml, repeats: 2}"
    (trial,) = read_campaign(text, "c.yaml", fetch).trials
    page = trial.task["files"]["scenario"]
    assert page["files"] and all(
        (folder / "rail-only" / name).read_text() == text for name, text in page["files"].items()
    )
    with pytest.raises(BadFile, match="only a scenario with a lab of its own can be a trial"):
        read_campaign(
            text,
            "c.yaml",
            lambda name: any_lab(fetch(name)) if name.endswith("scenario.yaml") else fetch(name),
        )
    with pytest.raises(BadFile, match="a scenario has its own plan"):
        read_campaign(text.replace("repeats: 2", "plan: rail-only/scenario.yaml"), "c.yaml", fetch)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples" / "sweeps").glob("*.yaml")), ids=lambda path: str(path.stem)
)
def test_the_examples_are_campaigns(path: Path) -> None:
    assert read_campaign(
        path.read_text(), str(path), lambda name: (path.parent / name).read_text()
    ).trials


def test_the_committed_schema_is_the_one_the_program_uses() -> None:
    committed = (ROOT / "docs" / "reference" / "sweep.schema.json").read_text()
    assert json.loads(committed) == sweep_schema(), (
        "write it again: testbed examples schema sweep > docs/reference/sweep.schema.json"
    )
