"""Assemble a report: its sections in their order, the figures, the page."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from markupsafe import Markup

from optics.plain import printable
from orchestrator.views.report import (
    carriedsection,
    everyrun,
    manyruns,
    measured,
    onerun,
    questions,
    ranksection,
    slotsection,
    texts,
)
from orchestrator.views.report.gather import ReportedRuns
from orchestrator.views.report.ledger import ledger
from orchestrator.views.report.model import Report, ReportContext
from orchestrator.views.services import service_views

_HERE = Path(__file__).parent / "templates"


def write_report(
    campaign: ReportedRuns, report: Callable[[str], None] = lambda what: None
) -> Report:
    """Make the report of a campaign."""
    report("journals")
    with ledger(list(campaign.journals.values()), questions.READ) as book:
        report("numbers")
        c = ReportContext(campaign, book)
        everyrun.request_section(c)
        if campaign.comparison:
            measured.comparison_sections(c, campaign.comparison)
        report("figures")
        if campaign.single:
            onerun.one_run(c, campaign.sources[0])
        else:
            manyruns.many_runs(c)
        everyrun.throughput_section(c)
        everyrun.job_section(c)
        if campaign.single:
            ranksection.ranks_section(c, campaign.sources[0])
            carriedsection.carried_section(c, campaign.sources[0])
            slotsection.timeslots_section(c, campaign.sources[0])
            for view in service_views():
                view.section(c, campaign.sources[0])
        everyrun.verification(c)
        everyrun.environment_section(c)
        everyrun.data(c)
        report("page")
        return _page(c)


def _page(c: ReportContext) -> Report:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    style = environment.get_template("style.css.j2").render()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    sources = c.campaign.sources
    one = sources[0].record if c.campaign.single else None
    title = f"{texts.title(one)}, run {one.id}" if one else c.campaign.name
    numbers = {
        "api": "testbed.report/1",
        "runs": [source.record.id for source in sources],
        "journals": list(c.campaign.journals),
        "answers": {name: answer.to_json() for name, answer in c.book.answers.items()},
    }
    html = environment.get_template("report.html.j2").render(
        title=title,
        style=Markup(style),
        digest=digest,
        status=one.status if one else "",
        ending=texts.ending(one) if one else "",
        speed=c.speed,
        when=texts.when(sources[0].record.started)
        + ("" if one else f" to {texts.when(sources[-1].record.started)}"),
        tiles=c.tiles,
        sections=c.sections,
        numbers=Markup(json.dumps(numbers).replace("<", "\\u003c")),
        svg=lambda drawing: Markup(drawing.svg()),
    )
    html = printable(
        html, keep="\n\t\N{NO-BREAK SPACE}"
    )  # text of devices, hosts and plans must not reverse or hide the text around it
    return Report(
        title, html, [d for s in c.sections for d in s.drawings], c.book.answers, c.book.trouble
    )
