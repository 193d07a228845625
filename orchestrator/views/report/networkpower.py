"""The power of what a plan's circuits use, and the energy of an iteration, by the table of prices."""

from __future__ import annotations

from pathlib import Path

from optics import TestbedError
from orchestrator.plan.design.prices import plan_watts
from orchestrator.plan.reader import read_plan
from orchestrator.session import load_lab
from orchestrator.verbs.design_files import read_prices
from orchestrator.views.report.gather import Source
from orchestrator.views.report.model import ReportContext
from orchestrator.views.report.texts import was_up


def power_tiles(c: ReportContext, source: Source) -> None:
    """Add them; none without the inventory, as the plan alone does not say which devices light
    passes.
    """
    record, prices = source.record, read_prices()
    if not source.plan or not was_up(record):
        return
    try:
        lab = load_lab(Path(record.inventory))
        watts = plan_watts(prices, lab, read_plan(record.plan_text, record.plan_name, lab))
    except TestbedError:
        return
    jobs = next(c.job.lines(), None) if c.job is not None else None
    took = jobs["after_ms"].value if jobs is not None else None
    answer = c.book.query(
        "power",
        f"watts of transceivers and ports that the plan uses ({prices.mark}), times an iteration after",
        f"SELECT {watts!r} AS network_w, {watts!r} * {'NULL' if took is None else repr(took)} / 1000 AS iteration_j",
    )
    row = next(answer.lines())
    c.tiles.append(("power of the network", row["network_w"].show(), f"reckoned, {prices.mark}"))
    if took is not None:
        text = "that power times an iteration after"
        c.tiles.append(("energy per iteration", row["iteration_j"].show(), text))
