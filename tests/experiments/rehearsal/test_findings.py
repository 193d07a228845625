"""What a rehearsal concludes: hosts without a path, dark links, the stall by the lab's curve,
switching times, kept figures.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from optics import Change, CrossConnect, HostPort, Link, Port, Setting, Traits
from orchestrator.change.report import JobChange, UpReport
from orchestrator.experiments.rehearsal.findings import (
    cut_off_pairs,
    estimate_stall,
    links_dark,
    mode_of,
)
from orchestrator.experiments.rehearsal.report import (
    ComparedFigure,
    RehearsalReport,
    compare_rehearsal,
    load_comparison,
    save_comparison,
)
from orchestrator.experiments.rehearsal.seeding import shaped
from orchestrator.experiments.rehearsal.switching import _typical
from orchestrator.fabric.circuits import circuits, settings
from orchestrator.fabric.transition import transition
from orchestrator.inventory.lab import Lab
from orchestrator.plan.target import Target
from orchestrator.store.records import StallPoint
from orchestrator.telemetry.phases import PhaseTime
from tests.change.fibrelab import hosts_yml, read

HOSTS = 4


def link(a: int, b: int, port: int = 1) -> Link:
    return Link(HostPort(f"gpu{a:02d}", port), HostPort(f"gpu{b:02d}", port))


def goal(old: list[Link], new: list[Link]) -> tuple[Lab, Target]:
    """From the circuits of `old` to those of `new`, on two switches of four hosts."""
    fibres = [
        f'name: f{k}-{p}, host: gpu{k:02d}, port: {p}, device: ocs{p}, enters: "{k}", leaves: "{100 + k}"'
        for k in range(1, HOSTS + 1)
        for p in (1, 2)
    ]
    lab = read(hosts_yml(HOSTS, 2), {"ocs1": Traits(0.05), "ocs2": Traits(0.05)}, fibres)
    paths = circuits(new, lab)
    held = {"ocs1": frozenset[Setting](), "ocs2": frozenset[Setting]()} | settings(
        circuits(old, lab)
    )
    return lab, Target(
        tuple(new), paths, settings(paths), transition(held, settings(paths), held), tuple(old)
    )


def test_hosts_that_only_the_broken_links_join_are_cut_off_and_others_are_not() -> None:
    ring = [link(1, 2), link(2, 3, 2), link(3, 4), link(1, 4, 2)]
    _, moved = goal(ring, [link(1, 3), link(2, 3, 2), link(2, 4), link(1, 4, 2)])
    assert {pair for pair in cut_off_pairs(moved) if "gpu01" in pair} == {
        ("gpu01", "gpu02"), ("gpu02", "gpu01"), ("gpu01", "gpu03"), ("gpu03", "gpu01"),
    }  # fmt: skip
    assert cut_off_pairs(goal(ring, ring)[1]) == ()
    assert cut_off_pairs(goal([], ring)[1]) == ()


def test_a_link_is_dark_from_the_loss_of_its_first_port_to_the_light_of_its_last() -> None:
    _, moved = goal([link(1, 2)], [link(1, 3), link(2, 4, 2)])
    history = {
        "ocs1": [
            [90.0, "lit", "1", "103"],
            [100.0, "broken", "2", "101"],
            [100.001, "broken", "1", "102"],
            [100.060, "lit", "1", "103"],
            [100.070, "lit", "3", "101"],
        ],
        "ocs2": [[100.05, "lit", "2", "104"], [100.05, "lit", "4", "102"]],
    }
    rows = {row.link: row.dark_ms for row in links_dark(moved, history, 99.0)}
    assert rows["gpu01:p1 -- gpu03:p1"] == pytest.approx(70.0)
    assert rows["gpu02:p2 -- gpu04:p2"] is None


def point(dark: float, lost: float, mode: str = "drained") -> StallPoint:
    return StallPoint(0.0, "r", "l", "ocs1", mode, 0.0, dark, lost, 1.0)


def test_the_stall_lies_on_the_curve_of_the_same_mode_and_grows_with_the_darkness_beyond_its_ends() -> (
    None
):
    curve = [point(50, 10), point(100, 30), point(100, 999, "sending")]
    found = [estimate_stall(curve, "drained", dark) for dark in (75.0, 150.0, 45.0, 20.0)]
    assert [estimate and round(estimate.lost_ms) for estimate in found] == [20, 80, 5, 0]
    assert estimate_stall(curve, "held", 75.0) is None
    assert estimate_stall(curve, "drained", None) is None
    assert (
        mode_of([PhaseTime("drain", 1.0)]) == "drained"
        and mode_of([PhaseTime("hold", 1.0)]) == "held"
        and mode_of([]) == "sending"
    )


def test_the_switching_time_is_the_median_of_changes_as_large_and_else_of_all_and_else_the_data_sheets() -> (
    None
):
    change = Change(
        "ocs1",
        add=frozenset(
            CrossConnect(Port("ocs1", str(n)), Port("ocs1", str(100 + n))) for n in range(8)
        ),
    )
    found = [(8, 0.2), (2, 0.05), (10, 0.22), (6, 0.21)]
    assert _typical(found, change, Traits(0.1)).seconds == 0.21
    assert _typical([(1, 0.05)], change, Traits(0.1)).seconds == 0.05
    by_sheet = _typical([], change, Traits(0.1))
    assert (by_sheet.seconds, by_sheet.samples) == (0.1, 0) and "data sheet" in str(by_sheet)


def test_a_program_of_the_owner_does_not_run_on_the_twin_and_other_jobs_stay_as_they_are() -> None:
    job = {
        "name": "gpt",
        "workload": "program",
        "program": "gpt",
        "ranks": ["gpu01", "gpu02"],
        "args": {"lr": 1},
        "env": {"A": "b"},
    }
    text, output = shaped(json.dumps({"job": job}))
    changed = json.loads(text)["job"]
    assert (
        changed["workload"] == "allreduce"
        and changed["ranks"] == job["ranks"]
        and "program" not in changed
        and "gpt" in output
    )
    for same in ({"job": {**job, "workload": "train"}}, {}):
        assert shaped(json.dumps(same)) == (json.dumps(same), "")
    assert (
        json.loads(shaped(json.dumps({"job": {**job, "workload": "train", "backend": "nccl"}}))[0])[
            "job"
        ]["backend"]
        == "gloo"
    )


def test_rehearsed_figures_are_kept_with_the_run_beside_the_measured_ones(tmp_path: Path) -> None:
    rehearsed = RehearsalReport(
        "ring",
        "lab",
        dark_ms=60.0,
        phases=(PhaseTime("switch", 0.09, begin_s=1.0),),
        ring_change=JobChange(1, "hold", paused_ms=100.0),
    )
    measured = UpReport(
        "r1",
        "ring",
        "lab",
        dark_ms=50.0,
        phases=(PhaseTime("switch", 0.1, begin_s=0.9), PhaseTime("link", 0.2)),
    )
    rows = {row.what: row for row in compare_rehearsal(rehearsed, measured)}
    assert rows["dark"].off == pytest.approx(0.2)
    assert rows["total"].off == pytest.approx(0.09)
    assert (
        rows["job lost"] == ComparedFigure("job lost", 100.0, None) and rows["job lost"].off is None
    )
    assert (rows["phase switch"].rehearsed_ms, rows["phase link"].rehearsed_ms) == (90.0, None)
    save_comparison(tmp_path, rehearsed, tuple(rows.values()))
    assert load_comparison(tmp_path) == tuple(rows.values())
    (tmp_path / "rehearsal.json").write_text('{"beside": [{"what": 1}]}')
    assert load_comparison(tmp_path) == ()
    assert load_comparison(tmp_path / "none") == ()
