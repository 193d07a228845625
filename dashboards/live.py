"""Live demo: for a wall display while circuits are reconfigured."""

from __future__ import annotations

from grafana_foundation_sdk.builders import (
    barchart,
    nodegraph,
    stat,
    statetimeline,
    timeseries,
    xychart,
)
from grafana_foundation_sdk.builders import common as common_b
from grafana_foundation_sdk.builders import dashboard as board
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import xychart as xy

from dashboards.influx import DEVICE, HERE, JOB, Influx, pick, rate, table
from dashboards.look import (
    NO_TIME,
    PAUSE,
    all_series,
    by_threshold,
    colour,
    coloured_phases,
    dashboard,
    dress,
    last_value,
    legend,
    one_colour,
    steps,
    variable,
)
from orchestrator.telemetry.palette import PHASE_COLOURS

PARTS = ("ack", "dark", "link", "route", "first_packet")
"""The phases of a reconfiguration that follow each other, all of milliseconds; command overlaps ack
and dark, power overlaps link. What the job waits for is seconds, and has a panel of its own."""


def number(
    title: str, what: str, unit: str, query: str, w: int = 4, *, nothing: str = "-", alarm: str = ""
) -> stat.Panel:
    """One figure. alarm: its colour from 1 on; below, it is green."""
    panel = stat.Panel().reduce_options(last_value()).graph_mode(kinds.BigValueGraphMode.NONE)
    panel.color_mode(kinds.BigValueColorMode.VALUE).color_scheme(
        by_threshold() if alarm else one_colour("text")
    )
    if alarm:
        panel.thresholds(steps((None, "green"), (1, alarm)))
    return dress(
        panel,
        title,
        what,
        unit,
        Influx(query),
        w=w,
        h=4,
        nothing=nothing,
    )


def device_phases(w: int, h: int) -> statetimeline.Panel:
    """What each device was doing."""
    reply = {
        phase: models.ValueMappingResult(color=PHASE_COLOURS[phase], text=phase)
        for phase in DEVICE_PHASES
    }
    return dress(
        statetimeline.Panel()
        .mappings([models.ValueMap(options=reply)])
        .show_value(kinds.VisibilityMode.AUTO)
        .merge_values(True)
        .fill_opacity(85)
        .legend(legend()),
        "Devices",
        "Activity of each device, from device_phase. Dark: no light passes. Fault: the device refused a command.",
        "none",
        Influx(
            f'SELECT "phase" FROM "device_phase" WHERE {HERE} AND {DEVICE} GROUP BY "device"',
            alias="$tag_device",
        ),
        w=w,
        h=h,
    )


DEVICE_PHASES = ("idle", "command", "dark", "settle", "up", "fault")


PAUSES = [
    (
        f"Pause, {name}",
        f"{what}, from reconfig.pause_ms.",
        PAUSE,
        pick(f"{value}", "reconfig", f"{HERE} AND {JOB}"),
    )
    for name, what, value in (
        (
            "median",
            "The longest time between the ends of two iterations around a reconfiguration",
            'percentile("pause_ms", 50)',
        ),
        ("longest", "The longest of all", 'max("pause_ms")'),
    )
]
"""The cost of a reconfiguration for the job: title, description, unit, query."""


def bars(
    x: str, orientation: kinds.VizOrientation = kinds.VizOrientation.HORIZONTAL
) -> barchart.Panel:
    """An empty bar chart over the column `x`."""
    return (
        barchart.Panel()
        .orientation(orientation)
        .x_field(x)
        .fill_opacity(85)
        .legend(legend())
        .tooltip(all_series())
    )


def curves() -> timeseries.Panel:
    """An empty chart of thin lines."""
    return (
        timeseries.Panel().draw_style(kinds.GraphDrawStyle.LINE).line_width(1).tooltip(all_series())
    )


def breakdown(w: int, h: int, last: int = 12) -> barchart.Panel:
    """The time of each part of the last reconfigurations."""
    columns = ", ".join(f'"{part}_ms" AS "{part}"' for part in PARTS)
    panel = dress(
        bars("reconfig_id")
        .stacking(kinds.StackingMode.NORMAL)
        .show_value(kinds.VisibilityMode.NEVER),
        "Where the time went",
        f"The phases of the last {last} reconfigurations, newest first, from reconfig: dark is the devices' own switching, link "
        "the carriers coming up, route the hosts' commit. A long dark time is the device's; a long link "
        "or route time is the hosts'.",
        "ms",
        table(
            f'SELECT "reconfig_id", {columns} FROM "reconfig" WHERE {HERE} AND {JOB} ORDER BY time DESC LIMIT {last}'
        ),
        w=w,
        h=h,
        transform=[NO_TIME],
    )
    return coloured_phases(panel, PARTS)


