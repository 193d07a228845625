"""`testbed plan`: what `up` would change; `--prewire` has switches prepare it, `--rehearse` makes
it on a twin of the lab.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import rehearsing
from orchestrator.cli.call import Call, Result, Usage, engine, verb
from orchestrator.cli.change import (
    Adopt,
    Avoid,
    JobMode,
    PlanFile,
    Relabel,
    Topology,
    startable,
    wanted,
)
from orchestrator.cli.shared import ExitCode, Wait, changed

if TYPE_CHECKING:
    from orchestrator.store.options import UpOptions

PREWIRE, REHEARSE = "--prewire", "--rehearse"
TAKEN: Mapping[str, tuple[str, ...]] = {
    "": ("--avoid", "--relabel", "--adopt", "--out", "--exit-code"),
    PREWIRE: ("--relabel", "--wait"),
    REHEARSE: ("--avoid", "--adopt", "--job", "--no-job", "--devices-only"),
}
"""The options that `plan` takes, alone, with `--prewire` and with `--rehearse`, beside its plan and
those of all verbs.
"""

app = typer.Typer()


def _only(mode: str, given: Mapping[str, Any]) -> None:
    """Raises: Usage - an option was given that this use of `plan` does not take."""
    for option in (
        option for option, value in given.items() if value and option not in TAKEN[mode]
    ):
        uses = [
            f"testbed plan {one}".rstrip() for one, options in TAKEN.items() if option in options
        ]
        raise Usage(
            f"{f'plan {mode}'.rstrip()} does not take {option}",
            hint=f"{option} goes with {' and '.join(uses)}",
        )


@verb(
    app,
    "plan",
    "Show what `up` would change; prepare or rehearse it.",
    examples="""
testbed plan examples/torus-3x4.json                  port by port
testbed plan -t examples/ring-12.json -o saved.json   for `up --plan saved.json`
testbed plan -t examples/ring-12.json --exit-code     8 if anything would change
testbed plan --rehearse -t examples/torus-3x4.json    on an emulated twin
testbed plan --prewire -t next.json                   robotic switches prepare it
""",
    more="""
--rehearse only reads the lab. It shows how long everything takes, what is dark, who is cut off, how long the job stands and what a
rollback would cost; it exits with 7 if the change fails on the twin. --prewire touches no lit circuit and no host.
""",
)
def plan(
    call: Call,
    file: PlanFile = None,
    topology: Topology = None,
    rehearse: Annotated[
        bool, typer.Option(REHEARSE, help="Make the change on an emulated twin.")
    ] = False,
    prewire: Annotated[
        bool, typer.Option(PREWIRE, help="Let robotic switches prepare the plan.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Save the plan here.")
    ] = None,
    exit_code: ExitCode = False,
    avoid: Avoid = None,
    relabel: Relabel = False,
    adopt: Adopt = None,
    job: Annotated[
        JobMode | None, typer.Option("--job", help="With --rehearse: as of `up`.")
    ] = None,
    no_job: Annotated[
        bool, typer.Option("--no-job", help="With --rehearse: do not launch the plan's job.")
    ] = False,
    devices_only: Annotated[
        bool,
        typer.Option(
            "--devices-only", help="With --rehearse: a twin without hosts, which needs no root."
        ),
    ] = False,
    wait: Wait = None,
) -> Result:
    from orchestrator.store.options import UpOptions

    if rehearse and prewire:
        raise Usage("plan: --rehearse and --prewire cannot be combined", hint="testbed plan --help")
    mode = REHEARSE if rehearse else PREWIRE if prewire else ""
    given = {
        "--avoid": avoid,
        "--relabel": relabel,
        "--adopt": adopt,
        "--out": out,
        "--exit-code": exit_code,
        "--wait": wait,
    }
    _only(mode, given | {"--job": job, "--no-job": no_job, "--devices-only": devices_only})
    call.verb = f"plan {mode}".rstrip()
    if prewire:
        return _prewire(call, startable(topology, call, file), relabel, wait)
    path = wanted(topology, call, file)
    options = UpOptions(avoid=tuple(avoid or ()), adopt=tuple(adopt or ()), relabel=relabel)
    if rehearse:
        options = replace(options, launch_job=not no_job, job=None if job is None else job.value)
        return _rehearse(call, path, options, devices_only=devices_only)
    return _show(call, path, options, out, exit_code=exit_code)


def _show(
    call: Call, path: Path, options: UpOptions, out: Path | None, *, exit_code: bool
) -> Result:
    from orchestrator.cli import render, saved

    report = call.work(engine.plan, path, options)
    hint = ""
    if out is not None:
        saved.keep(out, path, report)
        hint = f"testbed up --plan {out}"
    differs = exit_code and not report.nothing_to_do
    return Result(
        report.to_json(),
        render.plan(report, call.colour),
        "DIFFERENCES" if differs else "OK",
        8 if differs else 0,
        hint=hint,
    )


def _prewire(call: Call, path: Path, relabel: bool, wait: str | None) -> Result:
    call.wait = wait
    report = call.work_on_lab(engine.prewire, path, relabel=relabel)
    hint = f"testbed up --topology {shlex.quote(str(path))}" + (" --relabel" if relabel else "")
    return replace(changed(report, call), hint=hint)


def _rehearse(call: Call, path: Path, options: UpOptions, *, devices_only: bool) -> Result:
    from optics.errors import NotVerified

    report = rehearsing.rehearse(call, path, options, devices_only=devices_only)
    text = rehearsing.text(report, call)
    if not report.failed:
        return Result(
            report.to_json(), text, hint=f"testbed up {rehearsing.reported(path, options)}"
        )
    message = f"the change failed on the twin: {report.failed.splitlines()[0]}"
    hint = "mend what it names, or change the plan; nothing on the lab was touched"
    return Result(
        report.to_json(), text, NotVerified.code, NotVerified.exit_code, message, hint, ok=False
    )
