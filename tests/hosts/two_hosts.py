"""A two-host lab as a value, for what needs no lab running."""

from __future__ import annotations

from orchestrator.inventory.lab import Lab, read_lab

HOSTS = """
all:
  vars: {testbed_lanes: 4}
  hosts:
"""
DEVICES = 'lab: small\ndevices:\n  ocs1: {driver: polatis-scpi, address: "tcp://127.0.0.1:5025"}\n'


def small_lab() -> Lab:
    """gpu01 and gpu02 with four ports each, wired to ocs1."""
    hosts, fibres = HOSTS, "fibres:\n"
    for n in (1, 2):
        ports = ", ".join(f"{p}: {{interface: opt{p}}}" for p in range(1, 5))
        hosts += f"    gpu0{n}: {{testbed_host_id: {n}, testbed_mgmt_address: 10.254.0.{n}, testbed_ports: {{{ports}}}}}\n"
        for p in range(1, 5):
            enters = 4 * (n - 1) + p
            fibres += f'  - {{name: f{n}{p}, host: gpu0{n}, port: {p}, device: ocs1, enters: "{enters}", leaves: "{enters + 8}"}}\n'
    return read_lab(hosts, DEVICES, fibres)
