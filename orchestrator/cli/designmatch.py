"""`testbed design match`: the best of all ways to run a workload on a lab, with reasons."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import designperiodic as options
from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.shared import write_file

if TYPE_CHECKING:
    from orchestrator.inventory.lab import Lab
    from orchestrator.plan.design.match import Candidate, Match

SHOWN = 5
"""Candidates that are listed without --explain."""
MOST_TRIED = 16

app = typer.Typer()


@verb(
    app,
    "match",
    "The best of all methods, schedules, transports and switch functions.",
    examples="""
testbed design match -w examples/workloads/dlrm.yaml -o plan.json
testbed up --topology plan.json
testbed design match -w examples/workloads/dlrm.yaml --explain
testbed design match -w examples/workloads/dlrm.yaml --try 3
testbed design match --capabilities
""",
    more="""
Each is priced by the predictors, and what the lab cannot do is named with the reason. The lab is not changed, but by --try: it
measures the best as `testbed experiment compare` does. Exit code 3: no candidate meets all clauses of the workload's `needs`;
the plan that misses fewest is written all the same. docs/how-to/match.md
""",
)
def match(
    call: Call,
    workload: options.Workload = None,
    out: options.Out = None,
    hosts: options.Hosts = None,
    iterations: options.Iterations = 20,
    name: options.Name = "",
    try_: Annotated[
        int | None,
        typer.Option(
            "--try", metavar="N", min=2, max=MOST_TRIED, help="Measure the best N on the lab."
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, max=100, help="With --try: measurements of each.")
    ] = 3,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show capabilities, all candidates and reasons.")
    ] = False,
    prices: Annotated[
        Path | None,
        typer.Option("--prices", metavar="FILE", help="Your own table of prices and power."),
    ] = None,
    only_capabilities: Annotated[
        bool, typer.Option("--capabilities", help="Only show what the lab can do.")
    ] = False,
) -> Result:
    from orchestrator.experiments.scenario.runner import LEAST
    from orchestrator.plan.design.capabilities import capabilities
    from orchestrator.plan.design.match import match as matched
    from orchestrator.session import load_lab
    from orchestrator.verbs.design_files import read_lines, read_prices, read_workload

    lab, lines = load_lab(call.settings.inventory), read_lines(call.settings.inventory)
    named = tuple(host.strip() for host in (hosts or "").split(",") if host.strip())
    if only_capabilities:
        whole = [host for host, one in lab.hosts.items() if one.partition is None]
        able = capabilities(lab, whole, lines)
        return Result({"capabilities": able.to_json()}, "\n".join(_lab_lines(able.texts)))
    if workload is None:
        hint = f"testbed {call.verb} --workload examples/workloads/dlrm.yaml --out plan.json"
        raise Usage(f"{call.verb}: no workload given", hint=hint)
    if try_ is not None and 0 < iterations < LEAST:
        raise Usage(
            f"{call.verb}: --try: {LEAST} iterations are the least that say anything",
            hint=f"--iterations {LEAST}, or more",
        )
    table = read_prices(prices)
    found = matched(
        read_workload(workload),
        lab,
        hosts=named,
        lines=lines,
        prices=table,
        iterations=iterations,
        name=name,
    )
    best = found.best
    if out is not None:
        write_file(out, best.text)
    result: dict[str, Any] = {
        "plan": dict(best.content),
        "candidates": [_row(one) for one in found.candidates],
        "unmet": dict(best.unmet),
        "prices": table.mark,
        "capabilities": found.capabilities.to_json(),
    }
    text = shown(found, table.mark, explain=explain)
    if try_ is not None:
        result["tried"], lines_ = _tried(call, lab, found, try_, repeats, iterations or 20)
        text = "\n".join([*lines_, text])
    where = f" --inventory {shlex.quote(call.inventory)}" if call.inventory else ""
    up = "" if out is None else f"testbed up{where} --topology {shlex.quote(str(out))}"
    if not best.unmet:
        return Result(result, text, hint=up)
    message = "; ".join(_missed(found, clause, why) for clause, why in best.unmet.items())
    hint = f"change `needs` in {workload}, or accept it" + (f": {up}" if up else "")
    return Result(result, text, "E-INFEASIBLE", 3, message, hint, ok=False)


def _row(one: Candidate) -> dict[str, Any]:
    return {
        "method": one.method,
        "schedule": one.schedule,
        "transport": one.transport,
        "function": one.function,
        "iteration_ms": None if one.seconds is None else round(one.seconds * 1e3, 3),
        "watts": None if one.watts is None else round(one.watts, 3),
        "refused": one.refused,
        "unmet": dict(one.unmet),
        "why": list(one.why),
    }


def _missed(found: Match, clause: str, why: str) -> str:
    other = found.meets(clause)
    return f"needs.{clause}: {why}; " + (
        "no candidate meets it" if other is None else f"only others meet it: {other.name}"
    )


def _lab_lines(texts: list[str]) -> list[str]:
    return [f"  {'' if number else 'lab':<10} {line}" for number, line in enumerate(texts)]


def shown(found: Match, mark: str, *, explain: bool = False) -> str:
    """The candidates, the clauses that are not met, and the choice; times of this lab. mark: of
    the table of power.
    """
    from optics.plain import counted, seconds_text
    from orchestrator.cli.text import columns

    able = found.able if explain else found.able[:SHOWN]
    lines = _lab_lines(found.capabilities.texts) if explain else []
    rows: list[tuple[str, ...]] = [("  candidate", "iteration", "W", "not met")]
    for one in able:
        assert one.seconds is not None and one.watts is not None
        times = (seconds_text(one.seconds), f"{one.watts:.4g}")
        rows.append((f"  {one.name}", *times, ", ".join(one.unmet)))
    lines += [*columns(rows), f"  (W: {mark})"]
    refused = [one for one in found.candidates if one.seconds is None]
    if explain:
        lines += [f"  refused    {one.name}: {one.refused}" for one in refused]
        lines += [f"  why        {line}" for line in found.best.why]
    else:
        lines.append(
            f"  and {len(found.able) - len(able)} more; {counted(len(refused), 'candidate')} refused"
        )
    lines += [
        f"  not met    {_missed(found, clause, why)}" for clause, why in found.best.unmet.items()
    ]
    best = found.best
    assert best.seconds is not None
    text = f"Matched: {best.content['name']}: {best.name}; iteration {seconds_text(best.seconds)}"
    if found.time_scale != 1:
        text += (
            f" here, {seconds_text(best.seconds / found.time_scale)} on the workload's own network"
        )
    return "\n".join([*lines, text])


def _tried(
    call: Call, lab: Lab, found: Match, count: int, repeats: int, iterations: int
) -> tuple[dict[str, Any], list[str]]:
    """Measure the best on the lab; by how much the choice was slower than the fastest of them.
    Raises: as `experiment compare`; Usage - fewer than two differ.
    """
    from dataclasses import replace
    from tempfile import TemporaryDirectory

    from orchestrator.cli import compare
    from orchestrator.experiments.scenario import compare as c
    from orchestrator.experiments.scenario.record import begin_comparison

    chosen = found.distinct(count)
    if len(chosen) < 2:
        raise Usage(
            f"{call.verb}: --try: there is only one candidate: {chosen[0].name}", hint="omit --try"
        )
    with TemporaryDirectory() as folder:
        paths = []
        for number, one in enumerate(chosen, 1):
            path = Path(folder) / f"{number}.json"
            job = one.content["job"]
            job = {**job, "args": {**job["args"], "iterations": iterations + 1}}  # one to warm up
            content = {
                **one.content,
                "name": f"{one.content['name'][:60]}-{number}",
                "job": job,
            }
            path.write_text(replace(one, content=content).text, encoding="utf-8")
            paths.append(path)
        scenario = c.scenario_of(
            paths,
            job=None,
            repeats=repeats,
            iterations=iterations,
            watchdog_s=call.settings.timeout_s,
        )
        compare.ask(call, scenario)
        kept = begin_comparison(
            call.settings, lab, scenario, kind="compare", leave="before", same_job=False
        )
    done = compare.measured(call, kept, scenario, None, None)
    return judged(chosen, done.data)


def judged(chosen: list[Candidate], data: Any) -> tuple[dict[str, Any], list[str]]:
    """Measured beside predicted, and the regret of the first: (it - fastest) / fastest, from the
    ratios within rounds. data: of `experiment compare`.
    """
    from orchestrator.cli.text import columns

    known: list[Any] = [*data["verdicts"].values()]
    others: list[Any] = [data["verdicts"].get(arm) for arm in data["arms"]][1:]
    medians = [known[0]["over_ms"] if known else None, *(one and one["of_ms"] for one in others)]
    ratios = [None, *(one and one["ratio"]["value"] for one in others)]
    regret = max(0.0, 1 / min(filter(None, ratios)) - 1) if known else None
    rows: list[tuple[str, ...]] = [("  tried", "predicted", "measured", "ratio")]
    for one, value, ratio in zip(chosen, medians, ratios, strict=True):
        seen = "none" if value is None else f"{value:.1f} ms"
        text = f"{(one.seconds or 0.0) * 1e3:.1f} ms"
        rows.append((f"  {one.name}", text, seen, f"{ratio:.4g}" if ratio else ""))
    rows.append(("  regret", "", "unknown" if regret is None else f"{regret:.1%}", ""))
    found = {
        "comparison": data["name"],
        "candidates": [one.name for one in chosen],
        "predicted_ms": [round((one.seconds or 0.0) * 1e3, 3) for one in chosen],
        "measured_ms": medians,
        "ratios": ratios,
        "regret": regret,
    }
    return found, columns(rows)
