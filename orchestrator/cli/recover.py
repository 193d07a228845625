"""The verbs that go on, go back, stay, or bring back: `resume`, `rollback`, `confirm`, `restore`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.call import Call, Result, engine, verb
from orchestrator.cli.completing import runs

if TYPE_CHECKING:
    from orchestrator.results import DownReport, PrewireReport, UpReport


def _result(report: UpReport | DownReport | PrewireReport, call: Call) -> Result:
    """A report of any verb that changes the lab, as what it did."""
    from orchestrator.cli import render
    from orchestrator.results import PrewireReport, UpReport

    if isinstance(report, PrewireReport):
        return Result(report.to_json(), render.prewire(report, call.colour, call.said))
    if isinstance(report, UpReport):
        return Result(report.to_json(), render.up(report, call.colour, call.started, call.here, call.said))
    text = render.down(report, call.colour, call.here, call.said)
    if report.left:
        from orchestrator.cli.text import left_words

        words, hint = left_words(len(report.left)), f"when they are mended: testbed resume {report.run}"
        return Result(report.to_json(), text, "E-HANDS-NEEDED", 7, words, hint, ok=False)
    return Result(report.to_json(), text)


app = typer.Typer()


@verb(
    app,
    "rollback",
    "Bring back exactly what was before a change: circuits, routes, the job.",
    examples="""
testbed rollback                     undo the latest change
testbed rollback 2026-11-21-0007     back to what was before that run
testbed rollback last
""",
    more="""
Without RUN, or with `last`, it undoes the newest change that is yours; a second time it undoes that. It also takes back what a run
left half done. Commands that were refused before they changed anything do not count.
""",
)
def rollback(
    call: Call,
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Run id, its ending, or `last`.", autocompletion=runs)] = None,
) -> Result:
    return _result(call.work(engine().rollback, run), call)


@verb(
    app,
    "resume",
    "Go on with a run that died or stopped on its way.",
    examples="""
testbed resume 2026-11-21-0007
testbed resume last
""",
    more="The same plan and options again, from what devices and hosts say now: what is done is not done twice. `last` is "
    "your latest run that began to change something; a command that was refused before is none.",
)
def resume(
    call: Call,
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run id, its ending, or `last`.", autocompletion=runs)],
) -> Result:
    return _result(call.work(engine().resume, run, lab=True), call)


@verb(
    app,
    "confirm",
    "Make a change stand that was brought up with --confirm-within.",
    examples="""
testbed up -t examples/ring-12.json --confirm-within 5m
testbed confirm                      it stands
testbed confirm 2026-11-21-0007
testbed confirm --watch              wait here, and take it back when nobody confirms in time
""",
    more="""
Unconfirmed it is taken back: by the process that `up` started, and if that is gone, by your next command. The hosts' routes go
back by themselves.
""",
)
def confirm(
    call: Call,
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Run id, its ending, or `last`.", autocompletion=runs)] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Confirm nothing: wait, and take it back when it is overdue.")] = False,
) -> Result:
    if watch:
        seen = call.work(engine().watch, run)
        how = {"confirmed": "was confirmed", "reverted": "was taken back"}.get(seen.state, f"waits no more ({seen.state})")
        return Result(seen.to_json(), f"Run {seen.of} {how}")
    report = call.work(engine().confirm, run)
    already = ", as before" if report.already else ""
    undo = call.here(f"testbed rollback {report.of}")
    text = [*report.notes, f"Confirmed: {report.plan} stays{already}   run {report.of}   undo: {undo}"]
    return Result(report.to_json(), "\n".join(text))


@verb(
    app,
    "restore",
    "Bring the plan that is up back after a power cut.",
    examples="testbed restore",
    more="""
Exactly the circuits, ways and attenuations the store has, and the job from its checkpoint. The emulated lab is started if it does
not run.
""",
)
def restore(call: Call) -> Result:
    return _result(call.work(engine().restore, lab=True), call)
