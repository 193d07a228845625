"""`testbed devices cables` and `losses`, and the picture of a traced path."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from optics import Circuit, CrossConnect, HostPort, Port
from orchestrator.cli.cables import drawn
from orchestrator.fabric.lightpath import LightMap, loss_db
from orchestrator.session import load_lab
from orchestrator.verify.power import MeterPoint, Reading
from orchestrator.verify.trace import TraceReport, traced
from tests.house.repository import ROOT

A, B = HostPort("gpu01", 1), HostPort("gpu02", 1)
PATH = CrossConnect(Port("ocs1", "1"), Port("ocs1", "18"))
SONIC = {
    "OCS_FACTORY_INSERTION_LOSS_TABLE|1-18|193.100|25.00": {
        "loss_dB": "1.25",
        "accuracy_dB": "0.10",
    },
    "OCS_FACTORY_INSERTION_LOSS_TABLE|1-18|196.100|25.00": {"loss_dB": "1.43"},
    "OCS_FACTORY_INSERTION_LOSS_TABLE|2-17|193.100|25.00": {
        "type": "hash",
        "value": {"loss_dB": "0.9"},
    },
    "OTHER_TABLE|x": {},
}


@pytest.fixture
def lab(cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An inventory of its own."""
    folder = tmp_path / "lab"
    shutil.copytree(ROOT / "inventory" / "emulated", folder)
    monkeypatch.setenv("TESTBED_INVENTORY", str(folder))
    return folder


def test_the_losses_of_a_factory_are_what_is_expected_of_each_path(
    cli: Any, lab: Path, tmp_path: Path
) -> None:
    file = tmp_path / "ocs1.json"
    file.write_text(json.dumps(SONIC))
    before = load_lab(lab)
    result = cli("devices", "losses", file, "--device", "ocs1")
    assert result.code == 0 and result.out.startswith("2 paths of ocs1, 0.90 to 1.43 dB")
    now = load_lab(lab)
    assert now.pass_loss_db(PATH) == 1.43, "the greatest of the frequencies"
    other = CrossConnect(Port("ocs1", "3"), Port("ocs1", "18"))
    assert now.pass_loss_db(other) == before.pass_loss_db(other) == now.insertion_loss_db("ocs1")
    assert loss_db(A, B, (PATH,), now) == pytest.approx(
        loss_db(A, B, (PATH,), before) + 1.43 - before.insertion_loss_db("ocs1")
    )
    file.write_text("ingress,egress,loss_db\n1,17,0.5\n")
    assert cli("devices", "losses", file, "--device", "ocs2").code == 0
    assert load_lab(lab).pass_loss_db(PATH) == 1.43, "of other devices they stay"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"OCS_FACTORY_INSERTION_LOSS": {"1-18": {"loss_dB": "much"}}}', "a loss of 0 to 60 dB"),
        ('{"OCS_FACTORY_INSERTION_LOSS": {"118": {"loss_dB": "1"}}}', "a path such as 1A-1B"),
        ("{", "no JSON"),
        ("{}", "no path is in it"),
        ("ingress,egress,loss\n1,18,1\n", "column loss_db is missing"),
        ("ingress,egress,loss_db\n1,18,1\n1,18,2\n", "ocs.x:3: 1 -> 18 is given twice"),
        ("ingress,egress,loss_db\n1,18,nan\n", "not 'nan'"),
        (
            "ingress,egress,loss_db\n1A,1B,1.0\n",
            "none of its paths (1A -> 1B, ...) joins two ports",
        ),
    ],
)
def test_a_table_that_cannot_be_right_changes_nothing(
    cli: Any, lab: Path, tmp_path: Path, text: str, why: str
) -> None:
    file = tmp_path / "ocs.x"
    file.write_text(text)
    result = cli("devices", "losses", file, "--device", "ocs1")
    assert result.code == 3 and why in result.err and "nothing was changed" in result.err
    assert not (lab / "losses.csv").exists()


def test_a_file_of_losses_that_is_wrong_is_a_wrong_inventory(cli: Any, lab: Path) -> None:
    (lab / "losses.csv").write_text("device,ingress,egress,loss_db\nocs9,1,18,1.0\n")
    result = cli("devices", "cables")
    assert result.code == 3 and "losses.csv:2: device ocs9 is not in the lab" in result.err


def test_cables_are_listed_with_label_ends_and_panels(cli: Any, lab: Path) -> None:
    fibres = (lab / "fibres.yml").read_text()
    (lab / "fibres.yml").write_text(
        fibres.replace('leaves: "17", length_m: 8.0}', 'leaves: "17", panels: [A3:12, B1:2]}', 1)
    )
    shown = cli("devices", "cables", "--csv")
    rows = list(csv.DictReader(shown.out.splitlines()))
    assert len(rows) == 48 and rows[0] == {
        "label": "f-gpu01-p1",
        "from": "gpu01:p1",
        "to": "ocs1:1",
        "back": "ocs1:17",
        "panels": "A3:12 B1:2",
        "length_m": "0.0",
        "loss_db": "1.2",
    }
    assert cli("devices", "cables", "--json").json["data"]["cables"][1]["loss_db"] == 0.6028
    assert "f-gpu01-p1  gpu01:p1  ocs1:1" in cli("devices", "cables").out


def report(
    lab: Path, lit: bool = True, held: bool = True, powers: tuple[float, float] = (-1.0, -2.25)
) -> TraceReport:
    found = load_lab(lab)
    points = (
        MeterPoint("in", PATH.ingress, powers[0], alone=True),
        MeterPoint("out", PATH.egress, powers[1] if lit else None, alone=True),
    )
    circuit = Circuit(A, B, (PATH,), 2.0)
    reading = Reading(circuit, (PATH,), points, 1.0, 0.1)
    lights = LightMap({"ocs1": frozenset({PATH} if held else ())}, found)
    return traced(A, lights, reading if held else None, found)


def test_a_path_is_drawn_with_the_losses_that_are_expected_and_seen(lab: Path) -> None:
    found = report(lab)
    assert [(hop.kind, hop.seen_db) for hop in found.hops] == [
        ("fibre", None),
        ("pass", 1.25),
        ("fibre", None),
    ]
    lines = drawn(found).splitlines()
    assert [line.split()[0] for line in lines] == ["gpu01:p1", "|", "+", "|", "gpu02:p1"]
    assert "ocs1:1 -> ocs1:18" in lines[2] and "1.25 dB  -1.0 dBm -> -2.2 dBm" in lines[2]
    assert found.expected_db == loss_db(A, B, (PATH,), load_lab(lab))


def test_a_path_that_reaches_no_receiver_says_where_it_ends(lab: Path) -> None:
    assert drawn(report(lab, lit=False)).endswith("ocs1 or its output")
    dark = report(lab, held=False)
    assert (
        dark.receiver == ""
        and "light arrives at ocs1:1, where the device has no circuit" in drawn(dark)
    )


def test_no_loss_is_told_where_meters_read_their_own_noise(lab: Path) -> None:
    hop = report(lab, powers=(-51.7, -50.2)).hops[1]
    assert (hop.in_dbm, hop.out_dbm, hop.seen_db) == (-51.7, -50.2, None)
