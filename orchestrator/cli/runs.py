"""`testbed run`: past runs, listed and shown, and notes to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, cast

import typer

from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.completing import runs
from orchestrator.cli.groups import Listed, family
from orchestrator.cli.shared import Unicode, moment

if TYPE_CHECKING:
    from orchestrator.results import Json
    from orchestrator.store.notes import Note
    from orchestrator.store.records import RunRecord


def wall(record: RunRecord) -> float | None:
    """Duration of a run (s) by the wall clock: runs in older stores have no other."""
    return None if record.ended is None else max(0.0, record.ended - record.started)


def _prune(call: Call, keep: int | None, dry_run: bool) -> Result:
    from optics.plain import counted
    from orchestrator.results import to_json
    from orchestrator.store.runs import KEEP
    from orchestrator.telemetry.influx_api import target_of
    from orchestrator.verbs import prune as pruning

    keep = KEEP if keep is None else keep
    with call.store() as store:
        found = pruning.forgettable(store, call.settings, keep, target_of(call.settings))
        data = {
            "removed": to_json([r.id for r in found.going]),
            "stay": to_json(dict(found.staying)),
            "mb": found.bytes / 1e6,
        }
        lines = [f"{run}  kept: {why}" for run, why in found.staying]
        if not found.going:
            return Result(
                data,
                "\n".join(
                    [
                        *lines,
                        f"Nothing to remove: no more than {keep} runs, or all older ones are needed",
                    ]
                ),
            )
        first, last = found.going[0].id, found.going[-1].id
        which = first if first == last else f"{first} to {last}"
        what = f"{counted(len(found.going), 'run')} ({which}), {found.bytes / 1e6:.1f} MB"
        if dry_run:
            return Result(data, "\n".join([*lines, f"Would remove {what}"]))
        call.confirm(f"Remove {what}, with their journals?")
        if not pruning.forget(store, call.settings, found.going):
            what += "; the store's file is not smaller yet, as other commands use it or it is large"
    return Result(data, "\n".join([*lines, f"Removed {what}"]))


MOST_LISTED = 12
_OPTION = {"verb": "--verb", "status": "--status", "plan_name": "--plan", "user": "--by"}


def _unknown(option: str, value: str, existing: set[str]) -> str:
    """A line that says what runs have instead, if none has this value; empty if one has, which
    other filters exclude.
    """
    from optics.plain import did_you_mean, printable

    if value in existing:
        return ""
    listed = ", ".join(sorted(existing)[:MOST_LISTED]) + (
        ", ..." if len(existing) > MOST_LISTED else ""
    )
    return f"\n  no run has {option} {printable(value, keep='')}; there are: {listed or 'none'}{did_you_mean(value, existing)}"


def _note_lines(notes: Sequence[Note]) -> list[str]:
    from optics.plain import printable
    from orchestrator.cli.text import when

    return [
        f"  note {n.number}   {when(n.at)} by {n.user}: {printable(n.text).replace(chr(10), f'{chr(10)}         ')}"
        for n in notes
    ]


app = family("run", Listed)


@verb(
    app,
    "list",
    "List runs: who changed what, and when.",
    examples="""
testbed run list
testbed run list --limit 100
testbed run list --tag paper-fig3                   runs with this tag (testbed run note)
testbed run list --verb up --status failed --since 7d
testbed run list --json | jq '.data.runs[0]'
testbed run list --prune --keep 200 --dry-run       show what would be removed
testbed run list --prune --keep 200 --yes           remove your older runs and their journals
""",
    more="""
Several filters: runs that match all of them, and have all of the tags.

