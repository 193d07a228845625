"""What a command says to do next is for the lab it worked on, and labs that run are found without
being named.
"""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optics import HandsNeeded, Unreachable
from orchestrator import emulated as labproc
from orchestrator.change.unfinished import Unfinished
from orchestrator.cli.call import Call
from orchestrator.plan.reader import read_plan
from orchestrator.plan.target import target
from orchestrator.session import load_lab
from orchestrator.store.confirmations import Awaiting
from tests.cli.test_lab import inventory

__all__ = ["inventory"]


def test_the_next_command_of_an_error_is_for_the_chosen_lab_and_owner(cli: Any) -> None:
    (cli.home / "my lab").mkdir()
    hint = "testbed doctor says what is wrong; then: testbed status"
    cli.answers["status"] = Unreachable("ocs1: no answer", hint=hint)
    assert cli("status").err.splitlines()[-1] == f"next: {hint}"
    result = cli("status", "-i", "my lab", "--as", "ann")
    options = "--inventory 'my lab' --as ann"
    assert (
        result.err.splitlines()[-1]
        == f"next: testbed {options} doctor says what is wrong; then: testbed {options} status"
    )
    cli.answers["status"] = Unreachable("ocs1: no answer", hint=hint)
    assert (
        cli("status", "-i", "my lab", "--json")
        .json["hint"]
        .startswith("testbed --inventory 'my lab' doctor")
    )


def test_the_undo_of_a_change_is_for_the_chosen_lab(cli: Any) -> None:
    cli.answers["up"] = replace(
        cli.answers["up"],
        confirm=Awaiting("2026-11-21-0007", "topoopt-12", "ring-12", 1.8e9, 192.4),
    )
    out = cli("up", "-t", "plan.json", "-i", "inventory/emulated").out
    assert "undo: testbed --inventory inventory/emulated rollback\n" in out
    assert (
        "or it is rolled back to ring-12: testbed --inventory inventory/emulated confirm\n" in out
    )
    confirmed = cli("confirm", "-i", "inventory/emulated").out
    assert "undo: testbed --inventory inventory/emulated rollback 2026-11-21-0007\n" in confirmed


def test_what_is_left_for_hands_names_commands_for_the_chosen_lab(cli: Any) -> None:
    cli.answers["up"] = HandsNeeded(
        "left:", ("ocs1: when it answers, testbed rollback 0007",), hint="testbed status"
    )
    reply = cli("up", "-t", "plan.json", "-i", "inventory/emulated", "--json").json
    assert reply["data"]["left"] == [
        "ocs1: when it answers, testbed --inventory inventory/emulated rollback 0007"
    ]
    assert "testbed --inventory inventory/emulated rollback 0007" in reply["message"]


def test_both_ways_on_from_a_run_that_died_are_for_the_chosen_lab(cli: Any) -> None:
    died = Unfinished(
        "0007",
        "up ring-12",
        "died",
        0.0,
        resume="testbed resume 0007",
        undo="testbed rollback 0007",
    )
    cli.answers["status"] = replace(cli.answers["status"], unfinished=(died,))
    at = "testbed --inventory inventory/emulated"
    assert (
        f"continue: {at} resume 0007   roll back: {at} rollback 0007\n"
        in cli("status", "-i", "inventory/emulated").out
    )


@pytest.mark.parametrize(
    "text",
    [
        "testbed up --inventory other --topology plan.json",
        "testbed run list",
        "see testbed-crash.txt",
        "this is a bug in testbed; please report it",
    ],
)
def test_commands_that_name_a_lab_and_those_that_use_none_stay_as_they_are(text: str) -> None:
    assert Call(inventory="lab").here(text) == text


