"""The data of an OpenROADM 2.2.1 node as XML elements: its layout, interfaces, connections. Grades: see openroadm_netconf.py."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from lxml import etree

from emulators.devices.dialects.netconf import RpcError, Schema
from emulators.devices.dialects.xml import element, leaf, local, namespace, text
from emulators.optics.light import Side

DEVICE = "http://org/openroadm/device"  # DOC, as the others
MC = "http://org/openroadm/media-channel-interfaces"
NMC = "http://org/openroadm/network-media-channel-interfaces"
KINDS = "http://org/openroadm/interfaces"
TOP = f"{{{DEVICE}}}org-openroadm-device"
MODULES = {
    DEVICE: ("org-openroadm-device", "2018-10-19"),
    KINDS: ("org-openroadm-interfaces", "2017-06-26"),
    MC: ("org-openroadm-media-channel-interfaces", "2018-10-19"),
    NMC: ("org-openroadm-network-media-channel-interfaces", "2018-10-19"),
}
CENTRE_MHZ, WIDTH_MHZ, BASE_MHZ = 6_250, 12_500, 193_100_000  # mc-capabilities of the public sample (CODE); DOC: the base
MOST_SLOTS = 32  # U
RANGE_MHZ = (191_325_000, 196_125_000)  # 96 channels of 50 GHz (U)
OTS, OMS = "opticalTransport", "openROADMOpticalMultiplex"
MEDIA, NETWORK = "mediaChannelTrailTerminationPoint", "networkMediaChannelConnectionTerminationPoint"
MODES = ("off", "power", "gainLoss")
SRG_PACK = "3/0"


@dataclass(frozen=True, slots=True)
class Place:
    """A port of a circuit pack. side: what it is of the node's optics, one of the two where it is of both directions."""

    pack: str
    port: str
    label: str
    direction: str  # tx, rx or bidirectional

    @property
    def degree(self) -> bool:
        return self.label.startswith("DEG")

    @property
    def sides(self) -> tuple[Side, ...]:
        return tuple((side, self.label) for side, way in (("in", "rx"), ("out", "tx")) if self.direction in (way, "bidirectional"))


@dataclass(frozen=True, slots=True)
class Interface:
    """low_mhz, high_mhz: of a media channel, or of a network media channel; 0 of a line."""

    name: str
    kind: str
    pack: str
    port: str
    supporting: str = ""
    low_mhz: int = 0
    high_mhz: int = 0
    description: str = ""
    state: str = "inService"
    circuit: str = ""


@dataclass(frozen=True, slots=True)
class Cross:
    """One entry of roadm-connections, of one direction."""

    name: str
    source: str
    destination: str
    mode: str = "off"
    target_dbm: str = ""


def places(ingress: Iterable[str], egress: Iterable[str]) -> tuple[Place, ...]:
    """Return the external ports of a node with these labels. Where an add/drop port is of one direction, so are the degrees' ports.

    Raises: ValueError - a label is none of a node.
    """
    incoming, outgoing = tuple(ingress), tuple(egress)
    split = any(label not in outgoing for label in incoming)
    found = []
    for label in dict.fromkeys((*incoming, *outgoing)):
        degree, drop = re.fullmatch(r"DEG([1-9]\d?)", label), re.fullmatch(r"SRG1/(3/0)/([A-Za-z0-9-]{1,20})", label)
        if degree is not None:
            ways = ("rx", "tx") if split else ("bidirectional",)
            found += [Place(f"{degree[1]}/0", "L1" if way == "bidirectional" else f"L1-{way.upper()}", label, way) for way in ways]
        elif drop is not None:
            way = "bidirectional" if label in incoming and label in outgoing else "rx" if label in incoming else "tx"
            found.append(Place(drop[1], drop[2], label, way))
        else:
            raise ValueError(f"port {label!r}: wanted DEG1 or SRG1/{SRG_PACK}/C1")
    return tuple(found)


def lines(found: Iterable[Place]) -> dict[str, Interface]:
    """The interfaces that a node has from its commissioning on (CODE): an OTS and an OMS at each degree."""
    made = {}
    for place in found:
        if place.degree:
            end = {"rx": "RX", "tx": "TX"}.get(place.direction, "TXRX")
            ots = Interface(f"OTS-{place.label}-TTP-{end}", OTS, place.pack, place.port)
            made[ots.name] = ots
            made[f"OMS-{place.label}-TTP-{end}"] = Interface(f"OMS-{place.label}-TTP-{end}", OMS, place.pack, place.port, ots.name)
    return made


