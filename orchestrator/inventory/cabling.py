"""Follows fibres through NetBox's cables and patch panels, strand by strand, from host to switch.
Pure.

A host port has two strands: its transmitter's and its receiver's. A position of a panel port has
one or both. Where one port is cabled to two positions, the first has the host's transmitter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optics.plain import natural, printable
from orchestrator.inventory.fibres import CONNECTOR_DB, FIBRE_DB_PER_KM
from orchestrator.inventory.netbox import (
    FRONT,
    INTERFACE,
    INTERFACES,
    LABEL,
    REAR,
    CableRow,
    Key,
    Rows,
)
from orchestrator.inventory.schema import NAME

MOST_CABLES = 64
"""Cables in a row that a fibre is followed through."""
METRES = {"km": 1000.0, "m": 1.0, "cm": 0.01, "mi": 1609.344, "ft": 0.3048, "in": 0.0254}
TRANSMIT, RECEIVE = 0, 1


@dataclass(frozen=True, slots=True)
class FoundFibre:
    """A fibre from an interface of a host to a switch. `label`: of its first cable, empty if that
    is no name. cables: the numbers of the cables of each strand.
    """

    host: str
    interface: str
    wanted_port: int | None
    device: str
    enters: str
    leaves: str
    label: str
    length_m: float | None
    loss_db: float | None
    cables: tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class FoundTrunk:
    """A one-way fibre between two ports of switches."""

    label: str
    start: tuple[str, str]
    end: tuple[str, str]
    length_m: float | None
    loss_db: float | None
    cables: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FoundHost:
    name: str
    address: str
    variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cabling:
    """The lab as NetBox has it. left_out: what was not taken over, and why."""

    hosts: Mapping[str, FoundHost]
    devices: Mapping[str, Mapping[str, Any]]
    fibres: tuple[FoundFibre, ...]
    trunks: tuple[FoundTrunk, ...]
    left_out: tuple[str, ...]
    fields: Mapping[int, Mapping[str, Any]]
    """The custom fields of every cable that a fibre or trunk leads through."""


class _Lost(Exception):
    """A strand that reaches no switch: why; `foreign`: it ends at a device outside the lab."""

    def __init__(self, why: str, *, foreign: bool = False) -> None:
        super().__init__(why)
        self.foreign = foreign


@dataclass(frozen=True, slots=True)
class _Strand:
    end: Key
    cables: tuple[CableRow, ...]


def cabling_of(rows: Rows) -> Cabling:
    """Hosts, switches and the fibres between them."""
    followed = _Followed(rows)
    fibres, left_out = followed.fibres()
    trunks = followed.trunks({fibre.device for fibre in fibres if fibre.enters == fibre.leaves})
    with_light = {fibre.host for fibre in fibres}
    hosts = {}
    for row in sorted(rows.hosts.values(), key=lambda row: natural(row.name or "")):
        name = str(row.name)
        if name not in with_light:
            left_out.append(f"{name}: no fibre leads from it to a switch")
        ip = row.primary_ip.address.partition("/")[0] if row.primary_ip else ""
        hosts[name] = FoundHost(name, ip, rows.context[row.id])
    used = {number for f in fibres for strand in f.cables for number in strand}
    used |= {number for trunk in trunks for number in trunk.cables}
    return Cabling(
        hosts,
        {
            str(row.name): rows.context[row.id]
            for row in sorted(rows.switches.values(), key=lambda row: natural(row.name or ""))
        },
        tuple(fibres),
        tuple(trunks),
        (*left_out, *followed.wrong),
        {cable.id: cable.custom_fields for cable in rows.cables if cable.id in used},
    )


class _Followed:
    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.at: dict[Key, tuple[CableRow, int]] = {}
        self.owner: dict[Key, int] = {}
        self.names: dict[Key, str] = {}
        self.full_names: dict[Key, str] = {}
        self.wrong: list[str] = []
        for cable in rows.cables:
            for side, ends in enumerate((cable.a_terminations, cable.b_terminations)):
                for end in ends:
                    if self.at.setdefault(end.key, (cable, side))[0] is not cable:
                        self.wrong.append(f"cable {cable.id}: another cable is at {end} already")
                    if end.object and end.object.device:
                        self.owner[end.key] = end.object.device.id
                        self.names[end.key] = end.object.name or ""
                        self.full_names[end.key] = str(end)
        self.behind: dict[tuple[Key, int], tuple[Key, int]] = {}
        for front in rows.fronts.values():
            for position, rear, there in front.leads:
                here, far = ((FRONT, front.id), position), ((REAR, rear), there)
                self.behind[here], self.behind[far] = far, here

    def fibres(self) -> tuple[list[FoundFibre], list[str]]:
        found, left_out, foreign = [], [], 0
        starts = [
            key
            for key in self.at
            if key[0] == INTERFACES and self.owner.get(key) in self.rows.hosts
        ]
        for key in sorted(
            starts, key=lambda key: (natural(self._device(key)), natural(self.names[key]))
        ):
            place = printable(f"{self._device(key)} {self.names[key]}")
            try:
                found.append(self._fibre(key))
            except _Lost as lost:
                foreign += lost.foreign
                if not lost.foreign:
                    left_out.append(f"{place}: {lost}")
        if foreign:
            left_out.append(f"{foreign} interfaces lead to devices that are not part of the lab")
        return found, left_out

    def _fibre(self, key: Key) -> FoundFibre:
        sent, received = (self._follow(key, strand) for strand in (TRANSMIT, RECEIVE))
        if self.owner[sent.end] != self.owner[received.end]:
            raise _Lost(
                f"its light goes to {self._device(sent.end)} and comes from {self._device(received.end)}"
            )
        interface, row = self.names[key], self.rows.interfaces.get(key[1])
        if not re.fullmatch(INTERFACE, interface):
            raise _Lost("not the name of an interface of Linux: name it as the host's kernel does")
        wanted = re.fullmatch(r"p?(\d{1,2})", row.label) if row else None
        length, loss = _loss(sent.cables)
        return FoundFibre(
            self._device(key),
            interface,
            int(wanted[1]) if wanted and 1 <= int(wanted[1]) <= 64 else None,
            self._device(sent.end),
            self._label(sent.end),
            self._label(received.end),
            _name(sent.cables[0]),
            length,
            loss,
            (tuple(c.id for c in sent.cables), tuple(c.id for c in received.cables)),
        )

    def trunks(self, duplex: set[str]) -> list[FoundTrunk]:
        """Cables between switches: light goes from side A to side B; where both have duplex ports,
        as host fibres show, both ways.
        """
        found = []
        for key, (cable, side) in sorted(
            self.at.items(), key=lambda item: (item[1][0].id, item[0])
        ):
            if self.owner.get(key) not in self.rows.switches:
                continue
            try:
                strand = self._follow(key, TRANSMIT)
                ends = (
                    (self._device(key), self._label(key)),
                    (
                        self._device(strand.end),
                        self._label(strand.end),
                    ),
                )
            except _Lost as lost:
                if not lost.foreign and side == 0:
                    self.wrong.append(printable(f"{self._device(key)} {self.names[key]}: {lost}"))
                continue
            if self.owner[strand.end] not in self.rows.switches:
                continue
            both_ways = {ends[0][0], ends[1][0]} <= duplex
            if not both_ways and side == 0 == self.at[strand.end][1]:
                self.wrong.append(
                    f"{ends[0][0]}:{ends[0][1]} and {ends[1][0]}:{ends[1][1]} are both at side A of their"
                    f" cables: light goes from A to B"
                )
            elif side == 0 or both_ways:
                length, loss = _loss(strand.cables)
                label = _name(cable) if side == 0 else ""
                numbers = tuple(c.id for c in strand.cables)
                found.append(FoundTrunk(label, *ends, length, loss, numbers))
        return found

    def _device(self, key: Key) -> str:
        device = self.owner[key]
        row = self.rows.hosts.get(device) or self.rows.switches.get(device)
        return str(row.name) if row else "?"

    def _label(self, key: Key) -> str:
        label = self.names[key]
        if not re.fullmatch(LABEL, label):
            raise _Lost(
                f"it ends at a port called {printable(label)[:64]!r} of {self._device(key)}"
            )
        return label

    def _follow(self, start: Key, strand: int) -> _Strand:
        """Where a strand of `start` ends: at a port of the lab. Raises: _Lost."""
        key, position, cables = start, 1, [self._cable(start)]
        seen = {(start, 1)}
        while True:
            key, position = self._across(key, position, strand)
            owner = self.owner.get(key)
            if owner in self.rows.switches or owner in self.rows.hosts:
                if (
                    owner in self.rows.hosts
                    and start[0] == INTERFACES
                    and self.owner[start] in self.rows.hosts
                ):
                    raise _Lost(f"cable {cables[-1].id} leads to the host {self._device(key)}")
                return _Strand(key, tuple(cables))
            if key[0] not in (FRONT, REAR):
                if key[0] == INTERFACES:
                    raise _Lost("outside the lab", foreign=True)
                raise _Lost(f"cable {cables[-1].id} ends at a {printable(key[0])}")
            inner = self.behind.get((key, position))
            if inner is None:
                raise _Lost(
                    f"cable {cables[-1].id} leads to position {position} of {self._port(key)},"
                    f" behind which is no cabled port"
                )
            key, position = inner
            if key not in self.at:
                raise _Lost(f"no cable is at {self._port(key)}, behind cable {cables[-1].id}")
            if (key, position) in seen:
                raise _Lost(f"it comes back to {self._port(key)}: a loop")
            seen.add((key, position))
            cables.append(self._cable(key))
            if len(cables) > MOST_CABLES:
                raise _Lost(f"more than {MOST_CABLES} cables in a row")

    def _cable(self, key: Key) -> CableRow:
        return self.at[key][0]

    def _port(self, key: Key) -> str:
        return printable(self.full_names.get(key, f"{key[0]} {key[1]}"))

    def _across(self, key: Key, position: int, strand: int) -> tuple[Key, int]:
        """The port and position at the other side of the cable at `key`."""
        cable, side = self.at[key]
        own, far = (cable.a_terminations, cable.b_terminations)[:: 1 if side == 0 else -1]
        if cable.profile and "shuffle" in (cable.profile.value or ""):
            raise _Lost(
                f"cable {cable.id} exchanges its fibres ({printable(str(cable.profile.value))})"
            )
        if not far:
            raise _Lost(f"cable {cable.id} leads to nothing")
        here = [(end.key, n) for end in own for n in range(1, self._positions(end.key) + 1)]
        there = [(end.key, n) for end in far for n in range(1, self._positions(end.key) + 1)]
        place = here.index((key, position)) if (key, position) in here else len(here)
        if place < len(there) and (
            len(here) == len(there)
            or (len(own) == len(far) == 1 and min(len(here), len(there)) > 1)
        ):
            return there[place]
        if (len(here), len(there)) == (1, 2):
            return there[strand]
        if (len(here), len(there)) == (2, 1):
            return there[0]
        raise _Lost(f"cable {cable.id} joins {len(here)} and {len(there)} positions")

    def _positions(self, key: Key) -> int:
        if key[0] == REAR and (rear := self.rows.rears.get(key[1])):
            return rear.positions
        if key[0] == FRONT and (front := self.rows.fronts.get(key[1])):
            return max(1, len(front.leads))
        return 1


def _name(cable: CableRow) -> str:
    return cable.label if re.fullmatch(NAME.strip("^$"), cable.label) else ""


def _loss(cables: Sequence[CableRow]) -> tuple[float | None, float | None]:
    """Length (m), None unless every cable has one, and loss (dB) where panels add connectors."""
    lengths = [
        cable.length * METRES[cable.length_unit.value]
        for cable in cables
        if cable.length is not None and cable.length_unit and cable.length_unit.value in METRES
    ]
    length = round(sum(lengths), 3) if len(lengths) == len(cables) else None
    if len(cables) == 1:
        return length, None
    return length, round(
        (length or 0) * FIBRE_DB_PER_KM / 1000 + (len(cables) + 1) * CONNECTOR_DB, 4
    )


def port_numbers(
    cabling: Cabling, existing: Mapping[str, Mapping[str, int]]
) -> dict[tuple[str, str], int]:
    """The port number of each cabled interface of each host: that of the inventory, by host and
    interface in `existing`; else that of its label in NetBox; else the lowest that is free.
    """
    found: dict[tuple[str, str], int] = {}
    for host, fibres in _by_host(cabling.fibres):
        numbers = dict(existing.get(host, {}))
        labels = Counter(f.wanted_port for f in fibres if f.interface not in numbers)
        for fibre in fibres:
            wanted = fibre.wanted_port
            if (
                fibre.interface not in numbers
                and wanted is not None
                and wanted not in numbers.values()
                and labels[wanted] == 1
            ):
                numbers[fibre.interface] = wanted
        taken = set(numbers.values())
        free = (number for number in range(1, 1 << 16) if number not in taken)
        for fibre in fibres:
            if fibre.interface not in numbers:
                numbers[fibre.interface] = next(free)
            found[host, fibre.interface] = numbers[fibre.interface]
    return found


def _by_host(fibres: Sequence[FoundFibre]) -> Iterator[tuple[str, list[FoundFibre]]]:
    by: dict[str, list[FoundFibre]] = {}
    for fibre in fibres:
        by.setdefault(fibre.host, []).append(fibre)
    yield from by.items()
