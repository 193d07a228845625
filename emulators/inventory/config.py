"""Read the inventory directory: the parts of hosts.yml, devices.yml and fibres.yml that the
emulators need, and emulator.yml.

The emulated lab is a separate program and trusts nothing else; the full check of an inventory, with
positions and suggestions, is the job of the program under test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emulators.devices.families import WHERE, family
from emulators.devices.transports.pty import DEFAULT_BAUD
from emulators.inventory.addresses import Address, parse
from emulators.inventory.files import BadInventory, mapping
from emulators.inventory.lines import LineConfig, overloaded, read_line
from emulators.inventory.offer import read_offer, too_large
from emulators.optics.light import edges_mhz, fibre_loss_db

MOST_DILATION = 100
MOST_SEGMENTS = 250
"""Of those with functions: their number is an octet of an address."""
LEAST_QUEUE_KB, MOST_QUEUE_KB = 68, 1 << 20
"""The kernel hands over up to 64 kB of TCP at once, counted with a header for each packet: a
shorter queue would drop all of it.
"""


@dataclass(frozen=True, slots=True)
class BmcConfig:
    """Where the management controller of an emulated host answers, by HTTP, and its login."""

    port: int
    username: str
    password: str


@dataclass(frozen=True, slots=True)
class HostConfig:
    """An emulated host. `interfaces` maps port number to interface name. job_user: whom its jobs
    run as.
    """

    name: str
    number: int
    ssh_port: int
    mgmt_address: str
    interfaces: Mapping[int, str]
    job_user: str = "testbed-job"
    bmc: BmcConfig | None = None


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """An emulated switch and where it answers. `overrides` go to its plant unchanged; key_file: the
    key its driver logs in with.

    time_scale: how much faster than a real one it runs.
    """

    name: str
    driver: str
    address: Address
    username: str | None
    password: str | None
    overrides: Mapping[str, object]
    key_file: str = ""
    time_scale: float = 1.0

    @property
    def port(self) -> int:
        """The loopback port; 0: a serial line."""
        return self.address.port


@dataclass(frozen=True, slots=True)
class Fibre:
    """A duplex cable: the host's light enters the device at `enters`; light leaving at `leaves`
    reaches the host.

    slot: edges (MHz) of what the host's transmitter sends; None: light of no known frequency.
    loss_db: in one direction.
    """

    name: str
    host: str
    port: int
    device: str
    enters: str
    leaves: str
    slot: tuple[int, int] | None = None
    loss_db: float = 0.6


@dataclass(frozen=True, slots=True)
class Trunk:
    """One fibre from an egress of a device to an ingress of another device, or of the same.
    loss_db: less its amplifier's gain.
    """

    name: str
    source: tuple[str, str]
    target: tuple[str, str]
    loss_db: float = 0.6


@dataclass(frozen=True, slots=True)
class Queue:
    """What waits before each port and uplink of a segment: its limit (bytes). share: `fifo` or
    `job`, of uplinks.
    """

    limit_bytes: int
    share: str


@dataclass(frozen=True, slots=True)
class Segment:
    """Packet switches that join host ports. `ports` maps a host to its port; rates are per
    direction.

    racks: the hosts of each leaf switch, and the rate of its uplinks to the spine; none: one
    switch. functions: what the switch does with packets, and how much of it; control_port: the
    loopback port where that is asked for.
    """

    name: str
    ports: Mapping[str, int]
    rate_bps: int
    racks: tuple[tuple[tuple[str, ...], int], ...] = ()
    functions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    control_port: int = 0
    queue: Queue | None = None

    @property
    def cables(self) -> Mapping[str, tuple[str, int]]:
        """The host and port at the end of each cable, by its name: switch and host."""
        return {f"{self.name}-{host}": (host, port) for host, port in self.ports.items()}


@dataclass(frozen=True, slots=True)
class LabConfig:
    """One lab. `rate_bps` 0 means unshaped; `mtu` is the largest packet a fibre carries, bytes.

    dilation: how many times slower everything in it is than in another lab: hosts compute slower by
    that, and ports take as much at once as there. rdma: hosts show an RDMA device for each port.
    """

    inventory: Path
    state: Path
    hosts: Mapping[str, HostConfig]
    devices: Mapping[str, DeviceConfig]
    fibres: tuple[Fibre, ...]
    trunks: tuple[Trunk, ...] = ()
    with_hosts: bool = True
    seed: int = 1
    rate_bps: int = 250_000_000
    mtu: int = 9000
    reserve_core: bool | None = None
    segments: tuple[Segment, ...] = ()
    lines: tuple[LineConfig, ...] = ()
    dilation: float = 1.0
    rdma: bool = False


def read_config(inventory: Path) -> LabConfig:
    """Read an inventory directory.

    Raises: BadInventory - a file is missing, is not YAML, or describes something that cannot be
    emulated.
    """
    inventory = inventory.resolve()
    hosts_file, devices_file, fibres_file = (
        mapping(inventory / f"{stem}.yml") for stem in ("hosts", "devices", "fibres")
    )
    extra = mapping(inventory / "emulator.yml") if (inventory / "emulator.yml").exists() else {}
    problems: list[str] = []
    unknown = set(extra) - {
        "hosts",
        "seed",
        "link_rate_mbps",
        "mtu",
        "devices",
        "reserve_core",
        "lines",
        "dilation",
        "rdma",
    }
    problems += [f"emulator.yml: {key}: unknown setting" for key in sorted(unknown)]

    hosts: dict[str, HostConfig] = {}
    keys: set[str] = set()
    users: set[str] = set()
    for name, facts in _hosts(hosts_file.get("all", hosts_file), {}):
        keys.add(str(facts.get("ansible_ssh_private_key_file", "")))
        users.add(str(facts.get("ansible_user", "root")))
        with _noted(problems, f"hosts.yml: {name}"):
            hosts[name] = HostConfig(
                name=name,
                number=int(facts["testbed_host_id"]),
                ssh_port=int(facts["ansible_port"]),
                mgmt_address=str(facts["testbed_mgmt_address"]),
                interfaces={
                    int(number): str(port["interface"])
                    for number, port in facts["testbed_ports"].items()
                },
                job_user=str(facts.get("testbed_job_user", "testbed-job")),
                bmc=_bmc(facts.get("testbed_bmc")),
            )
        if facts.get("ansible_host", "127.0.0.1") not in ("127.0.0.1", "localhost"):
            problems.append(
                f"hosts.yml: {name}: ansible_host is {facts['ansible_host']}; an emulated host answers on 127.0.0.1"
            )
    if len(keys) > 1 or (hosts and not any(keys)):
        problems.append(
            "hosts.yml: all emulated hosts need the same ansible_ssh_private_key_file: its folder keeps the lab's state"
        )
    if users - {"root"}:
        problems.append(
            f"hosts.yml: ansible_user: emulated hosts know only root, not {', '.join(sorted(users - {'root'}))}"
        )

    overrides = extra.get("devices") or {}
    devices: dict[str, DeviceConfig] = {}
    for name, entry in (devices_file.get("devices") or {}).items():
        with _noted(problems, f"devices.yml: {name}"):
            devices[name] = _device(name, entry, overrides.get(name) or {})
    problems += [
        f"emulator.yml: devices: {name} is not in devices.yml"
        for name in sorted(set(overrides) - set(devices))
    ]

    fibres: list[Fibre] = []
    for entry in fibres_file.get("fibres") or []:
        with _noted(problems, f"fibres.yml: {entry}"):
            fibres.append(fibre := _fibre(entry))
            if fibre.host not in hosts or fibre.port not in hosts[fibre.host].interfaces:
                problems.append(
                    f"fibres.yml: {fibre.name}: no port {fibre.port} on a host {fibre.host} in hosts.yml"
                )
            if fibre.device not in devices:
                problems.append(
                    f"fibres.yml: {fibre.name}: device {fibre.device} is not in devices.yml"
                )
    trunks: list[Trunk] = []
    for entry in fibres_file.get("trunks") or []:
        with _noted(problems, f"fibres.yml: trunks: {entry}"):
            trunks.append(trunk := _trunk(entry))
            problems += [
                f"fibres.yml: {trunk.name}: device {device} is not in devices.yml"
                for device, _ in (trunk.source, trunk.target)
                if device not in devices
            ]
    problems += [f"fibres.yml: {what}" for what in _twice(fibres, trunks)]
    segments: list[Segment] = []
    for entry in fibres_file.get("segments") or []:
        with _noted(problems, f"fibres.yml: segments: {entry}"):
            segments.append(_segment(entry))
    problems += [f"fibres.yml: {what}" for what in _unplugged(segments, [*fibres, *trunks], hosts)]
    rate_bps = round(float(extra.get("link_rate_mbps", 250)) * 1_000_000)
    mtu = int(extra.get("mtu", 9000))
    problems += [
        f"fibres.yml: {s.name}: {why}" for s in segments if (why := too_large(s.functions, mtu))
    ]
    if any(segment.functions for segment in segments[MOST_SEGMENTS:]):
        problems.append(f"fibres.yml: segments: only the first {MOST_SEGMENTS} may have functions")
    if (
        not isinstance(dilation := extra.get("dilation", 1), int | float)
        or not 1 <= dilation <= MOST_DILATION
    ):
        problems.append(f"emulator.yml: dilation: {dilation}: wanted 1 to {MOST_DILATION}")
    rates = dict.fromkeys(((f.host, f.port) for f in fibres), rate_bps) | {
        port: segment.rate_bps for segment in segments for port in segment.ports.items()
    }
    lines: list[LineConfig] = []
    for entry in extra.get("lines") or []:
        with _noted(problems, f"emulator.yml: lines: {entry}"):
            lines.append(read_line(entry, rates))
    problems += [f"emulator.yml: lines: {what}" for what in overloaded(lines, mtu)]
    if problems:
        raise BadInventory("\n".join(f"{inventory}/{problem}" for problem in problems))

    key = Path(
        next(iter(keys)) if keys else "~/.local/state/testbed/emulated/id_ed25519"
    ).expanduser()
    return LabConfig(
        inventory=inventory,
        state=(inventory / key).parent,
        hosts=hosts,
        devices=devices,
        fibres=tuple(fibres),
        trunks=tuple(trunks),
        segments=tuple(segments),
        lines=tuple(lines),
        with_hosts=bool(extra.get("hosts", True)) and bool(hosts),
        seed=int(extra.get("seed", 1)),
        rate_bps=rate_bps,
        mtu=mtu,
        reserve_core=extra.get("reserve_core"),
        dilation=float(dilation),
        rdma=bool(extra.get("rdma", False)),
    )


@contextmanager
def _noted(problems: list[str], where: str) -> Iterator[None]:
    """Note what is wrong with the entry that is being read."""
    try:
        yield
    except KeyError as missing:
        problems.append(f"{where}: {missing.args[0]} is missing")
    except (TypeError, ValueError) as problem:
        problems.append(f"{where}: {problem}")


def _hosts(
    group: Mapping[str, Any], inherited: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the hosts of an Ansible group and its children, each with the variables it inherits."""
    facts = {**inherited, **(group.get("vars") or {})}
    for name, own in (group.get("hosts") or {}).items():
        yield name, {**facts, **(own or {})}
    for child in (group.get("children") or {}).values():
        yield from _hosts(child or {}, facts)


