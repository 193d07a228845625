"""The ranks of a job in a report: a picture in which the late one stands out, and a table."""

from __future__ import annotations

import pytest
from lxml import etree

from orchestrator.views.report.figures import Drawing
from orchestrator.views.report.ranksection import heat_map
from tests.views.report.conftest import UNDRAWN, Typed
from tests.views.report.recorded import RING, Lab
from tests.views.report.test_report import recomputed, report, shown_as_answered
from tests.views.report.test_ring_changes import rows


@pytest.mark.long
def test_the_late_rank_is_the_first_of_the_table_and_the_page_has_its_picture(
    typed: Typed, lab: Lab
) -> None:
    run = lab.up("ring", RING)
    lab.ranks(run)
    page, _ = report(typed, run, "--figures", typed.home / "figures")
    assert (typed.home / "figures" / "ranks.svg").stat().st_size < 60_000
    found = rows(page, "ranks")
    assert [line["rank"] for line in found] == ["gpu03", "gpu01", "gpu02", "gpu04"]
    assert (found[0]["n"], found[0]["compute_ms"], found[1]["compute_ms"], found[1]["wait_ms"]) == (
        60,
        60.0,
        30.0,
        30.25,
    )
    assert recomputed(typed, page) > 50 and shown_as_answered(typed, page) > 30


@UNDRAWN
def test_a_job_whose_ranks_told_nothing_has_no_such_section(typed: Typed, lab: Lab) -> None:
    page, _ = report(typed, lab.up("ring", RING))
    assert "ranks" not in page.numbers["answers"] and "Ranks of the job" not in page.text


def test_only_a_late_rank_is_dark_and_a_thousand_iterations_of_many_ranks_stay_small() -> None:
    ranks = {
        f"gpu{n:02}": {i: 300.0 if n == 5 and i > 900 else 60.0 for i in range(1, 1001)}
        for n in range(64)
    }
    drawn = heat_map({"compute_ms": ranks})
    assert drawn is not None
    patches = {
        round(float(patch.get_alpha() or 0), 2): patch.get_path().get_extents()
        for patch in drawn.axes[0].patches
    }
    assert patches.pop(0.07).height > 63 and 1.0 in patches
    assert all(
        dark.height < 1 and round(dark.ymin) == 5 and dark.xmin > 80 for dark in patches.values()
    ), "one row, its end"
    svg = Drawing("ranks", "times", "", drawn).svg()
    assert len(svg) < 100_000 and etree.fromstring(svg).tag.endswith("svg")


def test_one_iteration_is_no_picture() -> None:
    assert heat_map({"iter_ms": {"gpu01": {1: 5.0}}}) is None