def pauses(w: int, h: int, last: int = 12) -> barchart.Panel:
    """The pauses of the job in the last reconfigurations."""
    return dress(
        bars("reconfig_id")
        .show_value(kinds.VisibilityMode.AUTO)
        .color_scheme(one_colour(PHASE_COLOURS["pause"])),
        "How long the job paused",
        f"The longest time between the ends of two iterations around each of the last {last} reconfigurations, newest first, from "
        "reconfig. Far more than the dark time: the job was launched again, or waited for its own timeouts.",
        PAUSE,
        table(
            f'SELECT "reconfig_id", "pause_ms" AS "pause" FROM "reconfig" WHERE {HERE} AND {JOB} ORDER BY time DESC LIMIT {last}'
        ),
        w=w,
        h=h,
        nothing="no job ran before and after",
        transform=[NO_TIME],
    )


def ring_change_cost(w: int, h: int, last: int = 12) -> barchart.Panel:
    """How long the job paused in the last ring changes, and for what."""
    columns = ", ".join(f'"{cause}_ms" AS "{cause}"' for cause in RING_CHANGE_COLOURS)
    done = f"{HERE} AND {JOB} AND \"ok\" = '1'"
    panel = dress(
        bars("reconfig_id")
        .stacking(kinds.StackingMode.NORMAL)
        .show_value(kinds.VisibilityMode.AUTO),
        "What a ring change cost",
        f"How long the job paused in each of the last {last} ring changes, newest first, from ring_change: dark is the devices' own "
        "switching, commit the hosts' routes, boundary the rest until the first iteration on the new rings ended. Far more than "
        "twice the dark time: look at the slow iterations in `testbed experiment report`.",
        "ms",
        table(
            f'SELECT "reconfig_id", {columns} FROM "ring_change" WHERE {done} ORDER BY time DESC LIMIT {last}'
        ),
        w=w,
        h=h,
        nothing="no job changed its rings",
        transform=[NO_TIME],
    )
    for cause, value in RING_CHANGE_COLOURS.items():
        panel.override_by_name(cause, colour(value))
    return panel


RING_CHANGE_COLOURS = {
    "dark": PHASE_COLOURS["dark"],
    "commit": PHASE_COLOURS["route"],
    "boundary": PHASE_COLOURS["resume"],
}


def series(x: str, y: str) -> xychart.XYSeriesConfig:
    """One line of an XY chart, by the names of its columns."""

    def named(field: str) -> xychart.MatcherConfig:
        return xychart.MatcherConfig().id("byName").options(field)

    sides = (
        xychart.XychartXYSeriesConfigX().matcher(named(x)),
        xychart.XychartXYSeriesConfigY().matcher(named(y)),
    )
    return xychart.XYSeriesConfig().x(sides[0]).y(sides[1])


def distribution(title: str, what: str, column: str, query: str, w: int, h: int) -> xychart.Panel:
    """The share of events that were faster. One query of one column: of several, the library joins
    the rows by their times.
    """
    share = {
        "mode": "index",
        "index": {"asPercentile": True},
        "replaceFields": False,
        "alias": "share",
    }
    panel = dress(
        xychart.Panel()
        .mapping(xy.SeriesMapping.MANUAL)
        .series([series(column, "share")])
        .show(xy.XYShowMode.LINES)
        .line_width(2)
        .legend(legend())
        .tooltip(
            common_b.VizTooltipOptions()
            .mode(kinds.TooltipDisplayMode.SINGLE)
            .sort(kinds.SortOrder.NONE)
        ),
        title,
        what,
        "ms",
        table(query),
        w=w,
        h=h,
        transform=[
            ("sortBy", {"fields": {}, "sort": [{"field": column}]}),
            ("calculateField", share),
        ],
    )
    return panel.override_by_name(
        "share",
        [models.DynamicConfigValue("unit", "percentunit"), models.DynamicConfigValue("max", 1)],
    )


def totals(w: int, h: int) -> xychart.Panel:
    return distribution(
        "How fast reconfigurations are",
        "The share of reconfigurations that were faster than this, from the first command to everything verified (reconfig). "
        "A long tail to the right is what an operator feels.",
        "total",
        pick('"total_ms" AS "total"', "reconfig", f"{HERE} AND {JOB}"),
        w,
        h,
    )


