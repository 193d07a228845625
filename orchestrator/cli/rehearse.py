"""The verb `rehearse`: a change made on an emulated twin of the lab, which itself is only read."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.call import Call, Result, verb
from orchestrator.cli.change import Adopt, Avoid, JobMode, PlanFile, Topology, wanted
from orchestrator.cli.rehearsing import rehearse as rehearsed
from orchestrator.cli.rehearsing import said, text

app = typer.Typer()


@verb(
    app,
    "rehearse",
    "Make a change on an emulated twin of this lab; the lab is only read.",
    examples="""
testbed rehearse -t examples/torus-3x4.json
testbed rehearse examples/torus-3x4.json --no-job   without the plan's job
testbed rehearse -t plan.json --devices-only        its light alone: no hosts, no root
testbed up -t examples/torus-3x4.json --rehearse    rehearse, show, ask, then make it
""",
    more="""
Shows how long everything takes, what is dark how long, which hosts are cut off meanwhile, how long the job stands, and what a
rollback would cost. Exits with 7 if the change fails on the twin. Programs of the lab's owner do not run there: their ranks
all-reduce instead. A twin of more hosts than this machine bears has devices alone, and says so. docs/how-to/rehearse-a-change.md
""",
)
def rehearse(
    call: Call,
    file: PlanFile = None,
    topology: Topology = None,
    job: Annotated[JobMode | None, typer.Option("--job", help="As of `up`.")] = None,
    no_job: Annotated[bool, typer.Option("--no-job", help="Do not launch the plan's job.")] = False,
    avoid: Avoid = None,
    adopt: Adopt = None,
    devices_only: Annotated[bool, typer.Option("--devices-only", help="A twin without hosts, which needs no root.")] = False,
) -> Result:
    from optics.errors import NotVerified
    from orchestrator.store.options import UpOptions

    path = wanted(topology, call, file)
    options = UpOptions(
        launch_job=not no_job,
        job=None if job is None else job.value,
        avoid=tuple(avoid or ()),
        adopt=tuple(adopt or ()),
    )
    report = rehearsed(call, path, options, devices_only=devices_only)
    if not report.failed:
        return Result(report.to_json(), text(report, call), hint=f"testbed up {said(path, options)}")
    words = f"the change failed on the twin: {report.failed.splitlines()[0]}"
    hint = "mend what it names, or change the plan; nothing on the lab was touched"
    return Result(report.to_json(), text(report, call), NotVerified.code, NotVerified.exit_code, words, hint, ok=False)
