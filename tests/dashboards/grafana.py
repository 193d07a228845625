"""What Grafana does between a dashboard and a panel, by its published source: macros, requests,
frames. (Rules, not its code.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "dashboards" / "json"
DASHBOARDS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))
}


@dataclass(frozen=True)
class Asked:
    """One query as it stands in a dashboard."""

    dashboard: str
    place: str
    query: str
    format: str
    ref_id: str
    alias: str
    interval_ms: int

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.place} {self.ref_id}"


def panels(dashboard: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every panel, those inside rows too, rows not."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def milliseconds(interval: str) -> int:
    found = re.fullmatch(r"(\d+)(ms|s|m)", interval)
    assert found, interval
    return int(found[1]) * {"ms": 1, "s": 1000, "m": 60_000}[found[2]]


def asked(name: str, dashboard: Mapping[str, Any]) -> Iterator[Asked]:
    """Every query of a dashboard: of panels, variables and annotations."""
    for panel in panels(dashboard):
        interval = milliseconds(panel.get("interval", "1s"))
        for target in panel["targets"]:
            yield Asked(
                name,
                panel["title"],
                target["query"],
                target["resultFormat"],
                target["refId"],
                target.get("alias", ""),
                interval,
            )
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield Asked(
                name,
                f"variable {variable['name']}",
                variable["query"]["query"],
                "table",
                variable["name"],
                "",
                1000,
            )
    for marks in dashboard["annotations"]["list"]:
        if marks["datasource"]["type"] == "influxdb":
            yield Asked(
                name,
                f"annotation {marks['name']}",
                marks["target"]["query"],
                "table",
                "Anno",
                "",
                1000,
            )


QUERIES = [query for name, dashboard in DASHBOARDS.items() for query in asked(name, dashboard)]


def regex(chosen: tuple[str, ...]) -> str:
    """How Grafana writes chosen values into a regular expression; nothing chosen is everything (the
    variables' allValue).
    """
    if not chosen:
        return ".*"
    escaped = [re.sub(r"[\\^$*+?.()|\[\]{}/]", r"\\\g<0>", value) for value in chosen]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


def expanded(
    query: Asked, begin_ms: int, end_ms: int, chosen: Mapping[str, tuple[str, ...]]
) -> str:
    """The query as it is sent: times, interval (for a panel about 1200 points wide) and variables
    filled in.
    """
    interval = max(query.interval_ms, (end_ms - begin_ms) // 1200)
    text = query.query.replace("$timeFilter", f"time >= {begin_ms}ms and time <= {end_ms}ms")
    text = text.replace("$__interval_ms", str(interval)).replace("$__interval", f"{interval}ms")
    text = re.sub(r"\$\{(\w+):regex\}", lambda found: regex(chosen.get(found[1], ())), text)
    assert "$" not in text.replace("$/", "/"), text
    return text


# --- from an answer of InfluxDB to frames


def _field(
    name: str, values: list[Any], labels: Mapping[str, str] | None = None, shown: str | None = None
) -> dict[str, Any]:
    known = [value for value in values if value is not None]
    kind = (
        "string"
        if known and isinstance(known[0], str)
        else "boolean"
        if known and isinstance(known[0], bool)
        else "number"
    )
    config = {"displayNameFromDS": shown} if shown else {}
    return {
        "name": name,
        "type": kind,
        "values": values,
        "labels": dict(labels or {}),
        "config": config,
    }


def frames(query: Asked, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The data frames Grafana's backend makes of an answer, in its two formats."""
    rows = answer["results"][0].get("series", [])
    if not rows:
        return []
    return [_table(query, rows)] if query.format == "table" else list(_series(query, rows))


def _table(query: Asked, rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    columns = rows[0]["columns"]
    values = [(row.get("tags", {}), value) for row in rows for value in row["values"]]
    fields = []
    if columns[0] == "time":
        fields.append(
            {
                "name": "Time",
                "type": "time",
                "values": [v[0] for _, v in values],
                "labels": {},
                "config": {},
            }
        )
    for tag in rows[0].get("tags", {}):
        fields.append(_field(tag, [tags[tag] for tags, _ in values], shown=tag))
    first = 1 if columns[0] == "time" else 0
    fields += [
        _field(name, [v[at] for _, v in values], shown=name)
        for at, name in enumerate(columns[first:], first)
    ]
    return {"name": rows[0]["name"], "refId": query.ref_id, "fields": fields}


def _series(query: Asked, rows: list[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        tags = row.get("tags", {})
        for at, column in enumerate(row["columns"][1:], 1):
            if query.alias:
                texts = {
                    "$col": column,
                    "$m": row["name"],
                    **{f"$tag_{tag}": value for tag, value in tags.items()},
                }
                shown = query.alias
                for word in sorted(texts, key=len, reverse=True):
                    shown = shown.replace(word, texts[word])
            else:
                inside = ", ".join(f"{tag}: {value}" for tag, value in tags.items())
                shown = f"{row['name']}.{column}" + (f" {{ {inside} }}" if inside else "")
            time = {
                "name": "Time",
                "type": "time",
                "values": [v[0] for v in row["values"]],
                "labels": {},
                "config": {},
            }
            value = _field("Value", [v[at] for v in row["values"]], tags, shown)
            yield {"name": shown, "refId": query.ref_id, "fields": [time, value]}


def filled(
    dashboard: Mapping[str, Any], begin_ms: int, end_ms: int, ask: Callable[[str], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Every panel of a dashboard with the frames Grafana's backend would send it."""
    queries = {(query.place, query.ref_id): query for query in asked(dashboard["uid"], dashboard)}
    for panel in panels(dashboard):
        of_panel = [queries[panel["title"], target["refId"]] for target in panel["targets"]]
        data = [
            frame
            for query in of_panel
            for frame in frames(query, ask(expanded(query, begin_ms, end_ms, {})))
        ]
        yield {"transformations": [], **panel, "frames": data}
