"""Importing the API: quick, without side effects, with every name; typed for those who use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import optical_testbed
from optical_testbed import reference
from optical_testbed_home import IMPORTED
from optics import errors
from tests.house.repository import ROOT

HEAVY = {
    "paramiko",
    "pyvisa",
    "ansible_runner",
    "influxdb_client",
    "torch",
    "yaml",
    "pydantic",
    "numpy",
    "pandas",
    "typer",
}
PAGE = ROOT / "docs" / "reference" / "python-api.md"


def python(code: str, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_importing_the_package_imports_nothing_else_of_the_project_and_changes_nothing() -> None:
    code = f"""
import json, sys, threading
before = list(sys.meta_path)
import optical_testbed
own = sorted(name for name in sys.modules if name.split(".")[0] in {IMPORTED!r})
print(json.dumps([own, sys.meta_path == before, threading.active_count(), sorted({HEAVY | {"asyncio"}!r} & set(sys.modules))]))
"""
    assert json.loads(python(code).stdout) == [[], True, 1, []]


def test_the_classes_are_imported_without_the_heavy_libraries() -> None:
    code = f"import sys; from optical_testbed import AsyncLab, Lab, TestbedError; print(sorted({HEAVY!r} & set(sys.modules)))"
    assert python(code).stdout.strip() == "[]"


def test_every_name_is_there_and_an_unknown_one_is_an_error() -> None:
    assert all(getattr(optical_testbed, name) is not None for name in optical_testbed.__all__)
    assert set(optical_testbed.__all__) <= set(dir(optical_testbed))
    with pytest.raises(ImportError, match="cannot import name 'Labb'"):
        from optical_testbed import Labb  # type: ignore[attr-defined]  # noqa: F401


def test_every_exception_is_exported() -> None:
    kinds = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.TestbedError)
    }
    assert kinds <= set(optical_testbed.__all__)
    assert all(f"`{name}`" in PAGE.read_text() for name in kinds - {"TestbedError"})


def test_both_classes_have_the_same_methods() -> None:
    for one, other in (
        (optical_testbed.Lab, optical_testbed.AsyncLab),
        (optical_testbed.Job, optical_testbed.AsyncJob),
    ):
        found = [{name for name in dir(kind) if not name.startswith("_")} for kind in (one, other)]
        assert found[0] == found[1] and len(found[0]) >= 8


def test_a_folder_of_the_same_name_next_to_the_script_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "drivers").mkdir()
    (tmp_path / "drivers" / "__init__.py").write_text("raise RuntimeError('the wrong drivers')")
    done = python(
        "from optical_testbed import Lab; import drivers.api; print(drivers.__file__)",
        tmp_path,
        PYTHONPATH=str(ROOT),
    )
    assert Path(done.stdout.strip()).parent == ROOT / "drivers", done.stderr


def test_a_package_that_was_imported_already_is_named(tmp_path: Path) -> None:
    (tmp_path / "planner.py").write_text("")
    done = python("import planner; from optical_testbed import Lab", tmp_path, PYTHONPATH=str(ROOT))
    assert (
        "ImportError: optical-testbed needs its own package 'planner'" in done.stderr
        and str(tmp_path) in done.stderr
    )


def test_the_reference_is_what_the_docstrings_say() -> None:
    text = PAGE.read_text()
    assert text == reference.rewritten(text), (
        "run: python -m optical_testbed.reference docs/reference/python-api.md"
    )
    assert all(
        f"### Lab.{name}\n" in text for name in dir(optical_testbed.Lab) if not name.startswith("_")
    )


TYPED = """
from optical_testbed import AsyncLab, BadFile, Designed, Event, Lab, Rows
from orchestrator.change.report import UpReport
from orchestrator.jobs.report import JobStatus
from orchestrator.plan.report import PlanReport

def show(event: Event) -> None: ...

def script() -> None:
    with Lab.open("x", timeout_s=1.0, progress=show) as lab:
        made: int = lab.plan({"name": "x"}, avoid=["gpu01:p1"]).made
        report: UpReport = lab.up("plan.json", job="live")
        status: JobStatus = lab.job.wait(iterations=3, timeout_s=2.5)
        rows: Rows = lab.telemetry(measurement="iteration")
        first: int = rows[0].time_ns
        design: Designed = lab.design("w.yaml", "ring")
        lab.up(design)

async def task() -> None:
    async with AsyncLab.emulated(hosts=4) as lab:
        report: PlanReport = await lab.plan("plan.json")
        status: JobStatus = await lab.job.status()
"""
WRONG = {
    'lab.up("plan.json", job="sometimes")': "arg-type",
    "lab.up()": "call-arg",
    'lab.status(plan="x")': "call-arg",
    "made: str = lab.plan('x').made": "assignment",
    'lab.job.wait(iterations="3")': "arg-type",
    "lab.upp('x')": "attr-defined",
}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_type_checkers_know_every_parameter_and_result(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(TYPED)
    lines = "\n".join(f"    {line}" for line in WRONG)
    bad.write_text(f"from optical_testbed import Lab\n\ndef script(lab: Lab) -> None:\n{lines}\n")
    argv = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file",
        ROOT / "pyproject.toml",
        "--no-error-summary",
    ]
    done = subprocess.run(
        [*argv, good, bad], cwd=ROOT, capture_output=True, text=True, timeout=580, check=False
    )
    found = done.stdout.splitlines()
    assert not [line for line in found if "good.py" in line], done.stdout
    errors_at = {
        int(line.split(":")[1]): line for line in found if ": error:" in line and "bad.py" in line
    }
    assert [code in errors_at.get(at, "") for at, code in enumerate(WRONG.values(), 4)] == [
        True
    ] * len(WRONG), done.stdout
