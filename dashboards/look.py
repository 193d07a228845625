"""The common properties of panels: position, unit, text without data, colours and links."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from grafana_foundation_sdk.builders import common as common_b
from grafana_foundation_sdk.builders import dashboard as board
from grafana_foundation_sdk.builders import table
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as models

from dashboards.influx import HERE, SOURCE, Influx, Marks, Notes, values_of
from orchestrator.extensions import extension_parts
from orchestrator.telemetry.palette import MARK, PHASE_COLOURS, RING_CHANGE

NOTHING = "nothing in this time range"
NO_TIME = ("organize", {"excludeByName": {"Time": True}, "indexByName": {}, "renameByName": {}})
"""The transformation that drops the column of times."""
ALL = ".*"
TIME_PX = 190
"""A time is wider than a column's usual 150 pixels."""
DBM = "suffix:dBm"
"""Grafana's own unit `dBm` is written "dbm" (its categories.ts, as of 13.2.3)."""
PAUSE = "suffix:ms"
"""Grafana's own `ms` writes a pause of 61 s "1.02 mins", beside dark times in ms."""

P = TypeVar("P", bound=Any)


def dress(
    panel: P,
    title: str,
    what: str,
    unit: str,
    *queries: Influx,
    w: int,
    h: int = 8,
    nothing: str = NOTHING,
    interval: str = "",
    transform: Iterable[tuple[str, Mapping[str, Any]]] = (),
) -> P:
    """Add the properties common to all panels. `what`: its content, its measurement, bad values.
    `w` of 24 columns.
    """
    panel.title(title).description(what).unit(unit).no_value(nothing).span(w).height(h).datasource(
        SOURCE
    )
    for query in queries:
        panel.with_target(query)
    for name, options in transform:
        panel.with_transformation(models.DataTransformerConfig(id_val=name, options=dict(options)))
    if interval:
        panel.interval(interval)
    return panel


def colour(value: str) -> list[models.DynamicConfigValue]:
    """The override that gives a series its colour."""
    return [models.DynamicConfigValue("color", {"fixedColor": value, "mode": "fixed"})]


def coloured_phases(panel: P, names: Iterable[str]) -> P:
    """Colour each field that is called like a phase."""
    for name in names:
        panel.override_by_name(name, colour(PHASE_COLOURS[name]))
    return panel


def rows() -> table.Panel:
    """An empty table. The unit is for its numbers: without the override port "3" is "3 dB"; and a
    cell without a value is not the text of a table without rows.
    """
    return (
        table.Panel()
        .override_by_field_type("string", [models.DynamicConfigValue("unit", "string")])
        .override_by_field_type("number", [models.DynamicConfigValue("noValue", "-")])
        .override_by_name("Time", [models.DynamicConfigValue("custom.width", TIME_PX)])
    )


def steps(*given: tuple[float | None, str]) -> board.ThresholdsConfig:
    """Thresholds, for numbers that mean an action: (from this value on, colour); the first has no
    value.
    """
    return (
        board.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(value=value, color=name) for value, name in given])
    )


def by_threshold() -> board.FieldColor:
    return board.FieldColor().mode(models.FieldColorModeId.THRESHOLDS)


def one_colour(value: str) -> board.FieldColor:
    return board.FieldColor().mode(models.FieldColorModeId.FIXED).fixed_color(value)


def last_value(calc: str = "lastNotNull") -> common_b.ReduceDataOptions:
    """The values that a stat panel prints of its series."""
    return common_b.ReduceDataOptions().calcs([calc]).values(False)


