"""Installed from a wheel, in an environment of its own, on other Pythons than the one that runs the
tests.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.house.repository import ROOT, scenarios, tracked

pytestmark = pytest.mark.long

PIP_S = 900.0
FILES = [str(path.relative_to(ROOT)) for path in tracked()]
EXAMPLES = [name for name in FILES if name.startswith("examples/")]
OF_EXTENSIONS = [name for name in FILES if fnmatch(name, "extensions/*/scenarios/*")]
INVENTORIES = [name for name in FILES if name.startswith("inventory/")]
MECHANISMS = [
    name for name in FILES if fnmatch(name, "extensions/*/README.md") and name not in OF_EXTENSIONS
]
PAGES = [
    name
    for name in FILES
    if name.startswith("docs/") and name.endswith(".md") and not name.startswith("docs/decisions/")
]
OTHERS = ("3.12", "3.13")
SMOKE = """
import json, pathlib, sys
from conformance.lab import hosts_lab
from conformance.private import CommandLine
with hosts_lab("polatis-scpi", 2) as lab:
    home = pathlib.Path(sys.argv[1])
    plan = home / "pair.json"
    plan.write_text(json.dumps({"schema": "testbed.plan/1", "name": "pair", "links": [{"a": "gpu01", "b": "gpu02"}]}))
    testbed = CommandLine(lab.inventory, home)
    python = next(check for check in testbed("doctor")["checks"] if check["name"] == "python")
    up, verified = testbed("up", "--topology", plan, "--no-job"), testbed("verify")
    down = testbed("down", "--yes")
print(json.dumps({"python": python, "plan": up["plan"], "verified": verified["ok"], "down": down["left"]}))
"""


def _run(*argv: str | Path, timeout_s: float = PIP_S, **more: str) -> str:
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    done = subprocess.run(
        argv,
        env=clean | more,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the tree's files; a copy is built, so that nothing is left in the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    for path in tracked():
        target = folder / "tree" / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, folder / "tree")
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module", params=OTHERS)
def python(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """An environment of another Python with the wheel in it."""
    version = request.param
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python3"))
    found = next(map(str, pyenv), None) or shutil.which(f"python{version}")
    if (
        found is None
        or subprocess.run(
            [found, "-c", "import ensurepip"], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip(f"Python {version} with venv is not installed: the lab was not started on it")
    folder = tmp_path_factory.mktemp("venv") / version
    _run(found, "-m", "venv", folder)
    _run(
        folder / "bin" / "python",
        "-m",
        "pip",
        "install",
        "-q",
        "-c",
        ROOT / "constraints.txt",
        f"{wheel}[lab]",
    )
    yield folder / "bin" / "python"
    shutil.rmtree(folder)


def test_the_wheel_has_the_examples_the_pages_its_own_top_level_modules_and_what_hosts_get(
    wheel: Path,
) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    share = {
        name.partition("/share/optical-testbed/")[2]
        for name in names
        if "/share/optical-testbed/" in name
    }
    assert share == {*EXAMPLES, *PAGES}
    assert OF_EXTENSIONS and {*OF_EXTENSIONS, *MECHANISMS} <= set(names)
    typed = {
        f"{package}/{file}"
        for package in ("optical_testbed", "optical_testbed_home")
        for file in ("__init__.py", "py.typed")
    }
    assert typed | {"optical_testbed_command.py", "optical_testbed_pytest.py"} <= set(names)
    plays = {name for name in FILES if name.startswith("playbooks/")}
    assert (
        "playbooks/collections/ansible_collections/optical/testbed/plugins/lookup/lab.py"
        in plays
        <= set(names)
    )
    copied = {
        name
        for name in FILES
        if name.startswith(("agent/", "workloads/", "extensions/")) and name.endswith(".py")
    }
    assert "extensions/shadow/rank/__main__.py" in copied and copied <= set(names)


@pytest.mark.timeout(1800)
def test_examples_are_copied_and_planned_from_an_installed_wheel(
    python: Path, tmp_path: Path
) -> None:
    testbed, places = (
        python.with_name("testbed"),
        {f"TESTBED_{name}_DIR": str(tmp_path / name) for name in ("DATA", "STATE", "LOCK")},
    )
    copied = json.loads(_run(testbed, "examples", "copy", tmp_path / "trial", "--json", **places))[
        "data"
    ]["files"]
    assert {*EXAMPLES, *OF_EXTENSIONS, *INVENTORIES} == set(copied)
    plan, workload = (
        tmp_path / "plan.json",
        tmp_path / "trial" / "examples" / "workloads" / "dlrm.yaml",
    )
    _run(testbed, "design", "topoopt", "--workload", workload, "--out", plan, **places)
    assert json.loads(plan.read_text())["name"] == "dlrm-topoopt"
    listed = json.loads(_run(testbed, "experiment", "reproduce", "--list", "--json", **places))[
        "data"
    ]["scenarios"]
    assert {scenario["name"] for scenario in listed} == set(scenarios())
    for name in ("rail-only", "mltcp-single"):
        assert "2 arms" in _run(testbed, "experiment", "reproduce", name, "--check", **places)


@pytest.mark.lab
@pytest.mark.timeout(1800)
def test_a_lab_starts_and_a_plan_comes_up_is_verified_and_goes_down(
    python: Path, tmp_path: Path
) -> None:
    reply = json.loads(_run(python, "-c", SMOKE, tmp_path).splitlines()[-1])
    assert reply == {"python": reply["python"], "plan": "pair", "verified": True, "down": []}
    assert reply["python"]["state"] == "ok" and "not tried" not in reply["python"]["detail"]
