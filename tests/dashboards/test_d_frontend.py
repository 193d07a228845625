"""What InfluxDB answers, through Grafana's own data library: transformations, field types, units,
the text that is shown.
"""

from __future__ import annotations

import json
import subprocess
import sys
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.dashboards.grafana import DASHBOARDS, filled
from tests.dashboards.server import Influx
from tests.dashboards.test_c_data import RANGE

NODE = Path(__file__).with_name("node")
VERSION = json.loads((NODE / "package.json").read_text())["dependencies"]["@grafana/data"]
WRONG_STEP, WRONG_UNIT = "a misspelt transformation", "a misspelt unit"
Shown = dict[str, dict[str, Any]]


def shown(given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a panel is given to draw. Nothing of it is fetched here: `make test` runs `npm ci`
    before.
    """
    node = Path(sys.executable).with_name("node")
    if not node.exists() or not (NODE / "node_modules" / "@grafana" / "data").is_dir():
        pytest.skip("not installed: make frontend (Grafana's library saw nothing)")
    done = subprocess.run(
        [node, "frames.cjs"],
        cwd=NODE,
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result: list[dict[str, Any]] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="session")
def given(influx: Influx, imagined: str) -> dict[str, dict[str, Any]]:
    """Every panel with the frames Grafana's backend would send it."""
    return {
        f"{name}: {panel['title']}": panel
        for name, dashboard in DASHBOARDS.items()
        for panel in filled(dashboard, *RANGE, partial(influx.ask, imagined))
    }


@pytest.fixture(scope="session")
def drawn(given: dict[str, dict[str, Any]]) -> Shown:
    """What is drawn of each, and of two that are wrong: starting Node and the library takes longer
    than all panels.
    """
    wrong_step, wrong_unit = (
        deepcopy(given["testbed-live: How fast reconfigurations are"]) for _ in range(2)
    )
    wrong_step["transformations"][0]["id"] = "sortby"
    wrong_unit["fieldConfig"]["defaults"]["unit"] = "millis"
    wanted = given | {WRONG_STEP: wrong_step, WRONG_UNIT: wrong_unit}
    return dict(zip(wanted, shown(list(wanted.values())), strict=True))


def fields(panel: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {field["name"]: field for frame in panel["frames"] for field in frame["fields"]}


def test_the_library_is_the_one_named(drawn: Shown) -> None:
    installed = json.loads(
        (NODE / "node_modules" / "@grafana" / "data" / "package.json").read_text()
    )
    assert installed["version"] == VERSION == "13.2.3"


def test_every_panel_passes_with_its_transformations_and_units(drawn: Shown) -> None:
    for name, panel in ((name, drawn[name]) for name in drawn.keys() - {WRONG_STEP, WRONG_UNIT}):
        assert "error" not in panel, f"{name}: {panel.get('error')}"
        assert panel["frames"] and all(
            field["length"] for frame in panel["frames"] for field in frame["fields"]
        ), name
        unknown = [f["unit"] for f in fields(panel).values() if not f["unitKnown"]]
        assert not unknown, f"{name}: {unknown}"
        numbers = [f for f in fields(panel).values() if f["type"] == "number"]
        assert numbers or name.endswith((": Devices", ": What devices refused")), name
        assert all(f["text"] and "NaN" not in f["text"] for f in numbers), name


def test_figures_carry_their_unit(drawn: Shown) -> None:
    texts = {
        name: next(iter(reversed(fields(drawn[name]).values())))["text"]
        for name in drawn.keys() - {WRONG_STEP}
    }
    assert texts["testbed-live: Reconfigurations"] == "20"
    assert texts["testbed-live: Last dark time"] == "36 ms"
    assert texts["testbed-fabric: Weakest light"] == "-1.50 dBm"
    assert texts["testbed-fabric: Largest loss"] == "1.99 dB"
    assert texts["testbed-training: Bandwidth"] == "1.65 Gb/s"
    assert texts["testbed-live: Throughput of the fabric"] == "1.44 Gb/s"


def test_a_distribution_climbs_from_nothing_to_all(drawn: Shown) -> None:
    for name, column in {
        "testbed-live: How fast reconfigurations are": "total",
        "testbed-reconfiguration: Dark time of ${family}": "dark",
    }.items():
        (frame,) = drawn[name]["frames"]
        by_name = {field["name"]: field for field in frame["fields"]}
        assert (
            by_name[column]["values"] == sorted(by_name[column]["values"])
            and by_name[column]["unit"] == "ms"
        )
        share = by_name["share"]
        assert (
            share["values"][0] == 0
            and share["unit"] == "percentunit"
            and share["text"].endswith("%")
        )
        assert share["values"] == sorted(share["values"])


def test_the_topology_is_edges_with_the_columns_a_node_graph_wants(drawn: Shown) -> None:
    (frame,) = drawn["testbed-live: Circuits now"]["frames"]
    assert frame["refId"] == "edges"
    by_name = {field["name"]: field for field in frame["fields"]}
    assert {
        "id",
        "source",
        "target",
        "mainstat",
        "secondarystat",
    } <= by_name.keys() and "Time" not in by_name
    assert len(set(by_name["id"]["values"])) == by_name["id"]["length"] == 5


def test_devices_are_one_line_each_with_their_phases(drawn: Shown) -> None:
    panel = drawn["testbed-live: Devices"]
    lines = [frame["fields"][1] for frame in panel["frames"]]
    assert {line["name"] for line in lines} == {"ocs1", "ocs2", "robot1", "wss1"}
    assert all(
        line["type"] == "string" and set(line["values"]) == {"command", "dark", "settle", "up"}
        for line in lines
    )


def test_a_chart_of_bars_names_its_bars(drawn: Shown) -> None:
    (frame,) = drawn["testbed-live: Where the time went"]["frames"]
    assert [f["type"] for f in frame["fields"]] == ["string", *["number"] * 5] and frame["fields"][
        0
    ]["name"] == "reconfig_id"
    assert frame["fields"][0]["length"] == 12 and all(
        f["color"]["mode"] == "fixed" for f in frame["fields"][1:]
    )
    (frame,) = drawn["testbed-training: Before and after each move"]["frames"]
    names = {f["name"]: f["values"] for f in frame["fields"]}
    assert len(names["run"]) == 2 and names["p50"][1] < names["p50"][0]


def test_wrong_ids_are_noticed(drawn: Shown) -> None:
    assert drawn[WRONG_STEP]["error"] == "Error: unknown transformation sortby"
    assert not fields(drawn[WRONG_UNIT])["total"]["unitKnown"]
