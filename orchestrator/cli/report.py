"""`testbed experiment report`: a page with figures about one run or several, each number with the
query it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.completing import runs
from orchestrator.cli.shared import moment
from orchestrator.files.atomic import probe, write_whole

if TYPE_CHECKING:
    from orchestrator.store.records import RunRecord
    from orchestrator.store.store import Store
    from orchestrator.views.report.gather import ReportedRuns
    from orchestrator.views.report.model import Report


app = typer.Typer()


@verb(
    app,
    "report",
    "Write a report on runs: a self-contained page, and figures for papers.",
    examples="""
testbed experiment report                                the newest run that brought a plan up
testbed experiment report all --inventory lab2           all runs of that lab
testbed experiment report 0007 --out run7.html
testbed experiment report 0007 --figures paper           PDF and SVG of every figure
testbed experiment report --since 7d --plan ring-12      all runs of a plan as one campaign
testbed experiment report --tag paper-fig3               all runs with a tag (testbed run note)
testbed experiment report 0003 0005 0007 --data numbers  these runs, and the tables as CSV
testbed experiment report compare-2026-11-21-0001        a comparison by `testbed experiment compare`
""",
    more="""
Several runs, --since, --until, --plan, --tag or `all` make a campaign, which shows distributions. A campaign covers one
lab: that of the inventory, or of the newest run. Each measured number on the page is the result of an SQL query over the
journals, shown with it. Missing measurements are marked as such.
""",
)
def report(
    call: Call,
    run: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN|CAMPAIGN]...",
            help="Run IDs, their last digits, `last`, `all`, or a campaign.",
            autocompletion=runs,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", help="Write the page here; default: next to the journal."
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option("--figures", metavar="DIR", help="Write every figure as PDF and SVG."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="Write the tables of the journals as CSV."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Runs since this time: 7d, 2026-11-21."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Runs that began before this time."),
    ] = None,
    plan: Annotated[
        str | None, typer.Option("--plan", metavar="NAME", help="Only runs of this plan.")
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", help="Only runs with this tag (testbed run note); may be repeated."),
    ] = None,
) -> Result:
    with call.store() as store:
        campaign, others = _chosen(call, store, run or [], since, until, plan, tag or ())
        more = (
            not run
            and campaign.single
            and len(store.history(campaign.sources[0].record.lab, limit=2)) > 1
        )
    page_file = _place(call, campaign, out)
    for flag, folder in (("--figures", figures), ("--data", data)):
        if folder is not None:
            with _writing(flag, folder):
                folder.mkdir(parents=True, exist_ok=True)
    made = _made(call, campaign)
    _save(made, page_file)
    drawn = _figures(made, figures)
    tables = _tables(campaign, made, data)
    return _result(
        campaign,
        made,
        page_file,
        drawn,
        tables,
        others=others,
        hint="testbed experiment report all" if more else "",
    )


def _made(call: Call, campaign: ReportedRuns) -> Report:
    from orchestrator.views.report import page
    from orchestrator.views.report.figures import prepare

    prepare(call.settings.cache_dir)
    with call.progress() as progress, call.timed():
        progress.phase("report", f"{len(campaign.sources)} runs")
        made = page.write_report(campaign, lambda what: progress.update("report", 0, 0, what))
        progress.done("report", f"{len(made.drawings)} figures, {len(made.answers)} tables")
    return made


def written(call: Call, campaign: ReportedRuns, out: Path | None) -> Path:
    """Write a campaign's page; return its path. Raises: Usage - it cannot be written there."""
    path = _place(call, campaign, out)
    _save(_made(call, campaign), path)
    return path


def _chosen(
    call: Call,
    store: Store,
    run: Sequence[str],
    since: str | None,
    until: str | None,
    plan: str | None,
    tags: Sequence[str],
) -> tuple[ReportedRuns, str]:
    """The chosen runs, and a note on those left out because they are of other labs.

    Raises: Usage, Missing - there are none; BadFile - a campaign's file is not one.
    """
    from orchestrator.experiments.scenario.record import read_record, record_file
    from orchestrator.store.notes import runs_with_tags
    from orchestrator.store.runs import named
    from orchestrator.store.verbs import verb_of
    from orchestrator.views.report.gather import gather

    settings = call.settings
    begin, end = moment("--since", since), moment("--until", until)
    some = begin is not None or end is not None or plan is not None or bool(tags)
    if some and [word for word in run if word != "all"]:
        raise Usage(
            "experiment report: runs cannot be combined with --since, --until, --plan and --tag"
        )
    if some or list(run) == ["all"]:
        those = runs_with_tags(store, tags) if tags else None
        found = [
            r
            for r in store.history(limit=0)
            if verb_of(r.verb).light
            and (those is None or r.id in those)
            and (begin is None or r.started >= begin)
            and (end is None or r.started < end)
            and (plan is None or r.plan_name == plan)
        ]
        if not found:
            raise Usage(
                "experiment report: no run that changed the lab matches", hint="testbed run list"
            )
        found, others = _of_one_lab(call, found)
        lines = [
            f"{word} {value}"
            for word, value in (
                ("tag", ", ".join(tags)),
                ("plan", plan),
                ("since", since),
                ("until", until),
            )
            if value
        ]
        return gather(found, store, settings, f"Campaign: {', '.join(lines) or 'all runs'}"), others
    if (
        len(run) == 1
        and store.get(run[0]) is None
        and (path := record_file(settings, run[0])) is not None
    ):
        kept = read_record(path)
        runs = [str(word) for slot in kept["slots"] for word in slot.get("runs", ())]
        records = [record for word in runs if (record := store.get(word)) is not None]
        if not records:
            raise Usage(
                f"experiment report: {path}: none of its runs is in the store",
                hint="testbed run list",
            )
        return gather(
            records,
            store,
            settings,
            str(kept.get("title") or kept.get("name") or path.parent.name),
            kept,
        ), ""
    if not run:
        record, others = _newest(call, store)
        return gather([record], store, settings, record.id), others
    records = [named(store, word, "run or campaign") for word in run]
    name = f"Campaign of {len(records)} runs" if len(records) > 1 else records[0].id
    return gather(records, store, settings, name), ""


