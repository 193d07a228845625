"""`testbed adapt`: circuits of a running job's regions follow its traffic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.events import EventPrinter
from orchestrator.cli.shared import Foreground, Jsonl, own_slice

app = typer.Typer()


@verb(
    app,
    "adapt",
    "Make the circuits of a running job's regions follow its traffic.",
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
    log: Annotated[Path | None, typer.Option("--log", metavar="FILE", help="Also append events to this file.")] = None,
) -> Result:
    if stop and (foreground or turns):
        raise Usage("adapt: --stop cannot be combined with --foreground or --turns", hint="testbed adapt --stop")
    if stop:
        return _stopped(call)
    if not (foreground or turns or jsonl):
        if log is not None:
            raise Usage(
                "adapt: --log goes with --foreground, --turns or --jsonl",
                hint="in the background events go to a file that is named",
            )
        return _started(call)
    from orchestrator.engine.adapt.adapt import AdaptOptions
    from orchestrator.engine.adapt.adapt import adapt as work

    printer = EventPrinter("adapt", jsonl, call.json, log)
    try:
        report = call.work(work, notify=printer, options=AdaptOptions(turns, str(log or "")))
    finally:
        printer.close()
    text = f"Adapted {report.plan}: {report.turns} turns, {report.skipped} looks without one, {report.failures} failures"
    if report.turn_ms is not None:
        text += f"; a turn took {report.turn_ms:.0f} ms, dark for {report.dark_ms:.0f} ms, {report.exposed_ms:.0f} ms of it exposed"
    return Result(report.to_json(), "" if jsonl else text)


def _started(call: Call) -> Result:
    from orchestrator.engine.adapt.process import ADAPTER
    from orchestrator.results import to_json

    started = ADAPTER.start(call.settings, own_slice(call))
    return Result({"adapter": to_json(started)}, f"adapter: {started}; events in {started.log}", hint="testbed adapt --stop")


def _stopped(call: Call) -> Result:
    from orchestrator.engine.adapt.process import ADAPTER
    from orchestrator.results import to_json

    stopped = ADAPTER.stop(call.settings, own_slice(call))
    if stopped is None:
        return Result({"stopped": False}, "No adapter was running")
    did = "" if stopped.unreadable else f" after {stopped.turns} turns"
    text = f"Adapter{stopped.of} stopped (pid {stopped.pid}){did}"
    return Result({"stopped": True, "adapter": to_json(stopped)}, text)
