"""The inventory of the default lab, half of whose devices are Polatis switches, the others Calient.

Port p of every host is wired to device ocs{p}. Polatis switches have a split faceplate (1..N in,
N+1..2N out), Calient switches a duplex one (AIDs shelf.module.port).
"""

from __future__ import annotations

from pathlib import Path

from emulators.generate.electrical import segments
from emulators.generate.familylab import Wanted, host_name, hosts_yml

POLATIS_SIZES = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
CALIENT_MODULE = 8  # ports per module


def polatis_size(hosts: int) -> int:
    """Return the smallest catalogue size that takes all hosts."""
    return next(size for size in POLATIS_SIZES if size >= max(hosts, 16))


def calient_aid(number: int) -> str:
    """Return the faceplate label of port `number`, from 1: 1.1.1 .. 1.1.8, 1.2.1 ..."""
    return f"1.{(number - 1) // CALIENT_MODULE + 1}.{(number - 1) % CALIENT_MODULE + 1}"


def is_polatis(device: int, devices: int) -> bool:
    """Return whether device number `device` of `devices` is one of the Polatis half."""
    return device <= (devices + 1) // 2


def generate(out: Path, wanted: Wanted) -> None:
    """Write hosts.yml, devices.yml, fibres.yml and emulator.yml to `out`. Raises ValueError: no
    such lab; nothing is written.
    """
    files = {
        "hosts.yml": hosts_yml(wanted, len(wanted.device_ports)),
        "devices.yml": _devices(wanted),
        "fibres.yml": _fibres(wanted),
        "emulator.yml": _emulator(wanted),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (out / name).write_text(text)


def _devices(wanted: Wanted) -> str:
    lines = [
        "# The optical switches: how to reach them and what they are. The same file describes hardware; only the addresses differ.",
        f"lab: {wanted.lab}",
        "devices:",
    ]
    total = len(wanted.device_ports)
    for number, port in enumerate(wanted.device_ports, 1):
        address = f'"tcp://127.0.0.1:{port}"'
        settle = f"traits: {{settle_s: {wanted.settle_s}}}"
        if is_polatis(number, total):
            lines.append(f"  ocs{number}: {{driver: polatis-scpi, address: {address}, {settle}}}")
        else:
            login = "username: admin, password: emulated"
            lines.append(
                f"  ocs{number}: {{driver: calient-tl1, address: {address}, {login}, {settle}}}"
            )
    return "\n".join([*lines, ""])


def _fibres(wanted: Wanted) -> str:
    count, total = len(wanted.ssh_ports), len(wanted.device_ports)
    size = polatis_size(count)
    lines = [
        "# The cables: one duplex fibre per line, between a port of a host and a port of a switch.",
        "# enters: the switch port the host's light goes into; leaves: the switch port whose light reaches the host.",
        "# Optional: loss_db (otherwise 0.35 dB/km and two connectors of 0.3 dB).",
        "fibres:",
    ]
    for device in range(1, total + 1):
        lines.append(f"  # port {device} of every host -> ocs{device}")
        for host in range(1, count + 1):
            enters, leaves = (
                (str(host), str(size + host))
                if is_polatis(device, total)
                else (calient_aid(host),) * 2
            )
            name = host_name(host, count)
            lines.append(
                f"  - {{name: f-{name}-p{device}, host: {name}, port: {device}, device: ocs{device}, "
                f'enters: "{enters}", leaves: "{leaves}", length_m: {8 + (host - 1) // 4 * 2}.0}}'
            )
    if wanted.electrical:
        names = [host_name(host, count) for host in range(1, count + 1)]
        lines += segments(
            wanted.electrical,
            names,
            total + 1,
            total * wanted.rate_mbps,
            wanted.rack,
            wanted.control_ports,
            wanted.queue,
        )
    return "\n".join([*lines, ""])


def _emulator(wanted: Wanted) -> str:
    count, total = len(wanted.ssh_ports), len(wanted.device_ports)
    lines = [
        "# What only the emulators read (`python -m emulators DIR`); hardware labs have no such file.",
        "hosts: true            # false: serve the devices alone",
        "seed: 1                # of everything random: insertion losses, meter noise, chance faults",
        f"link_rate_mbps: {wanted.rate_mbps}    # per port and direction; 250 stands for 25 Gb/s at 1:100. 0: no limit",
        "mtu: 9000              # the largest packet a fibre carries, bytes",
        "# reserve_core: true   # keep the first core free of the hosts' processes; default: where there are four cores or more",
        "devices:               # per device: settle_s, bulk_settle_s, size, model, serial, firmware, ...",
    ]
    lines.append(
        "  # (bulk_settle_s: when many mirrors move at once; a Calient may take 0.2 s, here all switches take the same time)"
    )
    for device in range(1, total + 1):
        polatis = is_polatis(device, total)
        size = (
            polatis_size(count)
            if polatis
            else -(-max(count, 16) // CALIENT_MODULE) * CALIENT_MODULE
        )
        bulk = "" if polatis else f", bulk_settle_s: {wanted.settle_s}"
        lines.append(f"  ocs{device}: {{size: {size}x{size}, settle_s: {wanted.settle_s}{bulk}}}")
    if wanted.lines:
        lines.append("lines:                 # what these ports send takes time")
    for port, delay_ms, queue, loss, rate in wanted.lines:
        more = (f", loss: {loss:g}" if loss else "") + (f", rate_mbps: {rate:g}" if rate else "")
        ports = ", ".join(f"{host_name(host, count)}:p{port}" for host in range(1, count + 1))
        lines.append(
            f"  - {{ports: [{ports}], delay_ms: {delay_ms:g}, queue_packets: {queue}{more}}}"
        )
    return "\n".join([*lines, ""])
