"""The lab: hosts, devices, the cabling between them, and the programs of its owner, read from the
files of an inventory.

Text in, frozen values out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

from optics import (
    BadFile,
    Db,
    Dbm,
    DeviceConfig,
    DeviceName,
    HostName,
    HostPort,
    Link,
    Port,
    Setting,
    Traits,
)
from optics.plain import did_you_mean
from optics.plan import WantedLink
from orchestrator.inventory.edges import DevicesEdge
from orchestrator.inventory.fibres import Fibre, Trunk, read_cables
from orchestrator.inventory.hosts import Host, read_hosts
from orchestrator.inventory.logins import Secret, secret_of
from orchestrator.inventory.losses import Losses
from orchestrator.inventory.positions import Document, Problems
from orchestrator.inventory.programs import Program, read_programs, users
from orchestrator.inventory.schema import check
from orchestrator.inventory.segments import Segment
from orchestrator.inventory.yaml_reader import read_yaml

SLOW_MOVE_S = 1.0  # longer moves are avoided or made in advance, while no light depends on them
# without a driver's numbers: the typical beam-steering switch of `optics.Traits`
UNKNOWN = Traits(settle_s=0.05)


@dataclass(frozen=True)
class Lab:
    """The whole inventory. Hosts and devices are in the order of their files, fibres in that of
    hosts and ports.
    """

    name: str
    hosts: Mapping[HostName, Host]
    devices: Mapping[DeviceName, DeviceConfig]
    fibres: Mapping[HostPort, Fibre]
    secrets: Mapping[DeviceName, Secret] = field(default_factory=dict)
    trunks: tuple[Trunk, ...] = ()
    traits: Mapping[DeviceName, Traits] = field(default_factory=dict)
    """The drivers' numbers for their devices; the caller adds them (`with_traits`), because this
    package may not import drivers.
    """
    input_limits: Mapping[DeviceName, Mapping[str, Dbm]] = field(default_factory=dict)
    """Maximum input power (dBm) of each port by label; the empty label is for all other ports of
    the device.
    """
    segments: Mapping[str, Segment] = field(default_factory=dict)
    """The segments, by name: hosts cabled to packet switches."""
    programs: Mapping[str, Program] = field(default_factory=dict)
    """The programs that plans may name."""
    losses: Losses = field(default_factory=dict)
    """Losses (dB) of single paths through devices, of losses.csv."""

    def with_traits(self, traits: Mapping[DeviceName, Traits]) -> Lab:
        """The same lab with the traits its drivers report, overrides of the inventory included."""
        return replace(self, traits=dict(traits))

    @cached_property
    def transmitters(self) -> Mapping[Port, tuple[HostPort, ...]]:
        """The host ports whose light enters each ingress port: one, or several behind a coupler."""
        found: dict[Port, tuple[HostPort, ...]] = {}
        for port, fibre in self.fibres.items():
            found[fibre.enters] = (*found.get(fibre.enters, ()), port)
        return found

    @cached_property
    def coupled(self) -> bool:
        """Whether a coupler joins fibres anywhere."""
        return any(len(ports) > 1 for ports in self.transmitters.values())

    @cached_property
    def receivers(self) -> Mapping[Port, HostPort]:
        """The host port that receives the light of each egress port."""
        return {fibre.leaves: port for port, fibre in self.fibres.items()}

    @cached_property
    def cabled(self) -> frozenset[Port]:
        """Every device port that a fibre or trunk ends at."""
        ends = {port for fibre in self.fibres.values() for port in (fibre.enters, fibre.leaves)}
        return frozenset(
            ends | {port for trunk in self.trunks for port in (trunk.start, trunk.end)}
        )

    @cached_property
    def onward(self) -> Mapping[Port, Trunk]:
        """The trunk attached to each egress port."""
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
        """Devices that use one label for both sides of a port: some cable enters and some cable
        leaves at the same label.
        """
        enters = {fibre.enters for fibre in self.fibres.values()} | {
            trunk.end for trunk in self.trunks
        }
        leaves = {fibre.leaves for fibre in self.fibres.values()} | {
            trunk.start for trunk in self.trunks
        }
        return frozenset(port.device for port in enters & leaves)

    @cached_property
    def segment_at(self) -> Mapping[HostPort, Segment]:
        """The segment each electrical port is cabled to."""
        return {
            port: segment
            for segment in self.segments.values()
            for port in (*segment.ports.values(), *segment.partitions.values())
        }

    def electrical(self, link: Link | WantedLink) -> bool:
        """Whether packet switches carry the link, so that it needs no light."""
        at = [
            self.segment_at.get(end) if isinstance(end, HostPort) else None
            for end in (link.a, link.b)
        ]
        return at[0] is not None and at[0] is at[1]

    def switched(self, links: Iterable[Link]) -> Mapping[HostPort, Segment]:
        """The ports of links that packet switches carry, each with its segment."""
        ports = (port for link in links if self.electrical(link) for port in (link.a, link.b))
        return {port: self.segment_at[port] for port in ports}

    def interface(self, port: HostPort) -> str:
        """The interface that sends the host's own traffic at `port`."""
        return self.hosts[port.host].ports[port.number].interface

    def traits_of(self, device: DeviceName) -> Traits:
        """The device's traits; without its driver's, typical ones with the overrides of the
        inventory.
        """
        known = self.traits.get(device)
        if known is not None:
            return known
        given = self.devices[device].traits
        known_here = ("settle_s", "at_once", "insertion_loss_db", "directions")
        return replace(
            UNKNOWN, **{name: given[name] for name in known_here if given.get(name) is not None}
        )

    def insertion_loss_db(self, device: DeviceName) -> Db:
        """Expected loss (dB) of one pass: the inventory's override, else the driver's number."""
        return self.traits_of(device).insertion_loss_db

    def pass_loss_db(self, setting: Setting) -> Db:
        """Expected loss (dB) of one path through a device: the one of losses.csv, else as
        `insertion_loss_db`; without deliberate attenuation.
        """
        device, ingress, egress = (
            setting.ingress.device,
            setting.ingress.label,
            setting.egress.label,
        )
        own = self.losses.get((device, ingress, egress))
        return self.insertion_loss_db(device) if own is None else own

    def slow(self, device: DeviceName) -> bool:
        """Whether the device is a robot: it makes one move at a time and takes a second or more for
        each (in time of the real device)."""
        traits = self.traits_of(device)
        return traits.at_once == 1 and traits.settle_s * self.time_scale(device) >= SLOW_MOVE_S

    def max_input_dbm(self, port: Port) -> Dbm | None:
        """Maximum input power (dBm) of the port, None if the inventory sets no limit."""
        limits = self.input_limits.get(port.device, {})
        return limits.get(port.label, limits.get(""))

    def time_scale(self, device: DeviceName) -> float:
        """The factor by which it runs faster than a real device; 1 for hardware."""
        return self.devices[device].time_scale


