"""`verify --stall` as it is typed: which function is called with what, the table, the picture, and
what is refused.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from orchestrator.verify.report import StallReport


def test_the_times_to_be_dark_are_passed_on(cli: Any) -> None:
    assert cli("verify", "--stall", "--dark", "0", "--dark", "50ms", "--dark", "2s").code == 0
    assert cli.calls[-1][0] == "stall" and cli.calls[-1][2] == {
        "dark_s": [0.0, 0.05, 2.0],
        "history": False,
    }
    cli("verify", "--stall", "--history")
    assert cli.calls[-1][0] == "stall" and cli.calls[-1][2] == {"dark_s": [], "history": True}


def test_the_table_has_the_median_and_the_spread_of_each_mode(cli: Any) -> None:
    lines = cli("verify", "--stall").out.splitlines()
    assert lines[0].split() == ["asked", "dark", "drained", "sending", "held"]
    assert (
        lines[1].split()[0] == "shortest"
        and "92 ms (91 to 95)" in lines[1]
        and "57 ms (56 to 60)" in lines[1]
    )
    assert "413 ms (412 to 416)" in lines[2]
    assert "  drained: a note" in lines
    assert (
        lines[-1]
        == "Stall curve of emulated: gpu01:p1--gpu02:p1 was dark 18 times; circuits and routes are as before"
    )


def test_history_shows_every_run_and_measures_nothing(cli: Any) -> None:
    output = cli("verify", "--history").out
    assert [name for name, *_ in cli.calls] == ["stall_curves"]
    assert (
        output.count("gpu01:p1--gpu02:p1 by ocs1, run 2026-11-2") == 2
        and output.count("asked") == 2
    )
    cli.answers["stall_curves"] = StallReport("emulated")
    assert (
        "no stall curve of emulated was measured yet: testbed verify --stall"
        in cli("verify", "--history").out
    )


def test_the_curve_is_drawn(cli: Any, tmp_path: Path) -> None:
    assert cli("verify", "--stall", "--svg", tmp_path / "stall.svg").code == 0
    root = ET.parse(tmp_path / "stall.svg").getroot()
    drawn = "".join(root.itertext())
    assert root.tag.endswith("svg") and all(
        word in drawn for word in ("drained", "sending", "held", "dark (ms)")
    )
    assert "mathdefault" not in drawn, "numbers of the axes as TeX"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--stall", "--rung", "map"), "--stall checks no rung"),
        (("--stall", "--qualify"), "--stall checks no rung"),
        (("--dark", "50ms"), "--dark is an option of a measurement"),
        (("--stall", "--dark", "soon"), "--dark"),
        (("--stall", "--svg", "absent/stall.svg"), "absent is no directory"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_measured(
    cli: Any, argv: tuple[str, ...], message: str
) -> None:
    answer = cli("verify", *argv)
    assert answer.code == 2 and message in answer.err and not cli.calls
