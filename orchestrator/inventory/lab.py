"""The lab: hosts, devices and the fibres between them, read from the inventory's three files. Text in, frozen values out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

from optics import BadFile, Db, Dbm, DeviceConfig, DeviceName, HostName, HostPort, Link, Port, Slot, Traits
from optics.plain import did_you_mean, natural, summary
from optics.plan import WantedLink
from orchestrator.inventory.ansible import InventoryHost, read_inventory
from orchestrator.inventory.edges import DevicesEdge, FibreEdge, FibresEdge, Forwarding, HostEdge, SshEdge, TrunkEdge
from orchestrator.inventory.positions import Document, Path, Problems, read_yaml
from orchestrator.inventory.schema import check
from orchestrator.inventory.segments import Segment, read_segments

FIBRE_DB_PER_KM = 0.35  # G.652.D at 1310 nm, ITU-T G.652 (11/2016) table 2 gives at most 0.4; 0.35 is the usual data sheet value
CONNECTOR_DB = 0.3  # one mated LC pair, typical; a duplex patch cord has two in each direction
SLOW_MOVE_S = 1.0  # nobody waits in the dark for this when there is another way
HOST = r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}"
VAULT_HEADER = "$ANSIBLE_VAULT;"
UNKNOWN = Traits(settle_s=0.05)  # a device whose driver was not asked: the typical beam-steering switch of `optics.Traits`


@dataclass(frozen=True, slots=True)
class FabricPort:
    """One transceiver of a host as its kernel names it. `interface` sends the host's own traffic.

    eth: on `npar-rdma` hosts the port's second function, whose frames reach the kernel; `interface` is then the RDMA function.
    """

    number: int
    interface: str
    eth: str | None = None


@dataclass(frozen=True, slots=True)
class SshTarget:
    """How the operator reaches a host, as Ansible does. `options` are the `-o` pairs of the SSH arguments; paths are unexpanded."""

    address: str
    port: int = 22
    user: str = ""
    key_file: str = ""
    known_hosts: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Host:
    """A GPU server. `host_id` (0..250) numbers it in every fabric address; `lanes` parallel equal paths can be told apart.

    link_mbps: what a port carries each way (Mb/s, as the link counts them); predictions reckon with it, nothing else does.
    job_user: whom jobs run as. job_env: what plans may set for their jobs beyond what `orchestrator.plan.job_env` allows.
    """

    name: HostName
    host_id: int
    forwarding: Forwarding
    ports: Mapping[int, FabricPort]
    lanes: int
    node_prefix: str
    port_prefix: str
    mgmt_address: str
    gpus: int
    ssh: SshTarget
    link_mbps: float = 25_000.0
    job_user: str = "testbed-job"
    job_env: tuple[str, ...] = ()

    def lane_address(self, lane: int) -> str:
        """The host's address for traffic of `lane` (0..lanes-1); lane 0 is the address of the host."""
        return f"{self.node_prefix}.{lane}.{self.host_id}"

    def port_address(self, port: int) -> str:
        """The address of one port: 10.PORT.0.HOST under a prefix of one octet, 10.100.HOST.PORT under a prefix of two."""
        if "." in self.port_prefix:
            return f"{self.port_prefix}.{self.host_id}.{port}"
        return f"{self.port_prefix}.{port}.0.{self.host_id}"


@dataclass(frozen=True, slots=True)
class Fibre:
    """A duplex cable from a host port to a device: light enters the device at `enters` and leaves it for the host at `leaves`.

    loss_db: of the cable and its connectors, one way. slot: the light its host sends, None where the inventory does not say.
    tx_dbm: how much light its host sends (dBm), None likewise. Fibres whose slots do not overlap may enter at one port: a passive
    coupler joins them.
    """

    name: str
    port: HostPort
    enters: Port
    leaves: Port
    length_m: float
    loss_db: Db
    slot: Slot | None = None
    tx_dbm: Dbm | None = None

    @property
    def device(self) -> DeviceName:
        return self.enters.device


@dataclass(frozen=True, slots=True)
class Trunk:
    """A one-way fibre: light that leaves a device at `start` enters a device, perhaps the same, at `end`."""

    name: str
    start: Port
    end: Port
    length_m: float
    loss_db: Db


