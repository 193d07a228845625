"""The inventory of a lab whose devices are of one family, or each of another, from the families'
own descriptions; and what all generated labs have: what is wanted, and the hosts' file.

Port p of every host is wired to device p: the k-th host to the k-th ingress and egress of its
family's faceplate. Where that family routes spectrum, the k-th host sends in a slot of its own;
where it has one common port, a passive coupler joins the hosts' fibres to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from emulators.devices.family import Family
from emulators.generate.electrical import Electrical

DEFAULT_STATE = "~/.local/state/testbed/emulated"
FIRST_N, SLOT_STEP_N, SLOT_M = -280, 16, 4  # 191.35 THz and on, 100 GHz apart, 50 GHz wide
MOST_SLOTS = 48  # then the C band ends
SIZES = (4, 8, 9, 16, 20, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The lab to write. `state` is where its keys and its control socket live; ports are loopback
    TCP ports.

    settle_s: the devices' switching time (s); in a lab of one family 0 means the family's own.
    electrical: packet switches beside the devices; rack: hosts of a leaf switch; control_ports:
    where those with functions are controlled. lines: at a port number of all hosts, delay (ms) and
    queue (packets). wavelengths: so many, which hosts take in turn where the devices route
    spectrum; 0: each host has one of its own. queue: of the packet switches, as
    `electrical.segments`. partitions of every host: name, lanes, share of a port. bmc_ports: where
    the hosts' management controllers answer, if they have any.
    """

    ssh_ports: tuple[int, ...]
    device_ports: tuple[int, ...]
    state: str = DEFAULT_STATE
    settle_s: float = 0.05
    rate_mbps: float = 250
    gpus: int = 0
    lab: str = "emulated"
    electrical: tuple[Electrical, ...] = ()
    rack: int = 4
    control_ports: tuple[int, ...] = ()
    lines: tuple[tuple[int, float, int, float, float], ...] = ()
    wavelengths: int = 0
    queue: tuple[int, str] | None = None
    partitions: tuple[tuple[str, tuple[int, ...], float], ...] = ()
    bmc_ports: tuple[int, ...] = ()


def host_name(number: int, count: int) -> str:
    return f"gpu{number:0{2 if count < 100 else 3}d}"


def hosts_yml(wanted: Wanted, ports: int) -> str:
    """Return the Ansible inventory of the hosts, of any lab, with so many ports of fibres each."""
    count = len(wanted.ssh_ports)
    # Rings go round both ways on each of two planes, every order on a lane of its own.
    lanes = max(ports, *(2 * spec.ports for spec in wanted.electrical if spec.ports > 1), 1)
    names = [f"opt{p}" for p in range(1, ports + 1)]
    names += [
        f"el{p}"
        for p in range(ports + 1, ports + 1 + sum(spec.ports for spec in wanted.electrical))
    ]
    opts = ", ".join(f"{p}: {{interface: {name}}}" for p, name in enumerate(names, 1))
    # To ssh ~ is the home in the machine's list of users, to other programs it is $HOME.
    known = f"{wanted.state}/known_hosts".replace("~/", "${HOME}/", 1)
    lines = [
        "# The hosts: an Ansible inventory, used as it is (`ansible -i hosts.yml all -m ping` works while the lab runs).",
        "# Variables that begin with testbed_ are explained in docs/reference/inventory.md.",
        "all:",
        "  children:",
        "    gpu:",
        "      vars:",
        "        ansible_user: root",
        "        ansible_host: 127.0.0.1                 # every emulated host's sshd answers on a loopback port of its own",
        f"        ansible_ssh_private_key_file: {wanted.state}/id_ed25519     # made at the lab's first start",
        f"        ansible_ssh_common_args: -o UserKnownHostsFile={known} -o StrictHostKeyChecking=yes",
        "        ansible_python_interpreter: python3",
        "        testbed_forwarding: kernel              # kernel: IP routes; npar-rdma: RDMA functions, hardware only",
        '        testbed_node_prefix: "10.255"           # lane L of host n has 10.255.L.n on the bridge host0',
        '        testbed_port_prefix: "10"               # port p of host n has 10.p.0.n',
        f"        testbed_lanes: {lanes}                        # addresses per host: parallel equal paths carry one lane each",
        f"        testbed_gpus: {wanted.gpus}                         # 0: collectives run on gloo",
        f"        testbed_link_mbps: {wanted.rate_mbps or 25000:<21}# what a port carries, as in emulator.yml; for predictions",
    ]
    if wanted.partitions:
        if wrong := next(
            (
                f"{name}: {lane}"
                for name, own, _ in wanted.partitions
                for lane in own
                if lane >= lanes
            ),
            "",
        ):
            raise ValueError(f"--partition {wrong}: a host has the lanes 0 to {lanes - 1}")
        each = (
            f"{name}: {{lanes: {list(own)}{f', share: {share:g}' if share else ''}}}"
            for name, own, share in wanted.partitions
        )
        lines.append(
            f"        testbed_partitions: {{{', '.join(each)}}}     # plans name gpu01/{wanted.partitions[0][0]}, ..."
        )
    lines.append("      hosts:")
    for number, port in enumerate(wanted.ssh_ports, 1):
        lines += [
            f"        {host_name(number, count)}:",
            f"          ansible_port: {port}",
            f"          testbed_host_id: {number}",
            f"          testbed_mgmt_address: 10.254.0.{number}",
            f"          testbed_ports: {{{opts}}}",
        ]
        if wanted.bmc_ports:
            address = f"http://127.0.0.1:{wanted.bmc_ports[number - 1]}"
            lines.append(
                f'          testbed_bmc: {{address: "{address}", username: root, password: emulated}}'
            )
    return "\n".join([*lines, ""])


