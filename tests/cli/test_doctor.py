"""`doctor`: each failing line has its fix and what still works."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator import doctor
from orchestrator.doctor import Check


def only(monkeypatch: pytest.MonkeyPatch, *checks: Check) -> None:
    monkeypatch.setattr(doctor, "examine", lambda settings: list(checks))


def test_every_check_that_is_not_ok_has_a_fix_and_says_what_works(cli: Any) -> None:
    checks = cli("doctor", "--json").json["data"]["checks"]
    assert len(checks) > 10
    for check in checks:
        assert check["state"] in ("ok", "warn", "fail")
        assert check["state"] == "ok" or (check["fix"] and check["works"]), check


def test_a_good_machine_is_zero(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    only(
        monkeypatch, Check("python", "ok", "3.11"), Check("torch", "warn", "not installed", "pip install torch", "all but training")
    )
    said = cli("doctor")
    assert said.code == 0 and said.out.endswith("All that is needed is there\n") and "fix: pip install torch" in said.out


@pytest.mark.parametrize(
    ("check", "exit_code", "word"),
    [
        (Check("sshd", "fail", "not found", "apt-get install openssh-server", "hardware labs"), 2, "E-MISSING"),
        (Check("inventory", "fail", "hosts.yml:3:1: no", "correct it", "history", "inventory"), 3, "E-BAD-FILE"),
        (Check("ocs1", "fail", "refused", "check its power", "the others", "reach"), 5, "E-UNREACHABLE"),
    ],
)
def test_a_failure_is_told_with_fix_and_exit_code(
    cli: Any, monkeypatch: pytest.MonkeyPatch, check: Check, exit_code: int, word: str
) -> None:
    only(monkeypatch, check, Check("ocs2", "ok", "tcp://", area="reach"))
    said = cli("doctor")
    assert said.code == exit_code and f"{word} 1 checks failed: {check.name}" in said.err
    assert f"  fail {check.name}" in said.out and f"fix: {check.fix}" in said.out and f"still works: {check.works}" in said.out
    assert cli("doctor", "--json").json["code"] == word


def test_a_broken_inventory_is_told_with_its_lines(cli: Any) -> None:
    folder = cli.home / "inventory" / "emulated"
    for name in ("hosts.yml", "fibres.yml"):
        (folder / name).write_text("{}\n")
    (folder / "devices.yml").write_text("devices: [\n")
    (found,) = [c for c in cli("doctor", "--json").json["data"]["checks"] if c["name"] == "inventory"]
    assert found["state"] == "fail" and "devices.yml" in found["detail"]


def test_a_missing_program_is_told_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_find", lambda program: None if program in ("ip", "ansible-playbook") else f"/bin/{program}")
    failed = {c.name: c for c in doctor._programs() if c.state == "fail"}
    assert set(failed) == {"ip", "ansible-playbook"} and failed["ip"].fix == "apt-get install iproute2"


def test_a_kernel_feature_that_cannot_be_used_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_namespace", lambda: ["env"])
    monkeypatch.setattr(
        doctor, "_KERNEL", (("veth", "CONFIG_VETH", "echo no such device >&2; false"), ("bridges", "CONFIG_BRIDGE", "true"))
    )
    veth, bridges = doctor._kernel()
    assert (veth.state, veth.detail, bridges.state) == ("fail", "no such device", "ok") and "CONFIG_VETH" in veth.fix


async def test_devices_and_hosts_are_reached_all_at_once() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-test\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as gone:
        closed = gone.getsockname()[1]
    devices = {
        "ocs1": f"tcp://127.0.0.1:{port}",
        "ocs2": f"tcp://127.0.0.1:{closed}",
        "ocs3": "serial:///dev/nowhere",
        "ocs4": "visa://GPIB0::1",
    }
    checks = await doctor._reach(devices, {"gpu01": ("127.0.0.1", port), "gpu02": ("127.0.0.1", closed)})
    server.close()
    await server.wait_closed()
    assert {c.name: c.state for c in checks} == {
        "ocs1": "ok",
        "ocs2": "fail",
        "ocs3": "fail",
        "ocs4": "warn",
        "gpu01": "ok",
        "gpu02": "fail",
    }


async def test_a_host_that_is_silent_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "REACH_S", 0.1)
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (check,) = await doctor._reach({}, {"gpu01": ("127.0.0.1", silent.getsockname()[1])})
    assert check.state == "fail" and "no answer" in check.detail and time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("address", "where"),
    [
        ("tcp://10.0.0.1:5025", ("10.0.0.1", 5025)),
        ("visa://TCPIP::10.0.0.1::5025::SOCKET", ("10.0.0.1", 5025)),
        ("visa://TCPIP::10.0.0.1::INSTR", None),
        ("serial:///dev/ttyUSB0?baud=38400", Path("/dev/ttyUSB0")),
    ],
)
def test_an_address_says_what_can_be_tried(address: str, where: object) -> None:
    assert doctor._endpoint(address) == where


def test_a_lab_that_is_left_over_is_named_by_its_process(tmp_path: Path) -> None:
    assert doctor._leftovers(tmp_path) == []
    with (tmp_path / "lab.pid").open("w") as held:
        assert doctor._leftovers(tmp_path) == []
        fcntl.flock(held, fcntl.LOCK_EX)
        assert doctor._leftovers(tmp_path) == [os.getpid()]


def test_a_store_that_is_broken_is_told(cli: Any) -> None:
    (cli.home / "data").mkdir()
    (cli.home / "data" / "testbed.sqlite3").write_bytes(b"no store" * 500)
    (found,) = [c for c in cli("doctor", "--json").json["data"]["checks"] if c["name"] == "store"]
    assert found["state"] == "fail" and "mv " in found["fix"]