@dataclass(frozen=True, slots=True)
class Secret:
    """Where a device's password is kept: in an environment variable, in a file, or as the vault text that `name` then is.

    The engine reads it, the lab only names it.
    """

    kind: Literal["env", "file", "vault"]
    name: str = field(repr=False)


@dataclass(frozen=True)
class Lab:
    """Everything the inventory says. Hosts and devices are in the order of their files, fibres in that of hosts and ports."""

    name: str
    hosts: Mapping[HostName, Host]
    devices: Mapping[DeviceName, DeviceConfig]
    fibres: Mapping[HostPort, Fibre]
    secrets: Mapping[DeviceName, Secret] = field(default_factory=dict)
    trunks: tuple[Trunk, ...] = ()
    traits: Mapping[DeviceName, Traits] = field(default_factory=dict)
    """What the drivers say of their devices; who reads the lab adds it (`with_traits`), because nothing here knows a driver."""
    input_limits: Mapping[DeviceName, Mapping[str, Dbm]] = field(default_factory=dict)
    """How much light (dBm) may enter each port, by its label; the empty label stands for all others of the device."""
    segments: Mapping[str, Segment] = field(default_factory=dict)
    """What packet switches join, by name: fixed cabling beside the fibres."""

    def with_traits(self, traits: Mapping[DeviceName, Traits]) -> Lab:
        """The same lab, its devices as their drivers describe them, the inventory's overrides included."""
        return replace(self, traits=dict(traits))

    @cached_property
    def transmitters(self) -> Mapping[Port, tuple[HostPort, ...]]:
        """Which host ports' light enters each ingress port: one, or several behind a coupler."""
        found: dict[Port, tuple[HostPort, ...]] = {}
        for port, fibre in self.fibres.items():
            found[fibre.enters] = (*found.get(fibre.enters, ()), port)
        return found

    @cached_property
    def receivers(self) -> Mapping[Port, HostPort]:
        """Which host port receives the light of each egress port."""
        return {fibre.leaves: port for port, fibre in self.fibres.items()}

    @cached_property
    def cabled(self) -> frozenset[Port]:
        """Every device port that a fibre or trunk ends at."""
        ends = {port for fibre in self.fibres.values() for port in (fibre.enters, fibre.leaves)}
        return frozenset(ends | {port for trunk in self.trunks for port in (trunk.start, trunk.end)})

    @cached_property
    def onward(self) -> Mapping[Port, Trunk]:
        """The trunk that takes on the light of an egress port."""
        return {trunk.start: trunk for trunk in self.trunks}

    @cached_property
    def leaving(self) -> Mapping[DeviceName, tuple[Trunk, ...]]:
        """The trunks that begin at each device, in the order of the file."""
        found: dict[DeviceName, tuple[Trunk, ...]] = {}
        for trunk in self.trunks:
            found[trunk.start.device] = (*found.get(trunk.start.device, ()), trunk)
        return found

    @cached_property
    def duplex(self) -> frozenset[DeviceName]:
        """Devices whose ports carry one label for both sides, as the cables say: something enters and leaves at one label."""
        enters = {fibre.enters for fibre in self.fibres.values()} | {trunk.end for trunk in self.trunks}
        leaves = {fibre.leaves for fibre in self.fibres.values()} | {trunk.start for trunk in self.trunks}
        return frozenset(port.device for port in enters & leaves)

    @cached_property
    def segment_at(self) -> Mapping[HostPort, Segment]:
        """The segment each electrical port is cabled to."""
        return {port: segment for segment in self.segments.values() for port in segment.ports.values()}

    def electrical(self, link: Link | WantedLink) -> bool:
        """Whether packet switches carry the link, so that it needs no light."""
        at = [self.segment_at.get(end) if isinstance(end, HostPort) else None for end in (link.a, link.b)]
        return at[0] is not None and at[0] is at[1]

    def switched(self, links: Iterable[Link]) -> Mapping[HostPort, Segment]:
        """The ports that packet switches carry links from, each with its segment."""
        ports = (port for link in links if self.electrical(link) for port in (link.a, link.b))
        return {port: self.segment_at[port] for port in ports}

    def interface(self, port: HostPort) -> str:
        """The interface the host itself sends from at `port`."""
        return self.hosts[port.host].ports[port.number].interface

    def traits_of(self, device: DeviceName) -> Traits:
        """The device's numbers; where its driver was not asked, the inventory's own on top of typical ones."""
        known = self.traits.get(device)
        if known is not None:
            return known
        given = self.devices[device].traits
        known_here = ("settle_s", "at_once", "insertion_loss_db", "ways")
        return replace(UNKNOWN, **{name: given[name] for name in known_here if given.get(name) is not None})

    def insertion_loss_db(self, device: DeviceName) -> Db:
        """Expected loss (dB) of one pass: the inventory's override, else the driver's own number."""
        return self.traits_of(device).insertion_loss_db

    def slow(self, device: DeviceName) -> bool:
        """Whether the device, were it a real one, makes one move after the other and takes a second or more for each: a robot."""
        traits = self.traits_of(device)
        return traits.at_once == 1 and traits.settle_s * self.time_scale(device) >= SLOW_MOVE_S

    def max_input_dbm(self, port: Port) -> Dbm | None:
        """How much light (dBm) may enter there, None where the inventory sets no limit."""
        limits = self.input_limits.get(port.device, {})
        return limits.get(port.label, limits.get(""))

    def time_scale(self, device: DeviceName) -> float:
        """How much faster than a real one the device runs; 1 for hardware."""
        return self.devices[device].time_scale


