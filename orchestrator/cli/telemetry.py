"""`testbed telemetry`: the sink to InfluxDB, sampling on demand, and journals as tables and files."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from optics.errors import Missing
from optics.plain import counted
from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.completing import runs
from orchestrator.cli.shared import seconds

if TYPE_CHECKING:
    from orchestrator.results import Json
    from orchestrator.settings import Settings
    from orchestrator.telemetry.influx_api import InfluxTarget
    from orchestrator.telemetry.reader import Recorded

_OFF = "No InfluxDB is configured (telemetry.influx.url is none); journals are complete without it"
_RUN = typer.Argument(metavar="RUN", help="Run ID, its last digits, `last`, `all`, or a run's directory.", autocompletion=runs)


class Kind(StrEnum):
    """Formats of `export`."""

    csv = "csv"
    parquet = "parquet"
    tensorboard = "tensorboard"


def _dirs(call: Call, run: str) -> list[Path]:
    """The directories of the named runs. Raises: Missing - there are none, or without a journal."""
    from orchestrator.store.runs import named
    from orchestrator.telemetry.reader import part_files

    runs = call.settings.state_dir / "runs"
    if run == "all":
        found = sorted(path for path in runs.iterdir() if part_files(path)) if runs.is_dir() else []
    elif part_files(Path(run)):
        found = [Path(run)]
    else:
        with call.store() as store:
            name = run if "/" not in run and part_files(runs / run) else named(store, run).id
        found = [runs / name] if part_files(runs / name) else []
    if not found:
        raise Missing("there are no journals yet" if run == "all" else f"run {name} has no journal", hint="testbed history")
    return found


def _recorded(call: Call, run: str) -> list[Recorded]:
    """The named runs, one that moved circuits under a running job with what that job did until the next change.

    `all` and a directory are the journals alone: of all runs, every point once. Raises: as `_dirs`.
    """
    from orchestrator.telemetry.reader import Recorded, part_files
    from orchestrator.views.report.gather import recorded

    folders = _dirs(call, run)
    if run != "all" and not part_files(Path(run)):
        with call.store() as store:
            if (record := store.get(folders[0].name)) is not None:
                return [recorded(record, store, call.settings)]
    return [Recorded(folder) for folder in folders]


def _target(call: Call, url: str | None = None) -> InfluxTarget | None:
    from orchestrator.settings import load
    from orchestrator.telemetry.influx_api import target_of

    if url is not None:
        if url in ("none", "auto"):
            raise Usage("--to: must be http://HOST:PORT")
        try:
            load(env={"TESTBED_INFLUX_URL": url})  # refuses malformed URLs, and passwords in them
        except Usage as error:
            raise Usage(f"--to: {str(error).partition(': ')[2]}") from None
    return target_of(call.settings, url)


def _live(settings: Settings, target: InfluxTarget) -> InfluxTarget:
    """The same target with the URL of the private server, empty where it does not run."""
    from dataclasses import replace

    from orchestrator.telemetry import influxd
    from orchestrator.telemetry.sink import server_dir

    if not target.private:
        return target
    there = influxd.running_influxd(server_dir(settings.state_dir))
    return replace(target, url=there.url if there else "")


app = typer.Typer(
    name="telemetry",
    help="Sample; copy journals to InfluxDB; query and export them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@verb(
    app,
    "status",
    "Show where journals are copied to, and how much is still to be sent.",
    examples="testbed telemetry status\ntestbed telemetry status --json | jq .data.behind",
)
def status(call: Call) -> Result:
    from orchestrator.cli.text import when
    from orchestrator.results import path_text, to_json
    from orchestrator.telemetry import influxd, sink, tail
    from orchestrator.telemetry.influx import Influx
    from orchestrator.telemetry.influx_api import Later
    from orchestrator.telemetry.reader import part_files

    settings, target = call.settings, _target(call)
    runs = settings.state_dir / "runs"
    kept = [path for path in sorted(runs.iterdir()) if part_files(path)] if runs.is_dir() else []
    size = sum(part.stat().st_size for path in kept for part in part_files(path))
    lines = [f"journals  {counted(len(kept), 'run')}, {size / 1e6:.1f} MB in {path_text(runs)}"]
    data: dict[str, Json] = {"runs": len(kept), "bytes": size, "url": settings.influx.url}
    if target is None:
        return Result(data, "\n".join([*lines, "influx    none configured (telemetry.influx.url)"]))
    live, server, version = _live(settings, target), "", ""
    if not live.url:
        server = "not installed" if influxd.program() is None else "private, not started yet"
    else:
        influx = Influx(live, connect_s=2.0, answer_s=3.0)
        try:
            version = influx.ping()
            server = f"{live.url}, version {version or 'unknown'}, API {influx.api}"
        except Later as error:
            server = str(error)
    marks = [tail.stored_mark(path, target.key, target.name) for path in kept]
    behind = sum(tail.JournalTail(path, mark).behind() for path, mark in zip(kept, marks, strict=True))
    refused = sum(mark.refused for mark in marks)
    state = sink.sink_status(settings.state_dir, target)
    sent = sum(mark.points for mark in marks)
    lines += [
        f"influx    {server}",
        f"database  {target.db}",
        f"sink      {f'running, pid {state.pid}' if state.alive else 'not running; the next command starts it'}"
        + (f", last sent {when(state.last)}" if state.last else ""),
        f"sent      {counted(sent, 'point')}, {behind} bytes still to send"
        + (f", {counted(refused, 'point')} refused" if refused else ""),
    ]
    if refused:
        lines.append(f"refused   {next(mark.words for mark in reversed(marks) if mark.refused)}")
    if state.trouble and behind:
        lines.append(f"trouble   {state.trouble}")
    data |= {"server": server, "version": version, "live_url": live.url, "db": target.db, "sink": state.alive, "sent": sent}
    data |= {"behind": behind, "refused": refused, "trouble": state.trouble if behind else "", "state": to_json(state)}
    return Result(data, "\n".join(lines))


@verb(
    app,
    "start",
    "Start the sink, and with `auto` the private InfluxDB; print its address.",
    examples="testbed telemetry start",
    more="Commands that use the lab start them, too. Set telemetry.influx.url in testbed.toml to `auto` or a URL.",
)
def start(call: Call) -> Result:
    from orchestrator.telemetry import influxd, sink

    target = _target(call)
    if target is None:
        raise Usage(_OFF, hint="set telemetry.influx.url to auto or a URL")
    if target.private:
        influxd.start_influxd(sink.server_dir(call.settings.state_dir))
    sink.ensure(call.settings)
    live = _live(call.settings, target)
    return Result({"url": live.url, "db": live.db}, f"Journals are copied to {live.url}, database {live.db}")


@verb(
    app,
    "stop",
    "Stop the sink and the private InfluxDB; journals and data are kept.",
    examples="testbed telemetry stop",
    more="Applies to those of the setting telemetry.influx.url. Unsent points are sent when a sink runs again.",
)
def stop(call: Call) -> Result:
    from orchestrator.telemetry import influxd, sink

    target = _target(call)
    followed = target is not None and sink.stop_sink(call.settings.state_dir, target)
    folder = sink.server_dir(call.settings.state_dir)
    served = target is not None and target.private and influxd.stop_influxd(folder)
    stopped = [words for words, was in (("sink", followed), ("private InfluxDB", served)) if was]
    lines = [f"Stopped: {', '.join(stopped)}" if stopped else "Nothing was running for this setting"]
    if (other := influxd.running_influxd(folder)) is not None:
        lines.append(f"A private InfluxDB runs at {other.url}; to stop it: TESTBED_INFLUX_URL=auto testbed telemetry stop")
    return Result({"sink": followed, "server": served}, "\n".join(lines))


@verb(
    app,
    "follow",
    "Run the sink in the foreground: copy journals to InfluxDB until all are sent.",
    examples="testbed telemetry follow\ntestbed telemetry follow --stay      for systemd",
    more="Commands start one in the background automatically.",
)
def follow(
    call: Call, stay: Annotated[bool, typer.Option("--stay", help="Keep running when all journals are sent.")] = False
) -> Result:
    from orchestrator.telemetry import sink

    target = _target(call)
    if target is None:
        raise Usage(_OFF, hint="set telemetry.influx.url to auto or a URL")
    state = sink.run_sink(call.settings, target, idle_s=float("inf") if stay else sink.IDLE_S)
    return Result(
        {"points": state.points, "refused": state.refused}, f"{counted(state.points, 'point')} sent, {state.refused} refused"
    )


@verb(
    app,
    "replay",
    "Send a run's whole journal to InfluxDB again.",
    examples="""