def _newest(call: Call, store: Store) -> tuple[RunRecord, str]:
    """The lab's newest run that brought a plan up, or tried to; else the newest. Raises: Missing -
    there are none.
    """
    from orchestrator.store.runs import named
    from orchestrator.store.verbs import verb_of
    from orchestrator.views.report.texts import was_up

    found, others = _of_one_lab(call, store.history(limit=0))
    lighting = [r for r in found if verb_of(r.verb).plan]
    return next((r for r in lighting if was_up(r)), None) or next(
        iter(lighting or found), None
    ) or named(store, "last"), others


def _of_one_lab(call: Call, found: list[RunRecord]) -> tuple[list[RunRecord], str]:
    """The runs, newest first, of one lab: the inventory's, or the newest run's if it has none; and
    the other labs.
    """
    from collections import Counter

    from optics import TestbedError
    from orchestrator.session import load_lab
    from orchestrator.store.keys import key_of

    labs = Counter(r.lab for r in found)
    if len(labs) < 2:
        return found, ""
    try:
        lab = key_of(load_lab(call.settings.inventory))
    except TestbedError:
        lab = ""
    lab = lab if lab in labs else found[0].lab
    left = ", ".join(f"{n} of {other}" for other, n in labs.items() if other != lab)
    return [r for r in found if r.lab == lab], f"runs of {lab} alone; left out: {left}"


def _place(call: Call, campaign: ReportedRuns, out: Path | None) -> Path:
    """The path of the page. Raises: Usage - nothing can be written there."""
    if out is not None:
        path = out / "report.html" if out.is_dir() else out
    elif campaign.comparison:
        path = (
            call.settings.state_dir / "campaigns" / str(campaign.comparison["name"]) / "report.html"
        )
    elif campaign.single:
        path = campaign.sources[0].folder / "report.html"
    else:
        ids = [source.record.id for source in campaign.sources]
        path = call.settings.state_dir / "reports" / f"{ids[0]}-to-{ids[-1]}.html"
    with _writing("--out", path):
        if out is None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe(path)
    return path


def _save(made: Report, path: Path) -> None:
    """Write the page as a whole. Raises: Usage - it cannot be written there."""
    with _writing("--out", path):
        write_whole(path, made.html)


def _figures(made: Report, folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    with _writing("--figures", folder):
        return [path for drawing in made.drawings for path in drawing.save(folder)]


def _tables(campaign: ReportedRuns, made: Report, folder: Path | None) -> list[Path]:
    """Write the tables of every journal of the report, and its queries with their results."""
    import json

    from orchestrator.telemetry import tables
    from orchestrator.telemetry.reader import Recorded

    if folder is None:
        return []
    with _writing("--data", folder):
        paths = list(
            tables.export_tables(
                [Recorded(path) for path in campaign.journals.values()], folder, "csv"
            )
        )
        answers = folder / "answers.json"
        results = {name: answer.to_json() for name, answer in made.answers.items()}
        write_whole(answers, json.dumps(results, indent=1, ensure_ascii=False))
        return [*paths, answers]


@contextmanager
def _writing(flag: str, path: Path) -> Iterator[None]:
    """Raises: Usage - `path`, given by `flag`, cannot be written."""
    try:
        yield
    except OSError as error:
        raise Usage(
            f"experiment report: {path} cannot be written: {error.strerror or error}",
            hint=f"choose another {flag}",
        ) from error


def _result(
    campaign: ReportedRuns,
    made: Report,
    page_file: Path,
    drawn: list[Path],
    tables: list[Path],
    *,
    others: str,
    hint: str,
) -> Result:
    from orchestrator.results import Json, path_text

    runs = [source.record.id for source in campaign.sources]
    lines = [
        f"Report: {path_text(page_file)}   {len(made.html) / 1e3:.0f} kB, {len(runs)} run{'s' * (len(runs) != 1)}"
    ]
    lines += [f"  labs     {others}"] if others else []
    lines += [f"  figures  {len(drawn)} files in {path_text(drawn[0].parent)}"] if drawn else []
    lines += [f"  data     {len(tables)} files in {path_text(tables[0].parent)}"] if tables else []
    data: dict[str, Any] = {
        "file": str(page_file),
        "title": made.title,
        "runs": runs,
        "journals": list(campaign.journals),
        "figures": [str(path) for path in drawn],
        "data": [str(path) for path in tables],
        "answers": {name: answer.to_json() for name, answer in made.answers.items()},
        "trouble": made.trouble,
    }
    more = f" and {len(made.trouble) - 1} more" if len(made.trouble) > 1 else ""
    return Result(
        cast("dict[str, Json]", data),
        "\n".join(lines),
        message=f"not read: {made.trouble[0]}{more}" if made.trouble else "",
        hint=hint,
    )
