"""`testbed telemetry grafana`: dashboards as files or over the API, and annotations."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.call import Call, Result, Usage, verb
from orchestrator.cli.groups import family

if TYPE_CHECKING:
    from orchestrator.results import Json
    from orchestrator.telemetry.grafana import GrafanaApi

Url = Annotated[
    str, typer.Option("--url", envvar="TESTBED_GRAFANA_URL", metavar="URL", help="URL of Grafana.")
]
Token = Annotated[
    str,
    typer.Option(
        "--token",
        envvar="TESTBED_GRAFANA_TOKEN",
        metavar="TOKEN",
        help="Token of a service account; in the variable it does not appear in process listings.",
        show_envvar=True,
    ),
]


def _grafana(call: Call, url: str, token: str) -> GrafanaApi:
    from orchestrator.telemetry.grafana import TIMEOUT_S, GrafanaApi

    for given, flag in ((url, "--url"), (token, "--token")):
        if not given:
            raise Usage(
                f"{call.verb}: {flag} is missing",
                hint=f"or TESTBED_GRAFANA_{flag[2:].upper()} in the environment",
            )
    return GrafanaApi(url, token, timeout_s=min(TIMEOUT_S, call.settings.timeout_s))


app = family("grafana", short="Dashboards for Grafana.")


@verb(
    app,
    "provision",
    "Write dashboards and provisioning files for Grafana to load at startup.",
    examples="testbed telemetry grafana provision --out grafana",
    more="Requires neither a token nor a running Grafana.",
)
def provision(
    call: Call,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Directory; created if missing.")
    ],
) -> Result:
    from orchestrator.telemetry.provisioning import write_provisioning

    written = write_provisioning(out)
    text = "\n".join(f"  {path}" for path in written)
    return Result(
        {"files": [str(path) for path in written]},
        text,
        hint="docs/how-to/grafana.md shows where to put each",
    )


@verb(
    app,
    "push",
    "Install the dashboards, and with --influx the data source, over Grafana's API.",
    examples="testbed telemetry grafana push --url http://grafana.lab:3000\n"
    "testbed telemetry grafana push --url http://grafana.lab:3000 --influx http://influx.lab:8086",
    more="The token needs the role Editor, or Admin for the data source. Grafana uses TESTBED_INFLUX_TOKEN for queries, if set.",
)
def push(
    call: Call,
    url: Url = "",
    token: Token = "",
    influx: Annotated[
        str,
        typer.Option(
            "--influx",
            envvar="TESTBED_INFLUX_URL",
            metavar="URL",
            help="URL of InfluxDB as seen by Grafana; creates or updates the data source.",
        ),
    ] = "",
    database: Annotated[
        str,
        typer.Option(
            "--database",
            envvar="TESTBED_INFLUX_DB",
            metavar="NAME",
            help="Database or bucket in InfluxDB.",
        ),
    ] = "testbed",
) -> Result:
    import os

    from orchestrator.telemetry import provisioning

    grafana = _grafana(call, url, token)
    # values of telemetry.influx.url; Grafana does not use a private server
    server = "" if influx in ("none", "auto") else influx
    if server and not server.startswith(("http://", "https://")):
        raise Usage(f"{call.verb}: --influx must be http://HOST:PORT")
    done = provisioning.push(
        grafana,
        influx_url=server,
        database=database,
        influx_token=os.environ.get("TESTBED_INFLUX_TOKEN", ""),
    )
    sources = {
        "made": "created or updated",
        "kept": "provisioned from files, unchanged",
        "none": "unchanged (no --influx)",
    }
    lines = [f"Grafana {done.version or '(unknown version)'} at {grafana.url}"]
    lines += [f"  {uid:<24} {grafana.url}{page}" for uid, page in done.pages.items()]
    lines.append(f"  data source {provisioning.SOURCE_UID}: {sources[done.source]}")
    data: dict[str, Json] = {
        "grafana": done.version,
        "dashboards": dict(done.pages),
        "data_source": done.source,
    }
    if done.source_answer:
        lines.append(f"  the data source does not work: {done.source_answer}")
    data["data_source_answer"] = done.source_answer
    return Result(data, "\n".join(lines))


@verb(
    app,
    "note",
    "Add a note to the dashboards, at the present or a given time.",
    examples='testbed telemetry grafana note "cleaned the connector of ocs1 port 7"\n'
    'testbed telemetry grafana note "moved the rack" --at 2026-11-21T14:03 --until 2026-11-21T14:20',
)
def note(
    call: Call,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text of the note.")],
    url: Url = "",
    token: Token = "",
    at: Annotated[
        str, typer.Option("--at", metavar="TIME", help="Time of the event (default: now).")
    ] = "",
    until: Annotated[str, typer.Option("--until", metavar="TIME", help="End of the event.")] = "",
) -> Result:
    from orchestrator.telemetry.grafana import Annotation

    if not text.strip():
        raise Usage(f"{call.verb}: the note is empty")
    begin = _moment(call, "--at", at) if at else time.time_ns() // 1_000_000
    end = _moment(call, "--until", until) if until else None
    if end is not None and end < begin:
        raise Usage(f"{call.verb}: --until is before the note begins")
    number = _grafana(call, url, token).annotate(Annotation(text, begin, end))
    return Result({"id": number, "time_ms": begin, "end_ms": end}, f"Note added ({number})")


def _moment(call: Call, flag: str, given: str) -> int:
    """A time in ISO 8601, in the local zone unless it names one, in ms since the epoch. Raises:
    Usage.
    """
    try:
        return round(datetime.fromisoformat(given).timestamp() * 1000)
    except ValueError:
        raise Usage(
            f"{call.verb}: {flag}: {given!r} is not a time such as 2026-11-21T14:03 or 2026-11-21T14:03:22+01:00"
        ) from None
