"""The emulated lab as a process: started, asked, stopped, and its troubles told. Devices only, so
that no root is needed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from optics import BadFile, Garbled, Locked, Missing, TestbedError, TimedOut, Unreachable
from orchestrator import emulated as labproc
from orchestrator.cli.lab import lit_text
from orchestrator.processes import Daemon, process_mark


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.fixture
def inventory(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "inventory" / "emulated"
    folder.mkdir(parents=True, exist_ok=True)
    key = tmp_path / "lab-state" / "id_ed25519"
    (folder / "hosts.yml").write_text(
        f"""all:
  vars: {{ansible_user: root, ansible_host: 127.0.0.1, ansible_ssh_private_key_file: {key}, testbed_forwarding: kernel,
         testbed_node_prefix: "10.255", testbed_port_prefix: "10", testbed_lanes: 1, testbed_gpus: 0}}
  hosts:
    gpu01: {{ansible_port: {free_port()}, testbed_host_id: 1, testbed_mgmt_address: 10.254.0.1,
            testbed_ports: {{1: {{interface: opt1}}}}}}
"""
    )
    (folder / "devices.yml").write_text(
        f'lab: emulated\ndevices:\n  ocs1: {{driver: polatis-scpi, address: "tcp://127.0.0.1:{free_port()}"}}\n'
    )
    (folder / "fibres.yml").write_text(
        'fibres:\n  - {name: f1, host: gpu01, port: 1, device: ocs1, enters: "1", leaves: "17", length_m: 12.0}\n'
    )
    (folder / "emulator.yml").write_text("hosts: false\n")
    yield folder
    labproc.stop_emulated_lab(folder)


def test_a_lab_is_started_asked_and_stopped(cli: Any, inventory: Path) -> None:
    assert "not running" in cli("lab", "status").out
    started = cli("lab", "start", "--json")
    assert started.code == 0 and started.err == "" and started.json["data"]["already"] is False
    pid = started.json["data"]["pid"]
    assert Path(f"/proc/{pid}").exists()
    assert cli("lab", "start", "--json").json["data"] | {"seconds": 0.0} == started.json["data"] | {
        "already": True,
        "seconds": 0.0,
    }
    status = cli("lab", "status", "--json").json["data"]
    assert (
        status["running"] is True
        and status["light"] == {"ocs1": []}
        and status["lab"]["devices"]["ocs1"]["writes"] == 0
    )
    address = status["lab"]["devices"]["ocs1"]["address"]
    assert f"ocs1  0 cross-connects lit  {address}\n" in cli(
        "lab", "status"
    ).out and address.startswith("tcp://127.0.0.1:")
    assert cli("lab", "stop").out == "lab      stopped\n"
    assert Daemon(pid, process_mark(pid)).ended(0.1)
    assert cli("lab", "stop", "--json").json["data"] == {"stopped": False}


def test_what_passes_the_glass_is_named_after_the_kind_of_the_device() -> None:
    assert lit_text("polatis-scpi", [["1", "17"]]) == "1 cross-connect lit"
    assert lit_text("lumentum-netconf", []) == "0 wavelengths lit"
    assert lit_text("waveshaper-http", [["1", "2", 1, 2]] * 4) == "4 wavelengths lit"
    assert lit_text("somebody-elses", []) == "0 cross-connects lit"


def test_faults_are_listed_with_what_was_said_of_them_and_no_more(
    cli: Any, inventory: Path
) -> None:
    assert cli("lab", "start").code == 0
    assert (
        cli("lab", "fault", "add", "ocs1", "drop-after", "--on", "write", "--count", "1").code == 0
    )
    assert (
        cli(
            "lab", "fault", "add", "ocs1", "extra-loss", "--port", "3", "--db", "2.5", "--at", "100"
        ).code
        == 0
    )
    assert cli("lab", "fault", "list").out.splitlines() == [
        "ocs1  1  drop-after  active, fired 0 times   on=write count=1",
        "ocs1  2  extra-loss  waiting, fired 0 times  port=3 db=2.5 at_s=100.0",
    ]


def test_faults_of_hosts_are_asked_for_as_those_of_devices(
    cli: Any, inventory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def ask(_: Path, op: str, *_more: object, **values: object) -> dict[str, Any]:
        if op == "status":
            return {
                "hosts": {"gpu01": {}},
                "devices": {"ocs1": {}},
                "segments": [{"name": "ideal"}],
            }
        if values.get("kind") == "nosuch":
            raise Missing("emulated lab: faults.add: no fault of a host is named 'nosuch'")
        asked.append(values)
        return {"number": 7}

    monkeypatch.setattr(labproc, "ask", ask)
    result = cli("lab", "fault", "add", "gpu01", "nosuch")
    assert (
        result.code == 2
        and "no fault of a host is named 'nosuch'" in result.err
        and "next: the faults and what each" in result.err
    )
    result = cli(
        "lab",
        "fault",
        "add",
        "gpu01",
        "slow-link",
        "--port",
        "2",
        "--mbps",
        "50",
        "--per",
        "2m",
        "--for",
        "1.5",
    )
    assert result.out == "gpu01    slow-link added, number 7\n"
    for argv in (
        ("add", "all", "storm", "--per", "3h", "--at", "0"),
        ("add", "ideal", "tor"),
        ("remove", "gpu01", "7"),
    ):
        assert cli("lab", "fault", *argv).code == 0
    assert asked == [
        {
            "host": "gpu01",
            "kind": "slow-link",
            "port": "2",
            "mbps": 50.0,
            "per_s": 120.0,
            "for_s": 1.5,
        },
        {"host": "all", "kind": "storm", "per_s": 10800.0, "at_s": 0.0},
        {"host": "ideal", "kind": "tor"},
        {"host": "gpu01", "number": 7},
    ]
    result = cli("lab", "fault", "add", "gpu02", "cpu-hog")
    assert (
        result.code == 2
        and "E-MISSING no device, host or packet switch gpu02 runs in this lab; did you mean gpu01?"
        in result.err
    )
    assert (
        "E-USAGE --per: 'often' is not a duration"
        in cli("lab", "fault", "add", "all", "storm", "--per", "often").err
    )


def test_what_was_done_to_the_lab_is_listed_with_its_time(cli: Any, inventory: Path) -> None:
    assert cli("lab", "start").code == 0
    assert cli("lab", "fibre", "cut", "f1").code == 0
    none, entry = cli("lab", "fault", "list", "--log").out.splitlines()
    assert none == "no faults" and entry.endswith("Z fibre         name=f1 cut=True")
    assert cli("lab", "fault", "add", "gpu01", "cpu-hog").code == 2  # devices only


SWITCH = "segments:\n  - {name: tree, link_mbps: 100, ports: ['gpu01:p2', 'gpu02:p1']}\n"


def test_a_cable_that_the_lab_does_not_have_is_said_with_the_nearest(
    cli: Any, inventory: Path
) -> None:
    assert cli("lab", "start").code == 0
    for argv in (("cut", "f11"), ("splice", "f11"), ("swap", "f1", "f11")):
        result = cli("lab", "fibre", *argv)
        assert (
            result.code == 2
            and "E-MISSING this lab has no cable f11; did you mean f1?" in result.err
        ), result.err
    result = cli("lab", "fibre", "swap", "f1", "f1")
    assert result.code == 2 and "E-MISSING emulated lab: fibre.swap: " in result.err
    assert cli("lab", "fault", "add", "ocs9", "drop-after").code == 2
    assert "  cut  " not in cli("lab", "status").out
    assert cli("lab", "fibre", "cut", "f1").code == 0
    assert "  cut      f1\n" in cli("lab", "status").out


def test_only_fibres_are_swapped(cli: Any, inventory: Path) -> None:
    hosts = (inventory / "hosts.yml").read_text()
    second = f"    gpu02: {{ansible_port: {free_port()}, testbed_host_id: 2, testbed_mgmt_address: 10.254.0.2,\n"
    second += "            testbed_ports: {1: {interface: opt1}}}\n"
    (inventory / "hosts.yml").write_text(
        hosts.replace("{1: {interface: opt1}}", "{1: {interface: opt1}, 2: {interface: el2}}")
        + second
    )
    (inventory / "fibres.yml").write_text((inventory / "fibres.yml").read_text() + SWITCH)
    assert cli("lab", "start").code == 0
    result = cli("lab", "fibre", "swap", "f1", "tree-gpu01")
    text = "E-USAGE tree-gpu01 is a cable of the packet switch tree: only fibres between a host and a device can be swapped"
    assert result.code == 2 and text in result.err
    result = cli("lab", "fibre", "cut", "tree-gpu03")
    assert (
        result.code == 2
        and "this lab has no cable tree-gpu03; did you mean tree-gpu0" in result.err
    )


def test_up_starts_the_lab_and_says_so(cli: Any, inventory: Path) -> None:
    host = f"{{ansible_port: {free_port()}, testbed_host_id: 2, testbed_mgmt_address: 10.254.0.2,"
    host += " testbed_ports: {1: {interface: opt1}}}"
    (inventory / "hosts.yml").write_text(
        (inventory / "hosts.yml").read_text() + f"    gpu02: {host}\n"
    )
    fibre = '  - {name: f2, host: gpu02, port: 1, device: ocs1, enters: "2", leaves: "18", length_m: 12.0}\n'
    (inventory / "fibres.yml").write_text((inventory / "fibres.yml").read_text() + fibre)
    plan = {
        "schema": "testbed.plan/1",
        "name": "topoopt-12",
        "links": [{"a": "gpu01", "b": "gpu02"}],
    }
    Path("plan.json").write_text(json.dumps(plan))
    result = cli("up", "-t", "plan.json")
    assert (
        result.code == 0
        and "lab        started: emulated (0 hosts, 1 device, 2 fibres)" in result.err
    )
    assert result.out.startswith("  lab        started: emulated")
    assert labproc.is_running(inventory)
    assert "started" not in cli("up", "-t", "plan.json").err


def test_no_lab_is_started_for_a_plan_that_it_could_not_have(cli: Any, inventory: Path) -> None:
    bad = {"schema": "testbed.plan/1", "name": "bad", "links": [{"a": "gpu01", "b": "gpu99"}]}
    Path("bad.json").write_text(json.dumps(bad))
    for argv in (("up", "-t", "bad.json"), ("up", "-t", "bad.json", "--dry-run")):
        result = cli(*argv)
        assert result.code == 3 and "gpu99" in result.err, (argv, result)
    assert not labproc.is_running(inventory)


def test_only_up_starts_the_lab(cli: Any, inventory: Path) -> None:
    cli.answers["plan"] = cli.answers["verify"] = Unreachable("ocs1: connection refused")
    for argv in (("plan", "-t", "plan.json"), ("verify",)):
        result = cli(*argv)
        assert (
            result.code == 5
            and "E-UNREACHABLE the emulated lab is not running\nnext: testbed lab start\n"
            in result.err
        )
    assert not labproc.is_running(inventory)


def test_a_lab_that_was_killed_is_not_running_and_starts_again(inventory: Path) -> None:
    first = labproc.start_emulated_lab(inventory)
    os.kill(first.pid, signal.SIGKILL)
    assert Daemon(first.pid, process_mark(first.pid)).ended(5.0)
    assert not labproc.is_running(inventory) and labproc.stop_emulated_lab(inventory) is False
    again = labproc.start_emulated_lab(inventory)
    assert not again.already and again.pid != first.pid


def test_a_lab_that_hangs_is_killed_by_stop(inventory: Path) -> None:
    started = labproc.start_emulated_lab(inventory)
    os.kill(started.pid, signal.SIGSTOP)
    with pytest.raises(TimedOut, match="no answer to 'status' within 0 s"):
        labproc.ask(inventory, "status", 0.2)
    assert labproc.stop_emulated_lab(inventory, 0.3) is True
    assert Daemon(started.pid, process_mark(started.pid)).ended(0.1)


def test_a_taken_port_is_named(inventory: Path) -> None:
    port = int((inventory / "devices.yml").read_text().rsplit(":", 1)[1].split('"')[0])
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(Locked, match=f"127.0.0.1:{port}"),
    ):
        labproc.start_emulated_lab(inventory)


def test_a_wrong_inventory_is_named_with_its_file(inventory: Path) -> None:
    (inventory / "devices.yml").write_text(
        "devices: {ocs1: {driver: polatis-scpi, address: nowhere}}\n"
    )
    with pytest.raises(BadFile, match=r"devices\.yml"):
        labproc.start_emulated_lab(inventory)
    with pytest.raises(BadFile, match=r"no such directory"):
        labproc.state_dir(inventory / "elsewhere")


def test_hardware_is_not_started(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="not an emulated lab"):
        labproc.start_emulated_lab(tmp_path)


def test_what_the_lab_refuses_is_an_error_in_its_words(inventory: Path) -> None:
    labproc.start_emulated_lab(inventory)
    with pytest.raises(TestbedError, match="no device ocs9"):
        labproc.ask(inventory, "settle", device="ocs9", s=1)


def test_an_answer_that_is_no_json_is_garbled(inventory: Path) -> None:
    folder = labproc.state_dir(inventory)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "control.sock"))
        server.listen()
        import threading

        def answer() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(4096)
                peer.sendall(b"who is there?\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(Garbled, match="who is there"):
            labproc.ask(inventory, "status")
        thread.join()
    (folder / "control.sock").unlink()


def test_a_state_directory_with_a_long_name_is_reached(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    handle = os.open(folder, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as link:
        server.bind(f"/proc/self/fd/{handle}/control.sock")
        server.listen()
        labproc._connect(link, folder)
    os.close(handle)


def test_faults_are_armed_listed_and_removed(cli: Any, inventory: Path) -> None:
    assert cli("lab", "fault", "list").code == 5
    cli("lab", "start")
    assert cli("lab", "fault", "list").out == "no faults\n"
    result = cli("lab", "fault", "add", "ocs1", "drop-after", "--match", "conn:add", "--count", "1")
    assert result.code == 0 and result.out == "ocs1     drop-after added, number 1\n"
    added = cli(
        "lab",
        "fault",
        "add",
        "ocs1",
        "dark-port",
        "--port",
        "1",
        "--at",
        "60",
        "--for",
        "5",
        "--json",
    )
    assert added.json["data"] == {"device": "ocs1", "kind": "dark-port", "number": 2}
    first, second = cli("lab", "fault", "list", "--json").json["data"]["faults"]["ocs1"]
    assert (first["match"], first["count"], first["state"]) == ("conn:add", 1, "active")
    assert (second["port"], second["at_s"], second["for_s"], second["state"]) == (
        "1",
        60.0,
        5.0,
        "waiting",
    )
    assert "dark-port" in cli("lab", "fault", "list").out
    assert cli("lab", "fault", "remove", "ocs1", "1").out == "ocs1     fault 1 removed\n"
    assert (
        cli("lab", "fault", "add", "ocs1", "reboot-lose").out
        == "ocs1     reboot-lose has occurred\n"
    )
    wrong = cli("lab", "fault", "add", "ocs1", "drop-affter")
    assert wrong.code != 0 and "did you mean drop-after" in wrong.err


def test_fibres_are_cut_spliced_and_swapped(cli: Any, inventory: Path) -> None:
    with (inventory / "fibres.yml").open("a") as more:
        more.write(
            '  - {name: f2, host: gpu01, port: 2, device: ocs1, enters: "2", leaves: "18"}\n'
        )
    hosts = inventory / "hosts.yml"
    hosts.write_text(
        hosts.read_text().replace(
            "1: {interface: opt1}", "1: {interface: opt1}, 2: {interface: opt2}"
        )
    )
    cli("lab", "start")
    assert cli("lab", "fibre", "cut", "f1", "--json").json["data"] == {"name": "f1", "cut": ["f1"]}
    assert cli("lab", "fibre", "splice", "f1").out == "f1 is intact\n"
    assert (
        cli("lab", "fibre", "swap", "f1", "f2").out
        == "f1 enters ocs1:2, leaves ocs1:18\nf2 enters ocs1:1, leaves ocs1:17\n"
    )
    assert cli("lab", "fibre", "cut", "f9").code != 0


@pytest.mark.parametrize(
    "argv",
    [("fault", "add", "ocs1", "refuse"), ("fault", "list"), ("fault", "remove", "ocs1", "1"), ("fibre", "cut", "f1"),
     ("fibre", "splice", "f1"), ("fibre", "swap", "f1", "f2")],
)  # fmt: skip
def test_hardware_is_never_spoiled(cli: Any, inventory: Path, argv: tuple[str, ...]) -> None:
    (inventory / "emulator.yml").unlink()
    result = cli("lab", *argv)
    assert result.code == Missing.exit_code and "is not an emulated lab" in result.err