def _bmc(entry: Mapping[str, Any] | None) -> BmcConfig | None:
    if entry is None:
        return None
    address = parse(str(entry["address"]))
    if address.scheme != "http":
        raise ValueError(f"testbed_bmc: {entry['address']}: an emulated BMC answers on http")
    return BmcConfig(address.port, str(entry["username"]), str(entry["password"]))


def _device(name: str, entry: Mapping[str, Any], overrides: Mapping[str, Any]) -> DeviceConfig:
    driver = str(entry["driver"])
    baud = family(driver).baud if driver in WHERE else DEFAULT_BAUD
    address, key_file = (
        parse(str(entry["address"]), baud),
        str((entry.get("options") or {}).get("key_file", "")),
    )
    username, password = (overrides.get(key, entry.get(key)) for key in ("username", "password"))
    time_scale = float(entry.get("time_scale", 1.0))
    if not 0 < time_scale < float("inf"):
        raise ValueError(f"time_scale {time_scale:g}: wanted more than 0")
    if address.scheme in ("ssh", "netconf"):  # the transport asks for them, not the device
        overrides = {
            key: value for key, value in overrides.items() if key not in ("username", "password")
        }
    return DeviceConfig(name, driver, address, username, password, overrides, key_file, time_scale)


def _fibre(entry: Mapping[str, Any]) -> Fibre:
    name, host, device, enters, leaves = (
        str(entry[k]) for k in ("name", "host", "device", "enters", "leaves")
    )
    return Fibre(
        name,
        host,
        int(entry["port"]),
        device,
        enters,
        leaves,
        _slot(entry.get("slot")),
        _loss_db(entry),
    )