def test_lab_status_lists_all_labs_that_run(
    cli: Any, inventory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("lab", "start").code == 0
    (pid,) = [pid for pid, at in labproc.running() if at == inventory.resolve()]
    (cli.home / "other").mkdir()
    (cli.home / "other" / "emulator.yml").write_text("hosts: false\n")
    (cli.home / "other" / "hosts.yml").write_text(
        f"all: {{vars: {{ansible_ssh_private_key_file: {cli.home}/none/key}}}}\n"
    )
    monkeypatch.setenv("TESTBED_INVENTORY", str(cli.home / "other"))
    result = cli("lab", "status")
    assert (
        "lab      other is not running\n" in result.out
        and f"also     {inventory.resolve()}, pid {pid}\n" in result.out
    )
    assert result.err == "next: testbed lab start\n", "never a lab of somebody else"
    data = cli("lab", "status", "--json").json["data"]
    assert {"pid": pid, "inventory": str(inventory.resolve())} in data["others"] and data[
        "running"
    ] is False
    assert f"pid {pid}" not in cli("lab", "status", "-i", "other").out


def test_a_lab_whose_ports_are_taken_names_the_way_on_and_starts_as_a_copy_on_free_ones(
    cli: Any, inventory: Path
) -> None:
    files = {path.name: path.read_text() for path in inventory.iterdir()}
    port = int(files["devices.yml"].partition("127.0.0.1:")[2].partition('"')[0])
    with socket.create_server(("127.0.0.1", port)):
        result = cli("lab", "start")
        assert result.code == 4 and "E-LOCKED emulated lab: ocs1: cannot listen on " in result.err
        assert result.err.splitlines()[-1] == "next: testbed lab start --free-ports"
        started = cli("lab", "start", "--free-ports", "--json").json["data"]
        copy = Path(started["inventory"])
        try:
            assert (
                copy.parent == cli.home / "state" / "labs"
                and Path(started["state_dir"]) == copy / "state"
            )
            assert (
                cli("lab", "start", "--free-ports")
                .err.splitlines()[-1]
                .startswith(f"next: testbed --inventory {copy} up ")
            )
            again = cli("lab", "start", "--free-ports", "--json").json["data"]
            assert (again["pid"], again["already"]) == (started["pid"], True)
            addresses = [
                cli("lab", "status", "-i", at, "--json").json["data"] for at in (copy, inventory)
            ]
            assert (
                addresses[0]["lab"]["devices"]["ocs1"]["address"] != f"tcp://127.0.0.1:{port}"
                and not addresses[1]["running"]
            )
            assert (
                load_lab(copy).hosts["gpu01"].ssh.port
                != load_lab(inventory).hosts["gpu01"].ssh.port
            )
        finally:
            assert cli("lab", "stop", "-i", copy).out == "lab      stopped\n"
    assert {path.name: path.read_text() for path in inventory.iterdir()} == files
    assert cli("lab", "start", "--free-ports", "--json").json["data"]["inventory"] == str(
        inventory.resolve()
    ), "its own are free"


def test_several_drivers_make_one_lab_with_a_port_of_every_host_at_each(cli: Any) -> None:
    drivers = ("--driver", "polatis-scpi", "--driver", "waveshaper-http")
    try:
        started = cli("lab", "start", *drivers, "--hosts", "0", "--json")
        assert started.code == 0, started.err
        folder = Path(started.json["data"]["inventory"])
        devices = cli("lab", "status", *drivers, "--json").json["data"]["lab"]["devices"]
        assert [devices[name]["driver"] for name in ("ocs1", "wss2")] == [
            "polatis-scpi",
            "waveshaper-http",
        ]
    finally:
        assert cli("lab", "stop", *drivers).out == "lab      stopped\n"
    lab = load_lab(folder)
    plan = read_plan((folder / "ring.json").read_text(), "ring.json", lab)
    wanted = target(plan, lab, {device: frozenset() for device in lab.devices}, ()).wanted
    assert {device: len(settings) for device, settings in wanted.items()} == dict.fromkeys(
        ("ocs1", "wss2"), len(lab.hosts)
    )
    assert (
        "there is no lab of waveshaper-http and polatis-scpi\n"
        in cli("lab", "stop", *drivers[2:], *drivers[:2]).err
    )


@pytest.mark.usefixtures("cli")
def test_a_lab_of_one_family_is_followed_by_commands_for_it(cli: Any) -> None:
    try:
        started = cli("lab", "start", "--driver", "polatis-scpi", "--hosts", "0")
        assert started.code == 0, started.err
        folder = cli.home / "state" / "labs" / "polatis-scpi"
        assert started.err.splitlines()[-1].startswith(
            f"next: testbed --inventory {folder} devices driver conform polatis-scpi --device "
        )
    finally:
        cli("lab", "stop", "--driver", "polatis-scpi")
    assert (
        cli("lab", "status", "--driver", "polatis-scpi").err
        == "next: testbed lab start --driver polatis-scpi\n"
    )
