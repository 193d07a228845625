"""The cross-connects of an OpenROADM 2.x node (org-openroadm-device of 2017-06-26 to 2018-10-19).

Light that passes from one port to another is a `roadm-connection` between two network media
channels (NMC), one at each port. At a degree the NMC lies in a media channel (MC), the passband,
which lies on the degree's multiplex section (OMS); at an add/drop port it lies on the port itself.
Frequencies are decimals of THz, widths of GHz.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from xml.sax.saxutils import escape

from drivers.wire import netconf, unknown
from drivers.wire.netconf import Element, children, reported, tree
from drivers.wire.rest import decimal
from drivers.wire.roadm import mhz_of
from drivers.wire.unknown import Unknown
from optics import FrequencySlot, Garbled

NS = "http://org/openroadm/device"
INTERFACES_NS = "http://org/openroadm/interfaces"
OMS, MC, NMC = (
    "openROADMOpticalMultiplex",
    "mediaChannelTrailTerminationPoint",
    "networkMediaChannelConnectionTerminationPoint",
)
_CONTAINER = {
    MC: ("mc-ttp", "http://org/openroadm/media-channel-interfaces"),
    NMC: ("nmc-ctp", "http://org/openroadm/network-media-channel-interfaces"),
}
OFF, POWER = "off", "power"
_MODES = (OFF, POWER, "gainLoss")
_RETURN = {"\r": "&#13;"}  # a reader would take it for the end of a line
OWN = "testbed-"
"""Names of the connections and interfaces made here begin so."""

LABEL = re.compile(r"DEG[0-9]{1,5}|SRG[0-9]{1,5}(/[\w.+()/-]{1,60}){2}", re.ASCII)
"""How ports are called here; an add/drop port whose names do not fit is left out."""


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A port of a circuit pack, as the device names them."""

    pack: str
    port: str


@dataclass(frozen=True, slots=True)
class Node:
    """What the node is, and where each label is: degree 1 is `DEG1`, port C3 of pack 3/0 in
    add/drop group 1 is `SRG1/3/0/C3`.
    """

    vendor: str
    model: str
    serial: str
    firmware: str
    ingress: Mapping[str, Place]
    egress: Mapping[str, Place]


@dataclass(frozen=True, slots=True)
class Interface:
    """slot: of a media channel whose frequencies are understood. below: the interface that it rests
    on, empty if it names none.
    """

    name: str
    kind: str
    place: Place
    below: str = ""
    slot: FrequencySlot | None = None


@dataclass(frozen=True, slots=True)
class Connection:
    """One roadm-connection; `source` and `destination` are interfaces, `ingress` and `egress` the
    labels of their ports.
    """

    name: str
    ingress: str
    egress: str
    slot: FrequencySlot
    mode: str
    source: str
    destination: str

    @property
    def own(self) -> bool:
        return self.name.startswith(OWN)


@dataclass(frozen=True, slots=True)
class Table:
    """interfaces: by name. odd: connections that cannot be read. used: names of interfaces on which
    something rests.
    """

    interfaces: Mapping[str, Interface]
    connections: tuple[Connection, ...]
    odd: frozenset[Unknown]
    used: frozenset[str]

    def find(self, kind: str, place: Place, slot: FrequencySlot | None = None) -> Interface | None:
        """The interface of that kind at that port, of exactly that slot."""
        return next(
            (
                i
                for i in self.interfaces.values()
                if (i.kind, i.place, i.slot) == (kind, place, slot)
            ),
            None,
        )


def asked_node() -> Element:
    """The filter that selects what `parse_node` reads: an inventory of every card can be megabytes
    long.
    """
    return device(
        tree("info"),
        tree("degree", tree("degree-number"), tree("connection-ports")),
        tree("shared-risk-group", tree("srg-number"), tree("circuit-packs")),
        tree(
            "circuit-packs",
            tree("circuit-pack-name"),
            tree("ports", tree("port-name"), tree("port-qual"), tree("port-direction")),
        ),
    )


