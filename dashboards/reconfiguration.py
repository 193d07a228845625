"""Reconfiguration analysis: how long each phase takes, which device is slow, which runs were
worst.
"""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import dashboard as board
from grafana_foundation_sdk.builders import histogram, table, timeseries
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as models

from dashboards import influx, live
from dashboards.influx import DEVICE, FAMILY, HERE, JOB, Influx, pick
from dashboards.look import (
    NO_TIME,
    all_series,
    dashboard,
    dress,
    legend,
    link_to,
    one_colour,
    rows,
    variable,
)
from orchestrator.telemetry.palette import PHASE_COLOURS

SHARES = (50, 90, 99)
NARROW_PX, MODEL_PX = 60, 130
"""Least width of a column in tables of many figures, and the width of a model's name."""
DEVICES = f"{HERE} AND {DEVICE} AND {FAMILY}"


def percentiles(field: str) -> str:
    return ", ".join(
        [
            *(f'percentile("{field}", {n}) AS "p{n}"' for n in SHARES),
            f'max("{field}") AS "max"',
            f'count("{field}") AS "n"',
        ]
    )


def kept_run(title: str, uid: str) -> models.DynamicConfigValue:
    return link_to(title, uid, run="${__data.fields.run}")


def slowest_first(column: str) -> tuple[str, dict[str, Any]]:
    """The transformation that sorts what InfluxDB's top() gives by time."""
    return "sortBy", {"fields": {}, "sort": [{"field": column, "desc": True}]}


def phases() -> table.Panel:
    return dress(
        rows().min_width(NARROW_PX),
        "Phases of a run",
        "How long each phase of a run took: median, slow and slowest, from phase. The largest 99th "
        "percentile is where time can be won.",
        "ms",
        influx.table(
            f'SELECT {percentiles("duration_ms")} FROM "phase" WHERE {HERE} AND "kind" = \'run\' GROUP BY "phase"'
        ),
        w=8,
        h=9,
        transform=[NO_TIME],
    ).override_by_name("n", [models.DynamicConfigValue("unit", "short")])


def devices() -> table.Panel:
    inner = f'{influx.phase_of_devices(DEVICES)} GROUP BY "device", "model"'
    return (
        dress(
            rows().min_width(NARROW_PX),
            "Dark time per device",
            "From a device's removals to its own report of the new state, from reconfig_device. Compare with the "
            "data sheet: a device far "
            "above its own median is ageing or overloaded. A device's name leads to its light.",
            "ms",
            influx.table(
                f'SELECT {percentiles("dark")} FROM ({inner}) WHERE $timeFilter GROUP BY "device", "model"'
            ),
            w=10,
            h=9,
            transform=[NO_TIME],
        )
        .override_by_name("n", [models.DynamicConfigValue("unit", "short")])
        .override_by_name("model", [models.DynamicConfigValue("custom.width", MODEL_PX)])
        .override_by_name(
            "device", [link_to("Light of this device", "testbed-fabric", device="${__value.text}")]
        )
    )


def worst() -> table.Panel:
    columns = ", ".join(
        f'"{name}"'
        for name in (
            "dark_ms",
            "link_ms",
            "route_ms",
            "pause_ms",
            "reconfig_id",
            "run",
            "job",
            "trigger",
        )
    )
    return (
        dress(
            rows(),
            "The ten slowest",
            "The reconfigurations that took longest, from reconfig. The run leads to this page for that run "
            "alone; `testbed run show RUN` "
            "draws its waterfall.",
            "ms",
            influx.table(
                f'SELECT top("total_ms", 10) AS "total_ms", {columns} FROM "reconfig" WHERE {HERE} AND {JOB}'
            ),
            w=24,
            h=8,
            transform=[slowest_first("total_ms")],
        )
        .override_by_name("run", [kept_run("This run alone", "testbed-reconfiguration")])
        .override_by_name("reconfig_id", [kept_run("Training in this run", "testbed-training")])
    )


def ring_changes() -> table.Panel:
    """The ring changes that cost most."""
    columns = ", ".join(
        f'"{name}"'
        for name in (
            "worst_rank_ms",
            "before_ms",
            "after_ms",
            "prepare_ms",
            "move",
            "after",
            "mode",
            "reconfig_id",
            "run",
        )
    )
    return (
        dress(
            rows(),
            "The ten ring changes that cost most",
            "Ring changes with the longest pauses of the job, from ring_change, with the longest stall of any rank and the iteration time "
            "before and after. Preparing runs beside the training and costs no standstill.",
            "ms",
            influx.table(
                f'SELECT top("paused_ms", 10) AS "paused_ms", {columns} FROM "ring_change" WHERE {HERE} AND {JOB}'
            ),
            w=12,
            h=8,
            nothing="no job changed its rings",
            transform=[slowest_first("paused_ms")],
        )
        .override_by_name("move", [models.DynamicConfigValue("unit", "none")])
        .override_by_name("after", [models.DynamicConfigValue("unit", "none")])
        .override_by_name("run", [kept_run("This run alone", "testbed-reconfiguration")])
    )


