"""`testbed turn`: turn the slots of the plan that is up."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.service import Foreground, Log, in_background, started, stopped, worked
from orchestrator.cli.shared import Jsonl, own_slice

app = typer.Typer()


@verb(
    app,
    "turn",
    "Turn the slots of the plan that is up.",
    examples="""
testbed turn                start it in the background, as `testbed up` of a plan with a schedule does
testbed turn --stop         the fabric stays in the slot where it is
testbed turn --once         one cycle, in the foreground
testbed turn --foreground   run until Ctrl-C
""",
    more="""
Hosts hold what loses its path before each turn, and follow their own light after it. If the turner is killed it starts again and
completes the slot; hosts that hear nothing stay in the slot whose light they have. docs/how-to/run-a-schedule.md
""",
)
def turn(
    call: Call,
    jsonl: Jsonl = False,
    foreground: Foreground = False,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the running turner.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Turn one cycle, then end.")] = False,
    job: Annotated[bool, typer.Option("--job", help="Launch the plan's job once the slots turn.")] = False,
    log: Log = None,
) -> Result:
    if stop and (once or job or foreground):
        raise Usage("turn: --stop cannot be combined with --once, --job or --foreground", hint="testbed turn --stop")
    if stop:
        return _stopped(call)
    if in_background(call, log, foreground or once or jsonl, "--foreground, --once or --jsonl"):
        from orchestrator.services.schedule.making import begin
        from orchestrator.services.schedule.process import TURNER

        return started(TURNER, call.work(begin, job=job))
    from orchestrator.services.schedule.verb import TurnOptions
    from orchestrator.services.schedule.verb import turn as work

    kept = log is not None and not once  # in the background: no one is there to start it again
    options = TurnOptions(once=once, job=job, log=str(log or ""), kept=kept)
    report = worked(call, work, jsonl, log, kept=kept, options=options)
    duty = f"duty {report.duty:.3f} (planned {report.planned_duty:.3f})"
    text = f"Turned {report.plan}: {report.turns} slots, {report.late} late, {duty}"
    return Result(report.to_json(), "" if jsonl else f"{text}; now in slot {report.slot} of {report.slots}")


def _stopped(call: Call) -> Result:
    from orchestrator.services.schedule.process import TURNER

    there = TURNER.stop(call.settings, own_slice(call))
    if there is None:
        from orchestrator.services.schedule.left import stop_left

        report = call.work(stop_left)
        if report is None:
            return stopped(TURNER, None)
        text = f"No turner was running; what the last one left is at rest in slot {report.slot} of {report.slots}"
        return Result({"stopped": True, "turner": report.to_json()}, text, hint="testbed turn")
    left = TURNER.read(TURNER.path(call.settings, own_slice(call))) or there
    return stopped(TURNER, left, f"; in slot {left.slot} of {left.slots}" if left.slots else "", "testbed turn")
