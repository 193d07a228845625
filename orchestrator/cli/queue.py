"""`testbed job queue`: jobs that wait for hosts of the lab, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.groups import Listed, family
from orchestrator.cli.shared import own_lab, seconds

if TYPE_CHECKING:
    from orchestrator.queue.verb import QueueRow, QueueView
    from orchestrator.results import Json
    from orchestrator.session import Command
    from orchestrator.store.store import Store

ENDED = 5
"""Jobs that have ended and are still listed, without --all."""

app = family("queue", Listed, "Jobs that wait for hosts.")


def _command(call: Call, store: Store) -> Command:
    from orchestrator.session import Command
    from orchestrator.telemetry.progress import Silent

    return Command(Silent(), store, call.settings)


def _serve(call: Call) -> dict[str, Json]:
    """Have the background process run. Raises: as `Kind.start`."""
    from orchestrator.cli.service import begun
    from orchestrator.queue.process import QUEUE
    from orchestrator.results import to_json

    return {"process": to_json(begun(call, QUEUE))}


def _serve_after(call: Call, done: str, hint: str) -> dict[str, Json]:
    """The same after something was done, which an error then says."""
    from optics import Locked, TestbedError

    try:
        return _serve(call)
    except Locked:  # it is served from another machine
        return {"process": None}
    except TestbedError as error:
        error.args = (f"{done}, but nothing serves the queue: {error}", *error.args[1:])
        error.hint = f"{hint}; {error.hint}".removesuffix("; ")
        raise


@verb(
    app,
    "list",
    "List the jobs that run and wait.",
    examples="""
testbed job queue list             the jobs that run and wait
testbed job queue list --explain   and why each of them waits
""",
    more="First come, first served; a job behind the first starts where that does not delay the first. docs/how-to/queue.md",
)
def list_(
    call: Call,
    explain: Annotated[bool, typer.Option("--explain", help="Say why each job waits.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="Also list all that have ended.")] = False,
) -> Result:
    from orchestrator.queue.verb import queue_view

    with call.store() as store:
        view = queue_view(_command(call, store), ended=1_000_000 if all_ else ENDED)
    waits = view.mine and view.process is None
    return Result(
        view.to_json(),
        text(view, explain=explain),
        hint="testbed service start queue" if waits else "",
    )


@verb(
    app,
    "add",
    "Add a job: a workload, for which hosts are chosen, or a plan.",
    examples="""
testbed job queue add examples/workloads/dlrm.yaml --hosts 6 --for 4h
testbed job queue add examples/workloads/bert.yaml --hosts 4 --for 1d --preemptible
testbed job queue add examples/ring-12.json --for 2h
""",
    more="""
A workload is designed for when its hosts are known, as by `testbed design`; its job replays the traffic. A job runs for the time
given at most, then it is stopped with a checkpoint and its circuits are taken down. It may be stopped earlier for another with
--preemptible; it then waits again for the rest of its time. Its tenancy of the lab has an owner of its own: OWNER.qNUMBER.
""",
)
def add(
    call: Call,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A workload, or a plan with a job.")],
    hosts: Annotated[
        int | None,
        typer.Option("--hosts", metavar="N", min=2, help="Hosts to use; default: the workload's."),
    ] = None,
    for_: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long it may run: 90s, 30m, 4h.")
    ] = None,
    preemptible: Annotated[
        bool, typer.Option("--preemptible", help="It may be stopped for a job that may not.")
    ] = False,
    method: Annotated[
        str,
        typer.Option(
            "--method", metavar="NAME", help="How to design, as in testbed design; match: the best."
        ),
    ] = "match",
    iterations: Annotated[
        int,
        typer.Option("--iterations", min=0, help="Iterations to do; 0: until its time is over."),
    ] = 0,
) -> Result:
    from optics import BadFile
    from optics.plain import counted, hours_text, reason
    from orchestrator.files.reading import attentive, text_of
    from orchestrator.queue.verb import queue_add

    if for_ is None:
        raise Usage(
            "job queue add: --for is missing: nobody behind it could know when hosts are free",
            hint=f"testbed job queue add {file} --for 4h",
        )
    for_s = seconds("--for", for_, "4h")
    if kind := {".fbuf": "a task graph", ".et": "a trace"}.get(file.suffix):
        hint = (
            f"testbed design topoopt -w {file} -o plan.json, then testbed job queue add plan.json"
        )
        raise Usage(
            f"job queue add: {file} is {kind}; the queue takes workloads and plans", hint=hint
        )
    try:
        text = text_of(file)
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(
            [f"{file}: {reason(error)}"], hint="examples/workloads/ has files to start from"
        ) from error
    with call.store() as store, attentive(str(file)):
        wanted = {
            "hosts": hosts,
            "for_s": for_s,
            "preemptible": preemptible,
            "method": method,
            "iterations": iterations,
        }
        job = queue_add(_command(call, store), text, str(file), **wanted)  # type: ignore[arg-type]
    data: dict[str, Json] = {
        "number": job.number,
        "name": job.name,
        "tenancy": job.tenancy,
        "count": job.count,
        "for_s": job.for_s,
    }
    hint = f"testbed service start queue, or take it out: testbed job queue drop {job.number}"
    data |= _serve_after(call, f"job {job} was added", hint)
    message = f"Job {job.number}: {job.name} on {counted(job.count, 'host')} for {hours_text(job.for_s)}, as {job.tenancy}"
    return Result(data, message, hint="testbed job queue list --explain")


@verb(
    app,
    "drop",
    "Take a job out of the queue; one that runs is stopped with a checkpoint.",
    examples="testbed job queue drop 3",
)
def drop(
    call: Call, number: Annotated[int, typer.Argument(metavar="N", min=1, help="Its number.")]
) -> Result:
    from orchestrator.store.locks import who
    from orchestrator.store.queue import drop as dropped

    with call.store() as store:
        job = dropped(store, own_lab(call), who(call.settings), number)
    data: dict[str, Json] = {"number": job.number, "state": job.state}
    if job.state == "stopping" and job.user == call.settings.user:
        data |= _serve_after(call, f"job {job} is to be stopped", "testbed service start queue")
        return Result(data, f"Job {job.number} is being stopped", hint="testbed job queue list")
    return Result(
        data,
        f"Job {job.number} is out of the queue"
        if job.state == "done"
        else f"Job {job.number} is being stopped",
    )


def text(view: QueueView, *, explain: bool = False) -> str:
    """The queue as a table."""
    from orchestrator.cli.text import columns

    served = (
        f"served: {view.process}" if view.process is not None else "not served" if view.mine else ""
    )
    if not view.rows:
        return "No jobs in the queue"
    rows: list[tuple[str, ...]] = [("job", "name", "owner", "state", "hosts", "left", "since", "")]
    rows += [_row(row, explain=explain) for row in view.rows]
    return "\n".join([*columns(rows), *([served] if served else [])])


def _row(row: QueueRow, *, explain: bool) -> tuple[str, ...]:
    from optics.plain import hours_text
    from orchestrator.store.lock_queue import clock

    live = row.state not in ("done", "failed")
    hosts = ", ".join(row.hosts) if row.hosts else str(row.count)
    name = row.name + (" (preemptible)" if row.preemptible else "")
    left = hours_text(max(row.left_s, 0.0)) if live else ""
    why = row.why if explain or row.state != "waiting" else ""
    if explain and row.starts:
        why = f"starts on {', '.join(row.starts)}" + (f"; {why}" if why else "")
    return (str(row.number), name, row.owner, row.state, hosts, left, clock(row.since), why)
