"""The verbs that read what was: `history` and `show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.completing import runs

if TYPE_CHECKING:
    from orchestrator.store.records import RunRecord


def wall(record: RunRecord) -> float | None:
    """How long (s) a run took by the wall clock, which is all that is known of those of older stores."""
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
        lines = [f"{run}  stays: {why}" for run, why in found.staying]
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
    "List the runs: who changed what when.",
    examples="""
testbed history
testbed history --limit 100
testbed history --json | jq '.data.runs[0]'
testbed history --prune --keep 200 --dry-run       what would be removed
testbed history --prune --keep 200 --yes           remove your older runs, their journals too
""",
    more="""
Nothing is removed unasked. --prune never takes a run that is up, half done or waits to be confirmed, that `rollback` or `resume`
would go to, whose journal is not in InfluxDB yet where one is named, or that a comparison is made of.
""",
)
def history(
    call: Call,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many.")] = 20,
    prune: Annotated[bool, typer.Option("--prune", help="Remove all but the newest of your runs.")] = False,
    keep: Annotated[int | None, typer.Option("--keep", min=1, help="With --prune: how many stay; 200 unless said.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --prune: only say what would go.")] = False,
) -> Result:
    from orchestrator.cli.text import columns, seconds_text, when
    from orchestrator.results import Json, to_json

    if prune:
        return _prune(call, keep, dry_run)
    if keep is not None or dry_run:
        raise Usage("--keep and --dry-run go with --prune", hint="testbed history --prune --keep 200 --dry-run")
    with call.store() as store:
        records = store.history(limit=limit)
    rows = [("run", "verb", "plan", "status", "took", "started", "by")]
    for r in records:
        took = "-" if (s := r.seconds if r.seconds is not None else wall(r)) is None else seconds_text(s)
        rows.append((r.id, r.verb, r.plan_name or "-", r.status, took, when(r.started), f"{r.user}@{r.host}"))
    text = "\n".join(columns(rows)) if records else "No runs yet"
    data = [cast(dict[str, Json], to_json(r)) for r in records]
    for record in data:
        record.pop("plan_text")
    return Result({"runs": cast(Json, data)}, text)


@verb(
    app,
    "show",
    "Show one run: its phases as a waterfall, its steps, its job.",
    examples="""
testbed show                  the newest run
testbed show 2026-11-21-0007
testbed show 0007 --steps     with every journalled step
""",
)
def show(
    call: Call,
    run: Annotated[str, typer.Argument(metavar="[RUN]", help="Run id, its ending, or `last`.", autocompletion=runs)] = "last",
    steps: Annotated[bool, typer.Option("--steps", help="List every journalled step.")] = False,
    unicode: Annotated[bool, typer.Option("--unicode/--no-unicode", help="Draw with block characters.")] = True,
) -> Result:
    import shutil

    from orchestrator.cli import waterfall
    from orchestrator.cli.text import columns, path_text, seconds_text, when
    from orchestrator.results import Json, to_json
    from orchestrator.telemetry.reader import read

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
    found = waterfall.bars(points)
    jobs = waterfall.iterations(points)
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
    for more in (waterfall.reconfig_lines(points), waterfall.iteration_lines(jobs)):
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
        "phases": [waterfall.bar_json(b) for b in found if b.kind == "run"],
        "parts": [waterfall.bar_json(b) for b in found if b.kind != "run"],
        "reconfigs": [cast(Json, dict(p.fields)) for p in points if p.measurement == "reconfig"],
        "jobs": to_json(jobs),
        "steps": to_json(done),
        "journal": str(directory / "telemetry"),
        "trouble": to_json(trouble),
    }
    return Result(data, "\n".join(lines))
