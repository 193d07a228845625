"""Slots: circuits that keep moving while jobs use them."""

from __future__ import annotations

from grafana_foundation_sdk.builders import barchart, timeseries
from grafana_foundation_sdk.builders import dashboard as board
from grafana_foundation_sdk.models import common as kinds

from dashboards.fabric import lines
from dashboards.influx import DEVICE, HERE, HOST, Influx, pick, table
from dashboards.live import bars, number
from dashboards.look import NO_TIME, colour, dashboard, dress, variable
from orchestrator.telemetry.palette import PHASE_COLOURS

OURS = f"{HERE} AND {DEVICE}"
HOSTS = f"{HERE} AND {HOST}"


def over(
    what: str, field: str, name: str, where: str, *by: str, ref: str = "A", word: str = ""
) -> Influx:
    """A curve per value of the tags `by`: an aggregate over each interval."""
    groups = "".join(f', "{tag}"' for tag in by)
    alias = " ".join([*(f"$tag_{tag}" for tag in by), word]).strip()
    return Influx(
        f'SELECT {what}("{field}") FROM "{name}" WHERE {where} GROUP BY time($__interval){groups} fill(none)',
        ref,
        alias=alias,
    )


def slots_table() -> barchart.Panel:
    """Per device: darkness and lateness of its slots."""
    columns = ", ".join(
        f'percentile("{field}", {n}) AS "{name}"'
        for field, n, name in (
            ("dark_ms", 50, "dark"),
            ("dark_ms", 99, "dark 99 %"),
            ("late_ms", 50, "late"),
            ("late_ms", 99, "late 99 %"),
        )
    )
    panel = dress(
        bars("device", kinds.VizOrientation.AUTO).show_value(kinds.VisibilityMode.AUTO),
        "Darkness and lateness of devices",
        "Of each device in this time, from slot: first command to new state, and how much later than planned the slot before it "
        "ended. One that is dark longer than the others makes the dark window of all.",
        "ms",
        table(f'SELECT {columns} FROM "slot" WHERE {OURS} GROUP BY "device"'),
        w=12,
        h=8,
        nothing="no slots changed",
        transform=[NO_TIME],
    )
    return panel.override_by_name("dark", colour(PHASE_COLOURS["dark"])).override_by_name(
        "late", colour(PHASE_COLOURS["pause"])
    )


def curve(
    title: str,
    what: str,
    unit: str,
    *queries: Influx,
    w: int = 12,
    nothing: str = "no slots changed",
) -> timeseries.Panel:
    """Curves of one panel."""
    return lines(title, what, unit, *queries, w=w).no_value(nothing)


def build() -> board.Dashboard:
    built = dashboard(
        "testbed-schedules",
        "Schedules whose slots change: duty, darkness, lateness.",
        [
            variable("run", "Run", "slot", "run", of_runs=False, newest=True),
            variable("device", "Device", "slot", "device"),
            variable("host", "Host", "slot_host", "host"),
        ],
        since="15m",
        refresh="5s",
    )
    for title, what, unit, query in (
        (
            "Duty",
            "The share of light of the latest 100 slots, from slot.",
            "percentunit",
            pick('last("duty")', "slot", OURS),
        ),
        (
            "Dark, median",
            "First command to new state of a device, from slot.",
            "ms",
            pick('percentile("dark_ms", 50)', "slot", OURS),
        ),
        (
            "Dark, p99",
            "Slow changes, from slot. The dark window must be longer.",
            "ms",
            pick('percentile("dark_ms", 99)', "slot", OURS),
        ),
        (
            "Late, p99",
            "How much later than planned slots ended, from slot. Beyond the guard hosts send into the dark.",
            "ms",
            pick('percentile("late_ms", 99)', "slot", OURS),
        ),
        (
            "Edge error, largest",
            "How much later than a host expected its slot ended, from slot_host.",
            "ms",
            pick('max("edge_error_ms")', "slot_host", HOSTS),
        ),
        (
            "Dark at a host, longest",
            "From the first carrier lost to the last of the new slot, from slot_host.",
            "ms",
            pick('max("dark_ms")', "slot_host", HOSTS),
        ),
    ):
        built.with_panel(number(title, what, unit, query, w=4))
    for panel in (
        curve(
            "Duty over time",
            "The share of light of the latest 100 slots, from slot. A fall is a slot change that was left out, or a slower device.",
            "percentunit",
            over("mean", "duty", "slot", OURS, "plan"),
        )
        .min(0)
        .max(1),
        slots_table(),
        curve(
            "Darkness of each slot change",
            "The longest in each interval, from slot: first command to new state, one line per device.",
            "ms",
            over("max", "dark_ms", "slot", OURS, "device"),
        ),
        curve(
            "Late ends of slots",
            "The latest in each interval, from slot, one line per device. Above the guard, packets are lost.",
            "ms",
            over("max", "late_ms", "slot", OURS, "device"),
        ),
        curve(
            "Edges that hosts expected",
            "The largest error in each interval, from slot_host, one line per host: one that is apart from the others has a "
            "slow carrier or a busy processor.",
            "ms",
            over("max", "edge_error_ms", "slot_host", HOSTS, "host"),
        ),
        curve(
            "Darkness seen by hosts",
            "From the first carrier lost to the last of the new slot, the longest in each interval, from slot_host.",
            "ms",
            over("max", "dark_ms", "slot_host", HOSTS, "host"),
        ),
    ):
        built.with_panel(panel)
    return built