def parse_node(data: Element) -> Node:
    """Read the `data` of a get. Raises: Garbled - no ROADM, or of a degree or add/drop group not
    what the model makes mandatory.
    """
    held = netconf.child(data, "org-openroadm-device")
    info = netconf.child(held, "info") if held is not None else None
    if held is None or info is None:
        raise Garbled(f"no org-openroadm-device with info: {netconf.show(data)[:200]!r}")
    kind, version = (
        reported(info, "node-type", default="rdm"),
        reported(info, "openroadm-version", default="2"),
    )
    if kind != "rdm" or not version.startswith("2"):
        raise Garbled(
            f"node-type {kind!r}, OpenROADM {version!r}: only a ROADM (rdm) of OpenROADM 2 is known here"
        )
    directions: dict[Place, str] = {}
    outside: dict[str, list[Place]] = {}
    for pack in children(held, "circuit-packs"):
        name = reported(pack, "circuit-pack-name")
        for port in children(pack, "ports"):
            place = Place(name, reported(port, "port-name"))
            directions[place] = reported(port, "port-direction", default="")
            if reported(port, "port-qual", default="") == "roadm-external":
                outside.setdefault(name, []).append(place)
    labelled: dict[tuple[str, Place], str] = {}
    for row in children(held, "degree"):
        label = f"DEG{_index(row, 'degree-number')}"
        for end in children(row, "connection-ports"):
            place = Place(reported(end, "circuit-pack-name"), reported(end, "port-name"))
            labelled[label, place] = directions.get(place, "")
    for row in children(held, "shared-risk-group"):
        number = _index(row, "srg-number")
        for pack in children(row, "circuit-packs"):
            for place in outside.get(reported(pack, "circuit-pack-name"), []):
                if LABEL.fullmatch(label := f"SRG{number}/{place.pack}/{place.port}"):
                    labelled[label, place] = directions[place]
    sides = [
        {
            label: place
            for (label, place), direction in labelled.items()
            if direction in (side, "bidirectional")
        }
        for side in ("rx", "tx")
    ]
    vendor, model, serial, firmware = (
        reported(info, key, default="") or "not reported"
        for key in ("vendor", "model", "serial-id", "softwareVersion")
    )
    return Node(vendor, model, serial, firmware, *sides)


def asked_table() -> Element:
    """The filter that selects what `parse_table` reads."""
    return device(tree("interface"), tree("roadm-connections"))


def parse_table(data: Element, node: Node) -> Table:
    """Read the `data` of a get-config. A connection that is not understood makes its ports unknown,
    not the whole table.
    """
    held = netconf.child(data, "org-openroadm-device")
    rows = [] if held is None else list(children(held, "interface"))
    found = {i.name: i for row in rows if (i := _interface(row)).name}
    enters, leaves = (
        {place: label for label, place in side.items()} for side in (node.ingress, node.egress)
    )

    def connection(row: Element) -> Connection:
        texts = netconf.text(row)
        source, destination = (found.get(name) for name in _ends(row))
        mode = texts.get("opticalControlMode", OFF)
        if (
            source is None
            or destination is None
            or source.place not in enters
            or destination.place not in leaves
        ):
            raise Garbled("no such ports")
        slot = _passband((source, destination), found)
        if slot is None or mode not in _MODES:
            raise Garbled("no media channel that both ends share")
        ports = enters[source.place], leaves[destination.place]
        return Connection(
            reported(row, "connection-name"), *ports, slot, mode, source.name, destination.name
        )

    def strange(row: Element) -> Unknown:
        """Its ports by their labels; a port that has none is none of ours. An end that is not in
        the list may be at any port.
        """
        sides = zip(_ends(row), (enters, leaves), strict=True)
        at = [(found[name].place, labels) for name, labels in sides if name in found]
        ports = {labels.get(place, f"{place.pack}/{place.port}") for place, labels in at}
        text = f"roadm-connection {reported(row, 'connection-name', default='')} from {' to '.join(_ends(row))}"
        return Unknown(text, frozenset(ports) if len(at) == 2 else frozenset())

    listed = [] if held is None else list(children(held, "roadm-connections"))
    used = {i.below for i in found.values()} | {name for row in listed for name in _ends(row)}
    try:
        good, odd = unknown.sorted_out(listed, connection, strange)
    except Garbled:  # all of it is strange, but it is this list
        good, odd = (), frozenset(map(strange, listed))
    return Table(found, good, odd, frozenset(used - {""}))


def device(*rows: Element) -> Element:
    return tree("org-openroadm-device", *rows, ns=NS)


def config_of(*rows: str) -> str:
    """The configuration with these rows, as text: a change makes hundreds, and elements take thrice
    as long.
    """
    return f'<org-openroadm-device xmlns="{NS}" xmlns:nc="{netconf.NC}">{"".join(rows)}</org-openroadm-device>'


def _leaf(name: str, text: str) -> str:
    return f"<{name}>{escape(text, _RETURN)}</{name}>"