def _trunk(entry: Mapping[str, Any]) -> Trunk:
    (one, egress), (other, ingress) = (
        (str(entry[end]["device"]), str(entry[end]["port"])) for end in ("from", "to")
    )
    return Trunk(
        str(entry["name"]),
        (one, egress),
        (other, ingress),
        _loss_db(entry) - float(entry.get("gain_db", 0.0)),
    )


def _segment(entry: Mapping[str, Any]) -> Segment:
    ports = [
        (host, int(number))
        for host, _, number in (str(port).rpartition(":p") for port in entry["ports"])
    ]
    if len(dict(ports)) < len(ports):
        raise ValueError("a host has two ports there")
    racks = tuple(
        (tuple(map(str, rack["hosts"])), _bps(rack["uplink_mbps"]))
        for rack in entry.get("racks") or ()
    )
    if racks and sorted(host for hosts, _ in racks for host in hosts) != sorted(dict(ports)):
        raise ValueError("every host is in one rack, or there are no racks")
    return Segment(
        str(entry["name"]),
        dict(ports),
        _bps(entry["link_mbps"]),
        racks,
        *read_offer(entry),
        _queue(entry.get("queue")),
    )


def _queue(given: object) -> Queue | None:
    if given is None:
        return None
    if (
        not isinstance(given, Mapping)
        or not set(given) <= {"kb", "share"}
        or given.get("share", "fifo") not in ("fifo", "job")
    ):
        raise ValueError(f"queue {given}: wanted {{kb: 128, share: fifo}} or share: job")
    if type(given.get("kb")) is not int or not LEAST_QUEUE_KB <= given["kb"] <= MOST_QUEUE_KB:
        raise ValueError(
            f"queue of {given.get('kb')} kB: wanted {LEAST_QUEUE_KB} to {MOST_QUEUE_KB}, a whole number"
        )
    return Queue(given["kb"] * 1024, str(given.get("share", "fifo")))


