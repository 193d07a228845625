"""The words everybody may import: ports, cross-connects, circuits, changes. Values only: frozen, ordered, hashable.

Vocabulary follows SAI/SONiC OCS and the switch vendors (cross-connect, ingress, egress, insertion loss) and ITU-T G.694.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

DeviceName: TypeAlias = str
HostName: TypeAlias = str
Dbm: TypeAlias = float
"""Optical power, dB relative to 1 mW."""
Db: TypeAlias = float
"""A ratio in decibel; losses are positive."""


@dataclass(frozen=True, slots=True, order=True)
class Port:
    """One optical port of a device, named as printed on the faceplate (`ocs1:17`, `ocs3:1.2.5`)."""

    device: DeviceName
    label: str

    def __str__(self) -> str:
        return f"{self.device}:{self.label}"


@dataclass(frozen=True, slots=True, order=True)
class HostPort:
    """One transceiver of a host; `number` counts from 1 as printed on the NIC (`gpu03:p1`)."""

    host: HostName
    number: int

    def __str__(self) -> str:
        return f"{self.host}:p{self.number}"


@dataclass(frozen=True, slots=True, order=True)
class CrossConnect:
    """Light entering `ingress` leaves by `egress`; both ports are on one device. One direction only: a duplex link is two."""

    ingress: Port
    egress: Port

    def __str__(self) -> str:
        return f"{self.ingress.device}:{self.ingress.label}->{self.egress.label}"


Setting: TypeAlias = CrossConnect
"""What a device holds; its state is a frozenset of these and `wanted - observed` is the diff. Wavelength-selective switches add
their own kind to this union."""


class LinkKind(StrEnum):
    DUPLEX = "duplex"
    SIMPLEX = "simplex"


@dataclass(frozen=True, slots=True, order=True)
class Link:
    """What a plan asks for: light between two host ports, both ways (`duplex`) or from `a` to `b` only (`simplex`)."""

    a: HostPort
    b: HostPort
    kind: LinkKind = LinkKind.DUPLEX

    def __str__(self) -> str:
        return f"{self.a} {'--' if self.kind is LinkKind.DUPLEX else '->'} {self.b}"


@dataclass(frozen=True, slots=True, order=True)
class Circuit:
    """A one-way light path from a transmitter to a receiver through the cross-connects of `path`, in the order light meets them.

    `loss_db`: expected loss end to end in dB, fibres and switches, from the inventory and the devices' traits.
    """

    transmitter: HostPort
    receiver: HostPort
    path: tuple[CrossConnect, ...]
    loss_db: Db = 0.0

    def __str__(self) -> str:
        return f"{self.transmitter}->{self.receiver}"


@dataclass(frozen=True, slots=True)
class Change:
    """What to take down and put up on one device, together. `remove` and `add` are disjoint."""

    device: DeviceName
    remove: frozenset[Setting] = frozenset()
    add: frozenset[Setting] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.remove or self.add)


@dataclass(frozen=True, slots=True)
class Traits:
    """Numbers the planner may rely on; each driver cites the datasheet it took them from.

    settle_s: longest time (s) from a command to steady light, per set. at_once: settings one command can carry, None = no limit.
    keeps_others_lit: a change leaves the other circuits untouched. latching: circuits survive loss of power.
    insertion_loss_db: typical loss of one cross-connect (dB).
    """

    settle_s: float
    at_once: int | None = None
    keeps_others_lit: bool = True
    latching: bool = False
    insertion_loss_db: Db = 1.5


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a device says it is, and the ports it says it has, in its own labels. Duplex faceplates list a label on both sides."""

    vendor: str
    model: str
    serial: str
    firmware: str
    ingress: tuple[str, ...]
    egress: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a device reports after a change: never what was hoped.

    observed: the whole device read back after the change. failed: settings not as wanted, with the device's own words.
    Marks are monotonic nanoseconds of this machine: `sent_ns` before the first command byte, `broken_ns` when removals were
    acknowledged, `acked_ns` when the last command was acknowledged, `settled_ns` when the device itself reported the new state.
    `writes` counts the commands that could change the device.
    """

    device: DeviceName
    observed: frozenset[Setting]
    sent_ns: int
    broken_ns: int
    acked_ns: int
    settled_ns: int
    writes: int
    failed: Mapping[Setting, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """One device of the inventory, checked.

    address: a URL (`tcp://host:port`, `visa://TCPIP::host::5025::SOCKET`, `serial:///dev/ttyUSB0?baud=38400`).
    password is never printed. traits: overrides of the driver's own numbers, by field name of `Traits`.
    timeout_s: longest silence (s) after one question. options: what only this driver understands.
    """

    name: DeviceName
    driver: str
    address: str
    username: str = ""
    password: str = field(default="", repr=False)
    traits: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 5.0
    options: Mapping[str, str] = field(default_factory=dict)
