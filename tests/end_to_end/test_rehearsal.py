"""A change rehearsed on a twin of a running lab: nothing there is written, and the change then goes
as it was shown.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator import emulated
from tests.end_to_end.conftest import Lab, ring

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]
HOSTS = [f"gpu{n:02d}" for n in range(1, 7)]
JOB = {
    "name": "loop",
    "workload": "allreduce",
    "ranks": HOSTS,
    "rings": [HOSTS],
    "args": {"loop": True, "minbytes": "64K", "check": 0},
}
MINE = [("gpu01:p1", "gpu02:p1"), ("gpu03:p1", "gpu04:p1")]


def labs_of(lab: Lab) -> list[Path]:
    """The emulated labs of this test that run, with their twins; others may run on this machine."""
    return sorted(
        inventory for _, inventory in emulated.running() if inventory.is_relative_to(lab.folder)
    )


@pytest.mark.long
def test_a_rehearsed_change_writes_nothing_and_is_then_made_with_both_figures_side_by_side(
    lab: Lab,
) -> None:
    lab.up(lab.plan("first", ring((1, 2)), job=JOB)).must()
    other = lab.plan("other", ring((3, 4)), job=JOB)
    writes, light, labs = lab.writes(), lab.light(), labs_of(lab)
    seen = lab.testbed("plan", "--rehearse", "--topology", other).must()
    assert (lab.writes(), lab.light(), labs_of(lab)) == (writes, light, labs)
    assert (
        seen["ok"] and seen["dark_ms"] > 0 and seen["back"]["failed"] == "" and seen["notes"] == []
    )
    assert {p["name"] for p in seen["phases"]} >= {"stage", "switch", "link", "verify"}
    made = lab.testbed("up", "--topology", other, "--rehearse", "--yes").must()
    assert made["made"] == sum(len(d["made"]) for d in made["rehearsed"]["diff"])
    rows = {row["what"]: row for row in made["comparison"]}
    assert all(
        rows[name]["rehearsed_ms"] and rows[name]["measured_ms"]
        for name in ("dark", "total", "phase switch")
    )
    assert lab.testbed("run", "show", made["run"]).must()["comparison"] == made["comparison"]


@pytest.mark.long
def test_foreign_circuits_are_on_the_twin_and_a_fault_of_the_lab_fails_the_rehearsal(
    lab: Lab,
) -> None:
    theirs = lab.plan("theirs", [("gpu05:p1", "gpu06:p1")])
    lab.up(theirs, "--as", "alice").must()
    mine = lab.plan("mine", MINE)
    seen = lab.testbed("plan", "--rehearse", "--topology", mine).must()
    assert sum(len(d["foreign"]) for d in seen["diff"]) == 2
    port = next(d["made"][0].partition("->")[2] for d in seen["diff"] if d["made"])
    device = next(d["device"] for d in seen["diff"] if d["made"])
    lab.up(mine).must()
    number = lab.ask("faults.add", device=device, kind="extra-loss", port=port, db=6.0)["number"]
    longer = lab.plan("longer", [*MINE, ("gpu01:p2", "gpu03:p2")])
    answer = lab.testbed("plan", "--rehearse", "--topology", longer)
    assert answer.exit_code == 7 and "outside the loss window" in answer.envelope["data"]["failed"]
    lab.ask("faults.remove", device=device, number=number)
    lab.testbed("down", "--yes").must()
    lab.ask("faults.add", device=device, kind="failed-port", port=port)
    answer = lab.testbed("plan", "--rehearse", "--topology", mine)
    assert answer.exit_code == 7 and "failed on the twin" in answer.envelope["message"]
    seen = lab.testbed("plan", "--rehearse", "--topology", mine, "--devices-only")
    assert seen.exit_code == 7 and seen.envelope["data"]["devices_alone"]
    lab.testbed("down", "--yes", "--as", "alice").must()