def read_lab(
    hosts_yml: str,
    devices_yml: str,
    fibres_yml: str,
    programs_yml: str = "programs: {}",
    *,
    names: tuple[str, str, str, str] = ("hosts.yml", "devices.yml", "fibres.yml", "programs.yml"),
) -> Lab:
    """The lab these texts describe; `names`: file names for error messages.

    Raises: BadFile - everything wrong with all of them, in the order of the files.
    """
    lines: list[str] = []
    documents: list[Document] = []
    for text, name in zip((hosts_yml, devices_yml, fibres_yml, programs_yml), names, strict=True):
        try:
            documents.append(read_yaml(text, name))
        except BadFile as error:
            lines += error.problems
            documents.append(Document(name, None, {}, {}))
    hosts_doc, devices_doc, fibres_doc, programs_doc = documents
    unreadable = {line.split(":", 1)[0] for line in lines}
    problems = [Problems(document) for document in documents]

    hosts, host_names = (
        ({}, None) if hosts_doc.name in unreadable else read_hosts(hosts_doc, problems[0])
    )
    lab_name, devices, secrets, limits = (
        _devices(devices_doc, problems[1])
        if devices_doc.name not in unreadable
        else ("", {}, {}, {})
    )
    device_names = frozenset(_keys(devices_doc.value, "devices")) or None
    if fibres_doc.name not in unreadable:
        fibres, trunks, segments = read_cables(
            fibres_doc, problems[2], hosts, host_names, device_names
        )
        if not problems[2].lines():
            _limits(
                limits, {f.enters for f in fibres.values()} | {t.end for t in trunks}, problems[1]
            )
    programs = (
        read_programs(programs_doc, problems[3]) if programs_doc.name not in unreadable else {}
    )
    hosts = {name: replace(host, job_users=users(programs)) for name, host in hosts.items()}
    for found in problems:
        lines += found.lines()
    if lines:
        raise BadFile(lines, hint="correct the inventory; nothing was changed")
    hosts, segments = _with_partitions(hosts, segments)
    return Lab(
        lab_name,
        hosts,
        devices,
        fibres,
        secrets,
        trunks,
        input_limits=limits,
        segments=segments,
        programs=programs,
    )


def _with_partitions(
    hosts: Mapping[HostName, Host], segments: Mapping[str, Segment]
) -> tuple[dict[HostName, Host], dict[str, Segment]]:
    """The hosts, each followed by its partitions, and the segments with the partitions' ports: they
    have no fibres.
    """
    found: dict[HostName, Host] = {}
    for name, host in hosts.items():
        at = (
            [(s.ports[name].number, s.link_mbps) for s in segments.values() if name in s.ports]
            if host.partitions
            else []
        )
        found[name] = replace(host, port_mbps=dict(at)) if at else host
        found |= found[name].partitioned()
    ports = {
        s.name: {
            n: HostPort(n, s.ports[h.machine].number)
            for n, h in found.items()
            if h.partition and h.machine in s.ports
        }
        for s in segments.values()
    }
    return found, {
        name: replace(segment, partitions=ports[name]) if ports[name] else segment
        for name, segment in segments.items()
    }


def _keys(value: Any, key: str) -> list[str]:
    inner = value.get(key) if isinstance(value, Mapping) else None
    return [str(name) for name in inner] if isinstance(inner, Mapping) else []


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
        if (secret := secret_of(device, ("devices", name), problems)) is not None:
            secrets[name] = secret
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
    """Refuse limits for ports that no fibre leads into, misspelt ones included: they would protect
    nothing.
    """
    for device, label in (
        (device, label) for device, at in limits.items() for label in at if label
    ):
        if Port(device, label) not in entries:
            hint = did_you_mean(label, [port.label for port in entries if port.device == device])
            where = ("devices", device, "max_input_dbm_at", label)
            problems.add(
                where,
                f"no fibre or trunk leads into {device} at port {label} (fibres.yml){hint}",
                key=True,
            )


def kind_of(lab: Lab, device: DeviceName) -> str:
    """`wss` for a wavelength-selective device, `robot` for one that makes one move at a time, else
    `ocs`.
    """
    traits = lab.traits_of(device)
    return "wss" if traits.spectral else "robot" if traits.at_once == 1 else "ocs"