--prune asks first. It keeps runs that have a tag, that are current, unfinished or unconfirmed, those needed by `rollback`,
`resume` or a comparison, and, if an InfluxDB is configured, those whose journals have not been sent to it.
""",
)
def list_(
    call: Call,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Number of runs.")] = 20,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="Only runs with this tag; may be repeated.")
    ] = None,
    verb_: Annotated[
        str | None, typer.Option("--verb", metavar="VERB", help="Only runs of this verb.")
    ] = None,
    status: Annotated[
        str | None,
        typer.Option("--status", metavar="STATUS", help="Only runs that ended so: ok, failed."),
    ] = None,
    plan: Annotated[
        str | None, typer.Option("--plan", metavar="NAME", help="Only runs of this plan.")
    ] = None,
    user: Annotated[
        str | None, typer.Option("--by", metavar="USER", help="Only runs of this user.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Runs since this time: 7d, 2026-11-21."),
    ] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove all but your newest runs.")
    ] = False,
    keep: Annotated[
        int | None,
        typer.Option("--keep", min=1, help="With --prune: number of runs to keep (default 200)."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --prune: only show what would be removed.")
    ] = False,
) -> Result:
    from optics.plain import seconds_text
    from orchestrator.cli.text import columns, when
    from orchestrator.results import Json, to_json
    from orchestrator.store.notes import notes_of, tags_of

    chosen = {"verb": verb_, "status": status, "plan_name": plan, "user": user}
    wanted = {name: value for name, value in chosen.items() if value is not None}
    begin = moment("--since", since)
    if prune:
        if tag or wanted or since is not None:
            raise Usage(
                "run list: --prune cannot be combined with filters",
                hint="testbed run list --prune --keep 200 --dry-run",
            )
        return _prune(call, keep, dry_run)
    if keep is not None or dry_run:
        raise Usage(
            "--keep and --dry-run can only be used with --prune",
            hint="testbed run list --prune --keep 200 --dry-run",
        )
    with call.store() as store:
        every = store.history(limit=0 if tag or wanted or since is not None else limit)
        tags = tags_of(store, [r.id for r in every])
        records = [
            r
            for r in every
            if all(getattr(r, name) == value for name, value in wanted.items())
            and (begin is None or r.started >= begin)
            and set(tag or ()) <= set(tags[r.id])
        ][:limit]
        notes = notes_of(store, [r.id for r in records])
    unknown = "".join(
        _unknown(_OPTION[name], value, {getattr(r, name) for r in every} - {""})
        for name, value in wanted.items()
    )
    unknown += "".join(
        _unknown("--tag", one, {each for of in tags.values() for each in of}) for one in tag or ()
    )
    rows = [
        (
            "run",
            "verb",
            "plan",
            "status",
            "took",
            "started",
            "by",
            "tags" if any(tags[r.id] for r in records) else "",
        )
    ]
    for r in records:
        took = (
            "-"
            if (s := r.seconds if r.seconds is not None else wall(r)) is None
            else seconds_text(s)
        )
        moved = ", ".join(r.options.evict)
        what = f"{r.verb}, evict {moved}" if moved else r.verb
        rows.append(
            (
                r.id,
                what,
                r.plan_name or "-",
                r.status,
                took,
                when(r.started),
                f"{r.user}@{r.host}",
                ", ".join(tags[r.id]),
            )
        )
    text = (
        "\n".join(columns(rows))
        if records
        else f"No run matches{unknown}"
        if tag or wanted or since is not None
        else "No runs yet"
    )
    data = [
        r.to_json() | {"tags": to_json(tags[r.id]), "notes": to_json(notes[r.id])} for r in records
    ]
    return Result({"runs": cast(Json, data)}, text)


@verb(
    app,
    "show",
    "Show a run: a waterfall of its phases, its steps, its job.",
    examples="""