def read_lab(
    hosts_yml: str, devices_yml: str, fibres_yml: str, *, names: tuple[str, str, str] = ("hosts.yml", "devices.yml", "fibres.yml")
) -> Lab:
    """The lab these three texts describe; `names` are the file names to put into complaints.

    Raises: BadFile - everything wrong with all three, in the order of the files.
    """
    lines: list[str] = []
    documents: list[Document] = []
    for text, name in zip((hosts_yml, devices_yml, fibres_yml), names, strict=True):
        try:
            documents.append(read_yaml(text, name))
        except BadFile as error:
            lines += error.problems
            documents.append(Document(name, None, {}, {}))
    hosts_doc, devices_doc, fibres_doc = documents
    unreadable = {line.split(":", 1)[0] for line in lines}
    problems = [Problems(document) for document in documents]

    hosts, host_names = ({}, None) if hosts_doc.name in unreadable else _hosts(hosts_doc, problems[0])
    lab_name, devices, secrets, limits = (
        _devices(devices_doc, problems[1]) if devices_doc.name not in unreadable else ("", {}, {}, {})
    )
    device_names = frozenset(_keys(devices_doc.value, "devices")) or None
    if fibres_doc.name not in unreadable:
        fibres, trunks, segments = _cables(fibres_doc, problems[2], hosts, host_names, device_names)
        if not problems[2].lines():
            _limits(limits, {f.enters for f in fibres.values()} | {t.end for t in trunks}, problems[1])
    for found in problems:
        lines += found.lines()
    if lines:
        raise BadFile(lines, hint="correct the inventory; nothing was changed")
    return Lab(lab_name, hosts, devices, fibres, secrets, trunks, input_limits=limits, segments=segments)


def _keys(value: Any, key: str) -> list[str]:
    inner = value.get(key) if isinstance(value, Mapping) else None
    return [str(name) for name in inner] if isinstance(inner, Mapping) else []


def _hosts(document: Document, problems: Problems) -> tuple[dict[HostName, Host], frozenset[HostName] | None]:
    """The hosts on the fabric, and the names of all of them, well described or not; None if the names cannot be trusted."""
    hosts: dict[HostName, Host] = {}
    names = []
    entries = read_inventory(document, problems)
    whole = not problems
    for entry in entries.values():
        if "testbed_host_id" not in entry.variables and "testbed_ports" not in entry.variables:
            continue  # a machine of the inventory that is not on the fabric, such as the telemetry server
        names.append(entry.name)
        if not re.fullmatch(HOST, entry.name):  # it becomes part of file names, and Ansible would evaluate a {{ }} in it
            problems.add(entry.path, f"{entry.name[:60]!r} is no host name: letters, digits, '.', '_' and '-'", key=True)
            continue
        host = _host(entry, problems)
        if host is not None:
            hosts[host.name] = host
    if not names and whole:
        problems.add((), "no host has testbed_host_id and testbed_ports")
    _agreement(hosts, entries, problems)
    return hosts, frozenset(names) if whole else None


