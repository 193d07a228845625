"""Golden error texts: every bad plan and inventory beside this file, and the complaint a user
reads.

A text that is meant to change is rewritten with `UPDATE_GOLDEN=1 pytest tests/plan`; read the
difference before you keep it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from optics import BadFile
from orchestrator.inventory.lab import Lab, read_lab
from orchestrator.inventory.yaml_reader import read_yaml
from orchestrator.plan.reader import read_plan

HERE = Path(__file__).parent
PLANS = sorted((HERE / "refused" / "plans").glob("*.json"))
INVENTORIES = sorted(
    path for path in (HERE / "refused" / "inventories").iterdir() if path.name != "base"
)
NAMES = ("hosts.yml", "devices.yml", "fibres.yml")


def texts(case: Path) -> tuple[str, str, str]:
    """The case's files; those it lacks are the sound ones of `base`."""
    hosts, devices, fibres = (
        (
            path
            if (path := case / name).exists()
            else HERE / "refused" / "inventories" / "base" / name
        ).read_text(encoding="utf-8")
        for name in NAMES
    )
    return hosts, devices, fibres


def agrees(expected: Path, seen: str) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        expected.write_text(seen + "\n", encoding="utf-8")
    assert seen + "\n" == expected.read_text(encoding="utf-8")


@pytest.mark.parametrize("case", PLANS, ids=lambda path: path.stem)
def test_a_bad_plan_is_refused_with_every_mistake_at_its_place(case: Path, lab: Lab) -> None:
    with pytest.raises(BadFile) as refused:
        read_plan(case.read_text(encoding="utf-8"), "plan.json", lab)
    agrees(case.with_suffix(".txt"), str(refused.value))


@pytest.mark.parametrize("case", INVENTORIES, ids=lambda path: path.name)
def test_a_bad_inventory_is_refused_with_every_mistake_at_its_place(case: Path) -> None:
    with pytest.raises(BadFile) as refused:
        read_lab(*texts(case))
    agrees(case / "expected.txt", str(refused.value))


def test_the_base_of_the_bad_inventories_is_sound() -> None:
    lab = read_lab(*texts(HERE / "refused" / "inventories" / "base"))
    assert list(lab.hosts) == ["gpu01", "gpu02"]
    assert lab.hosts["gpu01"].lanes == 2


def test_every_mistake_of_a_plan_says_what_to_do_and_that_nothing_was_changed(lab: Lab) -> None:
    for text in (
        "{",
        "schema: testbed.plan/1",
        '{"link": []}',
        '{"schema": "testbed.plan/1", "name": "x", "links": []}',
    ):
        with pytest.raises(BadFile) as refused:
            read_plan(text, "plan.json", lab)
        assert refused.value.hint == "correct the plan; nothing was changed"


def test_a_bad_file_has_the_exit_code_of_bad_files_and_no_traceback_of_ours(lab: Lab) -> None:
    with pytest.raises(BadFile) as refused:
        read_plan("{", "plan.json", lab)
    assert (refused.value.exit_code, refused.value.code, refused.value.problems) == (
        3,
        "E-BAD-FILE",
        str(refused.value).splitlines(),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "devices:\n  ocs1: {a: 1}\n ocs2: {a: 1}\n",
            "x:3:2: not YAML: 'ocs2' is indented by 1, its neighbours by 2",
        ),
        (
            "devices:\n  ocs1:\n    a: 1\n   b: 2\n",
            "x:4:4: not YAML: 'b' is indented by 3, its neighbours by 4",
        ),
        ("devices:\n\tocs1: 1\n", "x:2:1: not YAML: a tab; lines are indented by spaces"),
        (
            "devices:\n  ocs1\n  ocs2: 1\n",
            "x:3:7: not YAML: the line before lacks its colon, or this one is indented too deep",
        ),
        ("a: 1\nb\n", "x:2:1: not YAML: a key without a colon"),
        ('lab: "one\ndevices:\n', "x:1:6: not YAML: a quote that is not closed"),
    ],
)
def test_a_slip_in_yaml_is_told_in_words_about_the_text(text: str, message: str) -> None:
    with pytest.raises(BadFile) as caught:
        read_yaml(text, "x")
    assert str(caught.value) == message
