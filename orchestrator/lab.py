"""The lab: hosts, devices and the fibres between them, read from the inventory's three files. Text in, frozen values out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from optics import BadFile, Db, DeviceConfig, DeviceName, HostName, HostPort, Port
from orchestrator.ansible import InventoryHost, read_inventory
from orchestrator.filecheck import check
from orchestrator.filepos import Document, Path, Problems, did_you_mean, natural, read_yaml, summary
from orchestrator.labedges import DevicesEdge, FibresEdge, Forwarding, HostEdge, SshEdge

FIBRE_DB_PER_KM = 0.35  # G.652.D at 1310 nm, ITU-T G.652 (11/2016) table 2 gives at most 0.4; 0.35 is the usual data sheet value
CONNECTOR_DB = 0.3  # one mated LC pair, typical; a duplex patch cord has two in each direction
DEFAULT_INSERTION_LOSS_DB = 1.5  # typical for one pass of a beam-steering switch, as `optics.Traits`


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
    """A GPU server. `host_id` (1..250) numbers it in every fabric address; `lanes` parallel equal paths can be told apart."""

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

    loss_db: of the cable and its connectors, one way.
    """

    name: str
    port: HostPort
    enters: Port
    leaves: Port
    length_m: float
    loss_db: Db

    @property
    def device(self) -> DeviceName:
        return self.enters.device


@dataclass(frozen=True, slots=True)
class Secret:
    """Where a device's password is kept: in an environment variable or in a file. The engine reads it, the lab only names it."""

    kind: Literal["env", "file"]
    name: str


@dataclass(frozen=True)
class Lab:
    """Everything the inventory says. Hosts and devices are in the order of their files, fibres in that of hosts and ports."""

    name: str
    hosts: Mapping[HostName, Host]
    devices: Mapping[DeviceName, DeviceConfig]
    fibres: Mapping[HostPort, Fibre]
    secrets: Mapping[DeviceName, Secret] = field(default_factory=dict)

    @cached_property
    def transmitters(self) -> Mapping[Port, HostPort]:
        """Which host port's light enters each ingress port."""
        return {fibre.enters: port for port, fibre in self.fibres.items()}

    @cached_property
    def receivers(self) -> Mapping[Port, HostPort]:
        """Which host port receives the light of each egress port."""
        return {fibre.leaves: port for port, fibre in self.fibres.items()}

    def interface(self, port: HostPort) -> str:
        """The interface the host itself sends from at `port`."""
        return self.hosts[port.host].ports[port.number].interface

    def insertion_loss_db(self, device: DeviceName) -> Db:
        """Expected loss (dB) of one cross-connect: the inventory's override, else the typical value of a beam-steering switch."""
        return float(self.devices[device].traits.get("insertion_loss_db", DEFAULT_INSERTION_LOSS_DB))


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
    lab_name, devices, secrets = _devices(devices_doc, problems[1]) if devices_doc.name not in unreadable else ("", {}, {})
    device_names = frozenset(_keys(devices_doc.value, "devices")) or None
    if fibres_doc.name not in unreadable:
        fibres = _fibres(fibres_doc, problems[2], hosts, host_names, device_names)
    for found in problems:
        lines += found.lines()
    if lines:
        raise BadFile(lines, hint="correct the inventory; nothing was changed")
    return Lab(lab_name, hosts, devices, fibres, secrets)


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
        ssh=SshTarget(
            address=address,
            port=ssh.ansible_port,
            user=ssh.ansible_user,
            key_file=ssh.ansible_ssh_private_key_file,
            known_hosts=options.get("UserKnownHostsFile", ""),
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


def _devices(document: Document, problems: Problems) -> tuple[str, dict[DeviceName, DeviceConfig], dict[DeviceName, Secret]]:
    edge = check(DevicesEdge, document.value if document.value is not None else {}, problems)
    if edge is None:
        return "", {}, {}
    devices, secrets = {}, {}
    for name, device in edge.devices.items():
        path: Path = ("devices", name)
        given = [key for key in ("password", "password_env", "password_file") if getattr(device, key)]
        if len(given) > 1:
            problems.add((*path, given[1]), f"the password is given by {given[0]} already", key=True)
        if device.password_env:
            secrets[name] = Secret("env", device.password_env)
        elif device.password_file:
            secrets[name] = Secret("file", device.password_file)
        devices[name] = DeviceConfig(
            name=name,
            driver=device.driver,
            address=device.address,
            username=device.username,
            password=device.password,
            traits=device.traits.model_dump(exclude_unset=True),
            timeout_s=device.timeout_s,
            options=device.options,
            time_scale=device.time_scale,
        )
    return edge.lab, devices, secrets


def _fibres(
    document: Document,
    problems: Problems,
    hosts: Mapping[HostName, Host],
    host_names: frozenset[HostName] | None,
    device_names: frozenset[DeviceName] | None,
) -> dict[HostPort, Fibre]:
    """The fibres; names of hosts and devices are checked where those are known."""
    edge = check(FibresEdge, document.value if document.value is not None else {}, problems)
    fibres: dict[HostPort, Fibre] = {}
    used: dict[object, int] = {}
    for index, fibre in enumerate(edge.fibres if edge else ()):
        path: Path = ("fibres", index)
        port = HostPort(fibre.host, fibre.port)
        if host_names is not None and fibre.host not in host_names:
            hint = did_you_mean(fibre.host, host_names)
            problems.add((*path, "host"), f"host {fibre.host} is not in the lab ({summary(host_names, 'host')}){hint}")
        elif fibre.host in hosts and fibre.port not in hosts[fibre.host].ports:
            has = ", ".join(str(number) for number in hosts[fibre.host].ports)
            problems.add((*path, "port"), f"{fibre.host} has no port {fibre.port} (it has {has})")
        if device_names is not None and fibre.device not in device_names:
            hint = did_you_mean(fibre.device, device_names)
            problems.add((*path, "device"), f"device {fibre.device} is not in the lab ({summary(device_names, 'device')}){hint}")
        enters, leaves = Port(fibre.device, fibre.enters), Port(fibre.device, fibre.leaves)
        claims: list[tuple[object, str, str]] = [
            (fibre.name, "name", f"fibre {fibre.name}"),
            (port, "port", f"a fibre at {port}"),
            (("in", enters), "enters", f"a fibre into {enters}"),
            (("out", leaves), "leaves", f"a fibre out of {leaves}"),
        ]
        for claim, key, words in claims:
            if claim in used:
                problems.add((*path, key), f"there is {words} already, fibres[{used[claim]}]")
            used.setdefault(claim, index)
        loss = fibre.loss_db if fibre.loss_db is not None else FIBRE_DB_PER_KM * fibre.length_m / 1000 + 2 * CONNECTOR_DB
        fibres[port] = Fibre(fibre.name, port, enters, leaves, fibre.length_m, round(loss, 4))
    return dict(sorted(fibres.items(), key=lambda item: (natural(item[0].host), item[0].number)))
