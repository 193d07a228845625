"""Values that every package may import: ports, cross-connects, circuits, changes. Frozen and
hashable.

Vocabulary follows SAI/SONiC OCS and the switch vendors (cross-connect, ingress, egress, insertion
loss) and ITU-T G.694.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from optics.plain import printable
from optics.spectrum import FrequencySlot

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
    """Light entering `ingress` leaves by `egress`; both ports are on one device. One direction
    only: a duplex link is two.
    """

    ingress: Port
    egress: Port

    def __str__(self) -> str:
        return f"{self.ingress.device}:{self.ingress.label}->{self.egress.label}"


@dataclass(frozen=True, slots=True, order=True)
class SpectralRoute:
    """Light of `slot` entering `ingress` leaves by `egress`, attenuated on purpose by
    `attenuation_db` (dB >= 0, in steps of 0.1).

    The setting of a wavelength-selective switch. Two that differ only in attenuation are the same
    route: a device asked to remove one and add the other changes the attenuation in place, without
    interrupting the light.
    """

    ingress: Port
    egress: Port
    slot: FrequencySlot
    attenuation_db: Db = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "attenuation_db", round(self.attenuation_db, 1) + 0.0)

    @property
    def route(self) -> tuple[Port, Port, FrequencySlot]:
        """The route, whatever its attenuation."""
        return self.ingress, self.egress, self.slot

    def __str__(self) -> str:
        weaker = f"-{self.attenuation_db:.1f}dB" if self.attenuation_db else ""
        return (
            f"{self.ingress.device}:{self.ingress.label}->{self.egress.label}@{self.slot}{weaker}"
        )


Setting: TypeAlias = CrossConnect | SpectralRoute
"""One entry of a device's state; the state is a frozenset of these and `wanted - observed` is the
diff.
"""


def clash(one: Setting, other: Setting) -> Port | None:
    """The port on which the two settings exclude each other, None if they do not.

    A port carries one cross-connect, or spectral routes whose slots do not overlap. A route and the
    same route with another attenuation clash like any two that overlap.
    """
    if one == other:
        return None
    shared = (
        one.ingress
        if one.ingress == other.ingress
        else one.egress
        if one.egress == other.egress
        else None
    )
    if shared is None:
        return None
    if (
        isinstance(one, SpectralRoute)
        and isinstance(other, SpectralRoute)
        and not one.slot.overlaps(other.slot)
    ):
        return None
    return shared


class LinkKind(StrEnum):
    DUPLEX = "duplex"
    SIMPLEX = "simplex"


@dataclass(frozen=True, slots=True, order=True)
class Link:
    """A link of a plan between two host ports, in both directions (`duplex`) or from `a` to `b`
    only (`simplex`).
    """

    a: HostPort
    b: HostPort
    kind: LinkKind = LinkKind.DUPLEX

    def __str__(self) -> str:
        return f"{self.a} {'--' if self.kind is LinkKind.DUPLEX else '->'} {self.b}"


@dataclass(frozen=True, slots=True, order=True)
class Circuit:
    """A one-way light path from a transmitter to a receiver through the settings of `path`, in the
    order light passes them.

    `loss_db`: expected loss end to end in dB, fibres and switches, from the inventory and the
    devices' traits.
    """

    transmitter: HostPort
    receiver: HostPort
    path: tuple[Setting, ...]
    loss_db: Db = 0.0

    def __str__(self) -> str:
        return f"{self.transmitter}->{self.receiver}"


@dataclass(frozen=True, slots=True)
class Change:
    """Settings to remove from and to add to one device, together. `remove` and `add` are disjoint.

    order: the preferred order of all of them for a device that moves one fibre at a time; empty:
    any. It only affects dark time, so changes that differ in it alone are equal.
    """

    device: DeviceName
    remove: frozenset[Setting] = frozenset()
    add: frozenset[Setting] = frozenset()
    order: tuple[Setting, ...] = field(default=(), compare=False)

    def __bool__(self) -> bool:
        return bool(self.remove or self.add)


@dataclass(frozen=True, slots=True)
class Traits:
    """Numbers the planner may rely on; each driver cites the datasheet it took them from.

    settle_s: longest time (s) from a command to steady light, per set. at_once: settings one
    command can carry, None = no limit. keeps_others_lit: a change leaves the other circuits
    untouched. latching: circuits survive loss of power. insertion_loss_db: typical loss of one
    cross-connect (dB). spectral: the device holds spectral routes, not cross-connects. directions:
    (ingress, egress) patterns, full matches of labels, of the ports that it can connect; `\\1` in
    the egress is what its first group matched; empty: any ingress to any egress. meter_db: accuracy
    of its power meter (+- dB), 0 where it has none. stored_dwell_s: least time (s) of light of a
    map that the device stores and turns to by itself, None where it stores none.
    """

    settle_s: float
    at_once: int | None = None
    keeps_others_lit: bool = True
    latching: bool = False
    insertion_loss_db: Db = 1.5
    spectral: bool = False
    directions: tuple[tuple[str, str], ...] = ()
    meter_db: Db = 0.0
    stored_dwell_s: float | None = None

    def joins(self, ingress: str, egress: str) -> bool:
        """Whether the device can connect port `ingress` to port `egress` at all."""
        return not self.directions or any(
            re.fullmatch(one_pattern(a, b), f"{ingress}\n{egress}") for a, b in self.directions
        )


def one_pattern(ingress: str, egress: str) -> str:
    """The pattern of a way: of both labels, with a line end between, so that the egress may refer
    to a group of the ingress.

    >>> bool(re.fullmatch(one_pattern(r"([0-9]+)\\.in", r"\\1\\.[0-9]+"), "3.in\\n3.12"))
    True
    """
    return f"(?:{ingress})\n(?:{egress})"


class PortState(StrEnum):
    """State of a port as its hardware reports it: usable, blocked by command (SAI: force-blocked),
    or failed.
    """

    ENABLED = "enabled"
    DISABLED = "disabled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a slow device is with a change: `done` of `total` moves; `eta_s` (s, this lab's
    clock) until the last is done.
    """

    device: DeviceName
    done: int
    total: int
    eta_s: float | None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity and ports as a device reports them, in its own labels. Duplex faceplates list a
    label on both sides. dark: egress ports that stand for "no circuit", and so carry none.
    """

    vendor: str
    model: str
    serial: str
    firmware: str
    ingress: tuple[str, ...]
    egress: tuple[str, ...]
    dark: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("vendor", "model", "serial", "firmware"):  # untrusted text that is printed
            object.__setattr__(self, name, printable(getattr(self, name), keep=""))
        for name in ("ingress", "egress", "dark"):
            object.__setattr__(
                self, name, tuple(printable(label, keep="") for label in getattr(self, name))
            )


@dataclass(frozen=True, slots=True)
class Outcome:
    """A device's report after a change; never the request.

    observed: the whole device read back after the change. failed: settings not as requested, with
    the device's own message. Marks are monotonic nanoseconds of this machine: `sent_ns` before the
    first command byte, `broken_ns` when removals were acknowledged, `acked_ns` when the last
    command was acknowledged, `settled_ns` when the device itself reported the new state. `writes`
    counts the commands that could change the device.
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

    address: a URL (`tcp://host:port`, `telnet://host:port`, `ssh://host:port`,
    `netconf://host:port`, `http://host:port`, `visa://TCPIP::host::5025::SOCKET`,
    `serial:///dev/ttyUSB0?baud=38400`). password is never printed. traits: overrides of the
    driver's own numbers, by field name of `Traits`. timeout_s: longest silence (s) after one
    request. options: settings of this driver alone. time_scale: how many times faster than a real
    device it runs, 1 for hardware; an emulated robot that takes 1 s for a move of a minute has 60.
    Every time the driver knows from data sheets is divided by it.
    """

    name: DeviceName
    driver: str
    address: str
    username: str = ""
    password: str = field(default="", repr=False)
    traits: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 5.0
    options: Mapping[str, str] = field(default_factory=dict)
    time_scale: float = 1.0


def short(setting: Setting | Port) -> str:
    """A setting or a port without its device: `4->17`, `in->3@191.3250-191.3750THz`, `17`."""
    return str(setting).partition(":")[2]


def sort_key(setting: Setting) -> tuple[object, ...]:
    """A stable order for settings of any kind."""
    return setting.ingress, setting.egress, str(setting)


def setting_id(setting: Setting) -> str:
    """The ingress port, for a spectral route with its slot, because several share a port."""
    return (
        f"{setting.ingress.label}@{setting.slot}"
        if isinstance(setting, SpectralRoute)
        else setting.ingress.label
    )
