"""What a job did while a run moved the circuits under it is told of that run, though another
run launched the job.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.telemetry.test_tensorboard import scalars
from tests.views.report.conftest import Typed
from tests.views.report.recorded import CROSSED, KEY, MS, RING, Lab
from tests.views.report.test_whenever import another_program

OTHER = 10_000
"""The first iteration of what the job does after the next change."""


@pytest.fixture
def moved(lab: Lab) -> str:
    """A run under which the job did iterations 100 to 141, and after it another change, `down`, and
    another program.
    """
    lab.up("ring", RING)
    run = lab.keep(after=12)
    lab.clock.now_ns += 10 * MS
    lab.keep(first=OTHER, ms=90.0)
    another_program(lab)
    return run


def exported(typed: Typed, run: str, kind: str) -> list[int]:
    """The iterations that an export in this format has."""
    result = typed("telemetry", "export", run, "--out", "out", "--format", kind)
    assert result.code == 0, result.out
    if kind == "tensorboard":
        return [step for step, _ in scalars(Path("out") / run / "ddp")["iteration/iter_ms"]]
    if kind == "parquet":
        import duckdb

        with duckdb.connect() as database:
            return [
                n
                for (n,) in database.execute(
                    "SELECT iter FROM 'out/iteration.parquet' ORDER BY time_ns"
                ).fetchall()
            ]
    with Path("out/iteration.csv").open(newline="") as file:
        return [int(row["iter"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize("kind", ["csv", "parquet", "tensorboard"])
def test_the_export_of_a_run_has_the_iterations_of_the_job_that_it_moved(
    typed: Typed, moved: str, kind: str
) -> None:
    assert exported(typed, moved, kind) == list(range(100, 142))


def test_a_query_of_a_run_finds_the_job_that_it_moved_and_what_was_recorded_of_its_ranks(
    typed: Typed, lab: Lab
) -> None:
    launched = lab.up("ring", RING)
    run = lab.keep(after=12)
    lab.ranks(launched)
    result = typed(
        "telemetry", "query", run, "SELECT COUNT(*) AS n, MIN(run) AS run FROM iteration", "--json"
    )
    assert result.data["rows"] == [{"n": 42, "run": launched}]
    ranks = typed("telemetry", "query", run, "SELECT COUNT(DISTINCT rank) AS n FROM rank", "--json")
    assert ranks.data["rows"] == [{"n": 4}]


def test_show_has_a_line_of_the_job_that_a_run_moved_and_says_who_launched_it(
    typed: Typed, lab: Lab, moved: str
) -> None:
    launched = lab.store.history(KEY, limit=0)[-1].id
    assert (
        f"job ddp (train, launched by {launched}): 42 iterations, median 40."
        in typed("run", "show", moved).out
    )
    (job,) = typed("run", "show", moved, "--json").data["jobs"]
    assert (job["run"], job["job"], job["count"]) == (launched, "ddp", 42)
    assert "job ddp (train): 30 iterations" in typed("run", "show", "last").out, (
        "its own job is nobody else's"
    )


def test_the_export_of_all_runs_has_every_iteration_once(typed: Typed, moved: str) -> None:
    found = exported(typed, "all", "csv")
    assert len(found) == 30 + 42 + 60 + 30


def test_a_run_that_found_no_job_has_none_and_one_that_changed_nothing_neither(
    typed: Typed, lab: Lab
) -> None:
    lab.up("crossed", CROSSED)
    lab.clock.now_ns += 1000 * MS
    looked = lab.store.new_run("verify", KEY, plan_name="crossed", inventory="/nowhere", user="ann")
    looked.finish("ok")
    assert "iterations" not in typed("run", "show", looked.id).out
    run = lab.up("ring", RING, found_job=False, job_ms=None)
    assert "iterations" not in typed("run", "show", run).out
