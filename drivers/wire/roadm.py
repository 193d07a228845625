"""The connections of a Lumentum ROADM-20, in the XML of public clients: names of things as DNs,
frequencies in decimal GHz.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from drivers.wire import netconf
from drivers.wire.netconf import Element, tree
from drivers.wire.rest import decimal
from optics import FrequencySlot, Garbled

NS = "http://www.lumentum.com/lumentum-ote-connection"
EDFA_NS = "http://www.lumentum.com/lumentum-ote-edfa"
CARD = "ne=1;chassis=1;card=1"
MOST_CONNECTIONS = 130  # per module; ONOS driver
NAME = "testbed"
"""Custom names of the connections made here begin so."""

_DN = re.compile(r"ne=1;chassis=1;card=1;module=([12]);connection=([0-9]{1,5})")
_PORT = re.compile(r"ne=1;chassis=1;card=1;port=([0-9]{4})")


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection; `power`: what its input and output channel carry (dBm), where the device
    says. Connections that differ in it alone are equal: a report is watched until it rests, which
    readings never do.
    """

    module: int
    number: int
    ingress: str
    egress: str
    slot: FrequencySlot
    attenuation_db: Decimal
    lit: bool
    name: str = ""
    power: tuple[Decimal | None, Decimal | None] = field(default=(None, None), compare=False)

    @property
    def dn(self) -> str:
        return f"{CARD};module={self.module};connection={self.number}"


def module_of(ingress: str) -> int:
    """1, the multiplexer, for add ports 41xx; 2, the demultiplexer, for the line port 5101."""
    return 2 if ingress.startswith("51") else 1


def mhz_of(ghz: Decimal, what: str) -> int:
    """Exact MHz. Raises: Garbled - not a whole number of them.

    >>> mhz_of(Decimal("191325.0"), "start-freq")
    191325000
    """
    mhz = ghz * 1000
    if mhz != mhz.to_integral_value():
        raise Garbled(f"{what} {ghz} GHz is no whole number of MHz")
    return int(mhz)


def ghz_of(mhz: int) -> str:
    """GHz, exact, with at least one decimal.

    >>> ghz_of(191325000), ghz_of(193093750)
    ('191325.0', '193093.75')
    """
    whole, rest = divmod(mhz, 1000)
    return f"{whole}.{f'{rest:03d}'.rstrip('0') or '0'}"


def parse_connections(data: Element) -> tuple[Connection, ...]:
    """Read the `data` of a get. Raises: Garbled - a connection outside its form, or one that is
    there twice.
    """
    held = netconf.child(data, "connections")
    found = (
        tuple(_parse(row) for row in netconf.children(held, "connection"))
        if held is not None
        else ()
    )
    if len({c.dn for c in found}) != len(found):
        raise Garbled("a connection twice")
    return found


def config_of(*connections: Connection) -> Element:
    """The configuration that makes them."""
    return tree("connections", *(_write(c) for c in connections), ns=NS)


def attenuation_of(changes: Mapping[str, Decimal]) -> Element:
    """The configuration that changes attenuations (dB, by DN) and nothing else (ONOS driver)."""
    rows = (
        tree("connection", tree("dn", dn), tree("config", tree("attenuation", f"{db:.1f}")))
        for dn, db in changes.items()
    )
    return tree("connections", *rows, ns=NS)


def deletion_of(dn: str) -> Element:
    return tree("delete-connection", tree("dn", dn), ns=NS)


def amplifiers(state: str) -> Element:
    """The configuration that takes both amplifiers out of service or back in."""
    rows = (
        tree(
            "edfa", tree("dn", f"{CARD};edfa={n}"), tree("config", tree("maintenance-state", state))
        )
        for n in (1, 2)
    )
    return tree("edfas", *rows, ns=EDFA_NS)


def _parse(row: Element) -> Connection:
    dn = _DN.fullmatch(netconf.reported(row, "dn"))
    if not dn:
        raise Garbled(f"dn {netconf.reported(row, 'dn')!r}")
    ends = [
        _PORT.fullmatch(netconf.reported(row, "config", f"{side}-port-reference"))
        for side in ("input", "output")
    ]
    if not all(ends):
        raise Garbled(f"no ports in {netconf.show(row)[:200]!r}")
    low, high = (
        mhz_of(netconf.number(row, "config", key), key) for key in ("start-freq", "end-freq")
    )
    try:
        slot = FrequencySlot(low, high)
    except ValueError as error:
        raise Garbled(str(error)) from None
    blocked = netconf.reported(row, "config", "blocked", default="false")
    if blocked not in ("true", "false"):
        raise Garbled(f"blocked is {blocked!r}")
    state = netconf.reported(row, "config", "maintenance-state", default="in-service")
    power = (_power(row, "input-channel-attributes"), _power(row, "output-channel-attributes"))
    ingress, egress = (end[1] for end in ends if end)
    return Connection(
        int(dn[1]),
        int(dn[2]),
        ingress,
        egress,
        slot,
        netconf.number(row, "config", "attenuation"),
        blocked == "false" and state == "in-service",
        netconf.reported(row, "config", "custom-name", default=""),
        power,
    )


def _power(row: Element, side: str) -> Decimal | None:
    word = netconf.reported(row, "state", side, "power", default="")
    return decimal(word, "power") if word else None


def _write(c: Connection) -> Element:
    return tree(
        "connection",
        tree("dn", c.dn),
        tree(
            "config",
            tree("maintenance-state", "in-service"),
            tree("blocked", "false"),
            tree("start-freq", ghz_of(c.slot.low_mhz)),
            tree("end-freq", ghz_of(c.slot.high_mhz)),
            tree("attenuation", f"{c.attenuation_db:.1f}"),
            tree("input-port-reference", f"{CARD};port={c.ingress}"),
            tree("output-port-reference", f"{CARD};port={c.egress}"),
            tree("custom-name", c.name),
        ),
    )
