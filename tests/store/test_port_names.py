"""A port that an operator names is one that the inventory has, spelt as there: what protects no
port is refused.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from optics import BadFile, HostPort, Port, Usage
from orchestrator.cli import main
from orchestrator.inventory.lab import read_lab
from orchestrator.plan.avoid import read_avoid
from orchestrator.store.scope import read_scope
from orchestrator.store.tagouts import Tagouts, place_of
from tests.change.fibrelab import hosts_yml, joined

WRONG = ("01", "99", "../../x", " 1", "1 ", "\u0661", "1-3", "p1", "")
FIBRES = 'fibres:\n  - {name: f1, host: gpu01, port: 1, device: ocs1, enters: "1", leaves: "17"}\n'
DEVICES = 'lab: l\ndevices:\n  ocs1: {driver: polatis-scpi, address: "tcp://192.0.2.1:1"%s}\n'


@pytest.mark.parametrize("label", WRONG)
def test_a_port_that_is_not_there_cannot_be_tagged_out(label: str) -> None:
    with pytest.raises(Usage) as refused:
        place_of(f"west:{label}", joined())
    assert not label or "no fibre" in str(refused.value)


@pytest.mark.parametrize(
    ("subject", "near"),
    [
        ("west:01", "west:1"),
        ("gpu01:p01", "gpu01:p1"),
        ("gpu01:1", "gpu01:p1"),
        ("gpu01:p\u0661", "gpu01:p1"),
    ],
)
def test_another_spelling_of_a_port_gets_the_one_of_the_inventory(subject: str, near: str) -> None:
    with pytest.raises(Usage, match=f"did you mean {near}\\?"):
        place_of(subject, joined())
    assert place_of(near, joined())


@pytest.mark.parametrize("label", ["01", "99", "../../x", "98-99"])
def test_a_port_that_is_not_there_cannot_be_reserved(label: str) -> None:
    with pytest.raises(Usage, match="no fibre of the inventory ends"):
        read_scope(joined(), ports=[f"west:1,west:{label}"])


def test_a_range_reserves_its_ports_as_the_inventory_spells_them() -> None:
    assert read_scope(joined(), ports=["west:01-3"]).ports == {
        Port("west", n) for n in ("1", "2", "3")
    }


def test_what_is_to_be_avoided_is_spelt_as_in_the_inventory() -> None:
    found = read_avoid(["gpu01:1", "gpu03:p01"], joined())
    assert found.message == ("gpu01:p1", "gpu03:p1") and found.ports == {
        HostPort("gpu01", 1),
        HostPort("gpu03", 1),
    }
    with pytest.raises(Usage, match=r"did you mean west:1\?"):
        read_avoid(["west:01"], joined())


@pytest.mark.parametrize("label", ["01", "17", "99"])
def test_a_limit_for_a_port_that_no_light_enters_is_refused(label: str) -> None:
    with pytest.raises(
        BadFile,
        match=rf"devices\.yml:3:\d+: devices\.ocs1\.max_input_dbm_at\.{label}: no fibre or trunk leads into",
    ):
        read_lab(hosts_yml(1), DEVICES % f', max_input_dbm_at: {{"{label}": -5}}', FIBRES)


def test_a_limit_at_a_trunks_end_is_kept() -> None:
    trunk = (
        'trunks:\n  - {name: t1, from: {device: ocs1, port: "20"}, to: {device: ocs1, port: "9"}}\n'
    )
    lab = read_lab(hosts_yml(1), DEVICES % ', max_input_dbm_at: {"9": -5, "1": 0}', FIBRES + trunk)
    assert lab.max_input_dbm(Port("ocs1", "9")) == -5


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("DATA", "STATE", "LOCK"):
        monkeypatch.setenv(f"TESTBED_{name}_DIR", str(tmp_path / name.lower()))
    for name, text in (
        ("hosts.yml", hosts_yml(1)),
        ("devices.yml", DEVICES % ""),
        ("fibres.yml", FIBRES),
    ):
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("TESTBED_INVENTORY", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("subject", ["ocs1:01", "ocs1:99", "ocs1:../../x"])
def test_tagout_of_a_port_that_is_not_there_leaves_no_tag(
    folder: Path, subject: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tagouts, "set", lambda *_: pytest.fail("a tag was hung"))
    assert main.run(["tagout", subject, "--reason", "hands in rack", "--json"]) == 2
    reply = json.loads(capsys.readouterr().out)
    assert reply["code"] == "E-USAGE" and "no fibre of the inventory ends at" in reply["message"]
    assert "tagout ocs1 " in reply["hint"], "the whole device can be tagged out instead"
