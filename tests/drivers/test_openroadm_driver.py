"""OpenROADM over NETCONF: what goes over the wire, in which order, and what becomes of refusals,
lost answers and strange rows.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from lxml import etree

from drivers.api import PortHolders
from drivers.registry import open_device
from optics import (
    BadFile,
    Change,
    DeviceConfig,
    FrequencySlot,
    Garbled,
    Outcome,
    Port,
    Setting,
    SpectralRoute,
)
from tests.drivers.scripted import Netconf, netconf_device

NS = "http://org/openroadm/device"
MC, NMC = "mediaChannelTrailTerminationPoint", "networkMediaChannelConnectionTerminationPoint"
SLOT, NEXT = FrequencySlot(193_075_000, 193_125_000), FrequencySlot(193_125_000, 193_175_000)
DEG1, DEG2, C1, C2 = "DEG1", "DEG2", "SRG1/3/0/C1", "SRG1/3/0/C2"
INFO = {
    "node-id": "ROADM-A1",
    "node-type": "rdm",
    "vendor": "vendorA",
    "model": "model2",
    "serial-id": "0002",
}
INFO |= {"softwareVersion": "swversion1234", "openroadm-version": "2.2.1"}


def leaves(**named: str) -> str:
    return "".join(
        f"<{key.replace('_', '-')}>{value}</{key.replace('_', '-')}>"
        for key, value in named.items()
    )


def ports(pack: str, **named: tuple[str, str]) -> str:
    """A circuit pack; port -> qualification, direction."""
    rows = "".join(
        f"<ports>{leaves(port_name=name, port_qual=qual, port_direction=path)}</ports>"
        for name, (qual, path) in named.items()
    )
    return f"<circuit-packs>{leaves(circuit_pack_name=pack)}{rows}</circuit-packs>"


def degree(number: int, *ends: tuple[str, str]) -> str:
    rows = "".join(
        f"<connection-ports>{leaves(index=str(n), circuit_pack_name=a, port_name=b)}</connection-ports>"
        for n, (a, b) in enumerate(ends, 1)
    )
    return f"<degree>{leaves(degree_number=str(number))}{rows}</degree>"


def oms(name: str, pack: str, port: str) -> str:
    kind = '<type xmlns:openROADM-if="http://org/openroadm/interfaces">openROADM-if:openROADMOpticalMultiplex</type>'
    return f"<interface>{leaves(name=name, supporting_circuit_pack_name=pack, supporting_port=port)}{kind}</interface>"


OUTSIDE, BOTH = "roadm-external", "bidirectional"
CARDS = (  # the names and the layout of a public sample of 2.2.1 with ports for both directions
    ports("1/0", C1=("roadm-internal", BOTH), L1=(OUTSIDE, BOTH))
    + ports("2/0", L1=(OUTSIDE, BOTH)),
    ports("3/0", C1=(OUTSIDE, BOTH), C2=(OUTSIDE, BOTH), AD=("roadm-internal", BOTH)),
    degree(1, ("1/0", "L1")) + degree(2, ("2/0", "L1")),
    "<shared-risk-group><srg-number>1</srg-number><circuit-packs><index>1</index>"
    "<circuit-pack-name>3/0</circuit-pack-name></circuit-packs></shared-risk-group>",
)
LINES = oms("OMS-DEG1-TTP-TXRX", "1/0", "L1") + oms("OMS-DEG2-TTP-TXRX", "2/0", "L1")


def local(element: Any) -> str:
    return str(element.tag).rpartition("}")[2]


def reported(element: Any, *path: str) -> str:
    for step in path:
        element = next((child for child in element if local(child) == step), None)
        if element is None:
            return ""
    return str(element.text or "")


@dataclass
class Roadm:
    """A node as the public model has it. bad: a word; an edit that holds it is refused. lose: such
    an edit is done, unanswered.
    """

    lines: str = LINES
    cards: tuple[str, ...] = CARDS
    info: dict[str, str] = field(default_factory=lambda: dict(INFO))
    bad: str = ""
    lose: str = ""
    lit_at: float = 0.0
    interfaces: dict[str, Any] = field(default_factory=dict)
    connections: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.edit(f'<org-openroadm-device xmlns="{NS}">{self.lines}</org-openroadm-device>')

    def __call__(self, operation: str) -> str | None:
        if operation.startswith("<get>"):
            inside = f"<info>{''.join(f'<{k}>{v}</{k}>' for k, v in self.info.items())}</info>{''.join(self.cards)}"
            return (
                f'<data><org-openroadm-device xmlns="{NS}">{inside}</org-openroadm-device></data>'
            )
        if operation.startswith("<get-config>"):
            rows = [
                etree.tostring(each).decode()
                for each in (*self.interfaces.values(), *self.connections.values())
            ]
            return f'<data><org-openroadm-device xmlns="{NS}">{"".join(rows)}</org-openroadm-device></data>'
        found = re.search(r"<config>(.*)</config>", operation)
        assert found and "<target><running/></target>" in operation
        if self.bad and self.bad in operation:
            return "<rpc-error><error-tag>invalid-value</error-tag><error-message>no such spectrum</error-message></rpc-error>"
        self.edit(found[1])
        self.lit_at = time.monotonic() if "<opticalControlMode>power" in operation else self.lit_at
        if self.lose and self.lose in operation:
            self.lose = ""
            return None
        return "<ok/>"

    def edit(self, text: str) -> None:
        for row in etree.fromstring(text):
            held, key = (
                (self.interfaces, "name")
                if local(row) == "interface"
                else (self.connections, "connection-name")
            )
            name = reported(row, key)
            if "delete" in row.attrib.values():
                assert not any(
                    name == reported(each, "supporting-interface")
                    for each in self.interfaces.values()
                )
                assert not any(
                    name in (reported(c, "source", "src-if"), reported(c, "destination", "dst-if"))
                    for c in self.connections.values()
                )
                del held[name]
            elif name in held:
                old = held[name]
                for leaf in row:
                    for before in [each for each in old if local(each) == local(leaf)]:
                        old.remove(before)
                    old.append(leaf)
            else:
                held[name] = row

    @property
    def lit(self) -> set[tuple[str, str, str]]:
        """(source interface, destination interface, target power) of the connections that are not
        off.
        """
        rows = [c for c in self.connections.values() if reported(c, "opticalControlMode") != "off"]
        return {
            (
                reported(c, "source", "src-if"),
                reported(c, "destination", "dst-if"),
                reported(c, "target-output-power"),
            )
            for c in rows
        }

    @property
    def channels(self) -> list[str]:
        return sorted(name for name in self.interfaces if not name.startswith("OMS"))


@asynccontextmanager
async def opened(node: Roadm, folder: Path, **options: str) -> AsyncIterator[tuple[Any, Netconf]]:
    async with netconf_device(node, folder) as served:
        more = {"known_hosts": str(served.known_hosts), "patience_s": "0.4", **options}
        config = DeviceConfig(
            "roadm1",
            "openroadm-netconf",
            served.address,
            "admin",
            "secret",
            {"settle_s": 0.02},
            0.5,
            more,
        )
        device = open_device(config)
        try:
            yield device, served
        finally:
            await device.close()


def route(ingress: str, egress: str, slot: FrequencySlot = SLOT, db: float = 0.0) -> SpectralRoute:
    return SpectralRoute(Port("roadm1", ingress), Port("roadm1", egress), slot, db)


async def apply(
    device: Any, remove: tuple[Setting, ...] = (), add: tuple[Setting, ...] = ()
) -> Outcome:
    outcome: Outcome = await device.apply(Change("roadm1", frozenset(remove), frozenset(add)))
    return outcome


def edits(served: Netconf) -> list[str]:
    return [
        found[1] for each in served.heard if (found := re.search("<config>(.*)</config>", each))
    ]


async def test_ports_are_degrees_and_the_external_ports_of_add_drop_groups(tmp_path: Path) -> None:
    async with opened(Roadm(), tmp_path) as (device, served):
        identity = await device.identify()
        assert (identity.vendor, identity.model, identity.serial) == ("vendorA", "model2", "0002")
        assert identity.firmware == "swversion1234"
        assert identity.ingress == identity.egress == (DEG1, DEG2, C1, C2)
        assert not edits(served)


async def test_ports_for_one_direction_are_on_one_side(tmp_path: Path) -> None:
    cards = (
        ports("1/0", E1=(OUTSIDE, "tx"), E2=(OUTSIDE, "rx"))
        + ports("3/0/1", C1=(OUTSIDE, "rx"), C2=(OUTSIDE, "tx")),
        degree(1, ("1/0", "E1"), ("1/0", "E2")),
        CARDS[3].replace("3/0", "3/0/1"),
    )
    node = Roadm(oms("OMS-TX", "1/0", "E1") + oms("OMS-RX", "1/0", "E2"), cards)
    async with opened(node, tmp_path) as (device, _):
        identity = await device.identify()
        assert (identity.ingress, identity.egress) == (
            (DEG1, "SRG1/3/0/1/C1"),
            (DEG1, "SRG1/3/0/1/C2"),
        )
        outcome = await apply(
            device, add=(route(DEG1, "SRG1/3/0/1/C2"), route("SRG1/3/0/1/C1", DEG1))
        )
        assert not outcome.failed
        below = {
            reported(node.interfaces[name], "supporting-interface")
            for name in node.channels
            if "-mc-" in name
        }
        assert below == {"OMS-TX", "OMS-RX"} and len(node.channels) == 6


async def test_a_channel_is_made_in_the_order_and_form_of_public_clients(tmp_path: Path) -> None:
    node = Roadm()
    async with opened(node, tmp_path) as (device, served):
        outcome = await apply(device, add=(route(C1, DEG2),))
        assert not outcome.failed and outcome.observed == {route(C1, DEG2)} == await device.read()
        channels, networks, connection, light = edits(served)
    kind = '<type xmlns:openROADM-if="http://org/openroadm/interfaces">openROADM-if:'
    assert channels.partition("<interface>")[2] == (
        "<name>testbed-DEG2-TXRX-mc-193075000-193125000</name><description>testbed</description>"
        f"{kind}{MC}</type><administrative-state>inService</administrative-state>"
        "<supporting-circuit-pack-name>2/0</supporting-circuit-pack-name><supporting-port>L1</supporting-port>"
        "<supporting-interface>OMS-DEG2-TTP-TXRX</supporting-interface>"
        '<mc-ttp xmlns="http://org/openroadm/media-channel-interfaces"><min-freq>193.075</min-freq><max-freq>193.125</max-freq></mc-ttp>'
        "</interface></org-openroadm-device>"
    )
    at_port, at_degree = networks.split("<interface>")[1:]
    assert (
        "<supporting-interface>" not in at_port
        and f"{NMC}</type>" in at_port
        and "<supporting-port>C1</supporting-port>" in at_port
    )
    assert (
        "<supporting-interface>testbed-DEG2-TXRX-mc-193075000-193125000</supporting-interface>"
        in at_degree
    )
    assert (
        "<frequency>193.1</frequency><width>50</width>" in at_port
        and "<frequency>193.1</frequency><width>50</width>" in at_degree
    )
    assert connection.partition("<roadm-connections>")[2] == (
        f"<connection-name>testbed-{C1}-DEG2-193075000-193125000</connection-name><opticalControlMode>off</opticalControlMode>"
        f"<source><src-if>testbed-{C1}-TXRX-nmc-193075000-193125000</src-if></source>"
        "<destination><dst-if>testbed-DEG2-TXRX-nmc-193075000-193125000</dst-if></destination>"
        "</roadm-connections></org-openroadm-device>"
    )
    assert (
        "<opticalControlMode>power</opticalControlMode><target-output-power>-9.00</target-output-power>"
        in light
    )


async def test_a_channel_is_done_when_its_power_had_time_to_be_reached(tmp_path: Path) -> None:
    node = Roadm()
    async with opened(node, tmp_path) as (device, _):
        outcome = await apply(device, add=(route(C1, DEG2),))
        assert not outcome.failed and outcome.settled_ns / 1e9 >= node.lit_at + 0.02


async def test_the_slot_of_a_route_is_the_media_channel_at_the_degree(tmp_path: Path) -> None:
    """TransportPCE puts a network media channel of 75 GHz into a media channel of 87.5 GHz."""
    node = Roadm()
    wide = FrequencySlot(196_006_250, 196_093_750)
    async with opened(node, tmp_path) as (device, _):
        await apply(device, add=(route(C1, DEG2, wide),))
        for name, held in node.interfaces.items():
            if "-nmc-" in name:
                next(
                    leaf
                    for leaf in next(each for each in held if local(each) == "nmc-ctp")
                    if local(leaf) == "width"
                ).text = "75"
        assert await device.read() == {route(C1, DEG2, wide)}
        held = node.interfaces["testbed-DEG2-TXRX-mc-196006250-196093750"]
        next(
            leaf
            for leaf in next(each for each in held if local(each) == "mc-ttp")
            if local(leaf) == "max-freq"
        ).text = "196.05"
        assert await device.read() == set()  # the channels stick out of it
        assert device.holders().keys() == {Port("roadm1", C1), Port("roadm1", DEG2)}


async def test_a_drop_has_no_target_and_a_degree_the_one_of_the_option(tmp_path: Path) -> None:
    node = Roadm()
    async with opened(node, tmp_path, output_dbm="-2.5") as (device, served):
        outcome = await apply(device, add=(route(DEG1, C1), route(DEG1, DEG2, NEXT)))
        assert not outcome.failed and len(edits(served)) == 4  # of both together
        assert {target for _, _, target in node.lit} == {"", "-2.50"}


async def test_removal_leaves_what_another_connection_rests_on(tmp_path: Path) -> None:
    node = Roadm()
    other, back = route(DEG1, C1), route(C1, DEG1)
    async with opened(node, tmp_path) as (device, served):
        await apply(device, add=(other, back))
        assert len(node.channels) == 3  # ports for both directions: one channel serves both
        outcome = await apply(device, remove=(other,))
        assert not outcome.failed and outcome.observed == {back} and len(node.channels) == 3
        first = len(edits(served))
        outcome = await apply(device, remove=(back,))
        assert (
            not outcome.failed
            and not outcome.observed
            and not node.channels
            and not node.connections
        )
        order = [
            re.findall(r'<(interface|roadm-connections) [^>]*operation="delete"', each)
            for each in edits(served)[first:]
        ]
        assert order == [["roadm-connections"], ["interface", "interface"], ["interface"]]
        again = await apply(device, remove=(back,))
        assert again.writes == 0


@pytest.mark.parametrize(
    "bad",
    [
        f"{C2}-TXRX-nmc",
        f"{C2}-DEG2",
        f"<connection-name>testbed-{C2}-DEG2-193125000-193175000</connection-name><opticalControlMode>power",
    ],
)
async def test_a_refused_channel_is_named_and_leaves_nothing(tmp_path: Path, bad: str) -> None:
    node = Roadm(bad=bad)
    good, wrong = route(C1, DEG2), route(C2, DEG2, NEXT)
    async with opened(node, tmp_path) as (device, _):
        outcome = await apply(device, add=(good, wrong))
        assert outcome.observed == {good} and set(outcome.failed) == {wrong}
        assert "invalid-value: no such spectrum" in outcome.failed[wrong]
        assert len(node.connections) == 1 and len(node.channels) == 3


async def test_a_connection_that_is_off_is_no_route_and_its_spectrum_is_not_free(
    tmp_path: Path,
) -> None:
    node = Roadm()
    async with opened(node, tmp_path) as (device, served):
        await apply(device, add=(route(C1, DEG2),))
        (held,) = node.connections.values()
        for leaf in held:
            if local(leaf) == "opticalControlMode":
                leaf.text = "off"
            if local(leaf) == "connection-name":
                leaf.text = "of somebody else"
        node.connections = {"of somebody else": held}
        before = len(edits(served))
        assert await device.read() == frozenset()
        assert (
            isinstance(device, PortHolders)
            and "whether it passes light is not known" in device.holders()[route(C1, DEG2)]
        )
        outcome = await apply(device, add=(route(C2, DEG2), route(DEG1, C2, NEXT)))
        assert outcome.observed == {route(DEG1, C2, NEXT)} and set(outcome.failed) == {
            route(C2, DEG2)
        }
        assert "which is off" in outcome.failed[route(C2, DEG2)]
        assert not [each for each in edits(served)[before:] if "of somebody else" in each]


async def test_a_strange_connection_hides_no_other_and_its_ports_are_unknown(
    tmp_path: Path,
) -> None:
    node = Roadm()
    async with opened(node, tmp_path) as (device, _):
        await apply(device, add=(route(C1, DEG2),))
        och = '<type xmlns:x="urn:x">x:opticalChannel</type>'
        rows = [
            oms(f"och-{port}", pack, port).replace("OMS", "och")
            for pack, port in (("3/0", "C2"), ("1/0", "L1"))
        ]
        rows = [re.sub(r"<type.*</type>", och, row) for row in rows]
        odd = (
            "<roadm-connections><connection-name>old</connection-name><opticalControlMode>power</opticalControlMode>"
            "<source><src-if>och-C2</src-if></source><destination><dst-if>och-L1</dst-if></destination></roadm-connections>"
        )
        node.edit(f'<org-openroadm-device xmlns="{NS}">{"".join(rows)}{odd}</org-openroadm-device>')
        assert await device.read() == {route(C1, DEG2)}
        holders = device.holders()
        assert (
            holders.keys() == {Port("roadm1", C2), Port("roadm1", DEG1)}
            and "roadm-connection old" in holders[Port("roadm1", C2)]
        )
        outcome = await apply(
            device, remove=(route(C1, DEG2),), add=(route(DEG1, DEG2, NEXT), route(DEG2, C1, NEXT))
        )
        assert outcome.observed == {route(DEG2, C1, NEXT)} and set(outcome.failed) == {
            route(DEG1, DEG2, NEXT)
        }


@pytest.mark.parametrize("lost", ["mc-ttp", "nmc-ctp", "<source>", "target-output-power"])
async def test_a_lost_answer_is_followed_by_reading_and_the_channel_is_finished(
    tmp_path: Path, lost: str
) -> None:
    node = Roadm(lose=lost)
    async with opened(node, tmp_path) as (device, _):
        outcome = await apply(device, add=(route(C1, DEG2),))
        assert not outcome.failed and outcome.observed == {route(C1, DEG2)}
        assert len(node.lit) == 1 and len(node.channels) == 3


async def test_what_an_interrupted_change_left_is_cleared_where_it_is_in_the_way(
    tmp_path: Path,
) -> None:
    node = Roadm()
    wider = route(C1, DEG2, FrequencySlot(193_075_000, 193_150_000))
    async with opened(node, tmp_path) as (device, _):
        await apply(device, add=(route(C1, DEG2), route(C2, DEG2, NEXT)))
        held = node.connections[f"testbed-{C1}-DEG2-193075000-193125000"]
        next(leaf for leaf in held if local(leaf) == "opticalControlMode").text = "off"
        del node.connections[f"testbed-{C2}-DEG2-193125000-193175000"]
        outcome = await apply(device, add=(wider,))
        assert not outcome.failed and outcome.observed == {wider}
        assert [name for name in node.channels if "DEG2" in name or C1 in name] == [
            name for name in node.channels if "193150000" in name
        ]


async def test_what_a_node_cannot_do_is_refused_before_a_byte_is_sent(tmp_path: Path) -> None:
    node = Roadm(oms("OMS-DEG2-TTP-TXRX", "2/0", "L1"))
    strange = [
        route(C1, DEG2, db=3.0),
        route(C1, C2),
        route(DEG1, C1),
        route("DEG9", C1),
        route("SRG1/3/0/C9", DEG2),
    ]
    async with opened(node, tmp_path) as (device, served):
        outcome = await apply(device, add=tuple(strange))
        assert set(outcome.failed) == set(strange) and not edits(served)
        assert "no attenuation can be set" in outcome.failed[strange[0]]
        assert "degree 1 has no OMS interface" in outcome.failed[strange[2]]


@pytest.mark.parametrize(("key", "value"), [("node-type", "xpdr"), ("openroadm-version", "7.1")])
async def test_another_node_or_release_is_named(tmp_path: Path, key: str, value: str) -> None:
    async with opened(Roadm(info=INFO | {key: value}), tmp_path) as (device, _):
        with pytest.raises(Garbled, match=re.escape(value)):
            await device.identify()


@pytest.mark.parametrize("text", ["30", "-21", "five", "nan", ""])
def test_an_impossible_power_is_refused(text: str) -> None:
    with pytest.raises(BadFile, match="output_dbm: dBm from -20 to 5"):
        open_device(
            DeviceConfig("roadm1", "openroadm-netconf", "netconf://h", options={"output_dbm": text})
        )
