"""The data of an OpenROADM 2.2.1 node as XML elements: its layout, interfaces, connections. Grades:
see openroadm_netconf.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from xml.sax.saxutils import escape

from lxml import etree

from emulators.devices.dialects.netconf import RpcError, Schema
from emulators.devices.dialects.xml import local, namespace, text
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
# mc-capabilities of the public sample (CODE); DOC: the base
CENTRE_MHZ, WIDTH_MHZ, BASE_MHZ = 6_250, 12_500, 193_100_000
MOST_SLOTS = 32  # U
RANGE_MHZ = (191_325_000, 196_125_000)  # 96 channels of 50 GHz (U)
OTS, OMS = "opticalTransport", "openROADMOpticalMultiplex"
MEDIA, NETWORK = (
    "mediaChannelTrailTerminationPoint",
    "networkMediaChannelConnectionTerminationPoint",
)
MODES = ("off", "power", "gainLoss")
SRG_PACK = "3/0"
_RETURN = {"\r": "&#13;"}  # a reader would take it for the end of a line


@dataclass(frozen=True, slots=True)
class Place:
    """A port of a circuit pack. side: what it is of the node's optics, one of the two where it is
    of both directions.
    """

    pack: str
    port: str
    label: str
    direction: str  # tx, rx or bidirectional

    @property
    def degree(self) -> bool:
        return self.label.startswith("DEG")

    @property
    def sides(self) -> tuple[Side, ...]:
        return tuple(
            (side, self.label)
            for side, path in (("in", "rx"), ("out", "tx"))
            if self.direction in (path, "bidirectional")
        )


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
    """Return the external ports of a node with these labels. Where an add/drop port is of one
    direction, so are the degrees' ports.

    Raises: ValueError - a label is none of a node.
    """
    incoming, outgoing = tuple(ingress), tuple(egress)
    split = any(label not in outgoing for label in incoming)
    found = []
    for label in dict.fromkeys((*incoming, *outgoing)):
        degree, drop = (
            re.fullmatch(r"DEG([1-9]\d?)", label),
            re.fullmatch(r"SRG1/(3/0)/([A-Za-z0-9-]{1,20})", label),
        )
        if degree is not None:
            paths = ("rx", "tx") if split else ("bidirectional",)
            found += [
                Place(
                    f"{degree[1]}/0",
                    "L1" if path == "bidirectional" else f"L1-{path.upper()}",
                    label,
                    path,
                )
                for path in paths
            ]
        elif drop is not None:
            direction = (
                "bidirectional"
                if label in incoming and label in outgoing
                else "rx"
                if label in incoming
                else "tx"
            )
            found.append(Place(drop[1], drop[2], label, direction))
        else:
            raise ValueError(f"port {label!r}: wanted DEG1 or SRG1/{SRG_PACK}/C1")
    return tuple(found)


def lines(found: Iterable[Place]) -> dict[str, Interface]:
    """The interfaces that a node has from its commissioning on (CODE): an OTS and an OMS at each
    degree.
    """
    made = {}
    for place in found:
        if place.degree:
            end = {"rx": "RX", "tx": "TX"}.get(place.direction, "TXRX")
            ots = Interface(f"OTS-{place.label}-TTP-{end}", OTS, place.pack, place.port)
            made[ots.name] = ots
            made[f"OMS-{place.label}-TTP-{end}"] = Interface(
                f"OMS-{place.label}-TTP-{end}", OMS, place.pack, place.port, ots.name
            )
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


def _mhz(reply: Mapping[str, str], name: str, digits: int, unit: int) -> int:
    """A frequency in whole MHz. Raises RpcError: it is missing, no such number, or between two
    MHz.
    """
    given = reply.get(name)
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


def texts(node: etree._Element) -> dict[str, str]:
    """The texts of an element's children that are of its own namespace, by name."""
    space = f"{{{namespace(str(node.tag))}}}"
    return {
        tag.removeprefix(space): text(child)
        for child in node
        if (tag := str(child.tag)).startswith(space)
    }