_INTERFACE = (
    *("description", "type", "administrative-state", "circuit-id"),
    *("supporting-interface", "supporting-circuit-pack-name", "supporting-port"),
)


def _node(*names: str) -> Iterable[Schema]:
    return (Schema(name, writable=False) for name in names)


SCHEMAS = {
    TOP: Schema.of(
        "org-openroadm-device",
        Schema.of(
            "interface",
            Schema("name"),
            *map(Schema, _INTERFACE),
            Schema("operational-state", writable=False),
            Schema("mc-ttp", {name: Schema(name) for name in ("min-freq", "max-freq")}, space=MC),
            Schema("nmc-ctp", {name: Schema(name) for name in ("frequency", "width")}, space=NMC),
            key="name",
        ),
        Schema.of(
            "roadm-connections",
            Schema("connection-name"),
            Schema("opticalControlMode"),
            Schema("target-output-power"),
            Schema.of("source", Schema("src-if")),
            Schema.of("destination", Schema("dst-if")),
            key="connection-name",
        ),
        *_node("info", "circuit-packs", "degree", "shared-risk-group"),
    )
}


def thz(mhz: int) -> str:
    return f"{Decimal(mhz) / 1_000_000:.8f}"


def _gigahertz(mhz: int) -> str:
    return f"{Decimal(mhz) / 1000:.5f}"


def _mhz(node: etree._Element, name: str, digits: int, unit: int) -> int:
    """A frequency in whole MHz. Raises RpcError: it is missing, no such number, or between two MHz."""
    given = text_of(node, name)
    if not given:
        raise RpcError("missing-element", f"{name} is missing", info={"bad-element": name})
    if re.fullmatch(rf"\d{{1,9}}(\.\d{{1,{digits}}})?", given):
        try:
            value = Decimal(given) * unit
        except InvalidOperation:
            value = Decimal("0.5")
        if value == int(value):
            return int(value)
    raise invalid(name, given)


def invalid(name: str, value: str) -> RpcError:
    return RpcError("invalid-value", f"{name}: {value[:60]}", info={"bad-element": name})


def text_of(node: etree._Element, name: str) -> str:
    child = node.find(f"{{{namespace(str(node.tag))}}}{name}")
    return "" if child is None else text(child)


def interface_of(node: etree._Element) -> Interface:
    """Read an entry of the list interface. Raises RpcError: a value is impossible, whatever else there is."""
    name, kind = text_of(node, "name"), text_of(node, "type").rpartition(":")[2]
    if kind not in (OTS, OMS, MEDIA, NETWORK):
        raise invalid("type", text_of(node, "type"))
    state = text_of(node, "administrative-state") or "inService"
    if state not in ("inService", "outOfService", "maintenance"):
        raise invalid("administrative-state", state)
    circuit = text_of(node, "circuit-id")
    if len(circuit) > 45:  # DOC
        raise invalid("circuit-id", circuit)
    low = high = 0
    media, network = node.find(f"{{{MC}}}mc-ttp"), node.find(f"{{{NMC}}}nmc-ctp")
    if kind == MEDIA:
        if media is None:
            raise RpcError("missing-element", f"{name}: mc-ttp is missing", info={"bad-element": "mc-ttp"})
        low, high = _mhz(media, "min-freq", 8, 1_000_000), _mhz(media, "max-freq", 8, 1_000_000)
        on_grid(name, low, high)
    elif kind == NETWORK:
        if network is None:
            raise RpcError("missing-element", f"{name}: nmc-ctp is missing", info={"bad-element": "nmc-ctp"})
        centre, width = _mhz(network, "frequency", 8, 1_000_000), _mhz(network, "width", 5, 1000)
        if width <= 0 or width % 2:
            raise invalid("width", text_of(network, "width"))
        low, high = centre - width // 2, centre + width // 2
    return Interface(
        name,
        kind,
        text_of(node, "supporting-circuit-pack-name"),
        text_of(node, "supporting-port"),
        text_of(node, "supporting-interface"),
        low,
        high,
        text_of(node, "description"),
        state,
        circuit,
    )