testbed telemetry replay last
testbed telemetry replay 0007 --to http://db.lab:8086
testbed telemetry replay all --to http://db.lab:8086
""",
    more="Existing points are overwritten with the same values. The token is read from TESTBED_INFLUX_TOKEN.",
)
def replay(
    call: Call,
    run: Annotated[str, _RUN],
    to: Annotated[
        str | None, typer.Option("--to", metavar="URL", help="Send to this InfluxDB instead of the configured one.")
    ] = None,
) -> Result:
    from dataclasses import replace

    from orchestrator.telemetry import influxd, sink
    from orchestrator.telemetry.influx_api import Written

    target = _target(call, to)
    if target is None:
        raise Usage(
            "replay: no InfluxDB is configured (telemetry.influx.url is none)", hint="testbed telemetry replay last --to URL"
        )
    folders = _dirs(call, run)
    if target.private:
        target = replace(target, url=influxd.start_influxd(sink.server_dir(call.settings.state_dir)).url)
    total, written = 0, Written()
    for folder in folders:
        points, more = sink.send(target, folder, timeout_s=call.settings.timeout_s)
        total, written = total + points, written + more
    text = f"{counted(total, 'point')} of {counted(len(folders), 'run')} written to {target.url}, database {target.db}"
    data: dict[str, Json] = {"points": total, "runs": len(folders), "refused": written.refused, "url": target.url, "db": target.db}
    if written.refused:
        kept = "it stays" if written.refused == 1 else "they stay"
        words = f"{counted(written.refused, 'point')} refused, {kept} in the journal only: {written.words}"
        return Result(
            data, text, "E-REFUSED", 7, words, "a new database has no conflicting field types: TESTBED_INFLUX_DB=testbed2", ok=False
        )
    return Result(data, text)


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
    hz: Annotated[str | None, typer.Option("--hz", metavar="N", help="Samples per second and port, up to 1000.")] = None,
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
    lines = [text + (f"; {' and '.join(more)}" if more else ""), *report.notes, f"Recorded as run {report.run}"]
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
def query(call: Call, run: Annotated[str, _RUN], sql: Annotated[str, typer.Argument(metavar="SQL")]) -> Result:
    from orchestrator.cli.text import columns
    from orchestrator.telemetry import tables

    trouble: list[str] = []
    with call.timed():
        names, rows = tables.query(_recorded(call, run), sql, trouble)
    shown = [names, *(tuple("-" if cell is None else _cell(cell) for cell in row) for row in rows)]
    found = [dict(zip(names, row, strict=True)) for row in rows]
    data: dict[str, Json] = {"columns": list(names), "rows": cast("Json", found), "trouble": cast("Json", trouble)}
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
    run: Annotated[str, _RUN],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Directory; created if missing.")],
    kind: Annotated[Kind, typer.Option("--format", "-f", help="Format of the files.")] = Kind.csv,
) -> Result:
    from orchestrator.cli.text import columns
    from orchestrator.telemetry import tables, tensorboard

    trouble: list[str] = []
    try:
        with call.timed():
            if kind is Kind.tensorboard:
                made, counts = tensorboard.export_tensorboard(_recorded(call, run), out, trouble), "scalars"
            else:
                made, counts = tables.export_tables(_recorded(call, run), out, kind.value, trouble), "rows"
    except OSError as error:
        raise Usage(f"export: {out}: {error.strerror or error}", hint="choose another --out") from error
    rows = [("file", counts), *((str(path), str(count)) for path, count in made.items())]
    data: dict[str, Json] = {"files": {str(p): n for p, n in made.items()}, "trouble": cast("Json", trouble)}
    none = "No job has iterations in the journal" if kind is Kind.tensorboard else "The journal has no points"
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
    older: Annotated[str, typer.Option("--older", metavar="TIME", help="Only journals last written before this long ago: 90d.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    unsent: Annotated[bool, typer.Option("--unsent", help="Also journals that were not sent to InfluxDB.")] = False,
) -> Result:
    from orchestrator.results import to_json
    from orchestrator.telemetry import retention

    older_s = seconds("--older", older, "90d")
    with call.store() as store:
        running = {record.id for record in store.history(limit=0) if record.status == "running"}
    found = retention.old(call.settings.state_dir / "runs", older_s, running, None if unsent else _target(call))
    going = [each for each in found if not each.why]
    size = sum(each.bytes for each in going) / 1e6
    lines = [f"{each.run}  kept: {each.why}" for each in found if each.why]
    data: dict[str, Json] = {"runs": [each.run for each in going], "stay": to_json([e for e in found if e.why]), "mb": size}
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
