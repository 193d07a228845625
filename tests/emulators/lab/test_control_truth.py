"""The control socket of a lab without hosts: the truth of a device, cables in each other's
sockets.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from emulators.inventory.config import read_config
from emulators.lab.control import Control
from emulators.lab.running import Lab, Listeners, build_devices
from emulators.optics.light import Event, total_dbm
from tests.emulators.emulated import Client, Device


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Control]:
    (tmp_path / "hosts.yml").write_text(
        "all: {vars: {ansible_user: root, ansible_ssh_private_key_file: key}, hosts: {gpu01: {ansible_port: 2201,"
        " testbed_host_id: 1, testbed_mgmt_address: 10.254.0.1, testbed_ports: {1: {interface: opt1}, 2: {interface: opt2}}}}}\n"
    )
    (tmp_path / "devices.yml").write_text(
        'lab: x\ndevices:\n  ocs1: {driver: polatis-scpi, address: "tcp://127.0.0.1:2202"}\n'
        '  ocs2: {driver: polatis-scpi, address: "tcp://127.0.0.1:2203"}\n'
    )
    (tmp_path / "fibres.yml").write_text(
        'fibres:\n  - {name: f1, host: gpu01, port: 1, device: ocs1, enters: "1", leaves: "17", loss_db: 1.0}\n'
        '  - {name: f2, host: gpu01, port: 2, device: ocs2, enters: "2", leaves: "18", loss_db: 9.0}\n'
    )
    (tmp_path / "emulator.yml").write_text("hosts: false\n")
    config = read_config(tmp_path)
    devices = build_devices(config)
    made = Lab(config, devices, Listeners(dict.fromkeys(devices), {}, None, None, 1), None)  # type: ignore[arg-type]
    for server in made.servers.values():
        await server.start()
    yield Control(made)
    for server in made.servers.values():
        await server.stop()


def ask(lab: Control, op: str, **values: object) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(
        json.dumps(lab.answer(json.dumps({"op": op, **values}).encode()))
    )
    return answer


async def test_the_truth_of_a_device_is_told_at_once(lab: Control) -> None:
    server = lab._lab.servers["ocs1"]
    device = Device(server)
    client: Client = await device.connect()
    assert await client.line(":oxc:swit:conn:add (@1),(@17);add (@1),(@18);:syst:err?")
    server.plant.advance(server.loop.time() + 1)
    reply = ask(lab, "truth", device="ocs1")
    assert reply["ok"] and reply["writes"] == 2
    assert [violation[1:] for violation in reply["violations"]] == [["port 1 in use", "1", "18"]]
    assert [event[1:] for event in reply["history"]] == [["making", "1", "17"], ["lit", "1", "17"]]
    assert [(s["number"], s["user"], s["queued"]) for s in reply["sessions"]] == [(1, None, 0)]
    assert ask(lab, "truth", device="ocs9")["error"] == "no device ocs9; there are ocs1, ocs2"
    client.writer.close()
    await client.writer.wait_closed()


async def test_of_one_device_no_light_fault_or_history_of_more_is_told(lab: Control) -> None:
    plant = lab._lab.servers["ocs1"].plant
    number = ask(lab, "faults.add", device="ocs1", kind="refuse")["number"]
    assert set(ask(lab, "faults.list")) == {"ok", "faults", "log"}
    found = ask(lab, "faults.list", device="ocs1")
    assert set(found) == {"ok", "faults"} and set(found["faults"]) == {"ocs1"}
    assert [fault["number"] for fault in found["faults"]["ocs1"]] == [number]
    assert set(ask(lab, "light")["light"]) == {"ocs1", "ocs2"}
    assert ask(lab, "light", device="ocs1")["light"] == {"ocs1": []}
    plant.history.extend(Event(at_s, ("1", "17"), "lit") for at_s in (1.0, 2.0))
    assert [at_s for at_s, *_ in ask(lab, "history", device="ocs1")["history"]] == [1.0, 2.0]
    assert ask(lab, "history", device="ocs1", after_s=1.5)["history"] == [[2.0, "lit", "1", "17"]]


async def test_swapped_cables_carry_their_light_to_the_other_device(lab: Control) -> None:
    plants = {name: server.plant for name, server in lab._lab.servers.items()}

    def arriving() -> tuple[float | None, float | None]:
        return total_dbm(plants["ocs1"].arriving("1")), total_dbm(plants["ocs2"].arriving("2"))

    assert arriving() == (-1.0, -9.0)
    plugged = ask(lab, "fibre.swap", a="f1", b="f2")["plugged"]
    assert (plugged["f1"]["device"], plugged["f1"]["enters"], plugged["f2"]["leaves"]) == (
        "ocs2",
        "2",
        "17",
    )
    assert arriving() == (-9.0, -1.0)
    assert ask(lab, "fibre", name="f1", cut=True)["cut"] == ["f1"]
    assert arriving() == (-9.0, None)
    for wrong in (
        {"a": "f1", "b": "f9"},
        {"a": "f1", "b": "f1"},
        {"a": "f1", "b": "f2", "ends": "enters"},
        {"a": "f1"},
    ):
        assert not ask(lab, "fibre.swap", **wrong)["ok"]


async def test_a_link_can_be_named_dead_only_where_there_is_a_port(lab: Control) -> None:
    assert ask(lab, "link", host="gpu01", port=2, up=False)["dead"] == ["gpu01:p2"]
    assert ask(lab, "link", host="gpu01", port=2, up=True)["dead"] == []
    assert ask(lab, "link", host="gpu01", port=3, up=False)["error"] == "no port 3 on a host gpu01"
    assert ask(lab, "host.down", host="gpu01")["error"] == "no running host gpu01"
