"""What `make demo` runs, with the commands it gives recorded instead of carried out."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.house.repository import ROOT

TESTBED = """#!/bin/sh
echo "${TESTBED_INVENTORY-none} $*" >> LOG
case "$*" in
    *--json) echo '{"ok": true, "data": {"inventory": "/a/copy", "running": BEFORE, "iteration_ms": 5.0, "journal": "j", "runs":' \
        'RUNS}}' ;;
esac
"""
RUNS = '[{"id": "0002", "plan_name": "two"}, {"id": "0001", "plan_name": "one"}]'


@pytest.mark.parametrize("runs_before", [False, True])
def test_the_demo_takes_free_ports_where_its_own_are_taken_and_every_later_command_is_for_that_lab(
    runs_before: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    spec = importlib.util.spec_from_file_location("demo", ROOT / "examples" / "demo.py")
    assert spec is not None and spec.loader is not None
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    testbed, log = tmp_path / "testbed", tmp_path / "log"
    testbed.write_text(
        TESTBED.replace("LOG", str(log))
        .replace("RUNS", RUNS)
        .replace("BEFORE", str(runs_before).lower())
    )
    testbed.chmod(0o755)
    monkeypatch.setattr(demo, "TESTBED", testbed)
    monkeypatch.setattr(demo, "WATCH_S", 0.0)
    monkeypatch.setattr(sys, "argv", ["demo.py"])
    monkeypatch.setenv("TESTBED_INVENTORY", "/mine")
    assert demo.main() == 0, capfd.readouterr().err
    asked, started, again, *rest = log.read_text().splitlines()
    assert (asked, started) == (
        "/mine lab status --json",
        "/mine lab start --free-ports",
    ) and again == f"{started} --json"
    assert {line.split()[0] for line in rest} == {"/a/copy"} and rest[0].startswith("/a/copy up ")
    assert rest[-1] == ("/a/copy down --yes" if runs_before else "/a/copy lab stop"), (
        "a lab that ran before goes on"
    )
