"""Reports and comparisons of real runs on the emulated lab."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Lab, ring
from tests.views.report.page import Page, disagreeing, from_csv

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

RANKS = ["gpu01", "gpu02"]
JOB = {
    "name": "small",
    "workload": "train",
    "ranks": RANKS,
    "rings": [RANKS],
    "args": {"iterations": 0, "hidden": 64},
}


def recomputed(lab: Lab, page: Page, folder: Path) -> None:
    """Every question of the page, asked of exported files alone, has the same answer."""
    folders = [folder / run for run in page.numbers["journals"]]
    for place in folders:
        lab.testbed("telemetry", "export", place.name, "--out", place).must()
    assert disagreeing(page, from_csv(folders)) == []


@pytest.mark.long
def test_the_report_of_a_real_move_says_what_happened_and_every_number_can_be_had_again(
    lab: Lab, tmp_path: Path
) -> None:
    lab.up(lab.plan("ring", ring((1, 2)))).must()
    up = lab.up(lab.plan("moved", [*ring((1, 2))[1:], ("gpu01:p3", "gpu02:p3")])).must()
    result = lab.testbed(
        "experiment", "report", "--out", tmp_path / "page.html", "--figures", tmp_path / "figures"
    ).must()
    page = Page((tmp_path / "page.html").read_text())
    recomputed(lab, page, tmp_path)
    answer = page.numbers["answers"]["reconfigs"]
    assert (
        result["runs"] == [up["run"]]
        and dict(zip(answer["columns"], answer["rows"][0], strict=True))["dark_ms"] == up["dark_ms"]
    )
    assert "5 kept" in page.text and "1 made" in page.text and "1 broken" in page.text
    assert (
        "emulated lab, time scale x1" in page.text
        and f"testbed up --topology {lab.folder}/moved.json --json" in page.text
    )
    assert "expected 50 ms by data sheet" in page.text
    drawn = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert drawn >= {"topology", "devices", "throughput"}


@pytest.mark.long
def test_two_real_plans_are_compared_and_everything_is_as_before(lab: Lab, tmp_path: Path) -> None:
    lab.up(lab.plan("first", ring((3, 4)))).must()
    before = lab.light()
    a, b = lab.plan("a", ring((1, 2)), job=JOB), lab.plan("b", ring((1, 2), 5), job=JOB)
    wanted = ("experiment", "compare", a, b, "--repeats", "2", "--iterations", "8")
    found = lab.testbed(*wanted, within_s=400).must()
    # beside other tests some are void
    assert [slot["arm"] for slot in found["slots"]][:4] == ["a", "b", "b", "a"]
    assert {slot["state"] for slot in found["slots"]} <= {"done", "void"}
    assert all(
        (slot["state"] == "void") == ((slot["slowed"]["share"] or 0.0) > slot["slowed"]["limit"])
        for slot in found["slots"]
    )
    done = [slot["arm"] for slot in found["slots"] if slot["state"] == "done"]
    assert found["complete"] == (found["verdict"] is not None and found["verdict"]["n"] == 2)
    assert {arm: [len(v) for v in side] for arm, side in found["iteration_ms"].items()} == {
        arm: [8] * done.count(arm) for arm in "ab"
    }
    assert lab.light() == before and found["left"] == "as it was before: first is up"
    assert (
        lab.testbed("status").must()["plan"] == "first"
        and lab.testbed("job", "status").must()["state"] == "stopped"
    )
    page = Page(Path(found["report"]).read_text())
    recomputed(lab, page, tmp_path)
    kept = json.loads(Path(found["file"]).read_text())
    assert kept["slots"] == found["slots"]
