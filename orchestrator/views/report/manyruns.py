"""The sections of a report on several runs: distribution of times, list of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from optics.plain import counted
from orchestrator.store.verbs import verb_of
from orchestrator.telemetry.palette import PHASE_COLOURS
from orchestrator.views.report import figures, questions, texts
from orchestrator.views.report.figures import Drawing
from orchestrator.views.report.ledger import Answer, Cell, missing_mark
from orchestrator.views.report.model import (
    SPREAD,
    ReportContext,
    ReportSection,
    Table,
    result_table,
)
from orchestrator.views.report.topology import planned_switches, topology

TOPOLOGIES_DRAWN = 6


def many_runs(c: ReportContext) -> None:
    _tiles(c, questions.percentiles(c.book, c.campaign))
    _pause_tile(c)
    _topologies(c)
    durations(c)
    _run_table(c)


def durations(c: ReportContext) -> None:
    """How long reconfigurations took, as a distribution."""
    campaign, book = c.campaign, c.book
    spread = questions.percentiles(book, campaign)
    section = ReportSection(
        "durations",
        "How long reconfigurations took",
        f"{counted(len(c.reconfigs), 'reconfiguration')} {'was' if len(c.reconfigs) == 1 else 'were'} recorded.",
    )
    if c.reconfigs:
        shown = {
            p: (PHASE_COLOURS[p], c.reconfigs.values(f"{p}_ms"))
            for p in ("dark", "link", "route", "total")
        }
        c.draw(
            section,
            "cdf",
            "distribution over reconfigurations",
            "Share of reconfigurations that took no longer.",
            figures.cdf(shown),
        )
        c.draw(
            section,
            "parts",
            "parts of reconfigurations",
            "Median of each part, with a line from the minimum to the 99th percentile; times below 0.01 ms are drawn at 0.01 ms.",
            figures.breakdown(spread),
        )
        section.tables.append(
            result_table(spread, {"part": "part", "n": "n", "least_ms": "least", **SPREAD})
        )
        models = questions.dark_times_by_model(book, campaign)
        section.tables.append(
            result_table(models, {"model": "dark, by driver", **SPREAD}, c.scale_of_all())
        )
        section.notes.append(
            "Percentiles are nearest rank; of fewer than a hundred values p99 is the longest."
        )
    c.sections.append(section)


def _tiles(c: ReportContext, spread: Answer) -> None:
    sources = c.campaign.sources
    good = sum(source.record.status == "ok" for source in sources)
    c.tiles.append(("runs", Markup("{}").format(len(sources)), f"{good} succeeded"))
    for line in spread.lines():
        if line["part"].value in ("dark", "total"):
            name = "dark" if line["part"].value == "dark" else "command to verified"
            scale = c.scale_of_all() if line["part"].value == "dark" else 1.0
            c.tiles.append(
                (
                    f"{name}, median",
                    line["median_ms"].show(scale),
                    f"p99 {line['p99_ms'].text(scale)}, n {line['n'].text()}",
                )
            )


def _pause_tile(c: ReportContext) -> None:
    answer = (
        questions.pause_spread(c.book, c.job)
        if c.job is not None and c.job.values("pause_ms")
        else None
    )
    for line in answer.lines() if answer is not None else ():
        c.tiles.append(
            (
                "pause of the job, median",
                line["median_ms"].show(),
                f"longest {line['most_ms'].text()}, n {line['n'].text()}",
            )
        )


def _topologies(c: ReportContext) -> None:
    section = ReportSection("topology", "Topologies")
    drawn: dict[frozenset[Any], str] = {}
    for source in c.campaign.sources:
        if (
            len(drawn) >= TOPOLOGIES_DRAWN
            or not verb_of(source.record.verb).plan
            or source.record.status != "ok"
        ):
            continue
        if source.record.plan_name in drawn.values():
            continue
        found = topology(source, questions.links(c.book, c.campaign, source))
        if found.after and found.after not in drawn:
            drawn[found.after] = source.record.plan_name
    if drawn:
        figure = figures.topologies([(name, links) for links, name in drawn.items()])
        section.drawings.append(
            Drawing(
                "topology",
                "topologies of the plans",
                "The topologies that came up, each drawn once.",
                figure,
            )
        )
    else:
        section.notes.append("No circuits were recorded.")
    c.sections.append(section)


def _run_table(c: ReportContext) -> None:
    section = ReportSection("runs", "The runs")
    answer = questions.run_durations(c.book, c.campaign)
    slow = questions.slowest_changes(c.book, c.campaign)
    if slow:
        heads = {
            "reconfig_id": "longest reconfigurations",
            "total_ms": "total",
            "dark_ms": "dark",
            "device": "darkest device",
            "n_circuits": "circuits",
        }
        section.tables.append(result_table(slow, heads))
    reply = {line["run"].value: line for line in answer.lines()}
    rows: list[Sequence[Cell | Markup | str]] = []
    for source in c.campaign.sources:
        record, line = source.record, reply.get(source.record.id)
        scale = c.scale_of_all([source])
        numbers: list[Markup] = [missing_mark("no journal")] * 4
        if line is not None and line["moved"]:
            expected = c.expected(source).show(c.expected_scale(source, scale))
            numbers = [
                line["took_ms"].show(),
                line["dark_ms"].show(scale),
                expected,
                line["total_ms"].show(),
            ]
        elif line is not None:
            dark = planned_switches(source) and not source.plan.get("links")
            never = (
                "packet switches: no light moved"
                if dark and record.status == "ok"
                else "no move recorded"
            )
            numbers = [line["took_ms"].show(), *[missing_mark(never)] * 3]
        rows.append((record.id, texts.title(record), record.status, *numbers))
    section.tables.append(
        Table(
            (
                "run",
                "what",
                "status",
                "took",
                "dark, measured",
                "dark, expected",
                "command to verified",
            ),
            rows,
        )
    )
    bad = [s.record for s in c.campaign.sources if s.record.status != "ok"]
    for record in bad[:10]:
        section.notes.append(
            f"{record.id} ({texts.title(record)}): {texts.ending(record)}"
            + (f" {record.message.splitlines()[0]}" if record.message else "")
        )
    if len(bad) > 10:
        section.notes.append(
            f"{len(bad) - 10} more did not succeed; the table shows how they ended."
        )
    c.sections.append(section)
