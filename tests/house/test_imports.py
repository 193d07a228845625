"""The direction of imports is a contract, and every contract fails when it is broken (by a
violation planted in a copy).
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest

from tests.house.repository import ROOT, nodes

CONFIG: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"][
    "importlinter"
]
CONTRACTS: dict[str, dict[str, Any]] = {
    contract["id"]: contract for contract in CONFIG["contracts"]
}
LINT = Path(sys.executable).with_name("lint-imports")
FILES = [
    file.relative_to(ROOT)
    for package in CONFIG["root_packages"]
    for file in (ROOT / package).rglob("*.py")
]
MODULES = {".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in FILES}

PURE_ROOMS = {
    "optics",
    "planner",
    "orchestrator.inventory",
    "orchestrator.fabric",
    "orchestrator.plan",
    "orchestrator.store.scope",
}
PURE_ROOMS |= {"orchestrator.experiments.files"}
PURE_ROOMS |= {
    f"extensions.{each.parent.name}.{each.stem}"
    for name in ("plan", "arm")
    for each in (ROOT / "extensions").glob(f"*/{name}.py")
}
PURE_ROOMS |= {"extensions.pacing.links", "extensions.pacing.phases"}
PURE_ROOMS |= {f"extensions.adapt.{name}" for name in ("circuits", "region", "traffic")}
CLOCKS_AND_SOCKETS = {"asyncio", "socket", "subprocess", "time", "random", "os", "logging"}


def lint(folder: Path, *contracts: str) -> tuple[int, str]:
    chosen = [word for contract in contracts for word in ("--contract", contract)]
    done = subprocess.run(
        [LINT, "--no-cache", *chosen], cwd=folder, capture_output=True, text=True, timeout=60
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The contracts and every module they speak of, empty: what is planted is then all there is to
    find.
    """
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def plant(folder: Path, module: str, imported: str) -> None:
    path = folder / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = file.read_text()
    # inside a function: what is imported late counts as well
    file.write_text(
        f"{text}\n\ndef planted_{imported.replace('.', '_')}():\n    import {imported}\n"
    )


def matching(expressions: list[str]) -> list[str]:
    """The modules that these name; a star is any one word."""
    found = []
    for each in expressions:
        pattern = re.compile(each.replace(".", r"\.").replace("*", r"[^.]+"))
        found += sorted(filter(pattern.fullmatch, MODULES)) if "*" in each else [each]
    return found


