"""`testbed adapt`: circuits of a running job's regions follow its traffic."""

from __future__ import annotations

from typing import Annotated

import typer

from extensions.adapt import VERBS
from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.service import Foreground, Log, in_background, started, stopped, worked
from orchestrator.cli.shared import Jsonl, own_slice

app = typer.Typer()


@verb(
    app,
    "adapt",
    VERBS["adapt"],
    examples="""
testbed up -t plan.json           a plan whose job has regions, and which says: "adapt": {"every": 4}
testbed adapt                     start it in the background, until the job ends
testbed adapt --stop              stop it, after the turn under way
testbed adapt --turns 10          ten turns, in the foreground
testbed adapt --foreground        run until the job ends, or Ctrl-C
""",
    more="""
Ranks say what they are about to send (the program `moe` does). Circuits change while the job computes; meanwhile the region's
traffic goes over its packet switch. A change that gains too little, or would stop the job for too long, is left out. However it
ends, the hosts' routes are confirmed; `testbed up` with the plan makes the plan's own circuits again.
""",
)
def adapt(
    call: Call,
    jsonl: Jsonl = False,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the running adapter.")] = False,
    foreground: Foreground = False,
    turns: Annotated[int, typer.Option("--turns", metavar="N", min=0, help="End after N turns; 0: when the job ends.")] = 0,
    log: Log = None,
) -> Result:
    if stop and (foreground or turns):
        raise Usage("adapt: --stop cannot be combined with --foreground or --turns", hint="testbed adapt --stop")
    if stop:
        from extensions.adapt.service import KIND

        there = KIND.stop(call.settings, own_slice(call))
        return stopped(KIND, there, "" if there is None or there.unreadable else f" after {there.turns} turns")
    if in_background(call, log, bool(foreground or turns or jsonl), "--foreground, --turns or --jsonl"):
        from extensions.adapt.service import KIND

        return started(KIND, KIND.start(call.settings, own_slice(call)))
    from extensions.adapt.adapter import AdaptOptions
    from extensions.adapt.adapter import adapt as work

    report = worked(call, work, jsonl, log, options=AdaptOptions(turns, str(log or "")))
    text = f"Adapted {report.plan}: {report.turns} turns, {report.skipped} looks without one, {report.failures} failures"
    if report.turn_ms is not None:
        text += f"; a turn took {report.turn_ms:.0f} ms, dark for {report.dark_ms:.0f} ms, {report.exposed_ms:.0f} ms of it exposed"
    return Result(report.to_json(), "" if jsonl else text)


def begin(call: Call, how: object) -> list[str]:
    """Start the adapter of an arm's plan in the background."""
    from extensions.adapt.service import KIND

    KIND.start(call.settings, own_slice(call))
    return []


def end(call: Call, how: object) -> None:
    """Stop it, if it still runs."""
    from extensions.adapt.service import KIND

    KIND.stop(call.settings, own_slice(call))
