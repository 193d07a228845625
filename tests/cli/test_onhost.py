"""`testbed host` at the prompt."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import yaml

from orchestrator.hosts import openssh
from tests.house.repository import ROOT


@pytest.fixture
def ran(cli: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A lab of hardware whose hosts run nothing: each command ends with 3, and the list has what
    was asked.
    """
    shutil.copytree(
        ROOT / "inventory" / "example-lab", cli.home / "inventory" / "emulated", dirs_exist_ok=True
    )
    asked: list[tuple[Any, ...]] = []

    def run(
        host: Any, command: Any, *, capture: bool = False, timeout_s: float | None = None
    ) -> tuple[int, str, str]:
        asked.append((host.name, list(command), capture, timeout_s))
        return (3, "out\n", "err\n") if capture else (3, "", "")

    monkeypatch.setattr(openssh, "run", run)
    return asked


def test_a_command_ends_with_its_own_exit_code_and_we_add_nothing(cli: Any, ran: list[Any]) -> None:
    result = cli("host", "exec", "node-b", "--", "ls", "--json", "-l")
    assert (result.code, result.out, result.err) == (3, "", "")
    assert ran == [("node-b", ["ls", "--json", "-l"], False, None)]
    assert (
        cli("host", "exec", "node-b", "--timeout", "5s", "--", "ls").code == 3 and ran[-1][3] == 5.0
    )
    assert cli("host", "shell", "node-b").code == 3 and ran[-1][1] == []


def test_json_has_what_the_command_printed(cli: Any, ran: list[Any]) -> None:
    result = cli("host", "exec", "node-b", "--json", "--", "uname", "-r")
    assert result.code == 3 and result.json["ok"] is False and result.json["code"] == "E-COMMAND"
    assert result.json["data"] == {
        "host": "node-b", "command": ["uname", "-r"], "exit_code": 3, "stdout": "out\n", "stderr": "err\n",
    }  # fmt: skip
    assert cli("host", "shell", "node-b", "--json").code == 2


def test_a_host_that_is_not_there_is_named_with_the_nearest(cli: Any, ran: list[Any]) -> None:
    for argv in (("host", "exec", "nod-b", "--", "true"), ("host", "shell", "nod-b")):
        result = cli(*argv)
        assert (
            result.code == 2
            and "nod-b is no host of this lab (12 hosts, node-a..node-l); did you mean node-b?"
            in result.err
        )
    assert cli("host", "exec", "node-b").code == 2 and ran == []


def test_a_lab_that_does_not_run_is_told(cli: Any, ran: list[Any]) -> None:
    (cli.home / "inventory" / "emulated" / "emulator.yml").write_text("hosts: true\n")
    result = cli("host", "exec", "node-b", "--", "true")
    assert result.code == 5 and "next: testbed lab start" in result.err and ran == []


def test_what_ansible_is_told_is_printed_as_its_variables_and_as_json(
    cli: Any, ran: list[Any]
) -> None:
    archive = cli.home / "lab.tar.gz"
    result = cli("host", "variables", "--limit", "node-b", "--archive", str(archive))
    reply = yaml.safe_load(result.out)["host_lab"]
    assert (
        result.code == 0
        and list(reply["hosts"]) == ["node-b"]
        and reply["archive"] == str(archive)
        and archive.exists()
    )
    result = cli("host", "variables", "--json")
    assert (
        len(result.json["data"]["hosts"]) == 12
        and result.json["data"]["hosts"]["node-b"] == reply["hosts"]["node-b"]
    )


@pytest.mark.parametrize("verb", ["variables", "provision"])
def test_a_host_that_the_lab_does_not_have_is_refused_before_anything_is_done(
    cli: Any, ran: list[Any], verb: str
) -> None:
    result = cli("host", verb, "--limit", "node-b", "--limit", "node-bb")
    assert (
        result.code == 2
        and "node-bb is no host of this lab (12 hosts" in result.err
        and "did you mean node-b?" in result.err
    )


def test_a_file_that_cannot_be_written_is_named(cli: Any, ran: list[Any]) -> None:
    result = cli("host", "variables", "--archive", "/nowhere/lab.tar.gz")
    assert (
        result.code == 2
        and "/nowhere/lab.tar.gz: No such file or directory" in result.err
        and result.out == ""
    )


def test_a_power_cycle_is_asked_for_and_needs_a_bmc(cli: Any, ran: list[Any]) -> None:
    for argv, text in (
        (("--cycle", "--on"), "give either --cycle or --on"),
        (("--cycle", "--force"), "--force needs a --reason"),
        (("--reason", "r"), "--force and --reason are of --cycle and --on"),
        (("--cycle",), "asks for confirmation"),
        (("--cycle", "--yes"), "node-b has no testbed_bmc"),
        ((), "node-b has no testbed_bmc"),
    ):
        result = cli("host", "power", "node-b", *argv)
        assert result.code == 2 and text in result.err, (argv, result.err)
