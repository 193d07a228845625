"""A running job's turn in a report: the mark, the table whose parts add up, the slow iterations and
what they overlap.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.views.report.conftest import UNDRAWN, Typed
from tests.views.report.page import Page
from tests.views.report.recorded import RING, Lab
from tests.views.report.test_report import recomputed, report, shown_as_answered


def rows(page: Page, name: str) -> list[dict[str, Any]]:
    answer = page.numbers["answers"][name]
    return [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]


def test_a_turn_is_marked_on_the_curve_and_its_numbers_are_recomputed(
    typed: Typed, lab: Lab
) -> None:
    lab.up("ring", RING, job_ms=212.0, iterations=30)
    page, _ = report(typed, lab.change())
    assert recomputed(typed, page) > 100 and shown_as_answered(typed, page) > 60
    (ring_change,) = rows(page, "ring_changes")
    assert (
        ring_change["paused_ms"]
        == ring_change["dark_ms"] + ring_change["commit_ms"] + ring_change["boundary_ms"]
        == 96
    )
    assert ring_change["at_ns"] - ring_change["time_ns"] == pytest.approx(350_000_000, abs=1000), (
        "the end of the iteration in which the ranks changed rings"
    )
    assert (
        "job lost 96 ms: 60 dark, 4 commit, 32 boundary" in page.text
        and "the ranks changed rings" in page.text
    )
    assert "job lost 96 ms 60 ms dark, 4.0 ms commit, 32 ms boundary" in page.text
    assert [line["stall_ms"] for line in rows(page, "ring_change_ranks")] == [68, 69, 70, 71]
    job = rows(page, "job")[0]
    assert (job["before_ms"], job["after_ms"]) == (212, 172)


@UNDRAWN
def test_slow_iterations_are_listed_with_what_they_overlap(typed: Typed, lab: Lab) -> None:
    lab.up("ring", RING, job_ms=212.0, iterations=30)
    page, _ = report(typed, lab.change())
    late, changed = rows(page, "slow")
    assert (late["iter"], late["blame"], late["usual_ms"], late["over_ms"], late["other_ms"]) == (
        150,
        "straggler",
        172,
        328,
        328,
    )
    assert (changed["iter"], changed["blame"], changed["usual_ms"], changed["over_ms"]) == (
        130,
        "dark, commit, boundary",
        212,
        188,
    )
    assert (changed["dark_ms"], changed["commit_ms"]) == (
        pytest.approx(61, abs=1.5),
        pytest.approx(3, abs=1.5),
    )
    assert changed["dark_ms"] + changed["commit_ms"] + changed["boundary_ms"] + changed[
        "other_ms"
    ] == pytest.approx(188)
    assert "the times of its ranks show which was late" in page.text


@UNDRAWN
def test_a_run_without_slow_iterations_says_so(typed: Typed, lab: Lab) -> None:
    lab.up("ring", RING, job_ms=212.0, iterations=30)
    page, _ = report(typed, lab.change(slow=False))
    assert (
        "No slow iterations: none took more than 1.5 x the median of the 20 before on the same rings"
        in page.text
    )
    assert recomputed(typed, page) > 100


def test_a_turn_without_light_has_its_curve_too(typed: Typed, lab: Lab) -> None:
    lab.up("ring", RING, job_ms=212.0, iterations=30)
    page, data = report(
        typed, lab.change(light=False, mode="hold"), "--figures", typed.home / "figures"
    )
    assert (typed.home / "figures" / "job.svg").exists(), data
    (ring_change,) = rows(page, "ring_changes")
    assert ring_change["mode"] == "hold" and ring_change["at_ns"] and "job lost 96 ms" in page.text
    assert rows(page, "slow")[1]["blame"] == "boundary"
    assert recomputed(typed, page) > 50 and shown_as_answered(typed, page) > 20


@UNDRAWN
def test_a_turn_that_did_not_happen_is_in_the_table_and_not_on_the_curve(
    typed: Typed, lab: Lab
) -> None:
    lab.up("ring", RING, job_ms=212.0, iterations=30)
    page, _ = report(typed, lab.change(ok=False, slow=False, status="failed"))
    assert (
        "FAILED: the ring change did not happen" in page.text and "job lost 96 ms" not in page.text
    )
    assert recomputed(typed, page) > 100


@UNDRAWN
def test_a_report_on_several_runs_has_a_row_per_turn(typed: Typed, lab: Lab) -> None:
    first = lab.up("ring", RING, job_ms=212.0, iterations=30)
    page, _ = report(typed, first, lab.change(), lab.change(slow=False))
    assert [line["move"] for line in rows(page, "ring_changes")] == [
        7,
        7,
    ] and "slow" not in page.numbers["answers"]
    assert recomputed(typed, page) > 100 and shown_as_answered(typed, page) > 60


@UNDRAWN
def test_a_run_without_turns_has_no_such_table(typed: Typed, lab: Lab) -> None:
    page, _ = report(typed, lab.up("ring", RING))
    assert "ring_changes" not in page.numbers["answers"] and "changed" not in page.text
