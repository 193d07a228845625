"""`testbed compare`: measure two plans alternately with the same job."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optics.errors import HandsNeeded, Interrupted, TestbedError
from orchestrator.cli.call import Call, Result, Usage, engine, verb
from orchestrator.cli.shared import own_slice, seconds

if TYPE_CHECKING:
    from orchestrator.results import DownReport, JobStatus, UpReport
    from orchestrator.views.report.comparison import Comparison


class Leave(StrEnum):
    """The state in which a comparison leaves the lab."""

    before = "before"
    a = "a"
    b = "b"
    down = "down"


class _Lab:
    """The verbs that a comparison runs, as an operator would run them."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def up(self, plan: Path) -> UpReport:
        return self._call.work_on_lab(engine.up, plan, dry_run=False, launch_job=False)

    def launch(self) -> JobStatus:
        return self._call.work(engine.job_launch)

    def status(self) -> JobStatus:
        return self._call.work(engine.job_status)

    def stop(self) -> JobStatus:
        return self._call.work(engine.job_stop)

    def rollback(self, run: str) -> UpReport | DownReport:
        return self._call.work(engine.rollback, run)

    def down(self) -> DownReport:
        return self._call.work(engine.down)


app = typer.Typer()


@verb(
    app,
    "compare",
    "Measure two plans alternately with the same job, and report the difference.",
    examples="""
testbed compare examples/topoopt-12.json examples/parallel-ring-12.json
testbed compare a.json b.json --job job.json --iterations 40    run this job with both
testbed compare --resume compare-2026-11-21-0001                continue one that was stopped
testbed compare --predicted last                                compare a designed job with its prediction
""",
    more="""
The order is A B B A A B B A ..., so that slow drift affects both equally. Each measurement brings the plan up, launches the job,
waits for its iterations and stops it. Afterwards the lab is as before, or as --leave says. Each measurement is saved immediately.
""",
)
def compare(
    call: Call,
    a: Annotated[Path | None, typer.Argument(metavar="[A]", help="The first plan.")] = None,
    b: Annotated[Path | None, typer.Argument(metavar="[B]", help="The second plan.")] = None,
    repeats: Annotated[int, typer.Option("--repeats", "-n", min=1, max=100, help="Measurements of each plan.")] = 3,
    job: Annotated[
        Path | None, typer.Option("--job", metavar="FILE", help="Job for both: a job file, or a plan that has one.")
    ] = None,
    iterations: Annotated[int, typer.Option("--iterations", min=3, max=100_000, help="Iterations per measurement.")] = 20,
    leave: Annotated[
        Leave, typer.Option("--leave", help="State to leave the lab in: as before, with A, with B, or down.")
    ] = Leave.before,
    within: Annotated[
        str | None, typer.Option("--within", metavar="TIME", help="Start no further pair after this time: 30m.")
    ] = None,
    resume: Annotated[str | None, typer.Option("--resume", metavar="NAME", help="Continue this comparison.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the report here.")] = None,
    predicted: Annotated[
        str | None,
        typer.Option(
            "--predicted", metavar="RUN", help="Only compare this run's job with its prediction, as `design compare` does."
        ),
    ] = None,
) -> Result:
    if predicted is not None:
        from orchestrator.cli import designmore

        if a is not None or resume is not None:
            raise Usage("compare: --predicted examines one run and measures nothing; give no plans and no --resume")
        return designmore.predicted(call, predicted)
    from orchestrator.session import load_lab
    from orchestrator.views.report import comparison as c

    within_s = None if within is None else seconds("--within", within, "30m")
    if resume is not None:
        if a is not None or job is not None:
            raise Usage("compare: --resume continues with the original plans and job; give no plans and no --job")
        kept = c.again(call.settings, resume)
    elif a is None or b is None:
        raise Usage("compare: two plans are required", hint="testbed compare A.json B.json")
    else:
        lab = load_lab(call.settings.inventory)
        _ask(call, {"a": a, "b": b}, repeats)
        kept = c.begin(call.settings, lab, {"a": a, "b": b}, job=job, repeats=repeats, iterations=iterations, leave=leave.value)
    call.note(f"compare    {kept.name}: {' '.join(s['arm'].upper() for s in kept.slots)}")
    return _measured(call, kept, within_s, out)


