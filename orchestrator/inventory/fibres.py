"""Reads fibres.yml: fibres between hosts and devices, trunks between devices, segments; no port is
used twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optics import Db, Dbm, DeviceName, FrequencySlot, HostName, HostPort, Port
from optics.plain import did_you_mean, natural, summary
from orchestrator.inventory.edges import FibreEdge, FibresEdge, TrunkEdge
from orchestrator.inventory.hosts import Host
from orchestrator.inventory.positions import Document, Path, Problems
from orchestrator.inventory.schema import check
from orchestrator.inventory.segments import Segment, read_segments

# G.652.D at 1310 nm, ITU-T G.652 (11/2016) table 2 gives at most 0.4; 0.35 is the usual data sheet
# value
FIBRE_DB_PER_KM = 0.35
CONNECTOR_DB = 0.3  # one mated LC pair, typical; a duplex patch cord has two in each direction


@dataclass(frozen=True, slots=True)
class Fibre:
    """A duplex cable from a host port to a device: light enters the device at `enters` and leaves
    it for the host at `leaves`.

    loss_db: of cable and connectors, per direction. slot: the spectrum its host transmits in,
    tx_dbm: its transmit power (dBm); None if the inventory has no value. Fibres whose slots do not
    overlap may enter at one port: a passive coupler joins them. panels: the positions of patch panels
    on its way, from the host.
    """

    name: str
    port: HostPort
    enters: Port
    leaves: Port
    length_m: float
    loss_db: Db
    slot: FrequencySlot | None = None
    tx_dbm: Dbm | None = None
    panels: tuple[str, ...] = ()

    @property
    def device(self) -> DeviceName:
        return self.enters.device


@dataclass(frozen=True, slots=True)
class Trunk:
    """A one-way fibre: light that leaves a device at `start` enters a device, possibly the same
    one, at `end`.

    loss_db: less the gain of its amplifier, so it may be below 0.
    """

    name: str
    start: Port
    end: Port
    length_m: float
    loss_db: Db
    panels: tuple[str, ...] = ()


def read_cables(
    document: Document,
    problems: Problems,
    hosts: Mapping[HostName, Host],
    host_names: frozenset[HostName] | None,
    device_names: frozenset[DeviceName] | None,
) -> tuple[dict[HostPort, Fibre], tuple[Trunk, ...], dict[str, Segment]]:
    """The fibres, trunks and segments; names of hosts and devices are checked where those are
    known.
    """
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
            problems.add(
                (*path, "host"),
                f"host {fibre.host} is not in the lab ({summary(host_names, 'host')}){hint}",
            )
        elif fibre.host in hosts and fibre.port not in hosts[fibre.host].ports:
            has = ", ".join(str(number) for number in hosts[fibre.host].ports)
            problems.add((*path, "port"), f"{fibre.host} has no port {fibre.port} (it has {has})")
        claims.device(fibre.device, (*path, "device"))
        fibres[port] = claims.fibre(fibre, port, path)
    trunks = tuple(
        claims.trunk(trunk, ("trunks", index)) for index, trunk in enumerate(edge.trunks)
    )
    numbers = {name: tuple(host.ports) for name, host in hosts.items()}
    segments = read_segments(edge.segments, problems, numbers, host_names, claims.taken)
    return (
        dict(sorted(fibres.items(), key=lambda item: (natural(item[0].host), item[0].number))),
        trunks,
        segments,
    )


class _Claims:
    """The first user of each name and of each side of each port."""

    def __init__(self, problems: Problems, devices: frozenset[DeviceName] | None) -> None:
        self.problems, self.devices = problems, devices
        self.taken: dict[object, str] = {}
        self.coupled: dict[Port, list[tuple[str, str, FrequencySlot | None]]] = {}

    def device(self, name: DeviceName, path: Path) -> None:
        if self.devices is not None and name not in self.devices:
            hint = did_you_mean(name, self.devices)
            self.problems.add(
                path, f"device {name} is not in the lab ({summary(self.devices, 'device')}){hint}"
            )

    def claim(self, what: object, text: str, path: Path, place: str) -> None:
        if what in self.taken:
            self.problems.add(path, f"{text} is already defined by {self.taken[what]}")
        self.taken.setdefault(what, place)

    def fibre(self, edge: FibreEdge, port: HostPort, path: Path) -> Fibre:
        place = f"{path[0]}[{path[1]}]"
        enters, leaves = Port(edge.device, edge.enters), Port(edge.device, edge.leaves)
        slot = FrequencySlot.flexgrid(edge.slot.n, edge.slot.m) if edge.slot is not None else None
        self.claim(edge.name, f"fibre {edge.name}", (*path, "name"), place)
        self.claim(port, f"a fibre at {port}", (*path, "port"), place)
        others = self.coupled.setdefault(enters, [])
        if slot is None or any(theirs is None for _, _, theirs in others):
            if others:
                both = (
                    "; fibres that share a port through a coupler need a slot each"
                    if slot or others[0][2]
                    else ""
                )
                self.problems.add(
                    (*path, "enters"),
                    f"a fibre into {enters} is already defined by {others[0][1]}{both}",
                )
        elif overlap := next(
            (other for other in others if other[2] is not None and slot.overlaps(other[2])), None
        ):
            self.problems.add(
                (*path, "slot"),
                f"{slot} overlaps {overlap[2]} of fibre {overlap[0]}, {overlap[1]}, which enters at {enters} too",
            )
        others.append((edge.name, place, slot))
        self.taken.setdefault(("in", enters), place)
        self.claim(("out", leaves), f"a fibre out of {leaves}", (*path, "leaves"), place)
        cable = edge.name, port, enters, leaves, edge.length_m, _loss(edge)
        return Fibre(*cable, slot, edge.tx_dbm, tuple(edge.panels))

    def trunk(self, edge: TrunkEdge, path: Path) -> Trunk:
        place = f"{path[0]}[{path[1]}]"
        self.claim(edge.name, f"fibre {edge.name}", (*path, "name"), place)
        ends = []
        for side, key, text, end in (
            ("out", "from", "out of", edge.start),
            ("in", "to", "into", edge.end),
        ):
            self.device(end.device, (*path, key, "device"))
            port = Port(end.device, end.port)
            self.claim((side, port), f"a fibre {text} {port}", (*path, key, "port"), place)
            ends.append(port)
        loss = round(_loss(edge) - edge.gain_db, 4)
        return Trunk(edge.name, ends[0], ends[1], edge.length_m, loss, tuple(edge.panels))


def _loss(edge: FibreEdge | TrunkEdge) -> Db:
    return round(
        edge.loss_db
        if edge.loss_db is not None
        else FIBRE_DB_PER_KM * edge.length_m / 1000 + (2 + len(edge.panels)) * CONNECTOR_DB,
        4,
    )
