"""The queries of the dashboards: the portable subset of InfluxQL, and the form of a query in a
panel.

Portable means: the same text works on InfluxDB 1.6 to 3 (selectors, aggregates, derivative,
difference, elapsed, moving average, arithmetic, fill, sub-queries; no INTO, SLIMIT, SHOW SERIES,
cardinality). The lint of tests/dashboards holds every query to it.
"""

from __future__ import annotations

from typing import Literal

from grafana_foundation_sdk.cog import builder as cogbuilder
from grafana_foundation_sdk.cog import variants as cogvariants
from grafana_foundation_sdk.models import common

SOURCE = common.DataSourceRef(type_val="influxdb", uid="${ds}")
"""The data source the operator chose at the top; `testbed-influx` unless he chose another."""

RUN = '"run" =~ /^${run:regex}$/'
JOB = '"job" =~ /^${job:regex}$/'
DEVICE = '"device" =~ /^${device:regex}$/'
FAMILY = '"model" =~ /^${family:regex}$/'
HOST = '"host" =~ /^${host:regex}$/'
HERE = f"$timeFilter AND {RUN}"
OURS = f"{HERE} AND {JOB}"
"""What every query of a panel is limited to: the time shown and the runs chosen."""

Format = Literal["time_series", "table"]


class Influx(cogbuilder.Builder[cogvariants.Dataquery], cogvariants.Dataquery):
    """One InfluxQL query; the library has none of its own. `alias` names the series: `$tag_device`
    and the like.
    """

    def __init__(
        self, query: str, ref_id: str = "A", *, format: Format = "time_series", alias: str = ""
    ) -> None:
        self.query = query
        self.ref_id = ref_id
        self.format = format
        self.alias = alias

    def build(self) -> cogvariants.Dataquery:
        return self

    def to_json(self) -> dict[str, object]:
        return {
            "datasource": SOURCE,
            "query": self.query,
            "rawQuery": True,
            "refId": self.ref_id,
            "resultFormat": self.format,
        } | ({"alias": self.alias} if self.alias else {})


class Marks(cogbuilder.Builder[cogvariants.Dataquery], cogvariants.Dataquery):
    """The query of annotations; `text` and `tags` name the columns they are written from."""

    def __init__(self, query: str, *, text: str, tags: str) -> None:
        self.query = query
        self.text = text
        self.tags = tags

    def build(self) -> cogvariants.Dataquery:
        return self

    def to_json(self) -> dict[str, object]:
        return {
            "datasource": SOURCE,
            "fromAnnotations": True,
            "query": self.query,
            "rawQuery": True,
            "refId": "Anno",
            "tagsColumn": self.tags,
            "textColumn": self.text,
            "textEditor": True,
        }


class Notes(cogbuilder.Builder[cogvariants.Dataquery], cogvariants.Dataquery):
    """Grafana's own annotations that carry `tag`: the operators' notes."""

    def __init__(self, tag: str) -> None:
        self.tag = tag

    def build(self) -> cogvariants.Dataquery:
        return self

    def to_json(self) -> dict[str, object]:
        return {"limit": 100, "matchAny": True, "refId": "Anno", "tags": [self.tag], "type": "tags"}


def table(query: str, ref_id: str = "A") -> Influx:
    """A query whose answer is one table, its tags as columns."""
    return Influx(query, ref_id, format="table")


def values_of(tag: str, measurement: str, *, of_runs: bool = True) -> str:
    """The query of a variable: every value of `tag`, of the chosen runs."""
    chosen = f" WHERE {RUN}" if of_runs else ""
    return f'SHOW TAG VALUES FROM "{measurement}" WITH KEY = "{tag}"{chosen}'


def pick(what: str, measurement: str, where: str) -> str:
    """The plainest query."""
    return f'SELECT {what} FROM "{measurement}" WHERE {where}'


def phase_of_devices(where: str) -> str:
    """How long devices were dark: the sub-query of percentiles and distributions, in ms."""
    return f'SELECT ("t_dark_end_ns" - "t_dark_begin_ns") / 1000000 AS "dark" FROM "reconfig_device" WHERE {where}'


def rate(field: str, where: str, *, times: int = 1) -> str:
    """A counter's rate a second, summed over ports; a counter that starts again counts nothing."""
    scaled = f" * {times}" if times != 1 else ""
    inner = (
        f'SELECT non_negative_derivative(last("{field}"), 1s){scaled} AS "rate" FROM "port" WHERE {where} '
        f'GROUP BY time($__interval), "host", "port" fill(none)'
    )
    return f'SELECT sum("rate") AS "rate" FROM ({inner}) WHERE $timeFilter GROUP BY time($__interval) fill(none)'