def sizes(kind: Family) -> Iterator[str]:
    """Yield the sizes such a device comes in, the usual one first."""
    yield kind.size
    for number in SIZES:
        size = f"{kind.size.split('x')[0] if kind.coupler else number}x{number}"
        if size != kind.size and _hosts_on(kind, size):
            yield size


def most_hosts(kind: Family) -> int:
    """Return how many hosts the largest device of the family takes, as many as there are slots at
    most.
    """
    most = max(_hosts_on(kind, size) for size in sizes(kind))
    return min(most, MOST_SLOTS) if kind.spectral else most


def size_for(kind: Family, hosts: int) -> str:
    """Return the usual size if it takes that many hosts, else the smallest that does. Raises
    ValueError: none does.
    """
    if hosts > most_hosts(kind):
        raise ValueError(f"a {kind.driver} takes at most {most_hosts(kind)} hosts, not {hosts}")
    return next(size for size in sizes(kind) if _hosts_on(kind, size) >= hosts)


def texts_of(kinds: Sequence[Family], wanted: Wanted) -> dict[str, str]:
    """Return devices.yml, fibres.yml and emulator.yml; kinds: of each device. Raises ValueError:
    too many hosts for one of them.
    """
    hosts = len(wanted.ssh_ports)
    names = [f"{'wss' if kind.spectral else 'ocs'}{number}" for number, kind in enumerate(kinds, 1)]
    ones = {
        name: (kind, port)
        for name, kind, port in zip(names, kinds, wanted.device_ports, strict=True)
    }
    fitting = {name: size_for(kind, hosts) for name, (kind, _) in ones.items()}
    fibres: list[str] = []
    trunks: list[str] = []
    for number, (name, (kind, _)) in enumerate(ones.items(), 1):
        fibres += _fibres(kind, fitting[name], name, number, hosts, wanted.wavelengths or hosts)
        trunks += _trunks(kind, name)
    return {
        "devices.yml": devices_of(ones, wanted),
        "fibres.yml": "\n".join(
            [
                *_about_fibres(kinds),
                "fibres:",
                *fibres,
                *(["trunks:", *trunks] if trunks else []),
                "",
            ]
        ),
        "emulator.yml": emulator_of(ones, wanted, fitting),
    }


def _plugs(kind: Family, size: str) -> tuple[list[str], list[str]]:
    """Return the ingress and egress labels that hosts use: those of trunks are not for them."""
    inputs, outputs = (int(part) for part in size.split("x"))
    ingress, egress = kind.faceplate(inputs, outputs)
    away, back = {out for out, _ in kind.trunks}, {enter for _, enter in kind.trunks}
    return [p for p in ingress if p not in back], [p for p in egress if p not in away]


def _hosts_on(kind: Family, size: str) -> int:
    try:
        ingress, egress = _plugs(kind, size)
    except ValueError:
        return 0
    return len(egress) if kind.coupler else min(len(ingress), len(egress))