def on_grid(name: str, low_mhz: int, high_mhz: int) -> None:
    """Raises RpcError: the node cannot make such a channel (mc-capabilities)."""
    width, centre2 = high_mhz - low_mhz, low_mhz + high_mhz
    whole = width > 0 and width % WIDTH_MHZ == 0 and width // WIDTH_MHZ <= MOST_SLOTS
    if not whole or (centre2 - 2 * BASE_MHZ) % (2 * CENTRE_MHZ) or not RANGE_MHZ[0] <= low_mhz < high_mhz <= RANGE_MHZ[1]:
        raise RpcError("invalid-value", f"{name}: {thz(low_mhz)} to {thz(high_mhz)} is no slot of mc-capabilities")


def cross_of(node: etree._Element) -> Cross:
    """Read an entry of roadm-connections. Raises RpcError."""
    name, mode = text_of(node, "connection-name"), text_of(node, "opticalControlMode") or "off"
    if mode not in MODES:
        raise invalid("opticalControlMode", mode)
    ends = []
    for part, which in (("source", "src-if"), ("destination", "dst-if")):
        inner = node.find(f"{{{DEVICE}}}{part}")
        end = "" if inner is None else text_of(inner, which)
        if not end:  # DOC: mandatory
            raise RpcError("missing-element", f"{name}: {which} is missing", info={"bad-element": which})
        ends.append(end)
    target = text_of(node, "target-output-power")
    if target and not re.fullmatch(r"-?\d{1,2}(\.\d{1,2})?", target):
        raise invalid("target-output-power", target)
    return Cross(name, ends[0], ends[1], mode, target)


def _spaces() -> Any:
    return {None: DEVICE}


def tree(
    found: Iterable[Place], held: Mapping[str, Interface], crosses: Iterable[Cross], facts: Mapping[str, str], *, with_state: bool
) -> etree._Element:
    """The whole of org-openroadm-device."""
    top = element(TOP, _spaces())
    info = etree.SubElement(top, f"{{{DEVICE}}}info")
    for name, value in facts.items():
        if name != "wavelength-duplication":
            leaf(info, name, value)
    by_pack: dict[str, list[Place]] = {}
    for place in found:
        by_pack.setdefault(place.pack, []).append(place)
    for pack, ports in by_pack.items():
        node = etree.SubElement(top, f"{{{DEVICE}}}circuit-packs")
        leaf(node, "circuit-pack-name", pack)
        leaf(node, "circuit-pack-type", "WSSDEG" if ports[0].degree else "ADDDROP")
        inner = [Place(pack, f"C{n}", "", "bidirectional") for n in range(1, 5)]
        inner = inner if ports[0].degree else [Place(pack, f"AD-DEG{n}", "", "bidirectional") for n in (1, 2)]
        for port in (*inner, *ports):
            entry = etree.SubElement(node, f"{{{DEVICE}}}ports")
            leaf(entry, "port-name", port.port)
            leaf(entry, "port-qual", "roadm-external" if port.label else "roadm-internal")
            leaf(entry, "port-direction", port.direction)
            leaf(entry, "administrative-state", "inService")
            if with_state:
                leaf(entry, "operational-state", "inService")
            if port.label and port.direction != "bidirectional" and (other := _partner(port, ports)) is not None:
                partner = etree.SubElement(entry, f"{{{DEVICE}}}partner-port")
                leaf(partner, "circuit-pack-name", pack)
                leaf(partner, "port-name", other.port)
    for held_ in held.values():
        _interface(top, held_, with_state)
    for pack, ports in by_pack.items():
        kind = "degree" if ports[0].degree else "shared-risk-group"
        node = etree.SubElement(top, f"{{{DEVICE}}}{kind}")
        if ports[0].degree:
            leaf(node, "degree-number", ports[0].label.removeprefix("DEG"))
            leaf(node, "max-wavelengths", 96)
        else:
            leaf(node, "srg-number", 1)
            leaf(node, "max-add-drop-ports", len(ports))
            leaf(node, "wavelength-duplication", facts["wavelength-duplication"])
        packs = etree.SubElement(node, f"{{{DEVICE}}}circuit-packs")
        leaf(packs, "index", 1)
        leaf(packs, "circuit-pack-name", pack)
        for index, port in enumerate(ports if ports[0].degree else (), 1):
            at = etree.SubElement(node, f"{{{DEVICE}}}connection-ports")
            leaf(at, "index", index)
            leaf(at, "circuit-pack-name", pack)
            leaf(at, "port-name", port.port)
        can = etree.SubElement(node, f"{{{DEVICE}}}mc-capabilities")
        leaf(can, "slot-width-granularity", _gigahertz(WIDTH_MHZ))
        leaf(can, "center-freq-granularity", _gigahertz(CENTRE_MHZ))
        leaf(can, "min-slots", 1)
        leaf(can, "max-slots", MOST_SLOTS)
    for cross in crosses:
        node = etree.SubElement(top, f"{{{DEVICE}}}roadm-connections")
        leaf(node, "connection-name", cross.name)
        leaf(node, "opticalControlMode", cross.mode)
        if cross.target_dbm:
            leaf(node, "target-output-power", f"{Decimal(cross.target_dbm):.2f}")
        leaf(etree.SubElement(node, f"{{{DEVICE}}}source"), "src-if", cross.source)
        leaf(etree.SubElement(node, f"{{{DEVICE}}}destination"), "dst-if", cross.destination)
    return top