def _bps(mbps: Any) -> int:
    if not 0 < float(mbps) < float("inf"):
        raise ValueError(f"a rate of {mbps} Mb/s: wanted more than 0")
    return round(float(mbps) * 1_000_000)


def _unplugged(
    segments: list[Segment], others: list[Fibre | Trunk], hosts: Mapping[str, HostConfig]
) -> Iterator[str]:
    """Report cables of segments that have no port, or whose name is taken."""
    taken = {(cable.host, cable.port): cable.name for cable in others if isinstance(cable, Fibre)}
    names = {cable.name for cable in others}
    for segment in segments:
        for name in (segment.name, *segment.cables):
            if name in names:
                yield f"{name}: the name is taken"
            names.add(name)
        for host, port in segment.ports.items():
            if host not in hosts or port not in hosts[host].interfaces:
                yield f"{segment.name}: no port {port} on a host {host} in hosts.yml"
            elif (host, port) in taken:
                yield f"{segment.name}: port {port} of {host} is taken by {taken[host, port]}"
            taken.setdefault((host, port), segment.name)


def _loss_db(entry: Mapping[str, Any]) -> float:
    given = entry.get("loss_db")
    return fibre_loss_db(float(entry.get("length_m", 0.0)), None if given is None else float(given))


def _slot(given: object) -> tuple[int, int] | None:
    if given is None:
        return None
    if (
        not isinstance(given, Mapping)
        or set(given) != {"n", "m"}
        or not all(type(v) is int for v in given.values())
    ):
        raise ValueError(f"slot {given}: wanted {{n: -280, m: 4}}, whole numbers")
    if given["m"] < 1:
        raise ValueError(f"slot {given}: m is 1 or more")
    return edges_mhz(given["n"], given["m"])


def _twice(fibres: list[Fibre], trunks: list[Trunk]) -> Iterator[str]:
    """Report plugs that would have to be in two sockets. A passive coupler joins fibres whose light
    has different frequencies.
    """
    seen: dict[tuple[str, str, str], list[Fibre | Trunk]] = {}
    cables: list[Fibre | Trunk] = [*fibres, *trunks]
    for cable in cables:
        if isinstance(cable, Fibre):
            plugs = [(cable.host, str(cable.port), "port"), (cable.device, cable.enters, "ingress")]
            plugs.append((cable.device, cable.leaves, "egress"))
        else:
            plugs = [(*cable.source, "egress"), (*cable.target, "ingress")]
        for plug in plugs:
            for other in seen.setdefault(plug, []):
                slots = [c.slot if isinstance(c, Fibre) else None for c in (cable, other)]
                if plug[2] != "ingress" or None in slots:
                    yield f"{cable.name}: {plug[0]} {plug[2]} {plug[1]} is taken by {other.name}"
                elif _overlap(*slots):
                    yield f"{cable.name}: its slot overlaps that of {other.name}, whose light enters {plug[0]} {plug[1]} too"
            seen[plug].append(cable)
    names = Counter(cable.name for cable in cables)
    yield from (f"{name}: the name is taken" for name, times in names.items() if times > 1)


def _overlap(one: tuple[int, int] | None, other: tuple[int, int] | None) -> bool:
    return one is not None and other is not None and one[0] < other[1] and other[0] < one[1]
