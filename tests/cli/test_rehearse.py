"""`plan --rehearse` and `up --rehearse`: what is shown, when it is asked, what is kept, and what is
refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import rehearsal
from orchestrator.change.report import JobChange
from orchestrator.experiments.rehearsal.report import (
    GoingBack,
    LinkDark,
    RehearsalReport,
    StallEstimate,
    load_comparison,
)
from orchestrator.plan.report import DeviceDiff
from orchestrator.store.options import UpOptions
from orchestrator.telemetry.phases import PartTime, PhaseTime

FOUND = RehearsalReport(
    "topoopt-12",
    "emulated",
    fingerprint="f00d",
    phases=(
        PhaseTime("observe", 0.4),
        PhaseTime("switch", 0.09, "ocs1 -2 +2", 0.5),
        PhaseTime("link", 0.01, "4 ports up", 0.6),
    ),
    parts=(PartTime("device", "ocs1", "switch", 61.0, "-2 +2", 510.0),),
    diff=(DeviceDiff("ocs1", removed=("2->18", "3->19"), made=("2->19", "3->18")),),
    dark_ms=61.0,
    dark_ms_expected=50.0,
    links=(LinkDark("gpu02:p1 -- gpu03:p1", 58.2), LinkDark("gpu04:p1 -- gpu05:p1", None)),
    cut_off=("gpu02->gpu03", "gpu03->gpu02"),
    stall=StallEstimate("drained", 61.0, 91.0, 4),
    ring_change=JobChange(1, "drain", paused_ms=120.0),
    job_change="ddp-mlp goes on; its rings change at the end of an iteration",
    back=GoingBack(3.2, 60.0),
    switching={"ocs1": "61 ms, measured in 4 changes"},
    missing=(
        "GPUs: its job computes on this machine's processors over gloo, so iteration times do not show",
    ),
    notes=("lane 3 of gpu07 has no second path: it will stall while dark",),
    took_s=21.0,
)


@pytest.fixture
def rehearsed(cli: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    cli.answers["rehearse"] = FOUND
    monkeypatch.setitem(
        sys.modules,
        "orchestrator.experiments.rehearsal.verb",
        SimpleNamespace(rehearse=cli.function("rehearse")),  # type: ignore[arg-type]
    )
    return cli


def test_a_rehearsal_shows_what_it_found_and_names_the_command_that_makes_the_change(
    rehearsed: Any, golden: Callable[[str, str], None]
) -> None:
    result = rehearsed("plan", "--rehearse", "plan.json")
    assert result.code == 0
    golden("rehearse.txt", result.out)
    assert rehearsed("plan", "--rehearse", "plan.json", "--json").json["data"][
        "total_s"
    ] == pytest.approx(0.61)
    assert [name for name, _, _ in rehearsed.calls] == ["rehearse", "rehearse"]


def test_a_change_that_fails_on_the_twin_exits_with_seven_and_lists_what_hands_would_have_to_do(
    rehearsed: Any,
) -> None:
    rehearsed.answers["rehearse"] = replace(
        FOUND, failed="ocs1: 2->19: port stuck\nsee its front", left=("ocs1: make 2->18",)
    )
    result = rehearsed("plan", "--rehearse", "plan.json")
    assert (
        result.code == 7
        and "by hand    ocs1: make 2->18" in result.out
        and "port stuck" in result.err
    )
    text = rehearsed("up", "plan.json", "--rehearse", "--yes")
    assert text.code == 7 and "it was not made" in text.err
    assert {name for name, _, _ in rehearsed.calls} == {"rehearse"}


@pytest.mark.parametrize("last", [("--no-job",), ("--job", "keep")])
def test_the_next_command_has_the_options_that_were_rehearsed(
    rehearsed: Any, last: tuple[str, ...]
) -> None:
    options = ("--avoid", "gpu03:p1", "--avoid", "a b", "--adopt", "ocs1:4->17", *last)
    typed = "-t plan.json --avoid gpu03:p1 --avoid 'a b' --adopt 'ocs1:4->17' " + " ".join(last)
    assert (
        f"next: testbed up {typed}\n" in rehearsed("plan", "--rehearse", "plan.json", *options).err
    )
    rehearsed.answers["rehearse"] = replace(FOUND, failed="ocs1: 2->19: port stuck")
    assert f"testbed plan --rehearse {typed};" in " ".join(
        rehearsed("up", "plan.json", "--rehearse", "--yes", *options).err.split()
    )


def test_without_a_terminal_nothing_is_rehearsed_unless_asking_was_waived(rehearsed: Any) -> None:
    result = rehearsed("up", "plan.json", "--rehearse")
    assert result.code == 2 and "next: add --yes" in result.err and not rehearsed.calls


def test_the_change_is_made_on_the_lab_as_it_was_rehearsed_and_both_are_kept_with_the_run(
    rehearsed: Any,
) -> None:
    run = rehearsed.answers["up"].run
    (rehearsed.home / "state" / "runs" / run).mkdir(parents=True)
    result = rehearsed("up", "plan.json", "--rehearse", "--yes", "--no-job")
    assert result.code == 0
    (first, tried, _), (second, made, _) = rehearsed.calls
    options = UpOptions(launch_job=False)
    assert (first, tried[-1], second, made[-1]) == (
        "rehearse",
        options,
        "up",
        replace(options, expected="f00d"),
    )
    assert "Rehearsal of topoopt-12 on a twin of emulated" in result.err
    assert "    dark" in result.out and "rehearsed" in result.out
    rows = {row.what: row for row in load_comparison(rehearsed.home / "state" / "runs" / run)}
    assert (
        rows["dark"].rehearsed_ms == 61.0
        and rows["dark"].measured_ms == rehearsed.answers["up"].dark_ms
    )


@pytest.mark.parametrize(
    ("dark", "total", "code"),
    [(0.14, -0.24, 0), (-0.16, 0.1, 1), (0.1, 0.26, 1)],
    ids=["all within", "dark off", "total off"],
)
def test_the_benchmark_of_rehearsals_fails_if_one_change_of_ten_was_foretold_badly(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    dark: float,
    total: float,
    code: int,
) -> None:
    monkeypatch.setattr(sys, "argv", ["rehearsal"])
    monkeypatch.setattr(rehearsal, "LABS", {"mems": (10, ())})
    monkeypatch.setattr(
        rehearsal, "one_lab", lambda *_: ([0.01] * 9 + [dark], [0.01] * 9 + [total], 0)
    )
    assert rehearsal.main() == code
    within = [9 + (abs(dark) <= rehearsal.DARK), 9 + (abs(total) <= rehearsal.TOTAL)]
    assert (
        f"of 10 changes {within[0]} within 15% of dark time, {within[1]} within 25% of the total"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        (
            ("--relabel",),
            "testbed plan -t plan.json --relabel -o saved.json; then: testbed up --plan saved.json --rehearse",
        ),
        (("--dry-run",), "testbed plan --rehearse -t plan.json, which makes no change on the lab"),
        (("--spares", "gpu11, gpu12"), 'write them in the plan: "spares": ["gpu11", "gpu12"]'),
    ],
)
def test_what_cannot_be_combined_with_a_rehearsal_is_said_with_what_to_do_instead(
    rehearsed: Any, option: tuple[str, ...], instead: str
) -> None:
    result = rehearsed("up", "plan.json", "--rehearse", *option)
    assert (
        result.code == 2
        and f"--rehearse and {option[0]} cannot be combined" in result.err
        and not rehearsed.calls
    )
    assert f"next: {instead}" in " ".join(result.err.split())
