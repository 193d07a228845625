"""`testbed host exec` and `testbed host shell` at the prompt."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

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