def _host(entry: InventoryHost, problems: Problems) -> Host | None:
    ours = {key.removeprefix("testbed_"): value for key, value in entry.variables.items() if key.startswith("testbed_")}
    for key in [key for key in ours if key not in HostEdge.model_fields]:
        hint = did_you_mean(key, HostEdge.model_fields).replace("did you mean ", "did you mean testbed_")
        problems.add(entry.places[f"testbed_{key}"], f"unknown variable testbed_{key}{hint}", key=True)
        del ours[key]

    def place(prefix: str) -> Any:
        return lambda inner: (
            (*entry.places[prefix + str(inner[0])], *inner[1:]) if inner and prefix + str(inner[0]) in entry.places else entry.path
        )

    ssh_vars = {key: entry.variables[key] for key in SshEdge.model_fields if key in entry.variables}
    for key in ("host_id", "ports"):
        if key not in ours:
            problems.add(entry.path, f"host {entry.name} has no testbed_{key}", key=True)
    edge = check(HostEdge, ours, problems, place=place("testbed_")) if {"host_id", "ports"} <= set(ours) else None
    ssh = check(SshEdge, ssh_vars, problems, place=place(""))
    if edge is None or ssh is None:
        return None
    ports_at = entry.places["testbed_ports"]
    seen: dict[str, int] = {}
    for number, port in edge.ports.items():
        for name in filter(None, (port.interface, port.eth)):
            if name in seen:
                problems.add((*ports_at, number), f"interface {name} of {entry.name} is named twice, first at port {seen[name]}")
            seen.setdefault(name, number)
        if (port.eth is not None) != (edge.forwarding == "npar-rdma"):
            wanted = "needs" if edge.forwarding == "npar-rdma" else "does not use"
            problems.add((*ports_at, number), f"forwarding {edge.forwarding} {wanted} the second function of the port, `eth`")
    octets = edge.port_prefix.count(".") + 1
    if octets != (2 if edge.forwarding == "npar-rdma" else 1):
        where = entry.places.get("testbed_port_prefix", entry.path)
        wants = 'two octets, such as "10.100"' if edge.forwarding == "npar-rdma" else 'one octet, such as "10"'
        problems.add(where, f"forwarding {edge.forwarding} wants a testbed_port_prefix of {wants}, got {edge.port_prefix}")
    options = _ssh_options(ssh.ansible_ssh_common_args)
    address = ssh.ansible_host or entry.name
    return Host(
        name=entry.name,
        host_id=edge.host_id,
        forwarding=edge.forwarding,
        ports={number: FabricPort(number, port.interface, port.eth) for number, port in sorted(edge.ports.items())},
        lanes=edge.lanes,
        node_prefix=edge.node_prefix,
        port_prefix=edge.port_prefix,
        mgmt_address=edge.mgmt_address or address,
        gpus=edge.gpus,
        link_mbps=edge.link_mbps,
        job_user=edge.job_user,
        job_env=tuple(edge.job_env),
        ssh=SshTarget(
            address=address,
            port=ssh.ansible_port,
            user=ssh.ansible_user,
            key_file=ssh.ansible_ssh_private_key_file,
            known_hosts=options.get("UserKnownHostsFile", "").replace("${HOME}/", "~/", 1),
            options=options,
        ),
    )


def _ssh_options(arguments: str) -> dict[str, str]:
    """The `-o Name=value` pairs of a command line; other arguments are ssh's own affair."""
    try:
        words = shlex.split(arguments)
    except ValueError:
        return {}
    pairs = re.findall(r"(?:^|\0)-o\0?([^\0=]+)=([^\0]*)", "\0".join(words))
    return {name.strip(): value.strip() for name, value in pairs}