def _partner(port: Place, ports: Iterable[Place]) -> Place | None:
    stem = re.sub(r"-(RX|TX)$", "", port.port)
    return next((p for p in ports if p is not port and re.sub(r"-(RX|TX)$", "", p.port) == stem), None)


def _interface(top: etree._Element, held: Interface, with_state: bool) -> None:
    node = etree.SubElement(top, f"{{{DEVICE}}}interface")
    leaf(node, "name", held.name)
    if held.description:
        leaf(node, "description", held.description)
    kind = etree.SubElement(node, f"{{{DEVICE}}}type", nsmap={"openROADM-if": KINDS})
    kind.text = f"openROADM-if:{held.kind}"
    leaf(node, "administrative-state", held.state)
    if with_state:
        leaf(node, "operational-state", "inService")
    if held.circuit:
        leaf(node, "circuit-id", held.circuit)
    if held.supporting:
        leaf(node, "supporting-interface", held.supporting)
    leaf(node, "supporting-circuit-pack-name", held.pack)
    leaf(node, "supporting-port", held.port)
    if held.kind == MEDIA:
        inner = etree.SubElement(node, f"{{{MC}}}mc-ttp", nsmap={None: MC})  # type: ignore[dict-item]
        leaf(inner, "min-freq", thz(held.low_mhz))
        leaf(inner, "max-freq", thz(held.high_mhz))
        if with_state:
            leaf(inner, "center-freq", f"{Decimal(held.low_mhz + held.high_mhz) / 2_000_000:.8f}")
            leaf(inner, "slot-width", _gigahertz(held.high_mhz - held.low_mhz))
    elif held.kind == NETWORK:
        inner = etree.SubElement(node, f"{{{NMC}}}nmc-ctp", nsmap={None: NMC})  # type: ignore[dict-item]
        leaf(inner, "frequency", f"{Decimal(held.low_mhz + held.high_mhz) / 2_000_000:.8f}")
        leaf(inner, "width", _gigahertz(held.high_mhz - held.low_mhz))


def entries(config: Iterable[etree._Element]) -> tuple[dict[str, Interface], dict[str, Cross]]:
    """What an edit leaves of interfaces and connections. Raises RpcError."""
    held: dict[str, Interface] = {}
    crosses: dict[str, Cross] = {}
    for top in config:
        for node in top:
            if local(str(node.tag)) == "interface":
                one = interface_of(node)
                held[one.name] = one
            elif local(str(node.tag)) == "roadm-connections":
                cross = cross_of(node)
                crosses[cross.name] = cross
    return held, crosses


def faceplate(ingress: int, egress: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Two degrees and one group of add/drop ports, which come first. Raises ValueError: fewer than 3x3, or not square."""
    if ingress != egress or ingress < 3:
        raise ValueError(f"size: a node has two degrees and one add/drop port or more, as 22x22, not {ingress}x{egress}")
    labels = (*(f"SRG1/{SRG_PACK}/C{n}" for n in range(1, ingress - 1)), "DEG1", "DEG2")
    return labels, labels


def joins(ingress: str, egress: str) -> bool:
    """Whether light can pass at all: from degree to another degree, add, and drop."""
    degrees = ingress.startswith("DEG") + egress.startswith("DEG")
    return degrees == 1 or (degrees == 2 and ingress != egress)
