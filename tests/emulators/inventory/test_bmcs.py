"""Management controllers of emulated hosts: written by the generator, read from hosts.yml."""

from __future__ import annotations

from pathlib import Path

import pytest

from emulators.generate.command import main
from emulators.inventory.config import BmcConfig, read_config
from emulators.inventory.files import BadInventory
from orchestrator.session import load_lab

ARGUMENTS = ["--hosts", "3", "--ports", "2", "--bmc"]


@pytest.mark.parametrize("more", [[], ["--free-ports"], ["--free-ports", "--electrical", "ideal"]])
def test_every_host_of_a_lab_with_bmcs_has_one_at_a_port_of_its_own(
    tmp_path: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ARGUMENTS, *more, "--out", str(tmp_path / "lab")]) == 0
    hosts = read_config(tmp_path / "lab").hosts.values()
    ports = {host.bmc.port for host in hosts if host.bmc} | {host.ssh_port for host in hosts}
    assert len(ports) == 6
    read = load_lab(tmp_path / "lab").hosts["gpu02"].bmc
    assert read is not None and read.address == f"http://127.0.0.1:{[*hosts][1].bmc.port}"  # type: ignore[union-attr]


def test_a_lab_without_them_is_as_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*ARGUMENTS[:-1], "--out", str(tmp_path / "lab")]) == 0
    assert "testbed_bmc" not in (tmp_path / "lab" / "hosts.yml").read_text()


@pytest.mark.parametrize(
    ("bmc", "problem"),
    [
        ('{address: "https://127.0.0.1:443", username: a, password: b}', "https://127.0.0.1:443"),
        ('{address: "tcp://127.0.0.1:443", username: a, password: b}', "answers on http"),
        ("{username: a, password: b}", "address is missing"),
    ],
)
def test_what_cannot_be_emulated_is_told(
    tmp_path: Path, bmc: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main([*ARGUMENTS, "--out", str(tmp_path / "lab")])
    page = tmp_path / "lab" / "hosts.yml"
    found = read_config(tmp_path / "lab").hosts["gpu01"].bmc
    assert found == BmcConfig(24_001, "root", "emulated")
    own = '{address: "http://127.0.0.1:24001", username: root, password: emulated}'
    page.write_text(page.read_text().replace(own, bmc))
    with pytest.raises(BadInventory, match=f"gpu01: .*{problem}"):
        read_config(tmp_path / "lab")
