"""Power and energy on the page of a run: reckoned from a table, with its source."""

from __future__ import annotations

import pytest

from tests.house.repository import ROOT
from tests.views.report.conftest import UNDRAWN, Typed
from tests.views.report.recorded import RING, Lab
from tests.views.report.test_report import recomputed, report, shown_as_answered


@UNDRAWN
def test_power_and_energy_per_iteration_have_their_source_and_need_the_inventory(
    typed: Typed, lab: Lab
) -> None:
    inventory = str(ROOT / "inventory" / "emulated")
    page, _ = report(typed, lab.up("ring", RING, job_ms=40.0, inventory=inventory))
    answer = page.numbers["answers"]["power"]
    row = dict(zip(answer["columns"], answer["rows"][0], strict=True))
    assert row["network_w"] >= 8 * 3.5, "a transceiver at each end of four links"
    assert row["iteration_j"] == pytest.approx(row["network_w"] * 0.04, rel=0.05)
    assert "prices unverified" in page.text and "energy per iteration" in page.text
    assert recomputed(typed, page) > 200 and shown_as_answered(typed, page) > 60
    assert "power of the network" not in report(typed, lab.up("ring", RING))[0].text