def interface_of(node: etree._Element) -> Interface:
    """Read an entry of the list interface. Raises RpcError: a value is impossible, whatever else
    there is.
    """
    reply = texts(node)
    name, kind = reply.get("name", ""), reply.get("type", "").rpartition(":")[2]
    if kind not in (OTS, OMS, MEDIA, NETWORK):
        raise invalid("type", reply.get("type", ""))
    state = reply.get("administrative-state", "") or "inService"
    if state not in ("inService", "outOfService", "maintenance"):
        raise invalid("administrative-state", state)
    circuit = reply.get("circuit-id", "")
    if len(circuit) > 45:  # DOC
        raise invalid("circuit-id", circuit)
    low = high = 0
    if kind == MEDIA:
        media = next(node.iterchildren(f"{{{MC}}}mc-ttp"), None)
        if media is None:
            raise RpcError(
                "missing-element", f"{name}: mc-ttp is missing", info={"bad-element": "mc-ttp"}
            )
        edges = texts(media)
        low, high = _mhz(edges, "min-freq", 8, 1_000_000), _mhz(edges, "max-freq", 8, 1_000_000)
        on_grid(name, low, high)
    elif kind == NETWORK:
        network = next(node.iterchildren(f"{{{NMC}}}nmc-ctp"), None)
        if network is None:
            raise RpcError(
                "missing-element", f"{name}: nmc-ctp is missing", info={"bad-element": "nmc-ctp"}
            )
        channel = texts(network)
        centre, width = _mhz(channel, "frequency", 8, 1_000_000), _mhz(channel, "width", 5, 1000)
        if width <= 0 or width % 2:
            raise invalid("width", channel["width"])
        low, high = centre - width // 2, centre + width // 2
    return Interface(
        name,
        kind,
        reply.get("supporting-circuit-pack-name", ""),
        reply.get("supporting-port", ""),
        reply.get("supporting-interface", ""),
        low,
        high,
        reply.get("description", ""),
        state,
        circuit,
    )


def on_grid(name: str, low_mhz: int, high_mhz: int) -> None:
    """Raises RpcError: the node cannot make such a channel (mc-capabilities)."""
    width, centre2 = high_mhz - low_mhz, low_mhz + high_mhz
    whole = width > 0 and width % WIDTH_MHZ == 0 and width // WIDTH_MHZ <= MOST_SLOTS
    if (
        not whole
        or (centre2 - 2 * BASE_MHZ) % (2 * CENTRE_MHZ)
        or not RANGE_MHZ[0] <= low_mhz < high_mhz <= RANGE_MHZ[1]
    ):
        raise RpcError(
            "invalid-value",
            f"{name}: {thz(low_mhz)} to {thz(high_mhz)} is no slot of mc-capabilities",
        )


def cross_of(node: etree._Element) -> Cross:
    """Read an entry of roadm-connections. Raises RpcError."""
    reply = texts(node)
    name, mode = reply.get("connection-name", ""), reply.get("opticalControlMode", "") or "off"
    if mode not in MODES:
        raise invalid("opticalControlMode", mode)
    ends = []
    for part, which in (("source", "src-if"), ("destination", "dst-if")):
        inner = next(node.iterchildren(f"{{{DEVICE}}}{part}"), None)
        end = "" if inner is None else texts(inner).get(which, "")
        if not end:  # DOC: mandatory
            raise RpcError(
                "missing-element", f"{name}: {which} is missing", info={"bad-element": which}
            )
        ends.append(end)
    target = reply.get("target-output-power", "")
    if target and not re.fullmatch(r"-?\d{1,2}(\.\d{1,2})?", target):
        raise invalid("target-output-power", target)
    return Cross(name, ends[0], ends[1], mode, target)


def _leaf(name: str, value: object) -> str:
    return f"<{name}>{escape(str(value), _RETURN)}</{name}>"


def _inner(name: str, *inside: str, space: str = "") -> str:
    start = f'{name} xmlns="{space}"' if space else name
    return f"<{start}>{''.join(inside)}</{name}>"


def tree(
    found: Iterable[Place],
    held: Mapping[str, Interface],
    crosses: Iterable[Cross],
    facts: Mapping[str, str],
    *,
    with_state: bool,
) -> etree._Element:
    """The whole of org-openroadm-device. Written as text and read once: element by element it takes
    five times as long.
    """
    info = (_leaf(name, value) for name, value in facts.items() if name != "wavelength-duplication")
    by_pack: dict[str, list[Place]] = {}
    for place in found:
        by_pack.setdefault(place.pack, []).append(place)
    packs = [(pack, tuple(ports)) for pack, ports in by_pack.items()]
    rows = [
        _inner("info", *info),
        *(_pack(pack, ports, with_state) for pack, ports in packs),
        *(_interface(one, with_state) for one in held.values()),
        *(_shelf(pack, ports, facts["wavelength-duplication"]) for pack, ports in packs),
        *map(_cross, crosses),
    ]
    return etree.fromstring(_inner(local(TOP), *rows, space=DEVICE))


