"""The page of papers has a row for every scenario that ships, with the verdict and the numbers of
the scenario's own page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from orchestrator.cli.reproduce import read
from orchestrator.experiments.scenario.judging import RESULTS
from orchestrator.experiments.scenario.record import shipped
from tests.house.repository import ROOT, scenarios, tracked
from tests.house.test_figures import numbers
from tests.house.test_pages import section

PAGE = ROOT / "docs" / "reference" / "papers.md"
VERDICTS = ("reproduced", "not reproduced", "not measured", *RESULTS)
"""The first two: before scenarios were measured in rounds; the third: not yet."""
ROW = re.compile(
    r"^\| `testbed experiment reproduce (?P<name>[\w-]+)` \| [^|]+ \|"
    rf" \[(?P<verdict>{'|'.join(VERDICTS)})\]\(\.\./\.\./(?P<folder>[\w/.-]+)/README\.md\): (?P<result>[^|]+) \| [^|]+ \| [^|]+ \|$"
)


def rows(text: str) -> list[dict[str, str]]:
    """The cells of every row of a command; a row of another form is an error."""
    found = [(line, ROW.match(line)) for line in text.splitlines() if line.startswith("| `testbed")]
    assert all(match for _, match in found), [line for line, match in found if not match]
    return [match.groupdict() for _, match in found if match]


def untrue(row: dict[str, str], page: str) -> Iterator[str]:
    """What a row says of a result that the scenario's page does not say."""
    found = section(page, "What was found here").strip().lstrip("*")
    if not found.lower().startswith(row["verdict"]):
        yield f"{row['name']}: {row['verdict']}, but: {found[:40]}"
    yield from (
        f"{row['name']}: {number:g}" for number in sorted(numbers(row["result"]) - numbers(page))
    )


def test_every_scenario_that_ships_has_a_row() -> None:
    found = rows(PAGE.read_text())
    assert (
        len(found)
        == len(scenarios())
        == len([path for path in tracked() if path.name == "scenario.yaml"])
    )
    assert {row["name"]: ROOT / row["folder"] / "scenario.yaml" for row in found} == scenarios()


def test_every_row_says_of_the_result_what_the_page_of_its_scenario_says() -> None:
    found = [
        (row, Path(ROOT / row["folder"] / "README.md").read_text())
        for row in rows(PAGE.read_text())
    ]
    assert [wrong for row, page in found for wrong in untrue(row, page)] == []


def test_what_is_listed_of_a_scenario_is_what_its_page_says() -> None:
    for row in rows(PAGE.read_text()):
        path = ROOT / row["folder"] / "scenario.yaml"
        listed = shipped(path, read(path))
        assert listed.outcome == row["verdict"], f"{row['folder']}/found.json"
        found = section((ROOT / row["folder"] / "README.md").read_text(), "What was found here")
        assert listed.day in ("", *re.findall(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", found)), (
            f"{row['folder']}/found.json"
        )


def test_a_result_that_differs_from_its_page_is_noticed() -> None:
    page = "# x\n\nA band of at most 0.75.\n\n## What was found here\n\n**Not reproduced**: 0.53 (0.41 to 0.79)\n"
    result = "[not reproduced](../../a/x/README.md): 0.53 x, interval 0.41 to 0.79, limit 0.75"
    line = f"| `testbed experiment reproduce x` | claim | {result} | 4 hosts | more hosts |"
    (row,) = rows(line)
    assert list(untrue(row, page)) == []
    (row,) = rows(line.replace("0.41", "0.42"))
    assert list(untrue(row, page)) == ["x: 0.42"]
    (row,) = rows(line.replace("[not ", "["))
    assert len(list(untrue(row, page))) == 1
