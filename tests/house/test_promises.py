"""The page of promises: S1 to S21, each with tests that are there."""

from __future__ import annotations

import re

from tests.house.repository import ROOT

SECTION = re.compile(r"^## (S\d+)\n\n(.+?)\n\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def rows(text: str) -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Each promise's words and its tests: file, name; a file that is named alone has an empty
    one.
    """
    found = {}
    for n, words, tests in SECTION.findall(text):
        files = re.findall(r"^- `(tests/[\w/.-]+\.py)`\n((?:  - `::\w+`\n)*)", tests, re.MULTILINE)
        found[n] = (
            words,
            [
                (file, name)
                for file, names in files
                for name in re.findall(r"::(\w+)", names) or [""]
            ],
        )
    return found


def unproven(found: dict[str, tuple[str, list[tuple[str, str]]]]) -> list[str]:
    """Promises without a test, and tests that are not there."""
    missing = [f"{n}: no test" for n, (_, tests) in found.items() if not tests]
    for n, (_, tests) in found.items():
        for file, name in tests:
            text = (ROOT / file).read_text() if (ROOT / file).exists() else ""
            if not re.search(rf"^(async )?def {name or 'test_.*'}\(", text, re.MULTILINE):
                missing.append(f"{n}: {file}::{name} is not there")
    return missing


def test_every_promise_names_a_test_that_is_there() -> None:
    found = rows((ROOT / "docs" / "reference" / "promises.md").read_text())
    assert list(found) == [f"S{number}" for number in range(1, 22)]
    assert not unproven(found)


def test_a_promise_without_its_test_is_noticed() -> None:
    here = "- `tests/house/test_promises.py`\n"
    found = rows(
        f"## S1\n\nThis.\n\nnone\n\n## S2\n\nThat.\n\n{here}  - `::test_of_nothing`\n\n## S3\n\nAll.\n\n{here}"
    )
    assert unproven(found) == [
        "S1: no test",
        "S2: tests/house/test_promises.py::test_of_nothing is not there",
    ]
