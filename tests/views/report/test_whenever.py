"""A report on a run says the same whenever it is written: what anybody did later is none of that
run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.store.keys import tenancy_key
from orchestrator.telemetry import Journal
from tests.kit.jobs import spec
from tests.views.report.conftest import UNDRAWN, Typed
from tests.views.report.page import Page, disagreeing, from_csv
from tests.views.report.recorded import CROSSED, KEY, MS, RING, Lab


def page_of(typed: Typed, run: str) -> str:
    result = typed("experiment", "report", run, "--json")
    assert result.code == 0, result.out
    return Path(result.data["file"]).read_text()


def row(html: str, answer: str) -> dict[str, Any]:
    found = Page(html).numbers["answers"][answer]
    return dict(zip(found["columns"], found["rows"][0], strict=True))


def taken_down(lab: Lab) -> None:
    """`down`: the job is stopped."""
    job = lab.store.latest_job(tenancy_key(KEY, "ann"))
    assert job is not None
    run = lab.store.new_run("down", KEY, plan_name="", inventory="/nowhere", user="ann")
    run.found(
        {"current": None, "ours": {}, "others": {}, "generations": {}, "lit": [], "job": job.id},
        {"hosts": []},
    )
    lab.store.set_job(job.id, "stopped", ended=True)
    run.finish("ok")


def another_program(lab: Lab) -> None:
    """26 minutes after `down`, another plan with another job."""
    taken_down(lab)
    lab.clock.now_ns += 26 * 60 * 1000 * MS
    lab.up("other", CROSSED, job_ms=813.0)


def launched_by_hand(lab: Lab) -> None:
    taken_down(lab)
    lab.clock.now_ns += 60_000 * MS
    run = lab.store.new_run("job launch", KEY, plan_name="ring", inventory="/nowhere", user="ann")
    lab.store.add_job(tenancy_key(KEY, "ann"), run.id, "ddp", spec())
    with Journal(lab.settings.run_dir(run.id), run.id, "emulated", clock=lab.clock) as journal:
        lab.iterate(journal, 30, 813.0)
    run.finish("ok")


KINDS = ["launched", *(pytest.param(k, marks=pytest.mark.long) for k in ("changed", "kept"))]


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_written_later_is_the_same_byte_for_byte(
    typed: Typed, lab: Lab, kind: str
) -> None:
    same_later(typed, lab, kind, taken_down)


@UNDRAWN
@pytest.mark.parametrize("later", [another_program, launched_by_hand])
@pytest.mark.parametrize("kind", KINDS)
def test_a_report_written_later_says_the_same(
    typed: Typed, lab: Lab, kind: str, later: Callable[[Lab], None]
) -> None:
    same_later(typed, lab, kind, later)


def same_later(typed: Typed, lab: Lab, kind: str, later: Callable[[Lab], None]) -> None:
    launched = lab.up("ring", RING)
    lab.ranks(launched)
    run = {"launched": lambda: launched, "changed": lab.change, "kept": lab.keep}[kind]()
    at_once = page_of(typed, run)
    assert row(at_once, "job")["now"] == launched and row(at_once, "job")["after_ms"] < 200
    lab.clock.now_ns += 45 * 60 * 1000 * MS
    later(lab)
    assert page_of(typed, run) == at_once


@UNDRAWN
def test_what_the_job_does_after_the_next_change_is_none_of_this_one(
    typed: Typed, lab: Lab
) -> None:
    lab.up("ring", RING)
    run = lab.keep(after=12)
    at_once = page_of(typed, run)
    lab.clock.now_ns += 10 * MS
    lab.keep(first=200, ms=90.0)
    later = page_of(typed, run)
    assert row(later, "job")["after_n"] == 12, "the job went on with 90 ms after the next change"
    first, second = (Page(html).numbers["answers"] for html in (at_once, later))
    assert {name: one["rows"] for name, one in first.items()} == {
        name: one["rows"] for name, one in second.items()
    }
    assert disagreeing(Page(later), _exported(typed, later)) == []


def test_every_view_tells_the_same_iteration_before_and_after_a_turn(
    typed: Typed, lab: Lab
) -> None:
    lab.up("ring", RING)
    run = lab.change(slow=False)
    html = page_of(typed, run)
    ring_change, job = row(html, "ring_changes"), row(html, "job")
    assert (
        (job["before_ms"], job["after_ms"])
        == (ring_change["before_ms"], ring_change["after_ms"])
        == (212.0, 172.0)
    )
    assert "iteration before / after 212 ms / 172 ms" in Page(html).text
    assert job["before_n"] is None, "how many those were is the ring change's to know"


@UNDRAWN
def test_a_job_that_had_ended_before_is_not_the_one_before(typed: Typed, lab: Lab) -> None:
    lab.up("crossed", CROSSED, job_ms=55.0)
    # and the lab was stopped: nobody marked the job as ended
    lab.clock.now_ns += 26 * 60 * 1000 * MS
    run = lab.up("ring", RING, found_job=False)
    job = row(page_of(typed, run), "job")
    assert (job["was"], job["before_ms"], job["pause_ms"]) == ("", None, None)


def _exported(typed: Typed, html: str) -> Any:
    folders = [
        typed.home / "csv" / run for run in json.loads(json.dumps(Page(html).numbers["journals"]))
    ]
    for folder in folders:
        assert typed("telemetry", "export", folder.name, "--out", folder).code == 0
    return from_csv(folders)