def devices_of(
    ones: Mapping[str, tuple[Family, int]], wanted: Wanted, meter_db: float = 0.0
) -> str:
    """Return devices.yml. meter_db: accuracy of their meters, where the driver has none of its
    own.
    """
    lines = [
        "# The optical devices: how to reach them and what they are. The same file describes hardware; only the addresses differ.",
        f"lab: {wanted.lab}",
        "devices:",
    ]
    for name, (kind, port) in ones.items():
        scheme = kind.schemes[0]
        where = f"127.0.0.1:{port}"
        if scheme == "serial":
            where = f"{Path(wanted.state).expanduser().absolute()}/{name}.tty?baud={kind.baud}"
        facts = [f"driver: {kind.driver}", f'address: "{scheme}://{where}"']
        if kind.login:
            facts.append(f"username: {kind.login[0]}, password: {kind.login[1]}")
        traits = {"settle_s": wanted.settle_s, "meter_db": meter_db}
        if given := ", ".join(f"{name}: {value}" for name, value in traits.items() if value):
            facts.append(f"traits: {{{given}}}")
        if kind.time_scale != 1:
            facts.append(f"time_scale: {kind.time_scale:g}")
        if scheme in ("ssh", "netconf"):
            facts.append(f'options: {{known_hosts: "{wanted.state}/known_hosts_devices"}}')
        lines.append(f"  {name}: {{{', '.join(facts)}}}")
    return "\n".join([*lines, ""])


def _about_fibres(kinds: Sequence[Family]) -> Iterator[str]:
    yield "# The cables: one duplex fibre per line, between a port of a host and a port of a device."
    yield "# enters: the device's port the host's light goes into; leaves: the port whose light reaches the host."
    yield "# Optional: loss_db (otherwise 0.35 dB/km and two connectors of 0.3 dB)."
    if any(kind.spectral for kind in kinds):
        yield "# slot: what the host's transmitter sends, centre 193.1 THz + n x 6.25 GHz, width m x 12.5 GHz; receivers take any."
    if any(kind.coupler for kind in kinds):
        yield "# A passive coupler joins the fibres that enter the same port."
    if any(kind.trunks for kind in kinds):
        yield "# trunks: one fibre each, from an egress of a device to an ingress."


def _fibres(
    kind: Family, size: str, device: str, number: int, hosts: int, wavelengths: int
) -> Iterator[str]:
    ingress, egress = _plugs(kind, size)
    yield f"  # port {number} of every host -> {device}"
    for host in range(1, hosts + 1):
        name = host_name(host, hosts)
        slot = (
            f"slot: {{n: {FIRST_N + SLOT_STEP_N * ((host - 1) % wavelengths)}, m: {SLOT_M}}}, "
            if kind.spectral
            else ""
        )
        yield (
            f"  - {{name: f-{name}-p{number}, host: {name}, port: {number}, device: {device}, "
            f'enters: "{ingress[0 if kind.coupler else host - 1]}", leaves: "{egress[host - 1]}", '
            f"{slot}length_m: {8 + (host - 1) // 4 * 2}.0}}"
        )


def _trunks(kind: Family, device: str) -> Iterator[str]:
    for number, (egress, ingress) in enumerate(kind.trunks, 1):
        ends = f'from: {{device: {device}, port: "{egress}"}}, to: {{device: {device}, port: "{ingress}"}}'
        yield f"  - {{name: t-{device}-{number}, {ends}, length_m: 2.0}}"


def emulator_of(
    ones: Mapping[str, tuple[Family, int]], wanted: Wanted, fitting: Mapping[str, str]
) -> str:
    lines = [
        "# What only the emulators read (`python -m emulators DIR`); hardware labs have no such file.",
        "hosts: true            # false: serve the devices alone",
        "seed: 1                # of everything random: insertion losses, meter noise, chance faults",
        f"link_rate_mbps: {wanted.rate_mbps:<6} # per port and direction; 250 stands for 25 Gb/s at 1:100. 0: no limit",
        "mtu: 9000              # the largest packet a fibre carries, bytes",
        "devices:               # per device: settle_s, size, model, serial, firmware, ...",
    ]
    for name, (kind, _) in ones.items():
        facts = [f"size: {fitting[name]}"]
        if wanted.settle_s:
            facts.append(f"settle_s: {wanted.settle_s}")
            if kind.bulk_settle_s:
                facts.append(f"bulk_settle_s: {wanted.settle_s}")
        lines.append(f"  {name}: {{{', '.join(facts)}}}")
    return "\n".join([*lines, ""])
