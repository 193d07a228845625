"""Deliver the committed dashboards to Grafana: as files in a folder it reads at start, or over its
API.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from optics.errors import TestbedError
from orchestrator.files.atomic import write_whole
from orchestrator.telemetry.grafana import GrafanaApi

DASHBOARDS = Path(__file__).resolve().parents[2] / "dashboards"
FOLDER_UID, FOLDER = "testbed", "Testbed"
SOURCE_UID, SOURCE = "testbed-influx", "Testbed InfluxDB"
"""Never change: dashboards and bookmarks refer to them."""


@dataclass(frozen=True, slots=True)
class Pushed:
    """The result of a push. `source`: made, kept (it came from files), none. `source_answer`: its
    error, empty if it works.
    """

    version: str
    pages: Mapping[str, str]
    source: str
    source_answer: str


@cache
def read_dashboards() -> Mapping[str, Mapping[str, Any]]:
    """The dashboards by uid. Raises: TestbedError - the installation lacks them."""
    found = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((DASHBOARDS / "json").glob("*.json"))
    }
    if not found:
        raise TestbedError(f"no dashboards in {DASHBOARDS / 'json'}", hint="install testbed again")
    return found


def write_provisioning(out: Path) -> list[Path]:
    """Write dashboards and provisioning files below `out`; return the files. Other files there are
    not touched.

    Raises: TestbedError - it cannot be written.
    """
    sources = [
        *(DASHBOARDS / "provisioning").rglob("*.yaml"),
        *(DASHBOARDS / "json").glob("*.json"),
    ]
    written = []
    for source in sorted(sources):
        inside = source.relative_to(DASHBOARDS)
        target = out / (Path("dashboards") / inside.name if inside.parts[0] == "json" else inside)
        try:
            _readable(target.parent)
            write_whole(target, source.read_bytes())
            target.chmod(0o644)
        except OSError as error:
            raise TestbedError(f"{target}: {error.strerror}", hint="choose another --out") from None
        written.append(target)
    return written


def _readable(folder: Path) -> None:
    """Create the folder and its missing parents, readable for Grafana's own user."""
    if not folder.is_dir():
        _readable(folder.parent)
        folder.mkdir()
        folder.chmod(0o755)


def source_spec(url: str, database: str, token: str) -> Mapping[str, Any]:
    """The InfluxDB data source as Grafana's API takes it: InfluxQL over GET, which every version
    from 1.6 to 3 understands.
    """
    settings: dict[str, Any] = {
        "version": "InfluxQL",
        "dbName": database,
        "httpMode": "GET",
        "timeInterval": "100ms",
    }
    spec = {
        "uid": SOURCE_UID,
        "name": SOURCE,
        "type": "influxdb",
        "access": "proxy",
        "url": url,
        "jsonData": settings,
    }
    if token:
        settings["httpHeaderName1"] = "Authorization"
        spec["secureJsonData"] = {"httpHeaderValue1": f"Token {token}"}
    return spec


def push(
    grafana: GrafanaApi, *, influx_url: str = "", database: str = "testbed", influx_token: str = ""
) -> Pushed:
    """Store the dashboards in the folder Testbed, and the data source if `influx_url` is given."""
    version = grafana.version()
    grafana.folder(FOLDER_UID, FOLDER)
    source = "none"
    if influx_url:
        source = (
            "made"
            if grafana.data_source(source_spec(influx_url, database, influx_token))
            else "kept"
        )
    pages = {
        uid: grafana.dashboard(model, FOLDER_UID, "testbed telemetry grafana push")
        for uid, model in read_dashboards().items()
    }
    return Pushed(version, pages, source, grafana.data_source_answer(SOURCE_UID))