def failures() -> table.Panel:
    return dress(
        rows(),
        "Checks that did not pass",
        "Rungs of the verification ladder that failed, from verify, with the words shown to the operator. Empty is good.",
        "none",
        influx.table(
            f'SELECT "level", "detail", "passed", "total", "reconfig_id", "run" FROM "verify" WHERE {HERE} AND "ok" = 0'
        ),
        w=12,
        h=8,
        nothing="all passed",
    ).override_by_name("run", [kept_run("This run alone", "testbed-reconfiguration")])


def refusals() -> table.Panel:
    return dress(
        rows(),
        "What devices refused",
        "Devices' own words where they did not do what was asked, from reconfig_device. Empty is good.",
        "none",
        influx.table(
            f'SELECT "device", "model", "error", "reconfig_id", "run" FROM "reconfig_device" WHERE {DEVICES} AND "error" != \'\''
        ),
        w=12,
        h=8,
        nothing="none",
    ).override_by_name("run", [kept_run("This run alone", "testbed-reconfiguration")])


def spread() -> histogram.Panel:
    return dress(
        histogram.Panel()
        .bucket_count(30)
        .fill_opacity(70)
        .color_scheme(one_colour(PHASE_COLOURS["dark"]))
        .legend(legend()),
        "Spread of dark times",
        "How often devices were dark for how long, from reconfig_device. Two humps are two kinds of moves or two kinds of devices.",
        "ms",
        influx.table(influx.phase_of_devices(DEVICES)),
        w=6,
        h=9,
        transform=[NO_TIME],
    )


def over_time() -> timeseries.Panel:
    return dress(
        timeseries.Panel()
        .draw_style(kinds.GraphDrawStyle.POINTS)
        .point_size(6)
        .show_points(kinds.VisibilityMode.ALWAYS)
        .legend(legend("max", right=True))
        .tooltip(all_series()),
        "Dark time per device over time",
        "Each point is one device in one reconfiguration, from reconfig_device. A device that climbs wants attention.",
        "ms",
        Influx(f'{influx.phase_of_devices(DEVICES)} GROUP BY "device"', alias="$tag_device"),
        w=24,
        h=8,
    )


def build() -> board.Dashboard:
    built = dashboard(
        "testbed-reconfiguration",
        "How long reconfigurations take, phase by phase and device by device, and which were worst.",
        [
            variable("run", "Run", "reconfig", "run", of_runs=False, newest=True),
            variable("job", "Job", "reconfig", "job"),
            variable("device", "Device", "reconfig_device", "device"),
            variable("family", "Family", "reconfig_device", "model"),
        ],
        since="24h",
        refresh="30s",
    )
    here = f"{HERE} AND {JOB}"
    figures = [
        (
            "Reconfigurations",
            "How many there were in this time, from reconfig.",
            "short",
            pick('sum("value")', "reconfig", here),
        ),
        (
            "Circuits moved",
            "One-way circuits made or broken in this time, from reconfig.",
            "short",
            pick('sum("n_circuits")', "reconfig", here),
        ),
        (
            "Dark, median",
            "Of the longest device of each, from reconfig.",
            "ms",
            pick('percentile("dark_ms", 50)', "reconfig", here),
        ),
        (
            "Dark, p99",
            "The slow ones, from reconfig.dark_ms: what to promise an operator.",
            "ms",
            pick('percentile("dark_ms", 99)', "reconfig", here),
        ),
        *live.PAUSES,
        (
            "Slowest of all",
            "From the first command to everything verified, from reconfig.",
            "ms",
            pick('max("total_ms")', "reconfig", here),
        ),
        (
            "Bytes lost",
            "What ports dropped while light moved, from reconfig. Above zero: traffic was not drained.",
            "bytes",
            pick('sum("lost_bytes")', "reconfig", here),
        ),
    ]
    for title, what, unit, query in figures:
        built.with_panel(
            live.number(title, what, unit, query, w=3, alarm="orange" if unit == "bytes" else "")
        )
    built.with_panel(
        live.distribution(
            "Dark time of ${family}",
            "The share of changes in which a device of this family was dark for less than this, from reconfig_device; one picture "
            "per family chosen above.",
            "dark",
            influx.phase_of_devices(DEVICES),
            24,  # one per family next to each other: a panel next to it would be covered
            9,
        )
        .repeat("family")
        .repeat_direction("h")
        .max_per_row(4)
    )
    for panel in (
        spread(),
        phases(),
        devices(),
        live.breakdown(14, 9, last=20),
        live.pauses(10, 9, last=20),
        live.ring_change_cost(12, 8, last=20),
        ring_changes(),
        worst(),
        over_time(),
        failures(),
        refusals(),
    ):
        built.with_panel(panel)
    return built
