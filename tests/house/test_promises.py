"""The README's table of promises: S1 to S21, each with tests that are there."""

from __future__ import annotations

import re

from tests.house.repository import ROOT

ROW = re.compile(r"^\| (S\d+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def rows(text: str) -> dict[str, tuple[str, list[tuple[str, str]]]]:
    """Each promise's words and its tests: file, name."""
    return {n: (words, re.findall(r"`(tests/[\w/.-]+\.py)::(\w+)`", tests)) for n, words, tests in ROW.findall(text)}


def unproven(found: dict[str, tuple[str, list[tuple[str, str]]]]) -> list[str]:
    """Promises without a test, and tests that are not there."""
    missing = [f"{n}: no test" for n, (_, tests) in found.items() if not tests]
    for n, (_, tests) in found.items():
        for file, name in tests:
            text = (ROOT / file).read_text() if (ROOT / file).exists() else ""
            if not re.search(rf"^(async )?def {name}\(", text, re.MULTILINE):
                missing.append(f"{n}: {file}::{name} is not there")
    return missing


def test_every_promise_names_a_test_that_is_there() -> None:
    found = rows((ROOT / "README.md").read_text())
    assert list(found) == [f"S{number}" for number in range(1, 22)]
    assert not unproven(found)


def test_a_promise_without_its_test_is_noticed() -> None:
    found = rows("| S1 | this | none |\n| S2 | that | `tests/house/test_promises.py::test_of_nothing` |\n")
    assert unproven(found) == ["S1: no test", "S2: tests/house/test_promises.py::test_of_nothing is not there"]
