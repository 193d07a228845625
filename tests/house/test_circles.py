"""No modules import each other in a circle, counting imports inside functions and those for the
type checker alone.

A contract of import-linter says which packages may know which; this says that within each of them,
too, there is a lowest module. That importing `a.b` runs `a/__init__.py` is not counted, nor is what
`importlib` finds by a string, except the extensions that are found while modules are imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.house.repository import ROOT, nodes, tracked

Graph = Mapping[str, set[str]]
Nodes = Callable[[Path], Iterable[ast.AST]]


def when_imported(file: Path) -> Iterator[ast.AST]:
    """The nodes that are carried out when the module is imported."""
    waiting = [nodes(file)[0]]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)


def found_by_name(file: Path, modules: Iterable[str]) -> set[str]:
    """Those of extensions that the module asks for when it is imported."""
    parts = {
        node.args[0].value
        for node in when_imported(file)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("extension_parts", "by_name")
        and isinstance(node.args[0], ast.Constant)
    }
    return {
        each
        for each in modules
        if re.fullmatch(r"extensions\.\w+\.(\w+)", each) and each.rpartition(".")[2] in parts
    }


def imports(name: str, file: Path, of: Nodes) -> Iterator[tuple[str, str]]:
    """Every import of the module `name`: a module, and what is imported from it, empty if it is the
    module itself.
    """
    package = (name if file.name == "__init__.py" else name.rpartition(".")[0]).split(".")
    for node in of(file):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            yield from (
                (".".join([*above, *([node.module] if node.module else [])]), alias.name)
                for alias in node.names
            )


def graph(folder: Path, files: Iterable[Path], of: Nodes = nodes) -> Graph:
    """Module -> those of the others that it imports."""
    modules = {
        ".".join(file.relative_to(folder).with_suffix("").parts).removesuffix(".__init__"): file
        for file in files
    }
    found: dict[str, set[str]] = {}
    for name, file in modules.items():
        pairs = list(imports(name, file, of))
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


def test_each_module_can_be_the_first_that_is_imported() -> None:
    files = [
        file for name in ("orchestrator", "extensions") for file in (ROOT / name).rglob("*.py")
    ]
    found = {**graph(ROOT, files, when_imported)}
    by_name = {
        name: more
        for file in files
        if (more := found_by_name(file, found))
        and (name := ".".join(file.relative_to(ROOT).with_suffix("").parts))
    }
    assert {"orchestrator.telemetry.names", "orchestrator.store.verbs"} <= by_name.keys()
    found |= {name: found[name] | more for name, more in by_name.items()}
    assert circle(found) == []
    low, high = "extensions.adapt.measurements", "orchestrator.telemetry.names"
    assert {low, high} <= {*circle({**found, low: {*found[low], high}})}


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