def throughput(w: int, h: int) -> timeseries.Panel:
    return dress(
        curves()
        .fill_opacity(20)
        .span_nulls(False)
        .min(0)
        .color_scheme(one_colour("#5794F2"))
        .legend(legend()),
        "Throughput of the fabric",
        "What all host ports receive together, from the counters in port. A dip at a mark is the reconfiguration; one without a "
        "mark has another cause.",
        "bps",
        Influx(rate("rx_bytes", HERE, times=8), alias="received"),
        w=w,
        h=h,
        interval="200ms",
    )


def topology(w: int, h: int) -> nodegraph.Panel:
    """The circuits as edges between hosts; the nodes follow from them."""
    columns = ", ".join(f'last("{field}") AS "{name}"' for field, name in TOPOLOGY.items())
    inner = f'SELECT {columns} FROM "circuit" WHERE {HERE} GROUP BY "ocs", "id"'
    names = ", ".join(f'"{name}"' for name in TOPOLOGY.values())
    query = (
        f'SELECT {names} FROM ({inner}) WHERE "detail__state" != \'removed\' GROUP BY "ocs", "id"'
    )
    return dress(
        nodegraph.Panel(),
        "Circuits now",
        "Every circuit as it was last recorded (circuit): hosts are the dots, light paths the lines with their rate and loss. A "
        "host without a line is cut off.",
        "none",
        table(query, "edges"),
        w=w,
        h=h,
        nothing="no circuits in this time range",
        transform=[
            (
                "organize",
                {
                    "excludeByName": {"Time": True},
                    "indexByName": {},
                    "renameByName": {
                        "id": "detail__ingress",
                        "ocs": "detail__device",
                        "circuit": "id",
                    },
                },
            )
        ],
    )


TOPOLOGY = {
    "circuit": "circuit",
    "source": "source",
    "target": "target",
    "mainstat": "mainstat",
    "loss_db": "secondarystat",
    "state": "detail__state",
}
"""Fields of `circuit` and their names in a node graph."""


def build() -> board.Dashboard:
    built = dashboard(
        "testbed-live",
        "The lab while it works: circuits, devices, traffic and the job, for a demo wall.",
        [
            variable("run", "Run", "reconfig", "run", of_runs=False, newest=True),
            variable("job", "Job", "reconfig", "job"),
            variable("device", "Device", "device_phase", "device"),
        ],
        since="15m",
        refresh="1s",
    )
    of_job = f"{HERE} AND {JOB}"
    panels = [
        number(
            "Reconfigurations",
            "How many there were in this time, from reconfig.",
            "short",
            pick('sum("value")', "reconfig", of_job),
            w=3,
        ),
        number(
            "Last dark time",
            "How long the devices let no light through in the last reconfiguration, from reconfig.dark_ms.",
            "ms",
            pick('last("dark_ms")', "reconfig", of_job),
            w=3,
        ),
        number(
            "Last pause",
            "The longest time between the ends of two iterations of the job in the last reconfiguration, from reconfig.pause_ms.",
            PAUSE,
            pick('last("pause_ms")', "reconfig", of_job),
        ),
        number(
            "Reconfiguration, median",
            "From the first command to everything verified, from reconfig.total_ms.",
            "ms",
            pick('percentile("total_ms", 50)', "reconfig", of_job),
        ),
        number(
            "Reconfiguration, p99",
            "The slow ones, from reconfig.total_ms. Far above the median: look at the worst cases of the analysis.",
            "ms",
            pick('percentile("total_ms", 99)', "reconfig", of_job),
        ),
        number(
            "Failed",
            "Reconfigurations that did not end well, from reconfig. Look at the run of each.",
            "short",
            pick('sum("value")', "reconfig", f"{of_job} AND \"ok\" = '0'"),
            w=3,
            nothing="0",
            alarm="red",
        ),
        number(
            "Iteration now",
            "The last training step of the job, from iteration.iter_ms.",
            "ms",
            pick('last("iter_ms")', "iteration", of_job),
            w=3,
        ),
        topology(10, 11),
        device_phases(14, 11),
        throughput(24, 8),
        breakdown(10, 9),
        pauses(7, 9),
        totals(7, 9),
        ring_change_cost(24, 7),
    ]
    for panel in panels:
        built.with_panel(panel)
    return built
