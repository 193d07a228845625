"""The data of a ROADM-20 as XML elements: connections, amplifiers, names of ports. Grades: see
lumentum_netconf.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from lxml import etree

from emulators.devices.dialects.netconf import RpcError, Schema
from emulators.devices.dialects.xml import namespace, text
from emulators.optics.light import Band, Side

CONNECTION = "http://www.lumentum.com/lumentum-ote-connection"  # CODE
EDFA = "http://www.lumentum.com/lumentum-ote-edfa"  # CODE
CARD = "ne=1;chassis=1;card=1"  # CODE
# 96 channels of 50 GHz from the first edge of the public example (U)
RANGE_MHZ = (191_325_000, 196_125_000)
MOST_DB = 25.0  # U
FLOOR_DBM = -30.0  # CODE
LOSS_DB = (4.0, 4.6)  # CODE: 4.0 dB by default; the most is U
PORTS = 20
IN_SERVICE, OUT_OF_SERVICE = "in-service", "out-of-service"
# behind which port each module's amplifier sits (U)
AMPLIFIED: dict[int, Side] = {1: ("out", "4201"), 2: ("in", "5101")}
Key = tuple[int, int]
"""(module, connection)."""


@dataclass(frozen=True, slots=True)
class Connection:
    """The configuration of one connection."""

    ingress: str
    egress: str
    low_mhz: int
    high_mhz: int
    attenuation_db: float = 0.0
    in_service: bool = False
    blocked: bool = False
    name: str = ""

    @property
    def band(self) -> Band:
        return (self.ingress, self.egress, self.low_mhz, self.high_mhz)

    @property
    def passes(self) -> bool:
        return self.in_service and not self.blocked


@dataclass(frozen=True, slots=True)
class Shown:
    """A connection as it is read; powers are None while the light moves."""

    key: Key
    connection: Connection
    powers: tuple[float, float] | None


_LEAVES = (
    *("maintenance-state", "blocked", "start-freq", "end-freq", "attenuation"),
    *("input-port-reference", "output-port-reference", "custom-name"),
)
_AMPLIFIER = (
    "maintenance-state",
    "control-mode",
    "gain-switch-mode",
    "target-gain",
    "target-gain-tilt",
    "target-power",
    "custom-name",
    "los-shutdown",
    "optical-loo-threshold",
)
SCHEMAS = {
    f"{{{CONNECTION}}}connections": Schema.of(
        "connections",
        Schema.of(
            "connection",
            Schema("dn"),
            Schema.of("config", *(Schema(leaf) for leaf in _LEAVES)),
            Schema("state", writable=False),
            key="dn",
        ),
    ),
    f"{{{EDFA}}}edfas": Schema.of(
        "edfas",
        Schema.of(
            "edfa",
            Schema("dn"),
            Schema.of("config", *(Schema(leaf) for leaf in _AMPLIFIER)),
            Schema("state", writable=False),
            key="dn",
        ),
    ),
}


def listed(parent: etree._Element, name: str, dn: str, leaves: dict[str, str]) -> etree._Element:
    space = namespace(str(parent.tag))
    node = etree.SubElement(parent, f"{{{space}}}{name}")
    etree.SubElement(node, f"{{{space}}}dn").text = dn
    config = etree.SubElement(node, f"{{{space}}}config")
    for leaf, value in leaves.items():
        etree.SubElement(config, f"{{{space}}}{leaf}").text = value
    return node


def prefixed(edfas: etree._Element) -> None:
    """Give the leaves of amplifiers' configurations their prefix: public clients look for it, and
    for no namespace (CODE).
    """
    for config in edfas.iter(f"{{{EDFA}}}config"):
        # made in its place: lxml drops the prefix of what is moved there
        for leaf in tuple(config):
            etree.SubElement(config, str(leaf.tag), nsmap={"lotee": EDFA}).text = leaf.text
            config.remove(leaf)


def measured(edfa: etree._Element, dbm: float) -> None:
    """Add what an amplifier measures at `dbm`; its gain is none here (U). CODE: the names, misspelt
    as they are.
    """
    state = etree.SubElement(edfa, f"{{{EDFA}}}state")
    shown = f"{dbm:.2f}"
    leaves = {
        "operational-state": "enabled",
        "input-power": shown,
        "output-power": shown,
        "measured-gain": "0.00",
    }
    for leaf, value in leaves.items():
        etree.SubElement(state, f"{{{EDFA}}}{leaf}").text = value
    voa = etree.SubElement(etree.SubElement(state, f"{{{EDFA}}}voas"), f"{{{EDFA}}}voa")
    for leaf, value in {
        "voa-input-power": shown,
        "voa-output-power": shown,
        "voa-attentuation": "0.00",
    }.items():
        etree.SubElement(voa, f"{{{EDFA}}}{leaf}").text = value


def default(space: str) -> Any:
    """lxml takes None for the default namespace, its stubs do not."""
    return {None: space}


def leaf_of(node: etree._Element, name: str) -> str:
    child = node.find(f"{{{namespace(str(node.tag))}}}{name}")
    if child is None:
        raise RpcError("missing-element", f"{name} is missing", info={"bad-element": name})
    return text(child)


def invalid(name: str, value: str) -> RpcError:
    return RpcError("invalid-value", f"{name}: {value[:60]}", info={"bad-element": name})


def dn_of(key: Key) -> str:
    return f"{CARD};module={key[0]};connection={key[1]}"


def key_of(dn: str) -> Key:
    found = re.fullmatch(rf"{CARD};module=([12]);connection=([1-9]\d{{0,3}})", dn)
    if found is None:
        raise invalid("dn", dn)
    return int(found[1]), int(found[2])


def amplifier_of(dn: str) -> int:
    found = re.fullmatch(rf"{CARD};(?:edfa|module)=([12])", dn)
    if found is None:
        raise invalid("dn", dn)
    return int(found[1])


def ghz(mhz: int) -> str:
    """At least one decimal, as the public example has it."""
    whole, rest = divmod(mhz, 1000)
    return f"{whole}.{f'{rest:03d}'.rstrip('0') or '0'}"


def _mhz(leaves: dict[str, str], name: str) -> int:
    given = leaves.get(name, "")
    if not re.fullmatch(r"\d{6}(\.\d{1,3})?", given):
        raise (
            invalid(name, given)
            if given
            else RpcError("missing-element", f"{name} is missing", info={"bad-element": name})
        )
    return int(Decimal(given) * 1000)


def connection_of(key: Key, leaves: dict[str, str]) -> Connection:
    """Return the values of a connection's leaves. Raises RpcError: an impossible value."""
    low_mhz, high_mhz = _mhz(leaves, "start-freq"), _mhz(leaves, "end-freq")
    if not RANGE_MHZ[0] <= low_mhz < high_mhz <= RANGE_MHZ[1]:
        raise invalid("end-freq", leaves["end-freq"])
    ports = []
    for name in ("input-port-reference", "output-port-reference"):
        found = re.fullmatch(rf"{CARD};port=(\d{{4}})", leaves.get(name, ""))
        if found is None:
            raise invalid(name, leaves.get(name, ""))
        ports.append(found[1])
    if not joins(*ports) or (key[0] == 1) is not ports[0].startswith("41"):
        raise invalid("output-port-reference", leaves["output-port-reference"])
    attenuation, state, blocked = (
        leaves.get(name, default)
        for name, default in (
            ("attenuation", "0.0"),
            ("maintenance-state", OUT_OF_SERVICE),
            ("blocked", "false"),
        )
    )
    if not re.fullmatch(r"\d{1,2}(\.\d{1,4})?", attenuation) or float(attenuation) > MOST_DB:
        raise invalid("attenuation", attenuation)
    if state not in (IN_SERVICE, OUT_OF_SERVICE):
        raise invalid("maintenance-state", state)
    if blocked not in ("true", "false"):
        raise invalid("blocked", blocked)
    name = leaves.get("custom-name", "")
    return Connection(
        ports[0],
        ports[1],
        low_mhz,
        high_mhz,
        round(float(attenuation), 1),
        state == IN_SERVICE,
        blocked == "true",
        name,
    )


def joins(ingress: str, egress: str) -> bool:
    """Return whether light can pass at all: the multiplexer joins 41xx into 4201, the demultiplexer
    spreads 5101 to 52xx (CODE).
    """
    added = {str(4100 + n) for n in range(1, PORTS + 1)}
    dropped = {str(5200 + n) for n in range(1, PORTS + 1)}
    return (ingress in added and egress == "4201") or (ingress == "5101" and egress in dropped)


def faceplate(ingress: int, egress: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the ports: 41xx and 5101 in, 52xx and 4201 out. Raises ValueError: it comes in one
    size.
    """
    if (ingress, egress) != (PORTS + 1, PORTS + 1):
        raise ValueError(f"size: a ROADM-20 is {PORTS + 1}x{PORTS + 1}, not {ingress}x{egress}")
    numbers = range(1, PORTS + 1)
    return (*(str(4100 + n) for n in numbers), "5101"), (*(str(5200 + n) for n in numbers), "4201")
