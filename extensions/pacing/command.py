"""`testbed coordinate` and `testbed job phases`; and what an arm of a scenario does of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from extensions.pacing import VERBS
from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.service import Foreground, Log, in_background, started, worked
from orchestrator.cli.shared import Jsonl, one_of, own_lab, seconds, write_file

if TYPE_CHECKING:
    from extensions.pacing.service import CoordinateState

app, job = typer.Typer(), typer.Typer()
BY = ("shift", "mltcp", "together", "off")
Grid = Annotated[float, typer.Option("--grid", metavar="MS", min=0.1, help="Shifts and periods are multiples of this.")]
For = Annotated[str, typer.Option("--for", metavar="TIME", help="How long ports are sampled.")]


@verb(
    app,
    "coordinate",
    VERBS["coordinate"],
    examples="""
testbed coordinate                  shift the running jobs of all owners, in the background, while at least two run
testbed coordinate --by mltcp       no shifts: TCP windows that grow with an iteration's progress move them apart
testbed coordinate --by off         stop; iterations begin when they like
testbed coordinate --force          where jobs do not fit: longer periods, until they do
testbed coordinate --by together    once: the next iterations of all jobs begin at the same time, to compare with
""",
    more="""
Phases are taken from the ranks' own records and from samples of their hosts' ports; see them: testbed job phases. Jobs with a best
score below 0.95 do not fit: that is said, and they are left alone. Nobody waits longer than a period, or 20 s after the coordinator
has died. extensions/pacing/README.md
""",
)
def coordinate(
    call: Call,
    jsonl: Jsonl = False,
    foreground: Foreground = False,
    by: Annotated[str, typer.Option("--by", metavar="shift|mltcp|together|off", help="What is done.")] = "shift",
    force: Annotated[bool, typer.Option("--force", help="Make periods longer until the jobs fit.")] = False,
    grid: Grid = 1.0,
    for_: For = "3s",
    log: Log = None,
) -> Result:
    one_of(by, BY, "--by")
    if by in ("off", "mltcp") and (force or foreground):
        text = f"coordinate: --by {by} cannot be combined with --force or --foreground"
        raise Usage(text, hint=f"testbed coordinate --by {by}")
    if by == "mltcp":
        from extensions.pacing.coordinator import by_windows
        from extensions.pacing.service import KIND

        KIND.stop(call.settings, own_lab(call))
        given = call.work(by_windows)
        text = f"{', '.join(given)}: congestion control mltcp, until the job ends"
        return Result({"mltcp": [*given]}, text, hint="testbed coordinate --by off")
    if by == "off":
        text, stopped, told = ended(call)
        return Result({"stopped": stopped, "released": [*told]}, text)
    sampled = seconds("--for", for_, "3s")
    if by == "shift" and in_background(call, log, foreground or jsonl, "--foreground or --jsonl"):
        from extensions.pacing.service import KIND

        words = ["--grid", f"{grid:g}", "--for", f"{sampled:g}s", *(["--force"] if force else [])]
        return started(KIND, begun(call, words))
    from extensions.pacing.coordinator import By, CoordinateOptions
    from extensions.pacing.coordinator import coordinate as work

    report = worked(call, work, jsonl, log, options=CoordinateOptions(cast(By, by), force, grid, sampled, str(log or "")))
    return Result(report.to_json(), "" if jsonl else f"Coordinated {report.lab}: {report.last}")


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
testbed coordinate applies them.
""",
)
def phases(
    call: Call,
    figure: Annotated[Path | None, typer.Option("--figure", metavar="FILE", help="Write the circles as SVG.")] = None,
    grid: Grid = 1.0,
    for_: For = "3s",
) -> Result:
    from extensions.pacing import text
    from extensions.pacing.coordinator import job_phases

    report = call.work(job_phases, grid_ms=grid, seconds=seconds("--for", for_, "3s"))
    if figure is not None:
        write_file(figure, text.svg(report))
    hint = report.hint or ("testbed coordinate" if report.fits else "")
    return Result(report.to_json(), text.text(report), hint=hint)


def begun(call: Call, words: Sequence[str] = ()) -> CoordinateState:
    """Start the coordinator in the background, in place of one that runs. words: further options of the command."""
    from extensions.pacing.service import KIND

    lab = own_lab(call)
    KIND.stop(call.settings, lab)
    return KIND.start(call.settings, lab, words=words)


def ended(call: Call) -> tuple[str, bool, list[str]]:
    """Stop the coordinator: what was done in words, whether one ran, the jobs that begin iterations when they like."""
    from extensions.pacing.coordinator import released
    from extensions.pacing.service import KIND

    stopped = KIND.stop(call.settings, own_lab(call))
    told = call.work(released)
    text = f"Coordinator stopped (pid {stopped.pid})" if stopped is not None else "No coordinator was running"
    return text + (f"; {', '.join(told)} begin iterations when they like" if told else ""), stopped is not None, told


def begin(call: Call, how: str) -> list[str]:
    """Have all jobs begin an iteration at once; and shift them from then on, if that is how."""
    from extensions.pacing.coordinator import CoordinateOptions
    from extensions.pacing.coordinator import coordinate as work

    together = call.work(work, notify=lambda _: None, options=CoordinateOptions("together"))
    return [together.last, *([begun(call).last] if how == "shift" else [])]


def end(call: Call, how: str) -> None:
    """End the shifting."""
    if how == "shift":
        ended(call)