def legend(*calcs: str, right: bool = False) -> common_b.VizLegendOptions:
    return (
        common_b.VizLegendOptions()
        .display_mode(kinds.LegendDisplayMode.TABLE if calcs else kinds.LegendDisplayMode.LIST)
        .placement(kinds.LegendPlacement.RIGHT if right else kinds.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs(list(calcs))
    )


def all_series() -> common_b.VizTooltipOptions:
    return (
        common_b.VizTooltipOptions()
        .mode(kinds.TooltipDisplayMode.MULTI)
        .sort(kinds.SortOrder.DESCENDING)
    )


def link_to(title: str, uid: str, **variables: str) -> models.DynamicConfigValue:
    """The override that makes a cell lead to another dashboard, with the time shown kept."""
    given = "".join(f"&var-{name}={value}" for name, value in variables.items())
    return models.DynamicConfigValue(
        "links", [{"title": title, "url": f"/d/{uid}?${{__url_time_range}}{given}"}]
    )


def variable(
    name: str, label: str, measurement: str, tag: str, *, of_runs: bool = True, newest: bool = False
) -> board.QueryVariable:
    """A variable over every value of `tag`; several may be chosen, all are at first."""
    query = values_of(tag, measurement, of_runs=of_runs)
    return (
        board.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query({"query": query, "rawQuery": True, "refId": name})
        .definition(query)
        .multi(True)
        .include_all(True)
        .all_value(ALL)
        .current(models.VariableOption(text=["All"], value=["$__all"]))
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(
            models.VariableSort.ALPHABETICAL_DESC
            if newest
            else models.VariableSort.ALPHABETICAL_ASC
        )
    )


def source_variable() -> board.DatasourceVariable:
    return (
        board.DatasourceVariable("ds")
        .label("Data source")
        .type("influxdb")
        .current(models.VariableOption(text="Testbed InfluxDB", value="testbed-influx"))
    )


UIDS = {
    "testbed-live": "Live demo",
    "testbed-reconfiguration": "Reconfiguration analysis",
    "testbed-fabric": "Fabric health",
    "testbed-training": "Training",
    "testbed-schedules": "Slots",
    "testbed-traffic": "The job's traffic",
}


def titles() -> dict[str, str]:
    """Of every page by its name, those of extensions last."""
    return UIDS | dict(extension_parts("board", "PAGE"))


def dashboard(
    uid: str, what: str, variables: Sequence[board.QueryVariable], *, since: str, refresh: str
) -> board.Dashboard:
    """An empty dashboard with what all have: variables, marks where the light moved and jobs
    turned, operators' notes, links.
    """
    built = (
        board.Dashboard(titles()[uid])
        .uid(uid)
        .description(what)
        .tags(["testbed", "generated"])
        .timezone("utc")
        .readonly()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .time(f"now-{since}", "now")
        .refresh(refresh)
        .timepicker(board.TimePicker().refresh_intervals(["1s", "5s", "10s", "30s", "1m", "5m"]))
        .with_variable(source_variable())
    )
    for each in variables:
        built.with_variable(each)
    built.annotation(
        board.AnnotationQuery()
        .name("Reconfigurations")
        .datasource(SOURCE)
        .icon_color(MARK)
        .enable(True)
        .target(
            Marks(
                f'SELECT "reconfig_id", "total_ms", "job", "trigger" FROM "reconfig" WHERE {HERE}',
                text="reconfig_id",
                tags="job,trigger",
            )
        )
    )
    built.annotation(
        board.AnnotationQuery()
        .name("Ring changes: the job lost so many ms")
        .datasource(SOURCE)
        .icon_color(RING_CHANGE)
        .enable(True)
        .target(
            Marks(
                f'SELECT "paused_ms", "reconfig_id", "job", "mode" FROM "ring_change" WHERE {HERE} AND "ok" = \'1\'',
                text="paused_ms",
                tags="job,mode",
            )
        )
    )
    built.annotation(
        board.AnnotationQuery()
        .name("Notes")
        .datasource(kinds.DataSourceRef(type_val="grafana", uid="-- Grafana --"))
        .icon_color("#8AB8FF")
        .enable(True)
        .target(Notes("testbed-note"))
    )
    for other, title in titles().items():
        if other != uid:
            built.link(
                board.DashboardLink(title)
                .type(models.DashboardLinkType.LINK)
                .icon("dashboard")
                .url(f"/d/{other}?${{__url_time_range}}&${{run:queryparam}}")
                .tooltip(f"{title}: the same time and runs")
            )
    return built
