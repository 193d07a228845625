"""Onto a host by OpenSSH: the words it is called with, and what becomes of exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from optics import Missing, TimedOut, Unreachable
from orchestrator.hosts import openssh
from orchestrator.session import load_lab
from tests.house.repository import ROOT

HOSTS = dict(load_lab(ROOT / "inventory" / "emulated").hosts)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program named ssh that runs the remote command line here."""
    program = tmp_path / "ssh"
    program.write_text(
        '#!/bin/sh\nfor last; do :; done\nprintf "%s\\n" "$@" > '
        + f'{tmp_path}/message\nexec sh -c "$last"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "message"


def test_the_host_is_reached_as_ansible_reaches_it() -> None:
    argv = openssh.arguments(HOSTS["gpu03"])
    assert argv[:5] == ["ssh", "-p", "22103", "-l", "root"] and argv[-1] == "127.0.0.1"
    home = Path.home() / ".local" / "state" / "testbed" / "emulated"
    assert argv[argv.index("-i") + 1] == str(home / "id_ed25519")
    assert (
        f'UserKnownHostsFile="{home}/known_hosts"' in argv
        and "StrictHostKeyChecking=yes" in argv
        and "BatchMode=yes" in argv
    )


def test_several_words_stay_what_they_are_and_one_is_for_the_shell(fake: Path) -> None:
    code, out, _ = openssh.run(HOSTS["gpu01"], ["printf", "%s|", "a b", "$HOME;"], capture=True)
    assert (code, out) == (0, "a b|$HOME;|")
    assert openssh.run(HOSTS["gpu01"], ["echo one | tr o 0"], capture=True)[1] == "0ne\n"
    assert fake.read_text().splitlines()[-2:] == ["--", "echo one | tr o 0"]


def test_the_exit_code_is_that_of_the_command(fake: Path) -> None:
    assert openssh.run(HOSTS["gpu01"], ["echo no >&2; exit 3"], capture=True) == (3, "", "no\n")
    assert openssh.run(HOSTS["gpu01"], ["kill -TERM $$"], capture=True)[0] == 143


@pytest.mark.usefixtures("fake")
def test_a_host_that_cannot_be_reached_is_told_apart_from_a_command_that_ends_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openssh, "check_login", lambda host: None)
    assert openssh.run(HOSTS["gpu01"], ["exit 255"])[0] == 255
    monkeypatch.undo()
    monkeypatch.setattr(
        openssh.ssh, "connect", lambda *_: (_ for _ in ()).throw(Unreachable("gpu01: no answer"))
    )
    monkeypatch.setattr(
        openssh.subprocess, "run", lambda *_, **__: openssh.subprocess.CompletedProcess([], 255)
    )
    with pytest.raises(Unreachable, match="gpu01"):
        openssh.run(HOSTS["gpu01"], ["true"])


@pytest.mark.usefixtures("fake")
def test_a_command_that_takes_too_long_is_given_up() -> None:
    with pytest.raises(TimedOut, match="may still run there"):
        openssh.run(HOSTS["gpu01"], ["exec sleep 30"], timeout_s=0.2)


def test_without_ssh_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Missing) as refused:
        openssh.run(HOSTS["gpu01"], ["true"])
    assert "openssh-client" in refused.value.hint