def _agreement(hosts: Mapping[HostName, Host], entries: Mapping[str, InventoryHost], problems: Problems) -> None:
    """Host ids are unique, and all hosts forward and number alike: rules are computed for the fabric as a whole."""
    first = next(iter(hosts.values()), None)
    ids: dict[int, HostName] = {}
    for host in hosts.values():
        entry = entries[host.name]
        if host.host_id in ids:
            where = entry.places["testbed_host_id"]
            problems.add(where, f"{host.name} has the same testbed_host_id {host.host_id} as {ids[host.host_id]}")
        ids.setdefault(host.host_id, host.name)
        for name in ("forwarding", "lanes", "node_prefix", "port_prefix"):
            mine, theirs = getattr(host, name), getattr(first, name)
            if mine != theirs:
                where = entry.places.get(f"testbed_{name}", entry.path)
                problems.add(
                    where, f"{host.name} has testbed_{name} {mine}, {first.name if first else ''} has {theirs}; one lab, one value"
                )


Limits: TypeAlias = dict[DeviceName, Mapping[str, Dbm]]


def _devices(
    document: Document, problems: Problems
) -> tuple[str, dict[DeviceName, DeviceConfig], dict[DeviceName, Secret], Limits]:
    edge = check(DevicesEdge, document.value if document.value is not None else {}, problems)
    if edge is None:
        return "", {}, {}, {}
    devices, secrets = {}, {}
    limits: Limits = {}
    for name, device in edge.devices.items():
        path: Path = ("devices", name)
        given = [key for key in ("password", "password_env", "password_file") if getattr(device, key)]
        if len(given) > 1:
            problems.add((*path, given[1]), f"the password is given by {given[0]} already", key=True)
        if device.password_env:
            secrets[name] = Secret("env", device.password_env)
        elif device.password_file:
            secrets[name] = Secret("file", device.password_file)
        elif device.password.startswith(VAULT_HEADER):
            secrets[name] = Secret("vault", device.password)
        devices[name] = DeviceConfig(
            name=name,
            driver=device.driver,
            address=device.address,
            username=device.username,
            password="" if name in secrets else device.password,
            traits=device.traits.model_dump(exclude_unset=True),
            timeout_s=device.timeout_s,
            options=device.options,
            time_scale=device.time_scale,
        )
        every = {} if device.max_input_dbm is None else {"": device.max_input_dbm}
        if every or device.max_input_dbm_at:
            limits[name] = every | device.max_input_dbm_at
    return edge.lab, devices, secrets, limits


def _limits(limits: Limits, entries: Collection[Port], problems: Problems) -> None:
    """A limit for a port that no light enters, or that is spelt otherwise among the fibres, would protect nothing."""
    for device, label in ((device, label) for device, at in limits.items() for label in at if label):
        if Port(device, label) not in entries:
            hint = did_you_mean(label, [port.label for port in entries if port.device == device])
            where = ("devices", device, "max_input_dbm_at", label)
            problems.add(where, f"no light of this lab enters {device} at port {label} (fibres.yml){hint}", key=True)


def _cables(
    document: Document,
    problems: Problems,
    hosts: Mapping[HostName, Host],
    host_names: frozenset[HostName] | None,
    device_names: frozenset[DeviceName] | None,
) -> tuple[dict[HostPort, Fibre], tuple[Trunk, ...], dict[str, Segment]]:
    """The fibres, trunks and segments; names of hosts and devices are checked where those are known."""
    edge = check(FibresEdge, document.value if document.value is not None else {}, problems)
    if edge is None:
        return {}, (), {}
    claims = _Claims(problems, device_names)
    fibres: dict[HostPort, Fibre] = {}
    for index, fibre in enumerate(edge.fibres):
        path: Path = ("fibres", index)
        port = HostPort(fibre.host, fibre.port)
        if host_names is not None and fibre.host not in host_names:
            hint = did_you_mean(fibre.host, host_names)
            problems.add((*path, "host"), f"host {fibre.host} is not in the lab ({summary(host_names, 'host')}){hint}")
        elif fibre.host in hosts and fibre.port not in hosts[fibre.host].ports:
            has = ", ".join(str(number) for number in hosts[fibre.host].ports)
            problems.add((*path, "port"), f"{fibre.host} has no port {fibre.port} (it has {has})")
        claims.device(fibre.device, (*path, "device"))
        fibres[port] = claims.fibre(fibre, port, path)
    trunks = tuple(claims.trunk(trunk, ("trunks", index)) for index, trunk in enumerate(edge.trunks))
    numbers = {name: tuple(host.ports) for name, host in hosts.items()}
    segments = read_segments(edge.segments, problems, numbers, host_names, claims.taken)
    return dict(sorted(fibres.items(), key=lambda item: (natural(item[0].host), item[0].number))), trunks, segments


