"""Hosts with a management controller: a computer that a test watches, and a lab of them."""

from __future__ import annotations

from orchestrator.inventory.hosts import Host
from orchestrator.inventory.lab import Lab, read_lab

DEVICES = 'lab: l\ndevices:\n  ocs1: {driver: polatis-scpi, address: "tcp://127.0.0.1:1"}\n'


class Computer:
    """What an emulated BMC switches; `did` has what it was told."""

    def __init__(self, power: str = "On") -> None:
        self.power, self.broken = power, False
        self.did: list[str] = []

    def on(self) -> None:
        self._check()
        self.did.append("on")
        self.power = "On"

    def off(self) -> None:
        self._check()
        self.did.append("off")
        self.power = "Off"

    def _check(self) -> None:
        if self.broken:
            raise OSError("no power supply")


def managed_texts(bmc: str, ssh_port: int = 1) -> tuple[str, str, str]:
    """hosts.yml, devices.yml and fibres.yml of two hosts; `bmc`: what gpu01 has after
    testbed_bmc.
    """
    hosts = "\n".join(
        (
            "all:",
            "  vars:",
            "    ansible_host: 127.0.0.1",
            f"    ansible_port: {ssh_port}",
            "    testbed_ports: {1: {interface: opt1}}",
            "  hosts:",
            "    gpu01:",
            "      testbed_host_id: 1",
            f"      testbed_bmc: {bmc}",
            "    gpu02:",
            "      testbed_host_id: 2",
            "",
        )
    )
    fibres = "\n".join(
        f'  - {{name: f{n}, host: gpu0{n}, port: 1, device: ocs1, enters: "{n}", leaves: "{16 + n}"}}'
        for n in (1, 2)
    )
    return hosts, DEVICES, f"fibres:\n{fibres}\n"


def managed_lab(bmc: str, ssh_port: int = 1) -> Lab:
    return read_lab(*managed_texts(bmc, ssh_port))


def login(address: str) -> str:
    """testbed_bmc of the emulated BMC at this address."""
    return f'{{address: "{address}", username: root, password: emulated, timeout_s: 2}}'


def managed_host(address: str) -> Host:
    return managed_lab(login(address)).hosts["gpu01"]
