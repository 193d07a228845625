"""The inventory of a look-ahead lab: a robotic patch panel, and a 1x2 switch before it at every
host port, as TopoOpt proposes.

The switches are ports of one fast matrix, `flip1`, which the inventory's `directions` make a bank
of: a host's light goes on to side A or to side B, and what comes back from either goes to the host.
Both sides end at the panel `robot1`, A at the first half of its ports, B at the second: whatever
side is lit, the robot can wire the other.
"""

from __future__ import annotations

from collections.abc import Iterator

from emulators.generate.defaultlab import POLATIS_SIZES
from emulators.generate.familylab import Wanted, host_name

PANEL_SCALE = 60


def texts_of_lookahead(wanted: Wanted, ports: int) -> dict[str, str]:
    """Return devices.yml, fibres.yml and emulator.yml. `wanted.device_ports`: of flip1 and robot1.
    Raises ValueError: too large.
    """
    hosts = len(wanted.ssh_ports)
    count = hosts * ports
    size = next((size for size in POLATIS_SIZES if size >= 3 * count), None)
    if size is None:
        raise ValueError(
            f"a look-ahead lab has at most {POLATIS_SIZES[-1] // 3} host ports, not {count}"
        )
    return {
        "devices.yml": "\n".join([*_devices(wanted, count, size), ""]),
        "fibres.yml": "\n".join([*_fibres(hosts, ports, size), ""]),
        "emulator.yml": "\n".join([*_emulator(wanted, count, size), ""]),
    }


def _devices(wanted: Wanted, count: int, size: int) -> Iterator[str]:
    flip, robot = wanted.device_ports
    yield "# A bank of 1x2 switches, out of a fast matrix, before a patch panel that a robot wires."
    yield f"lab: {wanted.lab}"
    yield "devices:"
    yield "  flip1:"
    yield "    driver: polatis-scpi"
    yield f'    address: "tcp://127.0.0.1:{flip}"'
    yield "    traits:"
    yield f"      settle_s: {wanted.settle_s or 0.05}"
    yield "      directions:                 # ingress, egress: a host's light to side A or B, and from either side back to the host"
    for k in range(1, count + 1):
        yield f'        - ["{k}", "{size + count + k}|{size + 2 * count + k}"]'
        yield f'        - ["{count + k}|{2 * count + k}", "{size + k}"]'
    yield "  robot1:"
    yield "    driver: rome-cli"
    yield f'    address: "ssh://127.0.0.1:{robot}"'
    yield "    username: admin"
    yield "    password: admin"
    yield f"    time_scale: {PANEL_SCALE}          # a move of a minute takes a second here"
    yield f'    options: {{known_hosts: "{wanted.state}/known_hosts_devices"}}'


def _fibres(hosts: int, ports: int, size: int) -> Iterator[str]:
    count = hosts * ports
    numbered = [
        (host_name(host, hosts), port)
        for host in range(1, hosts + 1)
        for port in range(1, ports + 1)
    ]
    yield "# The cables: one duplex fibre per line, between a port of a host and its 1x2 switch."
    yield "# trunks: one fibre each way between either side of every switch and the panel."
    yield "fibres:"
    for k, (name, port) in enumerate(numbered, 1):
        yield (
            f"  - {{name: f-{name}-p{port}, host: {name}, port: {port}, device: flip1, "
            f'enters: "{k}", leaves: "{size + k}", length_m: 8.0}}'
        )
    yield "trunks:"
    for k, (name, port) in enumerate(numbered, 1):
        for side, ring_change in (("a", 1), ("b", 2)):
            at, plug = ring_change * count + k, (ring_change - 1) * count + k
            away = f'from: {{device: flip1, port: "{size + at}"}}, to: {{device: robot1, port: "E{plug}"}}'
            back = f'from: {{device: robot1, port: "W{plug}"}}, to: {{device: flip1, port: "{at}"}}'
            yield f"  - {{name: {side}-{name}-p{port}-out, {away}, length_m: 3.0, loss_db: 0.3}}"
            yield f"  - {{name: {side}-{name}-p{port}-in, {back}, length_m: 3.0, loss_db: 0.3}}"


def _emulator(wanted: Wanted, count: int, size: int) -> Iterator[str]:
    yield "# What only the emulators read (`python -m emulators DIR`); hardware labs have no such file."
    yield "hosts: true            # false: serve the devices alone"
    yield "seed: 1                # of everything random: insertion losses, meter noise, chance faults"
    yield f"link_rate_mbps: {wanted.rate_mbps:<6} # per port and direction; 250 stands for 25 Gb/s at 1:100. 0: no limit"
    yield "mtu: 9000              # the largest packet a fibre carries, bytes"
    yield "devices:               # per device: settle_s, size, model, serial, firmware, ..."
    yield f"  flip1: {{size: {size}x{size}, settle_s: {wanted.settle_s or 0.05}}}"
    yield f"  robot1: {{size: {2 * count}x{2 * count}}}"
