"""Repositories with packages of our names: their tests run undisturbed, the command line finds its
own, who hides ours is named.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = "reports-its-identity"
NAMES = ("drivers", "orchestrator", "optics", "conformance", "emulators")


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A repository that has packages of our names, which say so when they are imported, and a test
    of its own.
    """
    for name in NAMES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(
            f"print('hides ours: {name}')\nFOREIGN = True\n"
        )
    (tmp_path / "test_own.py").write_text(
        "import conformance\n\n\ndef test_own():\n    assert conformance.FOREIGN\n"
    )
    return tmp_path


def _run(folder: Path, *argv: str, **more: str) -> subprocess.CompletedProcess[str]:
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST", "PYTHON"))
    }
    places = {
        f"TESTBED_{name}_DIR": str(folder / "places" / name) for name in ("DATA", "STATE", "LOCK")
    }
    return subprocess.run(
        argv,
        cwd=folder,
        env=clean | places | more,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("path", ["", "."])
def test_a_repository_with_packages_of_our_names_runs_its_tests(foreign: Path, path: str) -> None:
    done = _run(
        foreign, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", PYTHONPATH=path
    )
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def test_a_fixture_of_ours_in_such_a_repository_names_who_hides_it(foreign: Path) -> None:
    (foreign / "test_own.py").write_text("def test_own(emulated_lab):\n    pass\n")
    done = _run(foreign, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert done.returncode == 1 and f"`conformance` is {foreign / 'conformance'}" in done.stdout, (
        done.stdout + done.stderr
    )


def test_the_command_line_finds_its_own_packages_whatever_is_on_the_path(foreign: Path) -> None:
    testbed = str(Path(sys.executable).with_name("testbed"))
    done = _run(foreign, testbed, "devices", "driver", "list", PYTHONPATH=str(foreign))
    assert (
        done.returncode == 0 and "polatis-scpi" in done.stdout and "hides ours" not in done.stdout
    ), done.stdout + done.stderr


def test_what_the_command_line_starts_finds_our_packages_too(foreign: Path) -> None:
    """`testbed devices driver conform` starts emulators; the directory it is typed in has a package
    of that name.
    """
    testbed = str(Path(sys.executable).with_name("testbed"))
    done = _run(
        foreign,
        testbed,
        "devices",
        "driver",
        "conform",
        "polatis-scpi",
        "--only",
        CHECK,
        PYTHONPATH=str(foreign),
    )
    assert "hides ours" not in done.stdout + done.stderr and done.returncode == 0, (
        done.stdout + done.stderr
    )


def test_paramiko_is_imported_without_the_package_that_it_only_names() -> None:
    program = """
import sys
from orchestrator.cli import main
main.run = lambda argv: 0
try:
    main.main()
except SystemExit:
    pass
import paramiko
assert not [name for name in sys.modules if name.startswith("invoke.")], "imported although nothing of it was used"
from invoke import run
assert paramiko.config.invoke.run is run and sys.modules["invoke"].run is run
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
