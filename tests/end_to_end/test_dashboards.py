"""The dashboards' queries on the journals of real runs, in a real InfluxDB."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path

import pytest

from orchestrator.telemetry.reader import read_points
from tests.dashboards.grafana import QUERIES, Asked, expanded
from tests.dashboards.server import Influx, running_influx
from tests.end_to_end.conftest import Lab, ring

__all__ = ["running_influx"]
pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
]

BAD_NEWS = re.compile(r"\"ok\" = (0|'0')|\"error\" != ''|\"oper\" = 0|\"step\" < 0")
"""Conditions of queries that bring rows only when something went wrong."""


def answerable(query: Asked, recorded: dict[str, set[str]]) -> bool:
    """Whether runs that recorded these fields have an answer: some field that the query shows is
    among them.
    """
    if query.query.startswith("SHOW"):
        return re.findall(r'FROM "(\w+)"', query.query)[0] in recorded
    shown = re.findall(
        r'SELECT (.*?) FROM "(\w+)"', query.query.rpartition("FROM (")[2] or query.query
    )
    (what, measurement) = shown[0]
    return bool(
        set(re.findall(r'"(\w+)"', what)) & recorded.get(measurement, set())
    ) and not BAD_NEWS.search(query.query)


@pytest.mark.long
def test_two_real_reconfigurations_show_wherever_something_was_recorded(
    lab: Lab, influx: Influx
) -> None:
    plans = [
        lab.plan("ring", ring((1, 2))),
        lab.plan("moved", [*ring((1, 2))[1:], ("gpu01:p3", "gpu02:p3")]),
    ]
    reports = [lab.up(plan).must() for plan in plans]
    influx.make("real")
    recorded: dict[str, set[str]] = defaultdict(set)
    times = []
    for run_dir in {Path(report["journal"]).parent for report in reports}:
        influx.load("real", run_dir)
        for point in read_points(run_dir):
            recorded[point.measurement] |= set(point.fields)
            times.append(point.time_ns // 1_000_000)
    empty, asked = [], 0
    for query in QUERIES:
        answer = influx.ask("real", expanded(query, min(times) - 1000, max(times) + 1000, {}))
        if answerable(query, recorded):
            asked += 1
            empty += [] if answer["results"][0].get("series") else [f"{query}: {query.query}"]
    assert not empty, "\n".join(empty)
    assert {
        "reconfig",
        "reconfig_device",
        "device_phase",
        "circuit",
        "port",
        "phase",
        "verify",
        "optical",
    } <= recorded.keys()
    # these runs turned no slots, and nothing knew their job's traffic
    elsewhere = ("testbed-schedules", "testbed-traffic")
    assert asked > sum(query.dashboard not in elsewhere for query in QUERIES) / 2