class _Claims:
    """Who took which name and which side of which port first."""

    def __init__(self, problems: Problems, devices: frozenset[DeviceName] | None) -> None:
        self.problems, self.devices = problems, devices
        self.taken: dict[object, str] = {}
        self.coupled: dict[Port, list[tuple[str, str, Slot | None]]] = {}

    def device(self, name: DeviceName, path: Path) -> None:
        if self.devices is not None and name not in self.devices:
            hint = did_you_mean(name, self.devices)
            self.problems.add(path, f"device {name} is not in the lab ({summary(self.devices, 'device')}){hint}")

    def claim(self, what: object, words: str, path: Path, place: str) -> None:
        if what in self.taken:
            self.problems.add(path, f"there is {words} already, {self.taken[what]}")
        self.taken.setdefault(what, place)

    def fibre(self, edge: FibreEdge, port: HostPort, path: Path) -> Fibre:
        place = f"{path[0]}[{path[1]}]"
        enters, leaves = Port(edge.device, edge.enters), Port(edge.device, edge.leaves)
        slot = Slot.flexgrid(edge.slot.n, edge.slot.m) if edge.slot is not None else None
        self.claim(edge.name, f"fibre {edge.name}", (*path, "name"), place)
        self.claim(port, f"a fibre at {port}", (*path, "port"), place)
        others = self.coupled.setdefault(enters, [])
        if slot is None or any(theirs is None for _, _, theirs in others):
            if others:
                both = "; fibres that share a port through a coupler need a slot each" if slot or others[0][2] else ""
                self.problems.add((*path, "enters"), f"there is a fibre into {enters} already, {others[0][1]}{both}")
        elif overlap := next((other for other in others if other[2] is not None and slot.overlaps(other[2])), None):
            self.problems.add(
                (*path, "slot"),
                f"{slot} overlaps {overlap[2]} of fibre {overlap[0]}, {overlap[1]}, which enters at {enters} too",
            )
        others.append((edge.name, place, slot))
        self.taken.setdefault(("in", enters), place)
        self.claim(("out", leaves), f"a fibre out of {leaves}", (*path, "leaves"), place)
        return Fibre(edge.name, port, enters, leaves, edge.length_m, _loss(edge), slot, edge.tx_dbm)

    def trunk(self, edge: TrunkEdge, path: Path) -> Trunk:
        place = f"{path[0]}[{path[1]}]"
        self.claim(edge.name, f"fibre {edge.name}", (*path, "name"), place)
        ends = []
        for side, key, words, end in (("out", "from", "out of", edge.start), ("in", "to", "into", edge.end)):
            self.device(end.device, (*path, key, "device"))
            port = Port(end.device, end.port)
            self.claim((side, port), f"a fibre {words} {port}", (*path, key, "port"), place)
            ends.append(port)
        return Trunk(edge.name, ends[0], ends[1], edge.length_m, _loss(edge))


def _loss(edge: FibreEdge | TrunkEdge) -> Db:
    return round(edge.loss_db if edge.loss_db is not None else FIBRE_DB_PER_KM * edge.length_m / 1000 + 2 * CONNECTOR_DB, 4)


def kind_of(lab: Lab, device: DeviceName) -> str:
    """`wss` for a wavelength-selective device, `robot` for one that makes one move at a time, else `ocs`."""
    traits = lab.traits_of(device)
    return "wss" if traits.spectral else "robot" if traits.at_once == 1 else "ocs"
