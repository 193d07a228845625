"""A mechanism is named in its folder and hardly anywhere else, and a public name of the
orchestrator has no namesake.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.house.repository import ROOT, tracked

PACKAGES = {
    "orchestrator",
    "agent",
    "workloads",
    "planner",
    "optics",
    "dashboards",
    "emulators",
    "optical_testbed",
    "drivers",
}
MENTIONS = {
    "[Ss]hadow": 10,
    "[Cc]ongestion|mltcp": 8,
    r"\b[Aa]dapt(er|ing|s)?\b|ADAPT": 8,
    r"\b[Rr]egion(s|al)?\b": 8,
    "[Cc]oordinat": 3,
}
"""In how many files outside of `extensions/` a mechanism may be named. Words that mean something
else count.
"""
NAMESAKES = ["Probe"]
"""Of a host's answer to a packet, and of doctor. None may be added: give each a name that says what
it is at a call.
"""


def mentions(word: str, files: Iterable[Path]) -> list[Path]:
    pattern = re.compile(word.encode())
    return [file for file in files if pattern.search(file.read_bytes())]


def namesakes(files: Iterable[Path]) -> list[str]:
    """Public functions and classes that several of these modules define."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    found = Counter(
        name
        for file in files
        for name in {n.name for n in ast.parse(file.read_text()).body if isinstance(n, kinds)}
    )
    return sorted(
        name for name, modules in found.items() if modules > 1 and not name.startswith("_")
    )


@pytest.mark.parametrize("word", MENTIONS)
def test_a_mechanism_is_named_in_its_folder(word: str) -> None:
    files = [file for file in tracked() if file.relative_to(ROOT).parts[0] in PACKAGES]
    assert len(files) > 800
    assert len(mentions(word, files)) <= MENTIONS[word]


def test_public_names_of_the_orchestrator_have_no_namesakes() -> None:
    rooms = [
        file
        for file in tracked()
        if file.suffix == ".py" and file.is_relative_to(ROOT / "orchestrator")
    ]
    outside = [file for file in rooms if not file.is_relative_to(ROOT / "orchestrator/cli")]
    assert len(outside) > 300
    assert namesakes(outside) == NAMESAKES


def test_a_mention_and_a_namesake_are_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("def begin(): ...\ndef _own(): ...\nclass Note: ...\n")
    (tmp_path / "two.py").write_text(
        '"""Of regions."""\ndef _own(): ...\nasync def begin():\n    def Note(): ...\n'
    )
    files = sorted(tmp_path.iterdir())
    assert namesakes(files) == ["begin"]
    assert mentions(r"\b[Rr]egion(s|al)?\b", files) == files[1:]
