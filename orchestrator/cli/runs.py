"""The verbs that show past runs: `history` and `show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.completing import runs
from orchestrator.cli.shared import Unicode

if TYPE_CHECKING:
    from orchestrator.store.records import RunRecord


def wall(record: RunRecord) -> float | None:
    """Duration of a run (s) by the wall clock: runs in older stores have no other."""
    return None if record.ended is None else max(0.0, record.ended - record.started)


def _prune(call: Call, keep: int | None, dry_run: bool) -> Result:
    from optics.plain import counted
    from orchestrator.engine import prune as pruning
    from orchestrator.results import to_json
    from orchestrator.store.runs import KEEP
    from orchestrator.telemetry.influx_api import target_of

    keep = KEEP if keep is None else keep
    with call.store() as store:
        found = pruning.forgettable(store, call.settings, keep, target_of(call.settings))
        data = {"removed": to_json([r.id for r in found.going]), "stay": to_json(dict(found.staying)), "mb": found.bytes / 1e6}
        lines = [f"{run}  kept: {why}" for run, why in found.staying]
        if not found.going:
            return Result(data, "\n".join([*lines, f"Nothing to remove: no more than {keep} runs, or all older ones are needed"]))
        first, last = found.going[0].id, found.going[-1].id
        which = first if first == last else f"{first} to {last}"
        what = f"{counted(len(found.going), 'run')} ({which}), {found.bytes / 1e6:.1f} MB"
        if dry_run:
            return Result(data, "\n".join([*lines, f"Would remove {what}"]))
        call.confirm(f"Remove {what}, with their journals?")
        pruning.forget(store, call.settings, found.going)
    return Result(data, "\n".join([*lines, f"Removed {what}"]))


app = typer.Typer()


@verb(
    app,
    "history",
    "List runs: who changed what, and when.",
    examples="""
testbed history
testbed history --limit 100
testbed history --json | jq '.data.runs[0]'
testbed history --prune --keep 200 --dry-run       show what would be removed
testbed history --prune --keep 200 --yes           remove your older runs and their journals
""",
    more="""
--prune asks first. It keeps runs that are current, unfinished or unconfirmed, those needed by `rollback`, `resume` or a
comparison, and, if an InfluxDB is configured, those whose journals have not been sent to it.
""",
)
def history(
    call: Call,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Number of runs.")] = 20,
    prune: Annotated[bool, typer.Option("--prune", help="Remove all but your newest runs.")] = False,
    keep: Annotated[int | None, typer.Option("--keep", min=1, help="With --prune: number of runs to keep (default 200).")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --prune: only show what would be removed.")] = False,
) -> Result:
    from optics.plain import seconds_text
    from orchestrator.cli.text import columns, when
    from orchestrator.results import Json, to_json

    if prune:
        return _prune(call, keep, dry_run)
    if keep is not None or dry_run:
        raise Usage("--keep and --dry-run can only be used with --prune", hint="testbed history --prune --keep 200 --dry-run")
    with call.store() as store:
        records = store.history(limit=limit)
    rows = [("run", "verb", "plan", "status", "took", "started", "by")]
    for r in records:
        took = "-" if (s := r.seconds if r.seconds is not None else wall(r)) is None else seconds_text(s)
        moved = r.options.get("evict")
        what = f"{r.verb}, evict {', '.join(moved)}" if isinstance(moved, dict) else r.verb
        rows.append((r.id, what, r.plan_name or "-", r.status, took, when(r.started), f"{r.user}@{r.host}"))
    text = "\n".join(columns(rows)) if records else "No runs yet"
    data = [cast(dict[str, Json], to_json(r)) for r in records]
    for record in data:
        record.pop("plan_text")
    return Result({"runs": cast(Json, data)}, text)


@verb(
    app,
    "show",
    "Show a run: a waterfall of its phases, its steps, its job.",
    examples="""
testbed show                  the newest run
testbed show 2026-11-21-0007
testbed show 0007 --steps     list every step
""",
)
def show(
    call: Call,
    run: Annotated[str, typer.Argument(metavar="[RUN]", help="Run ID, its last digits, or `last`.", autocompletion=runs)] = "last",
    steps: Annotated[bool, typer.Option("--steps", help="List every step.")] = False,
    unicode: Unicode = True,
) -> Result:
    import shutil

    from optics.plain import seconds_text
    from orchestrator.cli import waterfall
    from orchestrator.cli.rehearsing import beside_lines
    from orchestrator.cli.text import columns, when
    from orchestrator.engine.rehearsal.report import kept
    from orchestrator.results import Json, path_text, to_json
    from orchestrator.telemetry.reader import read
    from orchestrator.views.waterfall import bar_json, bars, iterations

    with call.store() as store:
        record = store.get(run)
        if record is None:
            near = [r.id for r in store.history(limit=5)]
            raise Usage(
                f"show: no run {run!r}" + (f"; the latest are {', '.join(near)}" if near else "; there are none yet"),
                hint="testbed history",
            )
        done = store.steps(record.id)
    directory = call.settings.run_dir(record.id)
    trouble: list[str] = []
    points = list(read(directory, ("phase", "reconfig", "iteration", "collective"), trouble))
    found = bars(points)
    jobs = iterations(points)
    seconds = record.seconds if record.seconds is not None else wall(record)
    took = f", took {seconds_text(seconds)}" if seconds is not None else ""
    lines = [
        f"{record.verb} {record.plan_name}".rstrip() + f"   run {record.id}   {record.status}{took}",
        f"  {when(record.started)} by {record.user}@{record.host} on {record.lab}",
    ]
    if record.message:
        lines += [f"  {line}" for line in record.message.splitlines()]
    width = shutil.get_terminal_size((100, 24)).columns
    lines += ["", *waterfall.draw(found, width, unicode=unicode and call.unicode)]
    beside = kept(directory)
    for more in (waterfall.reconfig_lines(points), waterfall.iteration_lines(jobs), beside_lines(beside)):
        lines += ["", *more] if more else []
    states = {state: sum(s.state == state for s in done) for state in ("done", "failed", "doing", "planned")}
    counts = ", ".join(f"{n} {state}" for state, n in states.items() if n)
    lines += ["", f"  steps    {counts or 'none'}"]
    if steps:
        rows = [
            (f"  {s.seq:>4}", s.state, s.subject, s.what, "-" if s.seconds is None else seconds_text(s.seconds), s.error)
            for s in done
        ]
        lines += columns(rows)
    lines.append(f"  journal  {path_text(directory / 'telemetry')}")
    lines += [f"  journal  {what}" for what in trouble]
    details = cast(dict[str, Json], to_json(record))
    details.pop("plan_text")
    data: dict[str, Json] = {
        "run": details,
        "phases": [bar_json(b) for b in found if b.kind == "run"],
        "parts": [bar_json(b) for b in found if b.kind != "run"],
        "reconfigs": [cast(Json, dict(p.fields)) for p in points if p.measurement == "reconfig"],
        "jobs": to_json(jobs),
        "beside": to_json(beside),
        "steps": to_json(done),
        "journal": str(directory / "telemetry"),
        "trouble": to_json(trouble),
    }
    return Result(data, "\n".join(lines))
