"""`testbed coordinate`: the jobs of a lab that share links, shifted against each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, cast

import typer

from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.service import Foreground, Log, in_background, started, worked
from orchestrator.cli.shared import Jsonl, one_of, own_lab, seconds

if TYPE_CHECKING:
    from orchestrator.services.sharing.process import CoordinateState

app = typer.Typer()
BY = ("shift", "mltcp", "together", "off")


@verb(
    app,
    "coordinate",
    "Shift jobs that share links, so that one sends while the others compute.",
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
    grid: Annotated[float, typer.Option("--grid", metavar="MS", min=0.1, help="Shifts and periods are multiples of this.")] = 1.0,
    for_: Annotated[str, typer.Option("--for", metavar="TIME", help="How long ports are sampled.")] = "3s",
    log: Log = None,
) -> Result:
    one_of(by, BY, "--by")
    if by in ("off", "mltcp") and (force or foreground):
        text = f"coordinate: --by {by} cannot be combined with --force or --foreground"
        raise Usage(text, hint=f"testbed coordinate --by {by}")
    if by == "mltcp":
        from orchestrator.services.sharing.coordinate import by_windows
        from orchestrator.services.sharing.process import COORDINATOR

        COORDINATOR.stop(call.settings, own_lab(call))
        given = call.work(by_windows)
        text = f"{', '.join(given)}: congestion control mltcp, until the job ends"
        return Result({"mltcp": [*given]}, text, hint="testbed coordinate --by off")
    if by == "off":
        text, stopped, told = ended(call)
        return Result({"stopped": stopped, "released": [*told]}, text)
    sampled = seconds("--for", for_, "3s")
    if by == "shift" and in_background(call, log, foreground or jsonl, "--foreground or --jsonl"):
        from orchestrator.services.sharing.process import COORDINATOR

        words = ["--grid", f"{grid:g}", "--for", f"{sampled:g}s", *(["--force"] if force else [])]
        return started(COORDINATOR, begun(call, words))
    from orchestrator.services.sharing.coordinate import By, CoordinateOptions
    from orchestrator.services.sharing.coordinate import coordinate as work

    report = worked(call, work, jsonl, log, options=CoordinateOptions(cast(By, by), force, grid, sampled, str(log or "")))
    return Result(report.to_json(), "" if jsonl else f"Coordinated {report.lab}: {report.last}")


def begun(call: Call, words: Sequence[str] = ()) -> CoordinateState:
    """Start the coordinator in the background, in place of one that runs. words: further options of the command."""
    from orchestrator.services.sharing.process import COORDINATOR

    lab = own_lab(call)
    COORDINATOR.stop(call.settings, lab)
    return COORDINATOR.start(call.settings, lab, words=words)


def ended(call: Call) -> tuple[str, bool, list[str]]:
    """Stop the coordinator: what was done in words, whether one ran, the jobs that begin iterations when they like."""
    from orchestrator.services.sharing.coordinate import released
    from orchestrator.services.sharing.process import COORDINATOR

    stopped = COORDINATOR.stop(call.settings, own_lab(call))
    told = call.work(released)
    text = f"Coordinator stopped (pid {stopped.pid})" if stopped is not None else "No coordinator was running"
    return text + (f"; {', '.join(told)} begin iterations when they like" if told else ""), stopped is not None, told
