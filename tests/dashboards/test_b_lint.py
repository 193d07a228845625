"""The conventions of the dashboards: portable queries of declared names, units, descriptions,
links, room for every panel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from orchestrator.telemetry import MEASUREMENTS
from orchestrator.telemetry.palette import PHASE_COLOURS
from tests.dashboards.grafana import DASHBOARDS, QUERIES, Asked, panels

ALL = [(name, panel) for name, dashboard in DASHBOARDS.items() for panel in panels(dashboard)]
IDS = [f"{name}: {panel['title']}" for name, panel in ALL]

AGGREGATES = "count distinct mean median sum stddev spread min max first last percentile top bottom"
CHANGES = "derivative non_negative_derivative difference non_negative_difference cumulative_sum moving_average elapsed"
FUNCTIONS = {*AGGREGATES.split(), *CHANGES.split(), "fill", "tz", "time"}
TEXTS = (
    "select from where and or group by order desc limit as with key show tag values ms s null none"
)
NEVER = "INTO SLIMIT SOFFSET INTEGRAL SAMPLE HOLT_WINTERS SERIES CARDINALITY DATABASES DROP DELETE CREATE"
FORBIDDEN = re.compile(rf"\b({'|'.join(NEVER.split())})\b", re.IGNORECASE)


def complaints(query: str) -> list[str]:
    """What in a query is not portable, or not declared."""
    found = [f"{word} is not portable" for word in FORBIDDEN.findall(query)]
    plain = re.sub(r"'[^']*'|\$\{\w+:regex\}|=~ /[^/]*/", " ", query)
    measurements = re.findall(r'FROM "(\w+)"', plain)
    found += [f"no measurement {name}" for name in measurements if name not in MEASUREMENTS]
    if found:
        return found
    (name,) = set(measurements)
    known = {*MEASUREMENTS[name].tags, *MEASUREMENTS[name].fields}
    given = set(re.findall(r'AS "(\w+)"', plain))
    quoted = set(re.findall(r'"(\w+)"', plain)) - {name}
    found += [f"{name} has no {word}" for word in sorted(quoted - known - given)]
    argv = set(re.findall(r"\b[A-Za-z_]\w*", re.sub(r'"[^"]*"|\$\w+', " ", plain)))
    found += [
        f"{word} is not portable"
        for word in sorted(argv)
        if word.lower() not in {*FUNCTIONS, *TEXTS.split()}
    ]
    called = re.findall(r"([A-Za-z_]\w*)\(", re.sub(r'"[^"]*"', " ", plain))
    return found + [f"{word}() is not portable" for word in called if word.lower() not in FUNCTIONS]


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_a_query_is_portable_and_asks_for_what_is_declared(query: Asked) -> None:
    assert not complaints(query.query)


@pytest.mark.parametrize(
    "query",
    [
        'SELECT integral("total_ms") FROM "reconfig" WHERE $timeFilter',
        'SELECT "total_ms" INTO "x" FROM "reconfig" WHERE $timeFilter',
        'SELECT "total_msec" FROM "reconfig" WHERE $timeFilter',
        'SELECT "total_ms" FROM "reconfigs" WHERE $timeFilter',
        'SHOW SERIES FROM "reconfig"',
        'SELECT mode("total_ms") FROM "reconfig" WHERE $timeFilter',
    ],
)
def test_a_query_that_is_not_is_noticed(query: str) -> None:
    assert complaints(query)


def test_every_query_is_limited_to_the_time_shown_and_the_runs_chosen() -> None:
    for query in QUERIES:
        inner = query.query.rpartition("FROM (")[2] or query.query
        assert query.place == "variable run" or '"run" =~ /^${run:regex}$/' in inner, str(query)
        assert query.place.startswith("variable") or "$timeFilter" in inner, str(query)
        assert (
            query.query.count("FROM (") + 1 == query.query.count("$timeFilter")
            or "FROM (" not in query.query
            or "$timeFilter" in inner
        )


@pytest.mark.parametrize(("name", "panel"), ALL, ids=IDS)
def test_a_panel_says_what_it_shows_in_which_unit_and_what_when_empty(
    name: str, panel: dict[str, Any]
) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    assert panel["title"] and len(panel["title"]) < 40
    assert len(panel["description"]) > 40 and panel["description"].endswith(".")
    assert defaults["unit"] and defaults["noValue"]
    assert panel["datasource"] == {"type": "influxdb", "uid": "${ds}"} and panel["targets"]
    used = {q for target in panel["targets"] for q in re.findall(r'FROM "(\w+)"', target["query"])}
    assert any(measurement in panel["description"] for measurement in used), (
        "the description names the measurement"
    )


def test_titles_ids_and_names_of_queries_are_unique() -> None:
    for name, dashboard in DASHBOARDS.items():
        every = list(panels(dashboard))
        assert len({p["title"] for p in every}) == len(every) <= 20, name
        rows = [p["id"] for p in dashboard["panels"] if p["type"] == "row"]
        assert sorted([*(p["id"] for p in every), *rows]) == list(
            range(1, len(every) + len(rows) + 1)
        )
        assert all(len({t["refId"] for t in p["targets"]}) == len(p["targets"]) for p in every)


def test_no_panel_covers_another_and_none_leaves_the_page() -> None:
    for name, dashboard in DASHBOARDS.items():
        places = [{"title": p["title"], **p["gridPos"]} for p in dashboard["panels"]]
        assert all(p["gridPos"]["w"] == 24 for p in dashboard["panels"] if p.get("repeat")), (
            "repeats fill the page's width"
        )
        assert all(p["x"] + p["w"] <= 24 for p in places)
        for a, b in combinations(places, 2):
            apart = (
                a["x"] + a["w"] <= b["x"]
                or b["x"] + b["w"] <= a["x"]
                or a["y"] + a["h"] <= b["y"]
                or b["y"] + b["h"] <= a["y"]
            )
            assert apart, f"{name}: {a['title']} and {b['title']}"


def test_dashboards_have_stable_names_and_the_conventions() -> None:
    assert set(DASHBOARDS) == {
        "testbed-live",
        "testbed-reconfiguration",
        "testbed-fabric",
        "testbed-training",
        "testbed-schedules",
        "testbed-traffic",
        "testbed-demand",
    }
    for name, dashboard in DASHBOARDS.items():
        assert dashboard["uid"] == name and "id" not in dashboard and "version" not in dashboard
        assert (
            dashboard["editable"] is False
            and dashboard["timezone"] == "utc"
            and dashboard["graphTooltip"] == 1
        )
        assert dashboard["tags"] == ["testbed", "generated"] and dashboard["description"]
        assert all(
            panel.get("collapsed") for panel in dashboard["panels"] if panel["type"] == "row"
        )


def test_the_variables_are_those_wanted_and_every_one_is_used_and_every_one_used_is_there() -> None:
    for name, dashboard in DASHBOARDS.items():
        variables = {v["name"]: v for v in dashboard["templating"]["list"]}
        assert (
            variables["ds"]["query"] == "influxdb"
            and variables["ds"]["current"]["value"] == "testbed-influx"
        )
        asked = {
            q
            for query in QUERIES
            if query.dashboard == name
            for q in re.findall(r"\$\{(\w+):regex\}", query.query)
        }
        assert asked == set(variables) - {"ds"}, name
        for one in (v for v in variables.values() if v["type"] == "query"):
            assert (
                one["refresh"] == 2
                and one["multi"]
                and one["includeAll"]
                and one["allValue"] == ".*"
            )


def urls(thing: Any) -> Iterator[str]:
    if isinstance(thing, dict):
        yield from ([thing["url"]] if isinstance(thing.get("url"), str) else [])
        for value in thing.values():
            yield from urls(value)
    elif isinstance(thing, list):
        for value in thing:
            yield from urls(value)


def test_links_lead_to_our_dashboards_and_keep_the_time() -> None:
    for name, dashboard in DASHBOARDS.items():
        assert {re.match(r"/d/([\w-]+)", link["url"])[1] for link in dashboard["links"]} == set(
            DASHBOARDS
        ) - {name}  # type: ignore[index]
        for url in urls(dashboard):
            target = re.match(r"/d/([\w-]+)\?\$\{__url_time_range\}&(.*)$", url)
            assert target and target[1] in DASHBOARDS, url
            wanted = set(re.findall(r"var-(\w+)=", target[2])) | set(
                re.findall(r"\$\{(\w+):queryparam\}", target[2])
            )
            assert wanted and wanted <= {
                v["name"] for v in DASHBOARDS[target[1]]["templating"]["list"]
            }, url


def test_every_dashboard_marks_reconfigurations_turns_and_notes() -> None:
    for dashboard in DASHBOARDS.values():
        marks, ring_changes, notes = dashboard["annotations"]["list"]
        assert marks["target"]["textColumn"] == "reconfig_id" and marks["enable"]
        assert (
            ring_changes["target"]["textColumn"] == "paused_ms"
            and ring_changes["enable"]
            and ring_changes["iconColor"] != marks["iconColor"]
        )
        assert notes["target"]["tags"] == ["testbed-note"] and notes["enable"]


def test_a_phase_has_one_colour_everywhere() -> None:
    for name, panel in ALL:
        for override in panel["fieldConfig"]["overrides"]:
            field = override["matcher"]["options"]
            given = [
                p["value"]["fixedColor"]
                for p in override["properties"]
                if p["id"] == "color" and "fixedColor" in p["value"]
            ]
            assert not given or field not in PHASE_COLOURS or given == [PHASE_COLOURS[field]], (
                f"{name}: {panel['title']}"
            )
        for mapping in panel["fieldConfig"]["defaults"].get("mappings", []):
            assert {
                k: v["color"] for k, v in mapping["options"].items()
            }.items() <= PHASE_COLOURS.items()
