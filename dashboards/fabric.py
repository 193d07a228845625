"""Fabric health: light, loss, links, drops; what drifts before it breaks."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as board
from grafana_foundation_sdk.builders import timeseries
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as models

from dashboards import influx
from dashboards.influx import DEVICE, HERE, HOST, Influx, rate
from dashboards.live import curves, device_phases, number
from dashboards.look import DBM, NO_TIME, dashboard, dress, legend, rows, variable

PORTS = f"{HERE} AND {HOST}"
LIGHT = f"{HERE} AND {DEVICE}"
STEPS = f'SELECT difference("oper") AS "step" FROM "port" WHERE {PORTS} GROUP BY "host", "port"'


def lines(
    title: str,
    what: str,
    unit: str,
    *queries: Influx,
    w: int = 12,
    h: int = 8,
    interval: str = "1s",
    over: bool | float = True,
) -> timeseries.Panel:
    """Curves over time. over: whether they are drawn across a time without values, or only across
    one that is shorter (ms).
    """
    return dress(
        curves()
        .fill_opacity(0)
        .show_points(kinds.VisibilityMode.AUTO)
        .span_nulls(over)
        .legend(legend("lastNotNull", "min", "max", right=True)),
        title,
        what,
        unit,
        *queries,
        w=w,
        h=h,
        interval=interval,
    )


def mean(field: str, measurement: str, where: str, *tags: str, fill: str = "none") -> Influx:
    """A field's mean per interval, one series per set of `tags`. fill: the value of empty
    intervals.
    """
    grouped = "".join(f', "{tag}"' for tag in tags)
    alias = " ".join(f"$tag_{tag}" for tag in tags) or "$col"
    return Influx(
        f'SELECT mean("{field}") AS "{field}" FROM "{measurement}" WHERE {where} GROUP BY time($__interval){grouped} fill({fill})',
        alias=alias,
    )


def build() -> board.Dashboard:
    built = dashboard(
        "testbed-fabric",
        "Light, loss, carriers and drops of the fabric: what drifts, what flaps, what loses.",
        [
            variable("run", "Run", "reconfig", "run", of_runs=False, newest=True),
            variable("device", "Device", "optical", "device"),
            variable("host", "Host", "port", "host"),
        ],
        since="6h",
        refresh="10s",
    )
    down = f'SELECT last("oper") AS "oper" FROM "port" WHERE {PORTS} GROUP BY "host", "port"'
    figures = [
        number(
            "Links down",
            "Host ports whose last sample had no carrier, from port. Ports without a circuit are dark by design.",
            "short",
            f'SELECT count("oper") FROM ({down}) WHERE "oper" = 0',
            nothing="0",
            alarm="red",
        ),
        number(
            "Carrier lost",
            "How often a carrier went away in this time, from port; a reconfiguration drops some by design.",
            "short",
            f'SELECT count("step") FROM ({STEPS}) WHERE "step" < 0',
            nothing="0",
        ),
        number(
            "Weakest light",
            "The lowest power received by a device's port, from optical.rx_dbm. Below the receiver's limit links fail.",
            DBM,
            f'SELECT min("rx_dbm") FROM "optical" WHERE {LIGHT}',
        ),
        number(
            "Largest loss",
            "The circuit that loses most, from circuit.loss_db. A dirty connector adds tenths of a dB over weeks.",
            "dB",
            f'SELECT max("loss_db") FROM "circuit" WHERE {HERE}',
        ),
        number(
            "Packets dropped",
            "What host ports dropped in this time, from port.",
            "short",
            f'SELECT sum("lost") FROM (SELECT spread("drops") AS "lost" FROM "port" WHERE {PORTS} GROUP BY "host", "port")',
            alarm="orange",
        ),
        number(
            "Checks failed",
            "Rungs of the verification ladder that did not pass, from verify.",
            "short",
            f'SELECT count("ok") FROM "verify" WHERE {HERE} AND "ok" = 0',
            nothing="0",
            alarm="red",
        ),
    ]
    for panel in figures:
        built.with_panel(panel)
    built.with_panel(
        lines(
            "Light received",
            "Power that enters each port of a device, from optical. A slow decline is dirt or bending, a step is a moved fibre.",
            DBM,
            mean("rx_dbm", "optical", LIGHT, "device", "port"),
        )
    )
    built.with_panel(
        lines(
            "Light sent",
            "Power that leaves each port of a device, from optical. Falls with the input of the same circuit, or "
            "the switch itself loses.",
            DBM,
            mean("tx_dbm", "optical", LIGHT, "device", "port"),
        )
    )
    built.with_panel(
        lines(
            "Loss of circuits",
            "What each circuit loses at a device, measured or expected, from circuit; the port is its ingress. Should be flat.",
            "dB",
            mean("loss_db", "circuit", HERE, "ocs", "id"),
        )
    )
    drift = ", ".join(
        f'{how}("loss_db") AS "{name}"'
        for how, name in (("spread", "drift"), ("min", "least"), ("max", "most"), ("last", "now"))
    )
    built.with_panel(
        dress(
            rows(),
            "Drift of loss",
            "How much the loss behind each ingress port changed in this time, from circuit. More than 0.4 dB: clean the connector.",
            "dB",
            influx.table(f'SELECT {drift} FROM "circuit" WHERE {HERE} GROUP BY "ocs", "id"'),
            w=12,
            transform=[
                NO_TIME,
                ("sortBy", {"fields": {}, "sort": [{"field": "drift", "desc": True}]}),
            ],
        ).override_by_name(
            "drift",
            [
                models.DynamicConfigValue(
                    "thresholds",
                    {
                        "mode": "absolute",
                        "steps": [
                            {"color": "green", "value": None},
                            {"color": "orange", "value": 0.4},
                        ],
                    },
                ),
                models.DynamicConfigValue("color", {"mode": "thresholds"}),
            ],
        )
    )
    built.with_panel(
        dress(
            rows(),
            "Carrier lost, by port",
            "How often each host port lost its carrier, from port. One port far above the others has a bad fibre or transceiver.",
            "short",
            influx.table(
                f'SELECT count("step") AS "lost" FROM ({STEPS}) WHERE "step" < 0 GROUP BY "host", "port"'
            ),
            w=8,
            nothing="no carrier was lost",
            transform=[
                NO_TIME,
                ("sortBy", {"fields": {}, "sort": [{"field": "lost", "desc": True}]}),
            ],
        )
    )
    built.with_panel(
        lines(
            "Drops",
            "Packets dropped a second by all host ports together, from port. Should be zero away from marks.",
            "pps",
            Influx(rate("drops", PORTS), alias="dropped"),
            w=8,
        )
    )
    built.with_panel(
        lines(
            "Damaged packets",
            "Packets a second that arrived damaged or could not be sent, from port. Lasting ones mean a fibre or transceiver.",
            "pps",
            Influx(rate("errors", PORTS), alias="damaged"),
            w=8,
        )
    )
    built.with_panel(device_phases(24, 7))
    built.with_row(
        board.Row("Clocks")
        .collapsed(True)
        .with_panel(
            lines(
                "Clock offsets",
                "How far each host's clock is from the operator's, from clock. Above a millisecond, times of hosts "
                "cannot be compared.",
                "ns",
                mean("offset_ns", "clock", PORTS, "host"),
                w=12,
            )
        )
    )
    return built
