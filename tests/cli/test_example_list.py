"""`testbed examples`: each example has commands that parse, files that are there, and plans that
its inventory can have.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.examplelist import example_table
from orchestrator.session import load_lab, load_plan
from tests.house.repository import ROOT
from tests.house.test_commands import command_line, refusal
from tests.kit.examples import LISTED, PLANS, inventory_of, option, plan_inventory

__all__ = ["command_line"]


def test_every_plan_is_listed_and_every_listed_name_is_used_once() -> None:
    rows, _ = example_table(ROOT)
    assert len(LISTED) == len(rows)
    for path in PLANS:
        assert plan_inventory(path.name), path.name


@pytest.mark.parametrize("name", LISTED)
def test_a_listed_command_parses_and_its_files_are_there_or_made_before(
    name: str, command_line: Any
) -> None:
    made: set[str] = set()
    for command in [*LISTED[name]["run"], *LISTED[name]["end"]]:
        tokens = shlex.split(command)
        assert not refusal(command_line, tokens), command
        files = {
            word
            for word in tokens
            if word.startswith(("examples/", "inventory/")) or word.endswith(".json")
        }
        made.add(option(tokens, "-o"))
        assert not [file for file in files - made if not (ROOT / file).exists()], command


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_plan_fits_the_inventory_that_it_is_listed_with(path: Path) -> None:
    plan, _ = load_plan(path, load_lab(ROOT / "inventory" / plan_inventory(path.name)))
    assert not plan.warnings and plan.job


def test_the_list_is_short_enough_to_read_and_names_group_time_and_commands(cli: Any) -> None:
    lines = cli("examples").out.splitlines()
    assert len(lines) <= 96 and max(map(len, lines)) <= 132
    assert "Packet switches" in lines and "    testbed up -t examples/schedule.json" in lines
    assert any(line.startswith("  shadow, about ") for line in lines)
    data = cli("examples", "--json").json["data"]
    assert [row["name"] for row in data["examples"]] == list(LISTED)


def test_the_copy_has_the_plans_and_the_inventories_of_every_listed_command(
    cli: Any, tmp_path: Path
) -> None:
    copy = tmp_path / "trial"
    assert cli("examples", "copy", copy).code == 0
    for row in LISTED.values():
        for text in map(shlex.split, row["run"]):
            assert (copy / "inventory" / inventory_of(text) / "hosts.yml").is_file(), text
            named = [word for word in text if word.startswith("examples/")]
            assert not [word for word in named if not (copy / word).exists()]
