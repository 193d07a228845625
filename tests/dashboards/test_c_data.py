"""Every query of every dashboard, as Grafana sends it, on a real InfluxDB: it returns rows, and not
too many of them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.telemetry import MEASUREMENTS
from orchestrator.telemetry.reader import read_points
from tests.dashboards import synthetic
from tests.dashboards.grafana import QUERIES, Asked, expanded
from tests.dashboards.server import Influx

RANGE = (synthetic.BEGIN_NS // 1_000_000, synthetic.END_NS // 1_000_000)
CHOSEN = {
    "run": (synthetic.RUNS[1],),
    "device": ("ocs1", "wss1"),
    "job": ("ddp",),
    "host": ("gpu01", "gpu06"),
}


MOST_ROWS = 720
"""Rows of one series over the two minutes of the runs. Samples at 10 Hz that a query hands on one
by one are 1200.
"""


def rows(influx: Influx, database: str, query: Asked, chosen: dict[str, tuple[str, ...]]) -> int:
    """Return the number of rows; a series longer than MOST_ROWS fails."""
    answer = influx.ask(database, expanded(query, *RANGE, chosen))
    lengths = [len(series["values"]) for series in answer["results"][0].get("series", [])]
    assert max(lengths, default=0) <= MOST_ROWS, f"{query}: {max(lengths)} rows of one series"
    return sum(lengths)


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_every_query_returns_rows_and_no_series_longer_than_a_panel_needs(
    query: Asked, influx: Influx, imagined: str
) -> None:
    assert rows(influx, imagined, query, {})


def test_a_query_that_returns_every_sample_is_noticed(influx: Influx, imagined: str) -> None:
    query = 'SELECT "tx_bytes" FROM "port" WHERE $timeFilter GROUP BY "host", "port"'
    with pytest.raises(AssertionError, match="1200 rows of one series"):
        rows(
            influx,
            imagined,
            Asked("testbed-fabric", "every sample", query, "time_series", "A", "", 1000),
            {},
        )


@pytest.mark.parametrize("query", [q for q in QUERIES if "${" in q.query], ids=str)
def test_a_choice_in_the_variables_leaves_rows(query: Asked, influx: Influx, imagined: str) -> None:
    if "'robot'" not in query.query:  # the chosen devices are no robots
        assert rows(influx, imagined, query, CHOSEN)


def test_a_choice_that_nothing_fits_leaves_none(influx: Influx, imagined: str) -> None:
    for query in QUERIES:
        if "${run:regex}" in query.query:
            assert not rows(influx, imagined, query, {"run": ("2026-01-01-0001",)}), str(query)


def test_a_misspelt_field_is_noticed(influx: Influx, imagined: str) -> None:
    (one,) = (q for q in QUERIES if str(q) == "testbed-live: Last dark time A")
    wrong = Asked(
        one.dashboard,
        one.place,
        one.query.replace("dark_ms", "dark_msec"),
        one.format,
        one.ref_id,
        one.alias,
        1000,
    )
    assert not rows(influx, imagined, wrong, {})


def test_the_imagined_runs_have_every_declared_field(tmp_path: Path) -> None:
    seen: dict[str, set[str]] = {}
    for run_dir in synthetic.write(tmp_path):
        for point in read_points(run_dir):
            seen.setdefault(point.measurement, set()).update(point.fields)
    assert seen == {name: set(known.fields) for name, known in MEASUREMENTS.items()}


def test_what_is_counted_is_right(influx: Influx, imagined: str) -> None:
    def value(place: str) -> float:
        (query,) = (q for q in QUERIES if str(q) == place)
        answer = influx.ask(imagined, expanded(query, *RANGE, {}))
        return float(answer["results"][0]["series"][0]["values"][0][1])

    assert value("testbed-live: Reconfigurations A") == 20
    assert value("testbed-live: Failed A") == 2
    assert value("testbed-reconfiguration: The ten ring changes that cost most A") == 100, (
        "the least of the ten"
    )
    assert value("testbed-fabric: Links down A") == 1
    assert value("testbed-fabric: Checks failed A") == 2
    assert value("testbed-fabric: Largest loss A") == pytest.approx(1.4 + 0.59)


def test_removed_circuits_are_not_drawn(influx: Influx, imagined: str) -> None:
    (query,) = (q for q in QUERIES if q.ref_id == "edges")
    answer = influx.ask(imagined, expanded(query, *RANGE, {}))
    assert sorted(series["tags"]["id"] for series in answer["results"][0]["series"]) == [
        "1",
        "2",
        "3",
        "4",
        "5",
    ]
    assert all(
        re.match(r"gpu\d\d:p1->", series["values"][0][1])
        for series in answer["results"][0]["series"]
    )
