"""The pytest plugin: its fixtures in this project, in a third party's repository, and no effect on
unrelated tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.device import Opened
from conformance.lab import Lab
from conformance.private import CommandFailed, CommandLine
from tests.house.repository import ROOT

EXAMPLE = ROOT / "examples" / "third-party-driver"


def run(*argv: object, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(path)} if path else None
    return subprocess.run(
        [sys.executable, *map(str, argv)],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_a_device_is_open_and_its_emulator_tells_the_truth(device: Opened) -> None:
    wanted = device.light((1, 2), (2, 1))
    assert not device.apply(add=wanted).failed
    assert device.truth.lit == device.subject.keys(wanted)


def test_a_fault_strikes_and_is_gone_with_its_test(
    device: Opened, fault: Callable[..., int]
) -> None:
    number = fault("drop-after", on="write", count=1)
    assert not device.apply(add=device.light((1, 2))).failed
    assert device.truth.fired(number) == 1


def test_after_a_test_nothing_is_left_of_its_lights_and_faults(device: Opened) -> None:
    assert device.read() == frozenset()
    assert device.truth.ask("faults.list")["faults"][device.config.name] == []


@pytest.mark.testbed(driver="calient-tl1")
def test_a_mark_chooses_the_driver(device: Opened, emulated_lab: Lab) -> None:
    assert device.identity.vendor == "Calient"
    assert list(emulated_lab.devices) == ["dut-calient-tl1"]


def test_the_command_line_answers_parsed_json_and_raises_what_it_refuses(
    testbed: CommandLine,
) -> None:
    assert testbed("lab", "status")["running"]
    with pytest.raises(CommandFailed, match="E-MISSING") as caught:
        testbed("devices", "driver", "conform", "polatis-scpi", "--device", "ocs9")
    assert caught.value.code == 2


def test_of_some_checks_no_row_of_the_support_matrix_is_made() -> None:
    done = run(
        "-m",
        "orchestrator.cli.main",
        "devices",
        "driver",
        "conform",
        "polatis-scpi",
        "--only",
        "reports-its-identity",
        cwd=ROOT,
    )
    assert (
        done.returncode == 0 and "confirmed" in done.stdout and "promises kept" not in done.stdout
    ), done.stdout


def test_the_plugin_brings_nothing_along_until_a_fixture_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(
        "import sys\n\ndef test_x():\n    assert not {'drivers', 'optics', 'conformance.lab', 'httpx', 'yaml'} & set(sys.modules)\n"
    )
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.long
def test_a_repository_of_somebody_else_tests_its_driver_with_the_plugin(tmp_path: Path) -> None:
    installed = run(
        *(
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-build-isolation",
            "--no-index",
            "--target",
            tmp_path / "site",
        ),
        *("--disable-pip-version-check", "--root-user-action=ignore", copy(tmp_path)),
        cwd=tmp_path,
    )
    assert installed.returncode == 0, installed.stderr
    done = run(
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:asyncio",
        cwd=tmp_path / "repository",
        path=tmp_path / "site",
    )
    assert done.returncode == 0, done.stdout + done.stderr


def copy(tmp_path: Path) -> Path:
    """A copy of the example, as a third party has it: building leaves its traces there and not
    here.
    """
    import shutil

    return Path(shutil.copytree(EXAMPLE, tmp_path / "repository"))