@lru_cache(maxsize=256)  # it never changes
def _pack(pack: str, ports: tuple[Place, ...], with_state: bool) -> str:
    inner = [Place(pack, f"C{n}", "", "bidirectional") for n in range(1, 5)]
    inner = (
        inner
        if ports[0].degree
        else [Place(pack, f"AD-DEG{n}", "", "bidirectional") for n in (1, 2)]
    )
    rows = []
    for port in (*inner, *ports):
        row = [
            _leaf("port-name", port.port),
            _leaf("port-qual", "roadm-external" if port.label else "roadm-internal"),
            _leaf("port-direction", port.direction),
            _leaf("administrative-state", "inService"),
        ]
        if with_state:
            row.append(_leaf("operational-state", "inService"))
        if (
            port.label
            and port.direction != "bidirectional"
            and (other := _partner(port, ports)) is not None
        ):
            row.append(
                _inner(
                    "partner-port", _leaf("circuit-pack-name", pack), _leaf("port-name", other.port)
                )
            )
        rows.append(_inner("ports", *row))
    kind = "WSSDEG" if ports[0].degree else "ADDDROP"
    return _inner(
        "circuit-packs", _leaf("circuit-pack-name", pack), _leaf("circuit-pack-type", kind), *rows
    )


@lru_cache(maxsize=256)
def _shelf(pack: str, ports: tuple[Place, ...], duplication: str) -> str:
    """A degree, or the group of add/drop ports."""
    degree = ports[0].degree
    if degree:
        row = [
            _leaf("degree-number", ports[0].label.removeprefix("DEG")),
            _leaf("max-wavelengths", 96),
        ]
    else:
        row = [
            _leaf("srg-number", 1),
            _leaf("max-add-drop-ports", len(ports)),
            _leaf("wavelength-duplication", duplication),
        ]
    row.append(_inner("circuit-packs", _leaf("index", 1), _leaf("circuit-pack-name", pack)))
    for index, port in enumerate(ports if degree else (), 1):
        end = (
            _leaf("index", index),
            _leaf("circuit-pack-name", pack),
            _leaf("port-name", port.port),
        )
        row.append(_inner("connection-ports", *end))
    can = (
        _leaf("slot-width-granularity", _gigahertz(WIDTH_MHZ)),
        _leaf("center-freq-granularity", _gigahertz(CENTRE_MHZ)),
        _leaf("min-slots", 1),
        _leaf("max-slots", MOST_SLOTS),
    )
    return _inner(
        "degree" if degree else "shared-risk-group", *row, _inner("mc-capabilities", *can)
    )


def _cross(cross: Cross) -> str:
    row = [_leaf("connection-name", cross.name), _leaf("opticalControlMode", cross.mode)]
    if cross.target_dbm:
        row.append(_leaf("target-output-power", f"{Decimal(cross.target_dbm):.2f}"))
    ends = (
        _inner("source", _leaf("src-if", cross.source)),
        _inner("destination", _leaf("dst-if", cross.destination)),
    )
    return _inner("roadm-connections", *row, *ends)


def _partner(port: Place, ports: Iterable[Place]) -> Place | None:
    stem = re.sub(r"-(RX|TX)$", "", port.port)
    return next(
        (p for p in ports if p is not port and re.sub(r"-(RX|TX)$", "", p.port) == stem), None
    )


def _interface(held: Interface, with_state: bool) -> str:
    row = [_leaf("name", held.name)]
    if held.description:
        row.append(_leaf("description", held.description))
    row.append(f'<type xmlns:openROADM-if="{KINDS}">openROADM-if:{held.kind}</type>')
    row.append(_leaf("administrative-state", held.state))
    if with_state:
        row.append(_leaf("operational-state", "inService"))
    if held.circuit:
        row.append(_leaf("circuit-id", held.circuit))
    if held.supporting:
        row.append(_leaf("supporting-interface", held.supporting))
    row += _leaf("supporting-circuit-pack-name", held.pack), _leaf("supporting-port", held.port)
    centre, width = (
        f"{Decimal(held.low_mhz + held.high_mhz) / 2_000_000:.8f}",
        _gigahertz(held.high_mhz - held.low_mhz),
    )
    if held.kind == MEDIA:
        state = (_leaf("center-freq", centre), _leaf("slot-width", width)) if with_state else ()
        edges = _leaf("min-freq", thz(held.low_mhz)), _leaf("max-freq", thz(held.high_mhz))
        row.append(_inner("mc-ttp", *edges, *state, space=MC))
    elif held.kind == NETWORK:
        row.append(_inner("nmc-ctp", _leaf("frequency", centre), _leaf("width", width), space=NMC))
    return _inner("interface", *row)


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
    """Two degrees and one group of add/drop ports, which come first. Raises ValueError: fewer than
    3x3, or not square.
    """
    if ingress != egress or ingress < 3:
        raise ValueError(
            f"size: a node has two degrees and one add/drop port or more, as 22x22, not {ingress}x{egress}"
        )
    labels = (*(f"SRG1/{SRG_PACK}/C{n}" for n in range(1, ingress - 1)), "DEG1", "DEG2")
    return labels, labels


def joins(ingress: str, egress: str) -> bool:
    """Whether light can pass at all: from degree to another degree, add, and drop."""
    degrees = ingress.startswith("DEG") + egress.startswith("DEG")
    return degrees == 1 or (degrees == 2 and ingress != egress)
