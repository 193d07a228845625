"""`testbed experiment compare`: measure two or more plans alternately with the same job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.measuring import Tenant, bounded, page_of, progress_of, runner_of
from orchestrator.cli.shared import one_of, own_tenancy, seconds

if TYPE_CHECKING:
    from orchestrator.experiments.files.scenario.values import Scenario
    from orchestrator.experiments.scenario.record import ComparisonRecord

app = typer.Typer()
MOST = 2
"""Times as many rounds as are to count are measured at most, by one command."""


@verb(
    app,
    "compare",
    "Measure plans alternately with the same job, and report the differences.",
    examples="""
testbed experiment compare examples/topoopt-12.json examples/parallel-ring-12.json
testbed experiment compare a.json b.json c.json --job job.json --iterations 40    run this job with each
testbed experiment compare --resume compare-2026-11-21-0001                continue one that was stopped
""",
    more="""
The order is A B B A A B ... (of three plans A B C C B A ...), so that slow drift affects all equally. Later plans are compared
with the first. Each measurement brings the plan up, launches the job, waits for its iterations and stops it. A round with a
measurement whose ranks waited for processors for too long does not count; another follows, at most as many again. Afterwards the
lab is as before, or as --leave says. Each measurement is saved immediately.
""",
)
def compare(
    call: Call,
    plans: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[PLAN]...", help="The plans, two or more: A, B, C, ..."),
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", "-n", min=1, max=100, help="Rounds that count.")
    ] = 3,
    job: Annotated[
        Path | None,
        typer.Option(
            "--job", metavar="FILE", help="Job for all: a job file, or a plan that has one."
        ),
    ] = None,
    iterations: Annotated[
        int, typer.Option("--iterations", min=3, max=100_000, help="Iterations per measurement.")
    ] = 20,
    leave: Annotated[
        str,
        typer.Option(
            "--leave",
            metavar="STATE",
            help="State to leave the lab in: before, down, or with plan a, b, ...",
        ),
    ] = "before",
    within: Annotated[
        str | None,
        typer.Option(
            "--within", metavar="TIME", help="Start no further round after this time: 30m."
        ),
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="NAME", help="Continue this comparison.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the report here.")
    ] = None,
) -> Result:
    from orchestrator.experiments.scenario import compare as c
    from orchestrator.experiments.scenario.record import again, begin_comparison
    from orchestrator.session import load_lab

    within_s = None if within is None else seconds("--within", within, "30m")
    watchdog_s = call.settings.timeout_s
    if resume is not None:
        if plans or job is not None:
            raise Usage(
                "experiment compare: --resume continues with the original plans and job; give no plans and no --job"
            )
        kept = again(call.settings, resume)
        if kept.data["kind"] != "compare":
            raise Usage(
                f"experiment compare: {kept.name} is no comparison",
                hint=f"testbed experiment report {kept.name}",
            )
        scenario = c.resumed_scenario(kept, watchdog_s)
    else:
        plans = plans or []
        states = ("before", "down", *c.LETTERS[: len(plans)])
        if len(plans) < 2:
            raise Usage(
                "experiment compare: two plans are required",
                hint="testbed experiment compare A.json B.json",
            )
        if len(plans) > len(c.LETTERS):
            raise Usage(f"experiment compare: at most {len(c.LETTERS)} plans")
        one_of(leave, states, "--leave")
        lab = load_lab(call.settings.inventory)
        scenario = c.scenario_of(
            plans, job=job, repeats=repeats, iterations=iterations, watchdog_s=watchdog_s
        )
        ask(call, scenario)
        kept = begin_comparison(call.settings, lab, scenario, kind="compare", leave=leave)
    call.note(f"compare    {kept.name}: {scenario.title}, {scenario.repeats} rounds")
    return measured(call, kept, scenario, within_s, out)


def measured(
    call: Call, kept: ComparisonRecord, scenario: Scenario, within_s: float | None, out: Path | None
) -> Result:
    """Measure until enough rounds count, leave the lab as chosen, write the report. Raises: as the
    verbs do, with how to continue.
    """
    from orchestrator.experiments.scenario.runner import leave

    wanted, most = scenario.repeats, kept.rounds + MOST * scenario.repeats
    if kept.whole_rounds >= wanted:
        return _result(call, kept, str(kept.data["left"]), out)
    budget_s = None if within_s is None else kept.spent_s + within_s
    kept.data |= {"least": wanted, "budget_s": budget_s, "ended": ""}
    verbs = {"": Tenant(call)}
    runner = runner_of(call, kept, scenario, verbs, stalls=False)
    with bounded(kept, verbs, f"testbed experiment compare --resume {kept.name}", leaves=False):
        runner.measure_rounds(lambda: kept.whole_rounds >= wanted or kept.rounds >= most)
    return _result(call, kept, leave(kept, verbs), out)


def _result(call: Call, kept: ComparisonRecord, left: str, out: Path | None) -> Result:
    from orchestrator.experiments.scenario.compare import difference_text
    from orchestrator.results import path_text, to_json
    from orchestrator.views.report.measured import findings
    from orchestrator.views.report.samples import by_arm

    page, found = page_of(call, kept, out)
    arms, whole = kept.data["arms"], kept.whole_rounds >= kept.data["repeats"]
    done = {one.compared.of: one for one in findings(found, kept.data) if one.found is not None}
    first = next(iter(arms.values()))
    lines = [f"Compared: {kept.name}   {progress_of(kept)}"]
    lines += [f"  {difference_text(one, first, arms[other])}" for other, one in done.items()]
    if not done:
        lines.append("  nothing to compare: in no round do measurements of two plans count")
    verdicts: dict[str, Any] = {
        other: {"ratio": to_json(one.found), "n": one.n, "how": one.how, "sure": one.sure}
        | dict(zip(("of_ms", "over_ms"), one.middles, strict=True))
        | {"medians": to_json(one.medians)}
        for other, one in done.items()
    }
    lines += [f"  lab        left {left}", f"  report     {path_text(page)}"]
    data: dict[str, Any] = {
        "name": kept.name,
        "arms": arms,
        "slots": kept.slots,
        "verdict": verdicts.get("b"),
        "verdicts": verdicts,
        "iteration_ms": to_json(by_arm(found, kept.data)),
        "complete": whole,
        "left": left,
        "report": str(page),
        "file": str(kept.folder / "campaign.json"),
    }
    hint = "" if whole else f"testbed experiment compare --resume {kept.name}"
    return Result(data, "\n".join(lines), hint=hint)


def ask(call: Call, scenario: Scenario) -> None:
    """Ask before a running job is stopped, as every measurement does. Raises: Usage - no terminal
    to ask on.
    """
    with call.store() as store:
        running = store.latest_job(own_tenancy(call))
    if running is not None and running.ended is None:
        changes = MOST * scenario.repeats * len(scenario.arms)
        call.confirm(f"Stop job {running.name} and change the lab up to {changes} times?")
