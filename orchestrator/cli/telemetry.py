"""`testbed telemetry`, beside the sink: sampling on demand, journals as tables and files, and old
ones removed.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from optics.plain import counted
from orchestrator.cli import grafana
from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.shared import seconds
from orchestrator.cli.sink import RUN, app, run_folders, target_for

if TYPE_CHECKING:
    from orchestrator.results import Json
    from orchestrator.telemetry.reader import Recorded


class Kind(StrEnum):
    """Formats of `export`."""

    csv = "csv"
    parquet = "parquet"
    tensorboard = "tensorboard"


def _recorded(call: Call, run: str) -> list[Recorded]:
    """The named runs, one that moved circuits under a running job with what that job did until the
    next change.

    `all` and a directory are the journals alone: of all runs, every point once. Raises: as
    `run_folders`.
    """
    from orchestrator.telemetry.reader import Recorded, part_files
    from orchestrator.views.report.gather import recorded

    folders = run_folders(call, run)
    if run != "all" and not part_files(Path(run)):
        with call.store() as store:
            if (record := store.get(folders[0].name)) is not None:
                return [recorded(record, store, call.settings)]
    return [Recorded(folder) for folder in folders]


@verb(
    app,
    "sample",
    "Sample ports, optical power, GPUs and clocks at high rate; record them as a run.",
    examples="""
testbed telemetry sample                          until Ctrl-C, at telemetry.sample_hz
testbed telemetry sample --hz 1000 --for 10s
testbed telemetry query last "SELECT host, port, MAX(drops) FROM port GROUP BY host, port"
""",
    more="It changes nothing and takes no lock. Hosts must have been set up by `testbed up` once.",
)
def sample(
    call: Call,
    hz: Annotated[
        str | None,
        typer.Option("--hz", metavar="N", help="Samples per second and port, up to 1000."),
    ] = None,
    span: Annotated[str | None, typer.Option("--for", metavar="TIME", help="Duration.")] = None,
) -> Result:
    from orchestrator.settings import duration, frequency
    from orchestrator.verbs.sample import sample as work

    try:
        span_s = duration(span) if span is not None else None
        rate = frequency(hz) if hz is not None else call.settings.sample_hz or 10.0
    except ValueError as error:
        raise Usage(f"sample: {error}") from None
    if not rate:
        raise Usage("sample: --hz must be above 0", hint="testbed telemetry sample --hz 10")
    report = call.work(work, hz=rate, seconds=span_s)
    missed = f", {report.missed} missed by busy hosts" if report.missed else ""
    more = [f"{n} of {what}" for n, what in ((report.light, "light"), (report.gpus, "GPUs")) if n]
    size = f"{counted(report.samples, 'sample')} of {counted(report.ports, 'port')} on {counted(report.hosts, 'host')}"
    text = f"{size} in {report.seconds:.1f} s{missed}"
    lines = [
        text + (f"; {' and '.join(more)}" if more else ""),
        *report.notes,
        f"Recorded as run {report.run}",
    ]
    return Result(report.to_json(), "\n".join(lines))


@verb(
    app,
    "query",
    "Query a run's journal in SQL; there is one table per measurement.",
    examples="""
testbed telemetry query last "SELECT reconfig_id, dark_ms, total_ms FROM reconfig"
testbed telemetry query all "SELECT percentile(dark_ms, 99) FROM reconfig"
testbed telemetry query 0007 "SELECT phase, subject, duration_ms FROM phase ORDER BY duration_ms DESC LIMIT 5"
""",
    more="Uses SQLite in memory, with percentile(x, p) and median(x); no server is needed. time_ns is wall time.",
)
def query(
    call: Call, run: Annotated[str, RUN], sql: Annotated[str, typer.Argument(metavar="SQL")]
) -> Result:
    from orchestrator.cli.text import columns
    from orchestrator.telemetry import tables

    trouble: list[str] = []
    with call.timed():
        names, rows = tables.query(_recorded(call, run), sql, trouble)
    shown = [names, *(tuple("-" if cell is None else _cell(cell) for cell in row) for row in rows)]
    found = [dict(zip(names, row, strict=True)) for row in rows]
    data: dict[str, Json] = {
        "columns": list(names),
        "rows": cast("Json", found),
        "trouble": cast("Json", trouble),
    }
    return Result(data, "\n".join(columns(shown)), message=_torn(trouble))


@verb(
    app,
    "export",
    "Export a run's journal as files, one per measurement, or for TensorBoard.",
    examples="""