def _measured(call: Call, kept: Comparison, within_s: float | None, out: Path | None) -> Result:
    """Make the missing measurements, leave the lab as chosen, write the report. Raises: as the verbs do, with how to continue."""
    from orchestrator.views.report import comparison as c

    if not kept.waiting:
        return _result(call, kept, True, str(kept.data["left"]), out)
    lab = _Lab(call)
    again = f"testbed compare --resume {kept.name}"
    try:
        whole = c.measure(
            kept, lab, lambda words: call.note(f"compare    {words}"), patience_s=call.settings.timeout_s, within_s=within_s
        )
    except (KeyboardInterrupt, Interrupted):
        kept.data["left"] = ""
        kept.save()
        raise Interrupted(
            f"{kept.name}: interrupted; {_done(kept)} are saved; the lab was left as it was when stopped",
            hint=f"to continue: {again}; to see the state of the lab: testbed status",
        ) from None
    except TestbedError as error:
        left = ""
        if not isinstance(error, HandsNeeded):
            try:
                left = f"; the lab was left {c.leave(kept, lab)}"
            except TestbedError as worse:
                left = f"; the lab was left where the measurement failed, because restoring it failed, too: {worse}"
        error.args = (f"{error}\n{kept.name}: {_done(kept)} are saved{left}",)
        error.hint = "; ".join(filter(None, (error.hint, f"to continue: {again}")))
        raise
    left = c.leave(kept, lab)
    return _result(call, kept, whole, left, out)


def _done(kept: Comparison) -> str:
    return f"{sum(slot['state'] == 'done' for slot in kept.slots)} of {len(kept.slots)} measurements"


def _result(call: Call, kept: Comparison, whole: bool, left: str, out: Path | None) -> Result:
    from orchestrator.cli.report import written
    from orchestrator.results import path_text, to_json
    from orchestrator.views.report import comparing, questions
    from orchestrator.views.report.gather import gather
    from orchestrator.views.report.ledger import ledger

    with call.store() as store:
        records = [r for slot in kept.slots for run in slot["runs"] if (r := store.get(run)) is not None]
        campaign = gather(records, store, call.settings, kept.data["title"], kept.data)
    with ledger(list(campaign.journals.values()), questions.READ) as book:
        times = comparing.by_arm(comparing.compared(book, kept.data), kept.data)
    found = comparing.verdict(times["a"], times["b"])
    page = written(call, campaign, out)
    arms = kept.data["arms"]
    lines = [f"Compared: {kept.name}   {_done(kept)}"]
    if found is not None:
        for arm, x in (("a", found.a), ("b", found.b)):
            interval = f"   {found.level} % {x.low:.1f} to {x.high:.1f}" if x.low is not None and x.high is not None else ""
            lines.append(f"  {arms[arm]:<24} median iteration {x.value:.1f} ms{interval}")
        lines.append(f"  {found.words(arms)}")
    else:
        lines.append("  nothing to compare: each plan needs at least one finished measurement")
    lines += [f"  lab        left {left}", f"  report     {path_text(page)}"]
    data: dict[str, Any] = {
        "name": kept.name,
        "arms": arms,
        "slots": kept.slots,
        "verdict": found.to_json() if found is not None else None,
        "iteration_ms": to_json(times),
        "complete": whole,
        "left": left,
        "report": str(page),
        "file": str(kept.folder / "campaign.json"),
    }
    hint = "" if whole else f"testbed compare --resume {kept.name}"
    return Result(data, "\n".join(lines), hint=hint)


def _ask(call: Call, plans: dict[str, Path], repeats: int) -> None:
    """Ask before a running job is stopped, as every measurement does. Raises: Usage - no terminal to ask on."""
    with call.store() as store:
        running = store.latest_job(own_slice(call))
    if running is not None and running.ended is None:
        call.confirm(f"Stop job {running.name} and change the lab up to {2 * repeats} times?")
