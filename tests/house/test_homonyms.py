"""A name at a call says what is called: no two modules of the program define a public function or class of the same name.

The command line is left out: its functions are named as what is typed. The exceptions are those of today; none may be added.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from tests.house.repository import ROOT, tracked

SHARED = {"Probe"}
"""A host's answer to a packet, and a finding of `doctor`."""


def homonyms(files: Mapping[str, Path]) -> dict[str, list[str]]:
    """The public names at the top level of several modules, each with these."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, file in files.items():
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(name)
    return {name: sorted(modules) for name, modules in found.items() if len(modules) > 1}


def test_no_two_modules_define_a_public_name() -> None:
    ours = {str(file.relative_to(ROOT)): file for file in tracked() if file.suffix == ".py"}
    program = {name: file for name, file in ours.items() if name.startswith("orchestrator/") and "cli" not in file.parts}
    assert len(program) > 100
    found = homonyms(program)
    new = {name: modules for name, modules in found.items() if name not in SHARED}
    assert new == {}, "give each a name that a reader understands who sees only the call"
    assert found.keys() == SHARED, "no exception is needed"


def test_namesakes_are_found_and_what_is_private_or_inside_is_not(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("def begin(): ...\nclass Look: ...\ndef _own(): ...\nclass A:\n    def inner(self): ...\n")
    (tmp_path / "two.py").write_text(
        "async def begin(): ...\ndef Look(): ...\ndef _own(): ...\nclass C:\n    def inner(self): ...\n"
    )
    (tmp_path / "three.py").write_text("from one import begin\ndef outer():\n    def begin(): ...\n")
    files = {file.name: file for file in tmp_path.iterdir()}
    assert homonyms(files) == {"begin": ["one.py", "two.py"], "Look": ["one.py", "two.py"]}
