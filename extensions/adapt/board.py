"""The dashboard of circuits that follow a job's traffic."""

from __future__ import annotations

from grafana_foundation_sdk.builders import barchart
from grafana_foundation_sdk.builders import dashboard as board
from grafana_foundation_sdk.models import common as kinds

from dashboards.influx import HERE, pick, table
from dashboards.live import bars, number
from dashboards.look import NO_TIME, dashboard, dress, variable
from dashboards.schedules import curve, over

PAGE = ("testbed-demand", "Circuits that follow traffic")
CHANGED = f"{HERE} AND \"what\" = 'changed'"
NO_LOOK = "no adapt service ran"
NO_CHANGE = "no circuits changed"


def outcomes() -> barchart.Panel:
    """What came of the looks."""
    return dress(
        bars("what", kinds.VizOrientation.AUTO).show_value(kinds.VisibilityMode.AUTO),
        "What came of the looks",
        "How many looks at the job's traffic changed its circuits, left them, or were taken back, from adapt. Many that failed: "
        "`testbed status` and its events say why.",
        "short",
        table(f'SELECT count("iteration") AS "looks" FROM "adapt" WHERE {HERE} GROUP BY "what"'),
        w=8,
        h=8,
        nothing=NO_LOOK,
        transform=[NO_TIME],
    )


def build() -> board.Dashboard:
    built = dashboard(
        PAGE[0],
        "Circuits that follow a job's traffic: changes, what was predicted of them, and what they took.",
        [variable("run", "Run", "adapt", "run", of_runs=False, newest=True)],
        since="15m",
        refresh="5s",
    )
    for title, what, unit, query in (
        (
            "Changes by the adapt service",
            "Circuits that were changed for traffic, from adapt.",
            "short",
            pick('count("iteration")', "adapt", CHANGED),
        ),
        (
            "Gain, median",
            "Of these changes, as predicted, from adapt.",
            "none",
            pick('percentile("gain", 50)', "adapt", CHANGED),
        ),
        (
            "Exposed, largest",
            "Of a change, what fell into the job's exchanges, from adapt. It is to be hidden in computing.",
            "ms",
            pick('max("exposed_ms")', "adapt", CHANGED),
        ),
    ):
        built.with_panel(number(title, what, unit, query, w=8))
    for panel in (
        curve(
            "Gain of changes",
            "The largest predicted in each interval, from adapt: an exchange over the circuits of then, divided by that "
            "over the new ones. Near 1: changes hardly pay.",
            "none",
            over("max", "gain", "adapt", CHANGED, word="gain"),
            w=16,
            nothing=NO_CHANGE,
        ),
        outcomes(),
        curve(
            "Exchange, predicted",
            "Of each look, over the circuits of then and over the proposed ones, from adapt. Alike: nothing is to be gained.",
            "ms",
            over("mean", "now_ms", "adapt", HERE, ref="A", word="circuits of then"),
            over("mean", "then_ms", "adapt", HERE, ref="B", word="proposed"),
            nothing=NO_LOOK,
        ),
        curve(
            "What a change by the adapt service took",
            "From the first host's drain to the last commit, of it dark, and what fell into exchanges, from adapt.",
            "ms",
            over("max", "change_ms", "adapt", CHANGED, ref="A", word="change"),
            over("max", "dark_ms", "adapt", CHANGED, ref="B", word="dark"),
            over("max", "exposed_ms", "adapt", CHANGED, ref="C", word="exposed"),
            nothing=NO_CHANGE,
        ),
    ):
        built.with_panel(panel)
    return built
