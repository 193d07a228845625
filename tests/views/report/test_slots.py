"""Slots and changes of an adapter in a report: their tables, whose numbers are recomputed, and
their figures.
"""

from __future__ import annotations

from tests.views.report.conftest import UNDRAWN, Typed
from tests.views.report.recorded import RING, Lab
from tests.views.report.test_report import recomputed, report, shown_as_answered
from tests.views.report.test_ring_changes import rows


def test_slots_have_their_darkness_lateness_and_duty_and_looks_what_came_of_them(
    typed: Typed, lab: Lab
) -> None:
    page, _ = report(typed, lab.slots(), "--figures", typed.home / "figures")
    first, *_ = rows(page, "slots")
    assert (
        first["n"],
        first["dark_ms"],
        first["late_ms"],
        first["late_most_ms"],
        first["duty"],
    ) == (10, 50.0, 1.0, 40.0, 0.9)
    worst, *_ = rows(page, "slot_hosts")
    assert (worst["host"], worst["edge_p99_ms"]) == ("gpu03", 3.0)
    assert {row["what"]: row["gain"] for row in rows(page, "adapt")} == {
        "changed": 2.5,
        "skipped": 1.02,
    }
    assert "too little gain" in page.text and [
        row["moved"] for row in rows(page, "adapt_changes")
    ] == [34]
    assert {path.name for path in (typed.home / "figures").glob("*.svg")} >= {
        "slots-cdf.svg",
        "adapt-gain.svg",
    }
    assert recomputed(typed, page) > 50 and shown_as_answered(typed, page) > 30


@UNDRAWN
def test_a_run_of_the_adapter_shows_what_was_up_before_it_and_its_verifications_as_counts(
    typed: Typed, lab: Lab
) -> None:
    page, _ = report(typed, lab.adapt())
    assert (
        "when the run began" in page.text
        and "not reached" not in page.text
        and "the request" not in page.text
    )
    assert [
        (row["level"], row["passed_n"], row["n"], row["median_ms"]) for row in rows(page, "verify")
    ] == [("circuits", 2, 2, 50)]


@UNDRAWN
def test_a_run_whose_circuits_stayed_has_neither_section(typed: Typed, lab: Lab) -> None:
    page, _ = report(typed, lab.up("ring", RING))
    assert not {"slots", "slot_hosts", "adapt", "adapt_changes"} & page.numbers["answers"].keys()
    assert "Slots of the schedule" not in page.text
