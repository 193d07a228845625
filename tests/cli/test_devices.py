"""`testbed devices` and `testbed devices power`: tables for people, JSON for programs, a picture
that stands alone.
"""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from typing import Any

from orchestrator.change.report import CircuitPower, EqualiseReport
from orchestrator.plan.report import DeviceDiff
from orchestrator.verbs.report import DevicesReport, DeviceView
from tests.cli.conftest import REPORTS


def test_devices_show_ports_light_abilities_and_the_time_they_need(
    cli: Any, golden: Callable[[str, str], None]
) -> None:
    result = cli("devices")
    assert result.code == 0
    golden("devices.txt", result.out)
    assert "1 min 00 s (1.0 s here, x60)" in result.out
    data = cli("devices", "--json").json["data"]
    assert data["ok"] and [d["time_scale"] for d in data["devices"]] == [1.0, 60.0]


def test_options_before_the_second_verb_count(cli: Any) -> None:
    cli("devices", "--inventory", str(cli.home / "inventory" / "emulated"), "power", "--json")
    assert cli.calls[-1][0] == "devices_power" and str(cli.calls[-1][1][0].inventory) == str(
        cli.home / "inventory" / "emulated"
    )


def test_a_device_that_does_not_answer_ends_with_5(cli: Any) -> None:
    cli.answers["devices"] = DevicesReport(
        "x", (DeviceView("ocs1", "polatis-scpi", "tcp://h:1", False, error="ocs1: gone\nwhy"),)
    )
    result = cli("devices")
    assert (
        result.code == 5 and "ocs1: gone" in result.out and "1 does not answer: ocs1" in result.err
    )


def test_power_compares_with_expectation_and_draws_it(
    cli: Any, golden: Callable[[str, str], None]
) -> None:
    result = cli("devices", "power", "--history", "--no-unicode")
    assert result.code == 0
    golden("devices-power.txt", result.out)
    assert cli.calls[-1][2]["history"] is True and cli.calls[-1][2]["device"] is None
    assert (
        "dark: no light arrives at wss1:4103" in result.out
        and "beyond repeatability (+-0.2 dB)" in result.out
    )


def test_the_picture_is_a_whole_svg_with_a_bar_for_every_measured_circuit(cli: Any) -> None:
    file = cli.home / "light.svg"
    assert cli("devices", "power", "--svg", file).code == 0
    root = ElementTree.fromstring(file.read_text())
    space = "{http://www.w3.org/2000/svg}"
    argv = [t.text for t in root.iter(f"{space}text")]
    assert {"dark", "no meter", "-10.1 dBm, margin +19.9 dB"} <= set(argv)
    assert len(list(root.iter(f"{space}rect"))) == 1 + 2, "the ground, and two bars"


def test_times_of_faster_devices_are_told_for_what_they_are(cli: Any) -> None:
    slow = DeviceDiff("rome1", made=("E1->W2",), dark_ms_expected=1020.0, time_scale=60.0)
    text = "1 min 01 s of device time (1.0 s here, x60)"
    cli.answers["plan"] = dataclasses.replace(
        REPORTS["plan"], diff=(slow,), dark_ms_expected=1020.0, dark_time_scale=60.0
    )
    assert cli("plan", "-t", "plan.json").out.count(text) == 2
    cli.answers["up"] = dataclasses.replace(
        REPORTS["up"], dark_ms=1020.0, dark_ms_expected=1000.0, dark_time_scale=60.0
    )
    measured = "measured   dark 1 min 01 s of 1 min 00 s expected (x60: 1.0 s here), link"
    assert measured in cli("up", "-t", "plan.json").out
    row = dataclasses.replace(REPORTS["status"].devices[0], time_scale=60.0)
    cli.answers["status"] = dataclasses.replace(REPORTS["status"], devices=(row,))
    assert "polatis-scpi x60" in cli("status").out


def test_up_says_how_near_the_target_power_is(cli: Any) -> None:
    rows = (CircuitPower("a->b", -10.1, -0.1, 2.0), CircuitPower("b->a", -12.0, -2.0, 0.0))
    report = EqualiseReport(
        -10.0, 0.5, 2, 2, rows, ("b->a: -12.0 dBm, 2.0 dB below the target: too little light",)
    )
    cli.answers["up"] = dataclasses.replace(REPORTS["up"], equalise=report, notes=report.notes)
    output = cli("up", "-t", "plan.json").out
    assert (
        "power      1/2 circuits within 0.5 dB of -10 dBm, -12.0 to -10.1 dBm" in output
        and "too little light" in output
    )
