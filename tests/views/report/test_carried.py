"""What knew a job's traffic in a report: tables whose numbers are recomputed, and figures."""

from __future__ import annotations

import pytest

from tests.views.report.conftest import UNDRAWN, Typed
from tests.views.report.recorded import RING, Lab
from tests.views.report.test_report import recomputed, report, shown_as_answered
from tests.views.report.test_ring_changes import rows

NAMES = {"shadow", "aggregate", "cache", "sent", "lost", "saves"}


@pytest.mark.long
def test_shadow_functions_bytes_losses_and_checkpoints_have_their_figures(
    typed: Typed, lab: Lab
) -> None:
    run = lab.up("ring", RING)
    lab.carried(run)
    page, _ = report(typed, run, "--figures", typed.home / "figures")
    (shadow,), (adds,), (keeps,) = (rows(page, name) for name in ("shadow", "aggregate", "cache"))
    assert (
        shadow["n"],
        shadow["equal"],
        shadow["flagged"],
        shadow["fetched"],
        shadow["checkpoint"],
    ) == (100, 98, 2, 1, 100)
    assert (shadow["host"], shadow["taps"], shadow["missing_bytes"]) == (
        "gpu07",
        "gpu01 gpu02",
        512,
    )
    assert (adds["packets_in"], adds["sums"], keeps["hits"]) == (4000, 100, 7000), (
        "the newest of each counter"
    )
    (sent,), (lost,), (saves,) = (rows(page, name) for name in ("sent", "lost", "saves"))
    assert abs(sent["share"] - 1 / 6) < 1e-9 and (
        lost["lost_most"],
        lost["bound"],
        lost["again"],
    ) == (0.019, 0.02, 0.02)
    assert (saves["n"], saves["save_ms"]) == (10, 12.0) and saves["each_ms"] < 1.2
    assert {path.name for path in (typed.home / "figures").glob("*.svg")} >= {
        "shadow.svg",
        "lost.svg",
    }
    assert recomputed(typed, page) > 50 and shown_as_answered(typed, page) > 30


@UNDRAWN
def test_a_job_that_sent_whole_sums_and_wrote_no_checkpoint_has_no_such_section(
    typed: Typed, lab: Lab
) -> None:
    page, _ = report(typed, lab.up("ring", RING))
    assert not NAMES & page.numbers["answers"].keys() and "What knew" not in page.text
