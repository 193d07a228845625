"""Whatever bytes a file holds, the readers answer with values or with `BadFile`, at places that
exist.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from optics import BadFile
from optics.plain import did_you_mean, natural
from orchestrator.inventory.json_reader import read_json
from orchestrator.inventory.lab import read_lab
from orchestrator.inventory.positions import spell
from orchestrator.inventory.yaml_reader import read_yaml
from orchestrator.plan.reader import read_plan
from tests.properties.labs import inventory, lab

EXAMPLE = (Path(__file__).parents[2] / "examples" / "topoopt-12.json").read_text()
texts = st.text(st.characters(codec="utf-8"), max_size=30)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(10**15), 10**15)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


def complaints_have_places(error: BadFile, text: str) -> None:
    lines = text.split("\n")
    for problem in error.problems:
        found = re.match(r"[^:]+:(\d+):(\d+): ", problem)
        assert found, problem
        line, col = int(found[1]), int(found[2])
        assert 1 <= line <= len(lines) and 1 <= col <= len(lines[line - 1]) + 1, problem


@given(values, st.sampled_from([None, 0, 2]))
def test_json_is_read_as_the_standard_library_reads_it(value: Any, indent: int | None) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=bool(indent))
    document = read_json(text, "x.json")
    assert document.value == value
    for path, (line, col) in document.values.items():
        inner = value
        for part in path:
            inner = inner[part]
        start = json.dumps(inner, ensure_ascii=bool(indent))[:1]
        assert text.split("\n")[line - 1][col - 1] == start, (spell(path), line, col)


@given(
    st.integers(0, len(EXAMPLE) - 1),
    st.integers(0, 3),
    st.sampled_from(list('{}[]",:0a\n\t\\\x00é-.')),
)
@settings(max_examples=300)
def test_a_damaged_plan_is_refused_or_read_never_a_crash(at: int, cut: int, char: str) -> None:
    text = EXAMPLE[:at] + char + EXAMPLE[at + cut :]
    try:
        json.loads(text)
        sound = True
    except ValueError:
        sound = False
    try:
        read_plan(text, "plan.json", lab(12, 4))
    except BadFile as error:
        complaints_have_places(error, text)
        if sound:
            assert not any("not JSON" in problem for problem in error.problems), error
    else:
        assert sound, "json.loads refuses what we accept"


@given(values)
def test_a_plan_of_any_shape_is_refused_politely(value: Any) -> None:
    text = json.dumps(
        {
            "schema": "testbed.plan/1",
            "name": "x",
            "links": value,
            "job": value,
            "routes": value,
            "acceptance": value,
        }
    )
    try:
        read_plan(text, "plan.json", lab(12, 4))
    except BadFile as error:
        complaints_have_places(error, text)
    else:
        raise AssertionError("no such value is a list of links")


@given(st.text(max_size=60))
def test_any_text_is_yaml_or_refused(text: str) -> None:
    try:
        read_yaml(text, "x.yml")
    except BadFile as error:
        assert all(problem.startswith("x.yml:") for problem in error.problems)


@given(
    st.sampled_from([0, 1, 2]),
    st.integers(0, 400),
    st.integers(0, 5),
    st.sampled_from(list("{}[]\",:0a\n\t &*!|>-?#%@`'")),
)
@settings(max_examples=300)
def test_a_damaged_inventory_is_refused_or_read_never_a_crash(
    which: int, at: int, cut: int, char: str
) -> None:
    files = list(inventory(3, 2))
    files[which] = files[which][:at] + char + files[which][at + cut :]
    try:
        read_lab(files[0], files[1], files[2])
    except BadFile as error:
        assert all(
            re.match(r"(hosts|devices|fibres)\.yml:\d+:\d+: ", problem)
            for problem in error.problems
        )


@given(texts, st.lists(texts, max_size=5))
def test_a_suggestion_is_one_of_the_known_words(word: str, known: list[str]) -> None:
    hint = did_you_mean(word, known)
    assert hint == "" or any(hint == f"; did you mean {one}?" for one in known)


def test_names_are_ordered_as_people_count() -> None:
    assert sorted(["gpu10", "gpu9", "a", "gpu", "10", "9"], key=natural) == [
        "9",
        "10",
        "a",
        "gpu",
        "gpu9",
        "gpu10",
    ]