testbed run show                  the newest run
testbed run show 2026-11-21-0007
testbed run show 0007 --steps     list every step
""",
)
def show(
    call: Call,
    run: Annotated[
        str,
        typer.Argument(
            metavar="[RUN]", help="Run ID, its last digits, or `last`.", autocompletion=runs
        ),
    ] = "last",
    steps: Annotated[bool, typer.Option("--steps", help="List every step.")] = False,
    unicode: Unicode = True,
) -> Result:
    import shutil

    from optics.plain import seconds_text
    from orchestrator.cli import waterfall
    from orchestrator.cli.rehearsing import comparison_lines
    from orchestrator.cli.text import columns, when
    from orchestrator.experiments.rehearsal.report import load_comparison
    from orchestrator.results import Json, path_text, to_json
    from orchestrator.store.notes import notes_of, tags_of
    from orchestrator.store.runs import named
    from orchestrator.views.report.gather import recorded
    from orchestrator.views.waterfall import bar_json, bars, summarise_iterations

    with call.store() as store:
        record = named(store, run)
        done = store.steps(record.id)
        tags, notes = (
            tags_of(store, [record.id])[record.id],
            notes_of(store, [record.id])[record.id],
        )
        whole = recorded(record, store, call.settings)
    directory = call.settings.run_dir(record.id)
    trouble: list[str] = []
    points = list(whole.read(("phase", "reconfig", "iteration", "collective"), trouble))
    found = bars(points)
    jobs = summarise_iterations(points)
    seconds = record.seconds if record.seconds is not None else wall(record)
    took = f", took {seconds_text(seconds)}" if seconds is not None else ""
    lines = [
        f"{record.verb} {record.plan_name}".rstrip()
        + f"   run {record.id}   {record.status}{took}",
        f"  {when(record.started)} by {record.user}@{record.host} on {record.lab}",
    ]
    if record.message:
        lines += [f"  {line}" for line in record.message.splitlines()]
    lines += [f"  tags     {', '.join(tags)}"] if tags else []
    lines += _note_lines(notes)
    width = shutil.get_terminal_size((100, 24)).columns
    lines += ["", *waterfall.draw(found, width, unicode=unicode and call.unicode)]
    neighbour = load_comparison(directory)
    for more in (
        waterfall.reconfig_lines(points),
        waterfall.iteration_lines(jobs, record.id),
        comparison_lines(neighbour),
    ):
        lines += ["", *more] if more else []
    states = {
        state: sum(s.state == state for s in done)
        for state in ("done", "failed", "doing", "planned")
    }
    counts = ", ".join(f"{n} {state}" for state, n in states.items() if n)
    lines += ["", f"  steps    {counts or 'none'}"]
    if steps:
        rows = [
            (
                f"  {s.seq:>4}",
                s.state,
                s.subject,
                s.what,
                "-" if s.seconds is None else seconds_text(s.seconds),
                s.error,
            )
            for s in done
        ]
        lines += columns(rows)
    lines.append(f"  journal  {path_text(directory / 'telemetry')}")
    lines += [f"  journal  {what}" for what in trouble]
    data: dict[str, Json] = {
        "run": record.to_json() | {"tags": to_json(tags), "notes": to_json(notes)},
        "phases": [bar_json(b) for b in found if b.kind == "run"],
        "parts": [bar_json(b) for b in found if b.kind != "run"],
        "reconfigs": [cast(Json, dict(p.fields)) for p in points if p.measurement == "reconfig"],
        "jobs": to_json(jobs),
        "comparison": to_json(neighbour),
        "steps": to_json(done),
        "journal": str(directory / "telemetry"),
        "trouble": to_json(trouble),
    }
    return Result(data, "\n".join(lines))


@verb(
    app,
    "note",
    "Write notes and tags to runs, by which `run list` finds them again.",
    examples="""
testbed run note last -m "fibre of gpu07 cleaned before"
testbed run note 0003 0004 --tag paper-fig3
testbed run list --tag paper-fig3
testbed run note 0003                                  the notes and tags of a run
testbed run note 0003 --untag paper-fig3 --drop 12     remove a tag and note 12
testbed run note                                       all tags
""",
    more="`run list --prune` keeps runs that have a tag. Notes and tags are kept in the run store; journals are not changed.",
)
def note(
    call: Call,
    run: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN...]", help="Run IDs, their last digits, or `last`.", autocompletion=runs
        ),
    ] = None,
    text: Annotated[
        str | None, typer.Option("--message", "-m", metavar="TEXT", help="Add this note.")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="Add this tag; may be repeated.")
    ] = None,
    untag: Annotated[
        list[str] | None, typer.Option("--untag", metavar="TAG", help="Remove this tag.")
    ] = None,
    drop: Annotated[
        list[int] | None,
        typer.Option("--drop", metavar="N", min=1, help="Remove the note of this number."),
    ] = None,
) -> Result:
    from optics.plain import counted
    from orchestrator.results import to_json
    from orchestrator.store.notes import all_tags, annotate, check_text, notes_of, tags_of
    from orchestrator.store.runs import named

    change = text is not None or tag or untag or drop
    if change and not run:
        raise Usage("run note: which run?", hint="testbed run note last --tag TAG")
    with call.store() as store:
        if not run:
            found = all_tags(store)
            argv = [f"{name}   {counted(number, 'run')}" for name, number in found.items()]
            return Result({"tags": to_json(dict(found))}, "\n".join(argv) or "No tags yet")
        chosen = list(dict.fromkeys(named(store, word).id for word in run))
        message = "" if text is None else check_text(text)
        before = [
            found
            for each in notes_of(store, chosen).values()
            for found in each
            if found.number in (drop or ())
        ]
        if others := sorted({found.user for found in before} - {call.settings.user}):
            call.confirm(f"Remove a note by {', '.join(others)}?")
        annotate(
            store,
            chosen,
            call.settings.user,
            text=message,
            tags=tag or (),
            untag=untag or (),
            drop=drop or (),
        )
        notes, tags = notes_of(store, chosen), tags_of(store, chosen)
    lines = []
    for each in chosen:
        lines += [f"run {each}   {', '.join(tags[each]) or 'no tags'}", *_note_lines(notes[each])]
    data = [
        {"run": each, "tags": to_json(tags[each]), "notes": to_json(notes[each])} for each in chosen
    ]
    return Result({"runs": cast("Json", data)}, "\n".join(lines))
