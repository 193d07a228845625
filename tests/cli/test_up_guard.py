"""`up --guard`: which guard it starts, and that a guard that does otherwise is named before
anything is changed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.background.kind import Kind, StateFile
from orchestrator.cli import change
from orchestrator.services.guard.process import GUARD, GuardOptions, GuardState
from orchestrator.settings import Settings, load
from tests.cli.conftest import Bench


@pytest.mark.parametrize(
    ("argv", "message", "hint"),
    [
        (
            ["--jobs"],
            "--jobs can only be used with --guard",
            "testbed up -t plan.json --guard --jobs",
        ),
        (
            ["--restarts", "3/h"],
            "--restarts can only be used with --guard",
            "testbed up -t plan.json --guard --jobs",
        ),
        (
            ["--guard", "--restarts", "2/h"],
            "only be used with --jobs",
            "testbed up -t plan.json --guard --jobs --restarts 2/h",
        ),
        (
            ["--guard", "--jobs", "--restarts", "0/h"],
            "never restarts anything",
            "--guard --jobs --restarts 3/h",
        ),
        (
            ["--guard", "--jobs", "--restarts", "often"],
            "'often' is not a number per time",
            "--guard --jobs --restarts 3/h",
        ),
    ],
)
def test_options_of_the_guard_that_make_no_sense_are_refused_before_anything_is_changed(
    cli: Bench, argv: list[str], message: str, hint: str
) -> None:
    answer = cli("up", "plan.json", *argv)
    assert answer.code == 2 and message in answer.err and hint in answer.err and not cli.calls


@pytest.mark.parametrize("names", ["", ",", " , "])
def test_spares_that_name_no_host_are_refused_before_anything_is_changed(
    cli: Bench, names: str
) -> None:
    answer = cli("up", "plan.json", "--spares", names)
    assert (
        answer.code == 2
        and "names no host" in answer.err
        and "--spares gpu11,gpu12" in answer.err
        and not cli.calls
    )


@pytest.mark.parametrize(
    ("argv", "budget"),
    [([], ""), (["--jobs"], "3/h"), (["--jobs", "--restarts", "10/d"], "10/d")],
    ids=["no", "jobs", "budget"],
)
def test_up_guard_starts_a_guard_that_recovers_jobs_if_asked_to(
    cli: Bench, monkeypatch: pytest.MonkeyPatch, argv: list[str], budget: str
) -> None:
    monkeypatch.setattr(change, "own_tenancy", lambda _: "lab")
    asked: list[str] = []

    def start(
        kind: object, settings: Settings, tenancy: str, log: Path, options: GuardOptions
    ) -> GuardState:
        jobs = options.restarts
        assert options.text() == (["--jobs", "--restarts", jobs] if jobs else [])
        asked.append(jobs)
        return GuardState(7, "ann", "here", state="watching", log=str(log), jobs=jobs)

    monkeypatch.setattr(Kind, "start", start)
    answer = cli("up", "plan.json", "--guard", *argv)
    assert answer.code == 0 and asked == [budget] and [name for name, *_ in cli.calls] == ["up"]
    assert ("recovers the job up to" in answer.out) == bool(budget)


@pytest.mark.parametrize(
    ("has", "refused"),
    [("", "does not recover the job"), ("2/h", "up to 2/h, not 3/h"), ("3/h", "")],
)
def test_a_guard_that_runs_with_another_budget_is_named_before_anything_is_changed(
    cli: Bench, monkeypatch: pytest.MonkeyPatch, has: str, refused: str
) -> None:
    monkeypatch.setattr(change, "own_tenancy", lambda _: "lab")
    settings = load(cwd=cli.home)
    with StateFile(
        GUARD, GUARD.path(settings, "lab"), replace(GUARD.own(settings), jobs=has, state="watching")
    ):
        answer = cli("up", "plan.json", "--guard", "--jobs")
        assert answer.code == (4 if refused else 0) and refused in answer.err, answer.err
        assert bool(cli.calls) != bool(refused) and (
            "testbed service stop guard" in answer.err
        ) == bool(refused)
        assert cli("up", "plan.json", "--guard").code == 0, "without --jobs any guard will do"
