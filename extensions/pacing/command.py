"""`testbed job phases`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from extensions.pacing import VERBS
from extensions.pacing.options import FOR, GRID
from orchestrator.cli.call import Call, Result, verb
from orchestrator.cli.shared import seconds, write_file

app, job = typer.Typer(), typer.Typer()


@verb(
    job,
    "phases",
    VERBS["job phases"],
    examples="""
testbed job phases                        of all owners' running jobs
testbed job phases --figure phases.svg    also as a picture: a circle for each shared link
testbed job phases --for 30s              sample longer, for jobs with long iterations
""",
    more="""
Reads only. Times are those that jobs would have with their links to themselves; the shifts are those with which they collide least.
testbed service start pacing applies them.
""",
)
def phases(
    call: Call,
    figure: Annotated[
        Path | None, typer.Option("--figure", metavar="FILE", help="Write the circles as SVG.")
    ] = None,
    grid: Annotated[float, typer.Option("--grid", metavar="MS", min=0.1, help=GRID)] = 1.0,
    for_: Annotated[str, typer.Option("--for", metavar="TIME", help=FOR)] = "3s",
) -> Result:
    from extensions.pacing import text
    from extensions.pacing.coordinator import job_phases

    report = call.work(job_phases, grid_ms=grid, seconds=seconds("--for", for_, "3s"))
    if figure is not None:
        write_file(figure, text.svg(report))
    hint = report.hint or ("testbed service start pacing" if report.fits else "")
    return Result(report.to_json(), text.text(report), hint=hint)
