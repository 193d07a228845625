"""`testbed telemetry`: what was copied to InfluxDB, and what is sent there again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optics.errors import Missing
from optics.plain import counted
from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.completing import runs

if TYPE_CHECKING:
    from orchestrator.results import Json
    from orchestrator.settings import Settings
    from orchestrator.telemetry.influx_api import InfluxTarget

RUN = typer.Argument(
    metavar="RUN",
    help="Run ID, its last digits, `last`, `all`, or a run's directory.",
    autocompletion=runs,
)


def run_folders(call: Call, run: str) -> list[Path]:
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
        raise Missing(
            "there are no journals yet" if run == "all" else f"run {name} has no journal",
            hint="testbed run list",
        )
    return found


def target_for(call: Call, url: str | None = None) -> InfluxTarget | None:
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
    from orchestrator.telemetry.process import server_dir

    if not target.private:
        return target
    present = influxd.running_influxd(server_dir(settings.state_dir))
    return replace(target, url=present.url if present else "")


app = typer.Typer(
    name="telemetry",
    help="Sample, query and export; InfluxDB and Grafana.",
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

    settings, target = call.settings, target_for(call)
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
    behind = sum(
        tail.JournalTail(path, mark).behind() for path, mark in zip(kept, marks, strict=True)
    )
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
        lines.append(f"refused   {next(mark.message for mark in reversed(marks) if mark.refused)}")
    if state.trouble and behind:
        lines.append(f"trouble   {state.trouble}")
    data |= {
        "server": server,
        "version": version,
        "live_url": live.url,
        "db": target.db,
        "sink": state.alive,
        "sent": sent,
    }
    data |= {
        "behind": behind,
        "refused": refused,
        "trouble": state.trouble if behind else "",
        "state": to_json(state),
    }
    return Result(data, "\n".join(lines))


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
    run: Annotated[str, RUN],
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="URL", help="Send to this InfluxDB instead of the configured one."
        ),
    ] = None,
) -> Result:
    from dataclasses import replace

    from orchestrator.telemetry import sink
    from orchestrator.telemetry.influx_api import Written
    from orchestrator.telemetry.process import start_private

    target = target_for(call, to)
    if target is None:
        raise Usage(
            "replay: no InfluxDB is configured (telemetry.influx.url is none)",
            hint="testbed telemetry replay last --to URL",
        )
    folders = run_folders(call, run)
    if target.private:
        target = replace(target, url=start_private(call.settings).url)
    total, written = 0, Written()
    for folder in folders:
        points, more = sink.send(target, folder, timeout_s=call.settings.timeout_s)
        total, written = total + points, written + more
    text = f"{counted(total, 'point')} of {counted(len(folders), 'run')} written to {target.url}, database {target.db}"
    data: dict[str, Json] = {
        "points": total,
        "runs": len(folders),
        "refused": written.refused,
        "url": target.url,
        "db": target.db,
    }
    if written.refused:
        kept = "it stays" if written.refused == 1 else "they stay"
        message = f"{counted(written.refused, 'point')} refused, {kept} in the journal only: {written.message}"
        return Result(
            data,
            text,
            "E-REFUSED",
            7,
            message,
            "a new database has no conflicting field types: TESTBED_INFLUX_DB=testbed2",
            ok=False,
        )
    return Result(data, text)
