"""Where the password of a device comes from, who may read it there, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from optics import BadFile, DeviceConfig, Missing
from orchestrator.credentials import unvault, with_known_hosts, with_secret, withheld
from orchestrator.inventory.lab import Lab, read_lab

HOSTS = """all: {hosts: {gpu01: {ansible_host: 192.0.2.1, ansible_become_password: !vault "$ANSIBLE_VAULT;1.1;AES256 00",
  testbed_host_id: 1, testbed_ports: {1: {interface: eth1}}}}}"""
FIBRES = 'fibres: [{name: f1, host: gpu01, port: 1, device: ocs1, enters: "1", leaves: "17"}]'
PASSWORD = "s3cr3t with a blank"
ANSIBLE_VAULT = Path(sys.executable).with_name("ansible-vault")


def lab_with(lines: str) -> Lab:
    device = f'lab: l\ndevices:\n  ocs1:\n    driver: telescent-cli\n    address: "ssh://192.0.2.3:22"\n    username: u\n{lines}'
    return read_lab(HOSTS, device, FIBRES)


def opened(lab: Lab) -> DeviceConfig:
    return with_secret(lab, lab.devices["ocs1"])


@pytest.fixture
def vault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The vault's password file, named in the environment."""
    path = tmp_path / "vault-password"
    path.write_text("open sesame\n")
    path.chmod(0o600)
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(path))
    return path


def encrypted(vault: Path, *argv: str) -> str:
    """What Ansible's own program makes of the password."""
    named = () if "--vault-id" in argv else ("--vault-password-file", vault)
    output = ansible_vault("encrypt_string", *named, *argv, "--stdin-name", "password")
    return "".join(f"    {line}\n" for line in output.splitlines())


def ansible_vault(*argv: object) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "ANSIBLE_VAULT_PASSWORD_FILE"}
    command = [str(ANSIBLE_VAULT), *map(str, argv)]
    return subprocess.run(
        command,
        input=PASSWORD,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=environment,
    ).stdout


def test_a_password_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = lab_with("    password_env: OCS1_WORD\n")
    monkeypatch.setenv("OCS1_WORD", PASSWORD)
    assert opened(lab).password == PASSWORD and withheld(lab) == {"OCS1_WORD"}
    assert PASSWORD not in repr(opened(lab)) and lab.devices["ocs1"].password == ""
    monkeypatch.delenv("OCS1_WORD")
    with pytest.raises(Missing, match="OCS1_WORD is not set"):
        opened(lab)


def test_a_password_comes_from_a_file_that_nobody_else_can_read(tmp_path: Path) -> None:
    path = tmp_path / "word"
    path.write_text(f"{PASSWORD}\n")
    lab = lab_with(f"    password_file: {path}\n")
    path.chmod(0o600)
    assert opened(lab).password == PASSWORD
    for mode in (0o640, 0o604, 0o660, 0o644):
        path.chmod(mode)
        with pytest.raises(BadFile, match="can be read by others") as refused:
            opened(lab)
        assert refused.value.hint == f"chmod 600 {path}" and PASSWORD not in str(refused.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_password_file_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "word"
    path.write_text(PASSWORD)
    path.chmod(0o600)
    os.chown(path, 65534, 65534)
    with pytest.raises(BadFile, match="belongs to another user"):
        opened(lab_with(f"    password_file: {path}\n"))


@pytest.mark.parametrize("argv", [(), ("--encrypt-vault-id", "lab", "--vault-id", "lab@{}")])
def test_a_password_comes_from_ansibles_vault(vault: Path, argv: tuple[str, ...]) -> None:
    lab = lab_with(encrypted(vault, *(word.format(vault) for word in argv)))
    assert (
        "!vault" in encrypted(vault)
        and lab.devices["ocs1"].password == ""
        and PASSWORD not in repr(lab)
    )
    assert opened(lab).password == PASSWORD


def test_a_password_file_may_be_a_vault(vault: Path, tmp_path: Path) -> None:
    path = tmp_path / "word"
    path.write_text(f"{PASSWORD}\n")
    ansible_vault("encrypt", "--vault-password-file", vault, path)
    path.chmod(0o600)
    assert (
        PASSWORD not in path.read_text()
        and opened(lab_with(f"    password_file: {path}\n")).password == PASSWORD
    )


def test_a_vault_takes_its_password_from_a_program_too(
    vault: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = lab_with(encrypted(vault))
    program = tmp_path / "ask"
    program.write_text("#!/bin/sh\necho open sesame\n")
    program.chmod(0o700)
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(program))
    assert opened(lab).password == PASSWORD
    program.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(BadFile, match="gave no password"):
        opened(lab)


def test_a_vault_that_does_not_open_says_why(vault: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = encrypted(vault)
    lab = lab_with(text)
    vault.write_text("another\n")
    with pytest.raises(BadFile, match="does not open"):
        opened(lab)
    vault.chmod(0o644)
    with pytest.raises(BadFile, match="can be read by others"):
        opened(lab)
    vault.chmod(0o600)
    with pytest.raises(BadFile, match="damaged"):
        opened(lab_with(text[:-3] + "z\n"))
    monkeypatch.delenv("ANSIBLE_VAULT_PASSWORD_FILE")
    with pytest.raises(Missing, match="ANSIBLE_VAULT_PASSWORD_FILE is not set"):
        opened(lab)
    with pytest.raises(BadFile, match="no vault format"):
        unvault("$ANSIBLE_VAULT;9.9;ROT13\n00", "x")


def test_a_password_cannot_end_a_command_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCS1_WORD", "a;\nRTRV-CRS::ALL:1;")
    with pytest.raises(BadFile, match="control character") as refused:
        opened(lab_with("    password_env: OCS1_WORD\n"))
    assert "RTRV" not in str(refused.value)


def test_a_lab_has_known_hosts_of_its_own(tmp_path: Path) -> None:
    lab, takes = lab_with(""), {"ocs1": ("known_hosts",)}
    assert with_known_hosts(lab, tmp_path, takes) == lab
    own = tmp_path / "known_hosts"
    own.write_text("")
    changed = with_known_hosts(lab, tmp_path, takes)
    assert changed.devices["ocs1"].options == {"known_hosts": str(own)} and changed.hosts[
        "gpu01"
    ].ssh.known_hosts == str(own)
    assert not with_known_hosts(lab, tmp_path, {"ocs1": ("port",)}).devices["ocs1"].options
    named = lab_with("    options: {known_hosts: /other}\n")
    assert with_known_hosts(named, tmp_path, takes).devices["ocs1"].options == {
        "known_hosts": "/other"
    }