def within(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def violations(contract: dict[str, Any]) -> list[tuple[str, str]]:
    """Every import a contract is there to forbid, module by module."""
    if contract["type"] == "forbidden":
        pairs = product(
            matching(contract["source_modules"]), matching(contract["forbidden_modules"])
        )
        return [
            (here, other)
            for here, other in pairs
            if not (within(here, other) or within(other, here))
        ]
    inside = "".join(f"{container}." for container in contract.get("containers", []))
    layers = [
        [inside + module.strip() for module in layer.split("|")] for layer in contract["layers"]
    ]
    upward = [
        (low, high) for uppers, lowers in pairwise(layers) for low in lowers for high in uppers
    ]
    across = [(one, other) for layer in layers for one in layer for other in layer if one != other]
    return upward + across


def test_every_contract_holds() -> None:
    code, reported = lint(ROOT)
    assert code == 0, reported
    assert f"Contracts: {len(CONTRACTS)} kept, 0 broken." in reported


@pytest.mark.parametrize("name", CONTRACTS)
def test_a_contract_fails_on_each_import_it_forbids(name: str, copy: Path) -> None:
    wanted = violations(CONTRACTS[name])
    assert wanted
    for here, other in wanted:
        plant(copy, here, other)
    code, reported = lint(copy, name)
    assert code == 1, reported
    missed = [
        f"{here} -> {place}"
        for here, place in wanted
        if f"{here} is not allowed to import {place}" not in reported
    ]
    assert not missed


def test_the_pure_rooms_and_the_clocks_they_must_not_know_are_all_named() -> None:
    pure, drivers, bytes_ = CONTRACTS["pure"], CONTRACTS["pure-no-drivers"], CONTRACTS["bytes"]
    assert set(pure["source_modules"]) == set(drivers["source_modules"]) == PURE_ROOMS
    assert set(pure["forbidden_modules"]) >= CLOCKS_AND_SOCKETS
    assert set(bytes_["source_modules"]) == {
        "drivers.wire",
        "emulators.devices.dialects",
        "emulators.optics",
    }
    assert set(bytes_["forbidden_modules"]) >= {"asyncio", "socket", "time"}


@pytest.mark.parametrize(
    "name", [name for name, contract in CONTRACTS.items() if contract.get("exhaustive")]
)
def test_a_module_outside_every_room_breaks_the_contract(name: str, copy: Path) -> None:
    (container,) = CONTRACTS[name]["containers"]
    (copy / container.replace(".", "/") / "stray.py").touch()
    code, output = lint(copy, name)
    assert code == 1 and "stray" in output, output


def imports(file: Path) -> Iterator[str]:
    """The packages that a file imports; of an extension the part."""
    for node in nodes(file):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        else:
            continue
        yield from (
            ".".join(name.split(".")[: 3 if name.startswith("extensions.") else 1])
            for name in names
        )


HOST_PARTS = [str(part.relative_to(ROOT)) for part in sorted(ROOT.glob("extensions/*/host"))]
"""What of mechanisms is copied to hosts with the agent."""
RANKS = {"workloads", "torch", "numpy"}


@pytest.mark.parametrize(
    ("folder", "own"),
    [
        ("agent", {"agent"}),
        ("workloads", RANKS),
        ("extensions/*/rank", RANKS),
        *((part, {"agent", part.replace("/", ".")}) for part in HOST_PARTS),
    ],
)
def test_what_is_copied_to_hosts_needs_nothing_but_python_there(
    folder: str, own: set[str], tmp_path: Path
) -> None:
    known, files = sys.stdlib_module_names | own, [*ROOT.glob(f"{folder}/**/*.py")]
    foreign = {f"{file.relative_to(ROOT)}: {name}" for file in files for name in imports(file)}
    assert files
    assert not {line for line in foreign if line.rpartition(" ")[2] not in known}
    (tmp_path / "planted.py").write_text("def late():\n    import yaml\n    from os import path\n")
    assert [name for name in imports(tmp_path / "planted.py") if name not in known] == ["yaml"]


def newer_than_hosts_promise(folder: Path) -> list[str]:
    """Files that Python 3.9 cannot parse."""
    found = []
    for file in sorted(folder.rglob("*.py")):
        try:
            ast.parse(file.read_text(), feature_version=(3, 9))
        except SyntaxError:
            found.append(file.name)
    return found


def test_the_agent_is_written_in_the_python_that_hosts_promise(tmp_path: Path) -> None:
    assert not [
        file
        for folder in ("agent", *HOST_PARTS)
        for file in newer_than_hosts_promise(ROOT / folder)
    ]
    (tmp_path / "planted.py").write_text("match 1:\n    case 1:\n        pass\n")
    assert newer_than_hosts_promise(tmp_path) == ["planted.py"]


def test_the_agent_imports_no_types_at_run_time() -> None:
    files = (file for folder in ("agent", *HOST_PARTS) for file in (ROOT / folder).rglob("*.py"))
    files = (file for file in files if file.stem not in ("__init__", "__main__", "shapes"))
    modules = ", ".join(".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files)
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {modules}; print('agent.shapes' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    "module", ["orchestrator.cli.main", "orchestrator.cli.change", "orchestrator.results"]
)
def test_the_command_line_starts_without_the_heavy_libraries(module: str) -> None:
    heavy = "{'paramiko', 'pyvisa', 'serial', 'ansible', 'ansible_runner', 'influxdb_client', 'torch', 'yaml', 'pydantic'}"
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
