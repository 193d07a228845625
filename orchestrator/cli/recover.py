"""The verbs that continue, undo, confirm or repeat a change: `resume`, `rollback`, `confirm`,
`restore`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.call import Call, Result, engine, verb
from orchestrator.cli.completing import runs
from orchestrator.cli.shared import Run, Wait, changed

app = typer.Typer()


@verb(
    app,
    "rollback",
    "Undo a change: restore circuits, routes and job from before.",
    examples="""
testbed rollback                     undo the latest change
testbed rollback 2026-11-21-0007     return to the state before that run
testbed rollback last
""",
    more="""
Without RUN, or with `last`, it undoes your newest change; a second rollback undoes the first. It also undoes what an unfinished run
did; if that died before it changed anything, nothing is undone, and the command for the change before it is named. A state that an
unfinished run left is not gone back to, but the one before that run. Commands that were refused before they changed anything do not
count.
""",
)
def rollback(call: Call, run: Run = None, wait: Wait = None) -> Result:
    call.wait = wait
    return changed(call.work(engine.rollback, run), call)


@verb(
    app,
    "resume",
    "Continue a run that crashed or was stopped.",
    examples="""
testbed resume 2026-11-21-0007
testbed resume last
""",
    more="Applies the same plan and options to the present state of devices and hosts; what is done is not repeated. `last` is "
    "your newest run that began to change something; commands that were refused before that do not count.",
)
def resume(
    call: Call,
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="Run ID, its last digits, or `last`.", autocompletion=runs
        ),
    ],
    wait: Wait = None,
) -> Result:
    call.wait = wait
    return changed(call.work_on_lab(engine.resume, run), call)


@verb(
    app,
    "confirm",
    "Keep a change that was made with `up --confirm-within`.",
    examples="""
testbed up -t examples/ring-12.json --confirm-within 5m
testbed confirm                      keep it
testbed confirm 2026-11-21-0007
testbed confirm --watch              wait, and roll it back if it is not confirmed in time
""",
    more="""
An unconfirmed change is rolled back by the process that `up` started, or, if that no longer runs, by your next command. The hosts
restore their routes by themselves.
""",
)
def confirm(
    call: Call,
    run: Run = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Do not confirm: wait, and roll the change back once it is overdue."
        ),
    ] = False,
) -> Result:
    if watch:
        seen = call.work(engine.watch, run)
        how = {"confirmed": "was confirmed", "reverted": "was rolled back"}.get(
            seen.state, f"is no longer waiting ({seen.state})"
        )
        return Result(seen.to_json(), f"Run {seen.of} {how}")
    report = call.work(engine.confirm, run)
    already = ", as before" if report.already else ""
    undo = call.here(f"testbed rollback {report.of}")
    text = [
        *report.notes,
        f"Confirmed: {report.plan} stays{already}   run {report.of}   undo: {undo}",
    ]
    return Result(report.to_json(), "\n".join(text))


@verb(
    app,
    "restore",
    "Restore the current plan after a power cut.",
    examples="testbed restore",
    more="""
Restores exactly the circuits, routes and attenuations in the run store, and the job from its checkpoint. A stopped emulated
lab is started.
""",
)
def restore(call: Call, wait: Wait = None) -> Result:
    call.wait = wait
    return changed(call.work_on_lab(engine.restore), call)