def interface_of(made: Interface) -> str:
    """The configuration of a media channel, as public clients write it."""
    assert made.slot is not None
    container, ns = _CONTAINER[made.kind]
    low, high = Decimal(made.slot.low_mhz), Decimal(made.slot.high_mhz)
    inside = (
        _leaf("min-freq", _thz(low)) + _leaf("max-freq", _thz(high))
        if made.kind == MC
        else _leaf("frequency", _thz((low + high) / 2))
        + _leaf("width", _plain((high - low).scaleb(-3)))
    )
    below = _leaf("supporting-interface", made.below) if made.below else ""
    return (
        f"<interface>{_leaf('name', made.name)}<description>testbed</description>"
        f'<type xmlns:openROADM-if="{INTERFACES_NS}">openROADM-if:{made.kind}</type>'
        "<administrative-state>inService</administrative-state>"
        f"{_leaf('supporting-circuit-pack-name', made.place.pack)}{_leaf('supporting-port', made.place.port)}{below}"
        f'<{container} xmlns="{ns}">{inside}</{container}></interface>'
    )


def connection_of(name: str, source: str, destination: str) -> str:
    """The configuration of a connection that does not yet carry light."""
    ends = f"<source>{_leaf('src-if', source)}</source><destination>{_leaf('dst-if', destination)}</destination>"
    return f"<roadm-connections>{_leaf('connection-name', name)}{_leaf('opticalControlMode', OFF)}{ends}</roadm-connections>"


def lighting_of(name: str, dbm: Decimal | None) -> str:
    """The configuration that brings a connection to a power, at a degree to `dbm`."""
    target = "" if dbm is None else _leaf("target-output-power", f"{dbm:.2f}")
    return f"<roadm-connections>{_leaf('connection-name', name)}{_leaf('opticalControlMode', POWER)}{target}</roadm-connections>"


def deletion_of(entry: str, key: str, name: str) -> str:
    """The configuration that deletes an entry of a list."""
    return f'<{entry} nc:operation="delete">{_leaf(key, name)}</{entry}>'


def _ends(row: Element) -> tuple[str, str]:
    return reported(row, "source", "src-if", default=""), reported(
        row, "destination", "dst-if", default=""
    )


def _index(row: Element, key: str) -> int:
    number = netconf.number(row, key)
    if number != number.to_integral_value() or not 0 < number < 65536:
        raise Garbled(f"{key} {number}")
    return int(number)


def _interface(row: Element) -> Interface:
    texts = netconf.text(row)
    kind = texts.get("type", "").rpartition(":")[2]
    place = Place(texts.get("supporting-circuit-pack-name", ""), texts.get("supporting-port", ""))
    try:
        slot = _slot(row, kind)
    except (Garbled, ValueError):
        slot = None
    return Interface(
        texts.get("name", ""), kind, place, texts.get("supporting-interface", ""), slot
    )


def _slot(row: Element, kind: str) -> FrequencySlot | None:
    """The edges of a media channel, None for another kind. Raises: Garbled, ValueError - no whole
    MHz, or no slot.
    """
    if kind not in _CONTAINER:
        return None
    inner = netconf.child(row, _CONTAINER[kind][0])
    texts = {} if inner is None else netconf.text(inner)
    if kind == MC:
        low, high = (decimal(texts.get(key, ""), key) * 1000 for key in ("min-freq", "max-freq"))
    else:
        centre, half = (
            decimal(texts.get("frequency", ""), "frequency") * 1000,
            decimal(texts.get("width", ""), "width") / 2,
        )
        low, high = centre - half, centre + half
    return FrequencySlot(mhz_of(low, "the lower edge"), mhz_of(high, "the upper edge"))


def _passband(ends: Sequence[Interface], found: Mapping[str, Interface]) -> FrequencySlot | None:
    """The light that passes: the media channel at a degree, which may be wider than the channels in
    it; None if they disagree.
    """
    below = [found[end.below] for end in ends if end.below in found]
    bands = {each.slot for each in below if each.kind == MC} or {end.slot for end in ends}
    band = bands.pop() if len(bands) == 1 else None
    inside = [
        end.kind == NMC and end.slot is not None and band is not None and band.holds(end.slot)
        for end in ends
    ]
    return band if all(inside) else None


def _thz(mhz: Decimal) -> str:
    """Exact THz.

    >>> _thz(Decimal("193100000")), _thz(Decimal("193106250.5"))
    ('193.1', '193.1062505')
    """
    return _plain(mhz.scaleb(-6))


def _plain(value: Decimal) -> str:
    return f"{value.normalize():f}"
