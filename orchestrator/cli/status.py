"""`testbed status` and `testbed verify`: the state of the lab, and whether it is as planned."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.call import Call, Result, Usage, engine, silent_text, unanswered, verb
from orchestrator.cli.completing import levels
from orchestrator.cli.shared import ExitCode, Pairs, one_of, seconds, write_file
from orchestrator.verbs.invoke import is_stopped_lab

app = typer.Typer()


@verb(
    app,
    "status",
    "Show the lab as its devices and hosts report it.",
    examples="""
testbed status
testbed status --exit-code      exit with 8 if the lab differs from the plan
testbed status --json | jq .data.drift
""",
)
def status(call: Call, exit_code: ExitCode = False) -> Result:
    from orchestrator.cli import render

    report = call.work(engine.status)
    data, text = report.to_json(), render.status(report, call.colour, call.here)
    silent = {d.name: d.code for d in report.devices if not d.ok} | {
        h.name: "" for h in report.hosts if not h.ok
    }
    hint = "testbed lab start" if is_stopped_lab(call.settings.inventory) else "testbed doctor"
    if (refused := unanswered(data, text, silent, hint)) is not None:
        return refused
    if report.drift and exit_code:
        return Result(data, text, "DIFFERENCES", 8)
    return Result(data, text)


@verb(
    app,
    "verify",
    "Verify the lab from circuits to traffic.",
    examples="""
testbed verify
testbed verify --rung map --rung light
testbed verify --qualify                 measure rate and loss on every link
testbed verify --collective              run a short all-reduce
testbed verify --pairs all               ask all pairs of hosts, however many
testbed verify --stall                   measure how long traffic stands
testbed verify --stall --dark 50ms --dark 2s --svg stall.svg
testbed verify --history                 the stall curves of earlier runs
testbed verify --json | jq '.data.rungs[] | select(.ok | not)'
""",
    more="""
Every rung is checked even if a lower one fails: together they locate the fault. --qualify and --collective load the links; while a
job is running they require --beside-job. The exit code is 5 if a device or host of the plan does not answer, 7 if anything else is
not as planned.

--stall checks no rung: it darkens one link of the plan several times and measures how long traffic between its hosts stands:
drained before, kept sending, or held by the hosts. No job may run. Circuits and routes are afterwards as they were.
""",
)
def verify(
    call: Call,
    level: Annotated[
        list[str] | None,
        typer.Option(
            "--rung", metavar="NAME", help="Only this rung; may be repeated.", autocompletion=levels
        ),
    ] = None,
    qualify: Annotated[
        bool, typer.Option("--qualify", help="Measure rate and loss of every link under load.")
    ] = False,
    collective: Annotated[
        bool, typer.Option("--collective", help="Run a short all-reduce.")
    ] = False,
    pairs: Pairs = None,
    next_to_job: Annotated[
        bool, typer.Option("--beside-job", help="Load the links even while a job is running.")
    ] = False,
    stall: Annotated[
        bool, typer.Option("--stall", help="Darken a link and measure how long traffic stands.")
    ] = False,
    dark: Annotated[
        list[str] | None,
        typer.Option(
            "--dark",
            metavar="TIME",
            help="With --stall: how long it is dark, 0 for the shortest; may be repeated.",
        ),
    ] = None,
    history: Annotated[
        bool,
        typer.Option(
            "--history", help="Show earlier stall curves; without --stall measure nothing."
        ),
    ] = False,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", metavar="FILE", help="Draw the stall curve to this file."),
    ] = None,
) -> Result:
    from orchestrator.cli import render
    from orchestrator.verify.level import LEVELS

    call.pairs = pairs
    if stall or history or dark or svg:
        if level or qualify or collective or next_to_job:
            raise Usage(
                "--stall checks no rung",
                hint="testbed verify --stall, then testbed verify with the other options",
            )
        return _stall(call, stall, dark or [], history, svg)

    level_results = tuple(one_of(name, LEVELS, "--rung") for name in level or ())
    report = call.work(
        engine.verify,
        levels=level_results,
        qualify=qualify,
        collective=collective,
        next_to_job=next_to_job,
    )
    data, text = report.to_json(), render.verify(report, call.colour)
    if report.ok:
        return Result(data, text)
    failed = [f"{r.name} ({r.code})" for r in report.levels if not r.ok]
    message = f"not verified: {', '.join(failed)}"
    if report.silent:
        message += f"; {silent_text(list(report.silent))}"
        hint = "testbed lab start" if is_stopped_lab(call.settings.inventory) else "testbed doctor"
        return Result(data, text, "E-UNREACHABLE", 5, message, hint, ok=False)
    return Result(data, text, "E-NOT-VERIFIED", 7, message, "testbed status", ok=False)


def _stall(call: Call, measure: bool, dark: list[str], history: bool, svg: Path | None) -> Result:
    from orchestrator.cli import stallcurve

    if dark and not measure:
        raise Usage(
            "--dark is an option of a measurement", hint="testbed verify --stall --dark 200ms"
        )
    if svg is not None and not svg.parent.is_dir():  # before anything is measured
        raise Usage(
            f"{svg}: {svg.parent} is no directory", hint="choose a file that can be written"
        )
    if measure:
        times = [0.0 if text == "0" else seconds("--dark", text, "200ms") for text in dark]
        report = call.work(engine.stall, dark_s=times, history=history)
    else:
        report = call.work(engine.stall_curves)
    if svg is not None and (points := report.points or report.earlier):
        from orchestrator.views.report.stall import stall_svg

        write_file(svg, stall_svg(points, report.lab, call.settings.cache_dir))
        call.note(f"written: {svg}")
    return Result(report.to_json(), stallcurve.text(report))
