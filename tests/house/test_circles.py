"""No modules import each other in a circle, counting imports inside functions and those for the
type checker alone.

A contract of import-linter says which packages may know which; this says that within each of them,
too, there is a lowest module. That importing `a.b` runs `a/__init__.py` is not counted, nor is what
`importlib` finds by a string.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.house.repository import ROOT, nodes, tracked

Graph = Mapping[str, set[str]]


def imports(name: str, file: Path) -> Iterator[tuple[str, str]]:
    """Every import of the module `name`: a module, and what is imported from it, empty if it is the
    module itself.
    """
    package = (name if file.name == "__init__.py" else name.rpartition(".")[0]).split(".")
    for node in nodes(file):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            yield from (
                (".".join([*above, *([node.module] if node.module else [])]), alias.name)
                for alias in node.names
            )


def graph(folder: Path, files: Iterable[Path]) -> Graph:
    """Module -> those of the others that it imports."""
    modules = {
        ".".join(file.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"): file
        for file in files
    }
    found: dict[str, set[str]] = {}
    for name, file in modules.items():
        pairs = list(imports(name, file))
        found[name] = {
            each if (each := f"{module}.{word}") in modules else module for module, word in pairs
        } & {*modules} - {name}
    return found


def circle(modules: Graph) -> list[str]:
    """One circle of modules, its first module again at the end; none: empty."""
    try:
        TopologicalSorter(modules).prepare()
    except CycleError as error:
        return [*error.args[1]]
    return []


@pytest.fixture(scope="module")
def ours() -> Graph:
    return graph(ROOT, [file for file in tracked() if file.suffix == ".py"])


def test_no_modules_import_each_other_in_a_circle(ours: Graph) -> None:
    assert len(ours) > 1000
    assert circle(ours) == []


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ("optical_testbed_home", "orchestrator.cli.main"),
        ("agent.slots.operations", "agent.daemon"),
        ("workloads.backend.name", "workloads.backend"),
    ],
)
def test_one_import_upward_is_a_circle(low: str, high: str, ours: Graph) -> None:
    found = circle({**ours, low: ours[low] | {high}})
    assert {low, high} <= {*found} and found[0] == found[-1]


@pytest.mark.parametrize(
    "planted",
    [
        "import made.top",
        "from made import top",
        "from made.top import Top",
        "from . import top",
        "from .top import Top",
        "def late():\n    from made.top import Top",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from made.top import Top",
        "try:\n    import made.top as up\nexcept ImportError:\n    pass",
    ],
)
def test_every_way_to_import_closes_a_circle(planted: str, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    texts = {
        "__init__": "",
        "top": "from made.middle import x\n",
        "middle": "from . import ground\n",
        "ground": "import os\n",
    }
    for name, text in texts.items():
        (tmp_path / "made" / f"{name}.py").write_text(text)
    files = sorted(tmp_path.rglob("*.py"))
    assert circle(graph(tmp_path, files)) == []
    (tmp_path / "made" / "ground.py").write_text(f"{planted}\n")
    assert {*circle(graph(tmp_path, files))} == {"made.top", "made.middle", "made.ground"}
