"""A password that is not there shuts out its own device and no other; `doctor` and the verbs say
the same of it.
"""

from __future__ import annotations

import asyncio
import re
import sys
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest

import orchestrator.verbs.change
from optics import Missing
from orchestrator.session import load_lab, open_session
from orchestrator.verify import doctor, doctor_reach
from orchestrator.verify import doctor_lab as doctorlab
from orchestrator.verify.probe import Probe
from tests.cli.test_lab import free_port, inventory

__all__ = ["inventory"]

PLAN = '{"schema": "testbed.plan/1", "name": "two", "links": [{"a": "gpu01:p1", "b": "gpu02:p1"}]}'
LOCKED = '  ocs2: {driver: calient-tl1, address: "tcp://127.0.0.1:1", username: u, password_env: TESTBED_OCS2_WORD}\n'


@pytest.fixture
def two_devices(cli: Any, inventory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lab whose first device answers and whose second one wants a password that the environment
    does not have.
    """
    monkeypatch.setitem(sys.modules, "orchestrator.verbs.change", orchestrator.verbs.change)
    monkeypatch.delenv("TESTBED_OCS2_WORD", raising=False)
    host = f"    gpu02: {{ansible_port: {free_port()}, testbed_host_id: 2, testbed_mgmt_address: 10.254.0.2,\n"
    host += "            testbed_ports: {1: {interface: opt1}}}\n"
    (inventory / "hosts.yml").write_text((inventory / "hosts.yml").read_text() + host)
    fibre = '  - {name: f2, host: gpu02, port: 1, device: ocs1, enters: "2", leaves: "18"}\n'
    (inventory / "fibres.yml").write_text((inventory / "fibres.yml").read_text() + fibre)
    (cli.home / "two.json").write_text(PLAN)
    assert cli("lab", "start").code == 0
    (inventory / "devices.yml").write_text((inventory / "devices.yml").read_text() + LOCKED)
    return inventory


def test_devices_that_need_no_password_are_used_and_the_other_one_is_named(
    cli: Any, two_devices: Path
) -> None:
    result = cli("devices", "--json")
    ocs1, ocs2 = result.json["data"]["devices"]
    assert ocs1["ok"] and not ocs2["ok"] and "TESTBED_OCS2_WORD is not set" in ocs2["error"]
    assert (
        result.code == 2
        and result.json["code"] == "E-MISSING"
        and result.json["message"] == "no password for ocs2"
    )
    planned = cli("plan", "-t", "two.json", "--json")
    assert planned.code == 0 and planned.json["data"]["made"] == 2, planned
    assert any(
        "ocs2 does not answer and is not needed" in note for note in planned.json["data"]["notes"]
    )


def test_a_plan_that_needs_the_device_says_which_password_is_missing(
    cli: Any, two_devices: Path
) -> None:
    fibres = two_devices / "fibres.yml"
    moved = re.sub(
        r'device: ocs1, enters: "(\d+)", leaves: "(\d+)"',
        r'device: ocs2, enters: "1.1.\1", leaves: "1.2.\1"',
        fibres.read_text(),
    )
    fibres.write_text(moved)
    result = cli("plan", "-t", "two.json", "--json")
    assert result.code == 2 and result.json["code"] == "E-MISSING"
    assert (
        "TESTBED_OCS2_WORD is not set" in result.json["message"]
        and result.json["hint"] == "export TESTBED_OCS2_WORD=..."
    )


def test_the_doctor_says_the_same_once(two_devices: Path) -> None:
    lab = load_lab(two_devices)
    (password,) = doctorlab.secrets(lab, two_devices)
    assert (password.state, password.area, password.fix) == (
        "fail",
        "machine",
        "export TESTBED_OCS2_WORD=...",
    )
    asked = asyncio.run(doctor_reach.ask_device(lab, "ocs2"))
    assert asked.state == "warn" and "not asked" in asked.detail


def test_every_verb_of_a_device_without_its_password_raises_why(
    two_devices: Path, tmp_path: Path
) -> None:
    async def ask() -> list[BaseException | Any]:
        async with open_session(load_lab(two_devices), two_devices, tmp_path) as session:
            device = session.devices["ocs2"]
            return list(
                await asyncio.gather(
                    device.identify(), device.read(), device.apply(None), return_exceptions=True
                )
            )  # type: ignore[arg-type]

    assert [type(error) for error in asyncio.run(ask())] == [Missing] * 3


def test_hosts_that_do_not_answer_are_unreachable_whatever_else_is_wrong_outside_the_inventory(
    cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Probe("gpu01", "fail", "refused", "start sshd there", "the others", "reach")
    for area, code in (("reach", 5), ("machine", 2)):
        other = Probe("ports", "fail", "taken", "stop it", "others", area)
        monkeypatch.setattr(doctor, "examine", lambda settings, other=other: [host, other])
        assert cli("doctor").code == code


def test_the_number_of_packages_is_that_of_the_distribution() -> None:
    needed = [line for line in requires("optical-testbed") or () if "extra ==" not in line]
    (packages,) = [check for check in doctor._packages() if check.name == "packages"]
    assert (packages.state, packages.detail) == ("ok", f"all {len(needed)} installed")
    assert len(needed) > 10


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "paramiko>=3.4",
        "not-there-at-all[x]>=2 ; python_version > '3'",
        "torch>=2 ; extra == 'train'",
    ]
    monkeypatch.setattr(doctor, "requires", lambda name: lines)
    (packages,) = [check for check in doctor._packages() if check.name == "packages"]
    assert packages.state == "fail" and packages.detail == "missing: not-there-at-all"
