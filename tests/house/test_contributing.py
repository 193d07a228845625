"""The map in CONTRIBUTING: its paths exist, its picture is the import contract, its tables have
every folder and few rows.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from tests.house.repository import ROOT, tracked
from tests.house.test_pages import names, section

MOST_LINES, MOST_ROWS = 120, 22
ALONE = {"optical_testbed_home/"}
"""Folders that need no row: it says where the packages are."""


def missing(text: str, folder: Path = ROOT / "orchestrator") -> list[str]:
    """Paths in backticks that are neither in the repository nor below this folder; NAME is for the
    reader to fill in.
    """
    named = [
        name for name in re.findall(r"`([^`\s]+)`", text) if "/" in name or name.endswith(".py")
    ]
    parts = {name: name.split("NAME")[0] for name in named}
    return [
        name
        for name, part in parts.items()
        if not any((below / part).exists() for below in (ROOT, folder))
    ]


def test_every_path_of_the_map_in_contributing_is_there() -> None:
    assert not missing((ROOT / "CONTRIBUTING.md").read_text())


def test_a_path_of_the_map_that_moved_is_noticed() -> None:
    assert missing(
        "| a | `plan/reader.py`, `planfile.py`, `drivers/NAME.py`, `drivers/old/` |"
    ) == ["planfile.py", "drivers/old/"]


def picture(text: str) -> list[set[str]]:
    """The rooms in each line of the picture, from the top down; a line is the rooms, spaces and
    what they are for.
    """
    drawn = re.search(r"```\n(.*?)```", section(text, "The rooms of `orchestrator/`"), re.DOTALL)
    assert drawn, "there is no picture of the rooms"
    return [set(re.split(r" {3,}", line)[0].split(" | ")) for line in drawn[1].splitlines()]


def test_the_picture_of_the_rooms_in_contributing_is_the_import_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    (rooms,) = (contract for contract in contracts if contract["id"] == "rooms")
    layers = [set(layer.split(" | ")) for layer in rooms["layers"]]
    assert picture((ROOT / "CONTRIBUTING.md").read_text()) == layers


def test_every_folder_of_the_repository_is_in_the_table_of_folders_in_contributing() -> None:
    listed = names(section((ROOT / "CONTRIBUTING.md").read_text(), "The folders"))
    folders = {f"{path.relative_to(ROOT).parts[0]}/" for path in tracked() if path.parent != ROOT}
    assert listed == {folder for folder in folders if not folder.startswith(".")} - ALONE


def test_the_table_of_contributing_has_a_row_for_each_kind_of_thing_and_no_more() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    kinds = [
        line for line in section(text, "Where things go").splitlines() if line.startswith("| ")
    ][1:]
    assert len(kinds) <= MOST_ROWS, (
        "a row for a kind of thing; what one mechanism needs is in its README"
    )
    assert len(text.splitlines()) <= MOST_LINES


def test_a_picture_that_differs_from_the_contract_is_noticed() -> None:
    text = "## The rooms of `orchestrator/`\n\n```\na           one\nb | c       two, three\n```\n"
    assert picture(text) == [{"a"}, {"b", "c"}]
    assert picture(text.replace("b | c", "b    ")) == [{"a"}, {"b"}]