testbed telemetry export last --out run7
testbed telemetry export all --out paper --format parquet
testbed telemetry export all --out tb --format tensorboard     then: tensorboard --logdir tb
""",
    more="""
Parquet needs the package duckdb: pip install 'optical-testbed[analysis]'. For TensorBoard, the iterations and collectives of each
run's job become scalars by iteration; it needs the package tensorboard: pip install 'optical-testbed[tensorboard]'.
""",
)
def export(
    call: Call,
    run: Annotated[str, RUN],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Directory; created if missing.")
    ],
    kind: Annotated[Kind, typer.Option("--format", "-f", help="Format of the files.")] = Kind.csv,
) -> Result:
    from orchestrator.cli.text import columns
    from orchestrator.telemetry import tables, tensorboard

    trouble: list[str] = []
    try:
        with call.timed():
            if kind is Kind.tensorboard:
                made, counts = (
                    tensorboard.export_tensorboard(_recorded(call, run), out, trouble),
                    "scalars",
                )
            else:
                made, counts = (
                    tables.export_tables(_recorded(call, run), out, kind.value, trouble),
                    "rows",
                )
    except OSError as error:
        raise Usage(
            f"export: {out}: {error.strerror or error}", hint="choose another --out"
        ) from error
    rows = [("file", counts), *((str(path), str(count)) for path, count in made.items())]
    data: dict[str, Json] = {
        "files": {str(p): n for p, n in made.items()},
        "trouble": cast("Json", trouble),
    }
    none = (
        "No job has iterations in the journal"
        if kind is Kind.tensorboard
        else "The journal has no points"
    )
    return Result(data, "\n".join(columns(rows)) if made else none, message=_torn(trouble))


@verb(
    app,
    "prune",
    "Remove journals of old runs that were sent to InfluxDB.",
    examples="testbed telemetry prune --older 90d --dry-run\ntestbed telemetry prune --older 90d --yes",
    more="Runs, plans and logs are kept. telemetry.influx.retention sets how long InfluxDB keeps points.",
)
def prune(
    call: Call,
    older: Annotated[
        str,
        typer.Option(
            "--older", metavar="TIME", help="Only journals last written before this long ago: 90d."
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be removed.")
    ] = False,
    unsent: Annotated[
        bool, typer.Option("--unsent", help="Also journals that were not sent to InfluxDB.")
    ] = False,
) -> Result:
    from orchestrator.results import to_json
    from orchestrator.telemetry import retention

    older_s = seconds("--older", older, "90d")
    with call.store() as store:
        running = {record.id for record in store.history(limit=0) if record.status == "running"}
    found = retention.old(
        call.settings.state_dir / "runs", older_s, running, None if unsent else target_for(call)
    )
    going = [each for each in found if not each.why]
    size = sum(each.bytes for each in going) / 1e6
    lines = [f"{each.run}  kept: {each.why}" for each in found if each.why]
    data: dict[str, Json] = {
        "runs": [each.run for each in going],
        "stay": to_json([e for e in found if e.why]),
        "mb": size,
    }
    if not going:
        return Result(data, "\n".join([*lines, f"No journal older than {older} can be removed"]))
    what = f"{len(going)} journals, {going[0].run} to {going[-1].run}, {size:.1f} MB"
    if dry_run:
        return Result(data, "\n".join([*lines, f"Would remove {what}"]))
    call.confirm(f"Remove {what}?")
    retention.prune(going)
    return Result(data, "\n".join([*lines, f"Removed {what}"]))


def _cell(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _torn(trouble: list[str]) -> str:
    """The message about lines that could not be read."""
    if not trouble:
        return ""
    more = f" and {len(trouble) - 1} more" if len(trouble) > 1 else ""
    return f"not read: {trouble[0]}{more}"


app.add_typer(grafana.app)
