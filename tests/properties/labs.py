"""Labs and graphs for the tests of the pure modules: inventory text in the users' format, read by
the real reader.
"""

from __future__ import annotations

from functools import cache
from random import Random

from optics import HostPort, Link
from orchestrator.fabric.rules import Macs
from orchestrator.inventory.lab import Lab, read_lab


def inventory(
    hosts: int = 12,
    ports: int = 4,
    *,
    forwarding: str = "kernel",
    lanes: int = 4,
    devices: int | None = None,
    first_id: int = 1,
) -> tuple[str, str, str]:
    """Three inventory texts: port p of every host is wired to device 1 + (p - 1) mod devices
    (default: a device per port).
    """
    devices = devices or ports
    npar = forwarding == "npar-rdma"
    lines = [
        "all:",
        "  vars:",
        f"    testbed_forwarding: {forwarding}",
        f"    testbed_lanes: {lanes}",
    ]
    lines += ['    testbed_port_prefix: "10.100"'] if npar else []
    lines += ["  hosts:"]
    for number in range(1, hosts + 1):
        lines += [
            f"    gpu{number:02d}:",
            f"      testbed_host_id: {number - 1 + first_id}",
            "      testbed_ports:",
        ]
        for port in range(1, ports + 1):
            names = (
                f"{{interface: pp{port}rdma, eth: pp{port}eth}}"
                if npar
                else f"{{interface: opt{port}}}"
            )
            lines.append(f"        {port}: {names}")
    device_lines = ["lab: made", "devices:"]
    device_lines += [
        f'  ocs{d}: {{driver: polatis-scpi, address: "tcp://127.0.0.1:{5024 + d}"}}'
        for d in range(1, devices + 1)
    ]
    fibre_lines = ["fibres:"]
    for number in range(1, hosts + 1):
        for port in range(1, ports + 1):
            at = (port - 1) // devices * hosts + number
            fibre_lines.append(
                f"  - {{name: f{number}-{port}, host: gpu{number:02d}, port: {port}, device: ocs{(port - 1) % devices + 1}, "
                f'enters: "{at}", leaves: "{1000 + at}"}}'
            )
    return "\n".join(lines) + "\n", "\n".join(device_lines) + "\n", "\n".join(fibre_lines) + "\n"


@cache
def lab(
    hosts: int = 12,
    ports: int = 4,
    *,
    forwarding: str = "kernel",
    lanes: int = 4,
    devices: int | None = None,
    first_id: int = 1,
) -> Lab:
    return read_lab(
        *inventory(
            hosts, ports, forwarding=forwarding, lanes=lanes, devices=devices, first_id=first_id
        )
    )


def tangled(hosts: int, ports: int, devices: int, random: Random) -> tuple[Lab, tuple[Link, ...]]:
    """A lab whose ports are wired to devices at random, and links that it can carry, some of its
    ports left free.
    """
    texts = inventory(hosts, ports, devices=devices)
    wiring = {
        HostPort(name(host), port): f"ocs{random.randint(1, devices)}"
        for host in range(hosts)
        for port in range(1, ports + 1)
    }
    lines = ["fibres:"]
    for at, (end, device) in enumerate(wiring.items(), 1):
        where = f'host: {end.host}, port: {end.number}, device: {device}, enters: "{at}", leaves: "{1000 + at}"'
        lines.append(f"  - {{name: f{at}, {where}}}")
    links = []
    for device in sorted(set(wiring.values())):
        ends = [end for end, at in wiring.items() if at == device]
        random.shuffle(ends)
        while len(ends) > 1:
            a = ends.pop()
            b = next((end for end in ends if end.host != a.host), None)
            if b is not None:
                ends.remove(b)
                links.append(Link(a, b))
    return read_lab(texts[0], texts[1], "\n".join(lines) + "\n"), tuple(links)


def macs(lab: Lab) -> dict[HostPort, Macs]:
    """MACs as a NIC has them: all different, the second function's not derivable from the
    first's.
    """
    rdma = {name: lab.hosts[name].forwarding == "npar-rdma" for name in lab.hosts}
    return {
        port: Macs(
            f"02:00:00:00:{lab.hosts[port.host].host_id:02x}:{port.number:02x}",
            f"02:00:00:01:{lab.hosts[port.host].host_id ^ 0x55:02x}:{port.number:02x}"
            if rdma[port.host]
            else None,
        )
        for port in (*lab.fibres, *lab.segment_at)
    }


def name(number: int) -> str:
    return f"gpu{number + 1:02d}"


def planes(count: int, degree: int, random: Random) -> tuple[Link, ...]:
    """A random graph that `degree` planes can carry: plane p joins hosts in pairs by port p (an odd
    one stays alone).
    """
    links = []
    for port in range(1, degree + 1):
        hosts = list(range(count))
        random.shuffle(hosts)
        for a, b in zip(hosts[::2], hosts[1::2], strict=False):
            links.append(Link(HostPort(name(a), port), HostPort(name(b), port)))
    return tuple(links)
