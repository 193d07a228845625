"""`testbed guard`: watch the current plan, reroute traffic around circuits that lose light, and recover the job."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.call import Call, Result, verb
from orchestrator.cli.service import Log, stopped, worked
from orchestrator.cli.shared import GuardJobs, Jsonl, Restarts, budget_of, own_slice, seconds

app = typer.Typer()


@verb(
    app,
    "guard",
    "Watch the current plan; reroute traffic around circuits that lose light; recover its job.",
    examples="""
testbed guard                     run until the plan is taken down, or Ctrl-C
testbed guard --jsonl --stay      for systemd: wait for plans, print JSON lines
testbed up -t examples/ring-12.json --guard     start it in the background (also with --jobs)
testbed guard --stop              stop the one in the background
testbed guard --jobs              also restart a job that lost a rank or hangs, up to 3 times an hour
testbed guard --jobs --restarts 10/d
""",
    more="""
Without --jobs it switches no circuit; `testbed up --avoid PORT` does that. It waits while another run holds the lab. With --jobs
a host that died is replaced by a spare of the plan (`up --spares`); what was done, and why: `testbed status`, `run list`,
`lock audit`.
""",
)
def guard(
    call: Call,
    jsonl: Jsonl = False,
    stay: Annotated[bool, typer.Option("--stay", help="Wait for the next plan instead of ending.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the running guard.")] = False,
    look: Annotated[str, typer.Option("--look", metavar="TIME", help="Interval between readings of devices.")] = "10s",
    hold: Annotated[
        str, typer.Option("--hold", metavar="TIME", help="How long light must be stable before a circuit is used again.")
    ] = "3s",
    log: Log = None,
    jobs: GuardJobs = False,
    restarts: Restarts = None,
) -> Result:
    if stop:
        return _stopped(call)
    from orchestrator.services.guard.guard import GuardOptions
    from orchestrator.services.guard.guard import guard as work

    budget = budget_of("guard", jobs, restarts)
    options = GuardOptions(seconds("--look", look, "10s"), seconds("--hold", hold, "3s"), stay, str(log or ""), budget)
    report = worked(call, work, jsonl, log, options=options)
    moves = f"rerouted {report.reroutes} times, restored {report.restores} times"
    moves += f", recovered its job {report.recovered} times" if budget is not None else ""
    return Result(report.to_json(), "" if jsonl else f"Guarded {report.plan or report.lab}: {moves}")


def _stopped(call: Call) -> Result:
    from orchestrator.services.guard.process import GUARD

    there = GUARD.stop(call.settings, own_slice(call))
    if there is None or not there.around:
        return stopped(GUARD, there)
    return stopped(GUARD, there, f"; traffic stays rerouted around {', '.join(there.around)}", "testbed guard")
