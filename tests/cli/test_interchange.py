"""`testbed design import` and `export`, as typed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from orchestrator.plan.reader import read_plan
from tests.house.repository import ROOT
from tests.kit.labs import lab_of


def test_the_commands_import_and_export_a_file(cli: Any, tmp_path: Path) -> None:
    at = ("--inventory", ROOT / "inventory" / "emulated")
    result = cli(
        "design",
        "export",
        *at,
        ROOT / "examples" / "ring-12.json",
        "--containerlab",
        tmp_path / "ring.clab.yml",
    )
    assert result.code == 0 and "Exported: ring-12, 12 hosts, in " in result.out, result.err
    result = cli(
        "design", "import", *at, tmp_path / "ring.clab.yml", "--out", tmp_path / "back.json"
    )
    assert (
        result.code == 0
        and "Imported: ring-12, in " in result.out
        and f"--topology {tmp_path / 'back.json'}" in result.err
    )
    assert (
        read_plan((tmp_path / "back.json").read_text(), "back.json", lab_of("emulated")).name
        == "ring-12"
    )
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    result = cli("design", "import", *at, fifo)
    assert result.code == 3 and "a FIFO is there, wanted a regular file" in result.err
