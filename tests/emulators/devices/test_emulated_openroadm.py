"""An OpenROADM node as NETCONF messages, as its public clients send them: channels, connections,
power, refusals.
"""

from __future__ import annotations

import re

import pytest

from tests.emulators.devices.bench import Bench

DEVICE = "http://org/openroadm/device"
MC = "http://org/openroadm/media-channel-interfaces"
NMC = "http://org/openroadm/network-media-channel-interfaces"
IF = "http://org/openroadm/interfaces"
BASE = "urn:ietf:params:xml:ns:netconf:base:1.0"
LOW, HIGH = 193_075_000, 193_125_000
ADD = ("SRG1/3/0/C1", "DEG1", LOW, HIGH)
DROP = ("DEG1", "SRG1/3/0/C1", LOW, HIGH)


class Node(Bench):
    """base:1.0, one message after the other."""

    def __init__(self, **overrides: object) -> None:
        super().__init__("openroadm-netconf", transport="netconf", **overrides)
        offered = BASE.replace("xml:ns:netconf", "netconf")
        hello = (
            f'<hello xmlns="{BASE}"><capabilities><capability>{offered}</capability></capabilities>'
        )
        self.send(f"{hello}</hello>", end="]]>]]>")

    def rpc(self, body: str) -> str:
        return self.send(
            f'<rpc message-id="1" xmlns="{BASE}">{body}</rpc>', end="]]>]]>"
        ) or self.wait(30.0)

    def edit(self, *nodes: str) -> str:
        config = f'<config><org-openroadm-device xmlns="{DEVICE}">{"".join(nodes)}</org-openroadm-device></config>'
        return self.rpc(f"<edit-config><target><running/></target>{config}</edit-config>")

    def made(self, *nodes: str) -> None:
        for node in nodes:
            assert "<ok/>" in self.edit(node), node


def media(
    low: str = "193.07500000", high: str = "193.12500000", degree: int = 1, name: str = "mc"
) -> str:
    return (
        f"<interface><name>{name}</name><type xmlns:x='{IF}'>x:mediaChannelTrailTerminationPoint</type>"
        f"<administrative-state>inService</administrative-state><supporting-interface>OMS-DEG{degree}-TTP-TXRX</supporting-interface>"
        f"<supporting-circuit-pack-name>{degree}/0</supporting-circuit-pack-name><supporting-port>L1</supporting-port>"
        f"<mc-ttp xmlns='{MC}'><min-freq>{low}</min-freq><max-freq>{high}</max-freq></mc-ttp></interface>"
    )


def network(
    name: str,
    pack: str,
    port: str,
    on: str = "",
    frequency: str = "193.10000000",
    width: str = "40.00000",
) -> str:
    base = f"<supporting-interface>{on}</supporting-interface>" if on else ""
    return (
        f"<interface><name>{name}</name><type xmlns:x='{IF}'>x:networkMediaChannelConnectionTerminationPoint</type>{base}"
        f"<supporting-circuit-pack-name>{pack}</supporting-circuit-pack-name><supporting-port>{port}</supporting-port>"
        f"<nmc-ctp xmlns='{NMC}'><frequency>{frequency}</frequency><width>{width}</width></nmc-ctp></interface>"
    )


def cross(
    source: str, destination: str, name: str = "one", mode: str = "off", target: str = ""
) -> str:
    power = f"<target-output-power>{target}</target-output-power>" if target else ""
    return (
        f"<roadm-connections><connection-name>{name}</connection-name><opticalControlMode>{mode}</opticalControlMode>{power}"
        f"<source><src-if>{source}</src-if></source><destination><dst-if>{destination}</dst-if></destination></roadm-connections>"
    )


def ended(kind: str, key: str, name: str) -> str:
    return f'<{kind} xmlns:nc="{BASE}" nc:operation="delete"><{key}>{name}</{key}></{kind}>'


ENDS = (media(), network("deg", "1/0", "L1", on="mc"), network("drop", "3/0", "C1"))


@pytest.fixture
def node() -> Node:
    made = Node()
    made.made(*ENDS)
    return made


def test_a_connection_is_dark_while_off_and_lit_when_power_has_settled(node: Node) -> None:
    node.made(cross("drop", "deg"))
    node.wait(20.0)
    assert not node.light()
    node.made(cross("drop", "deg", mode="power", target="-9.00"))
    node.wait(11.9)
    assert not node.light()
    node.wait(0.2)
    assert node.light() == {ADD}


def test_both_directions_share_their_channels_and_end_one_by_one(node: Node) -> None:
    node.made(cross("drop", "deg", "add", "power", "-9.00"), cross("deg", "drop", "drop", "power"))
    node.wait(12.0)
    assert node.light() == {ADD, DROP}
    assert "data-missing" in node.edit(ended("interface", "name", "deg")), (
        "a connection refers to it"
    )
    node.made(ended("roadm-connections", "connection-name", "add"))
    assert node.light() == {DROP}, "deletion darkens at once"
    node.made(ended("roadm-connections", "connection-name", "drop"))
    assert "data-missing" in node.edit(ended("interface", "name", "mc")), "a channel is on it"
    node.made(*(ended("interface", "name", name) for name in ("deg", "drop", "mc")))
    assert not node.light()


def test_gain_loss_after_power_keeps_the_light(node: Node) -> None:
    node.made(cross("drop", "deg", mode="power", target="-9.00"))
    node.wait(12.0)
    node.made(cross("drop", "deg", mode="gainLoss", target="-9.00"))
    assert node.light() == {ADD}


@pytest.mark.parametrize(
    ("edit", "tag"),
    [
        (media("193.08750000", "193.13750000", name="other"), "data-exists"),
        (media("193.08000000", "193.13000000", name="other"), "invalid-value"),
        (media("193.07500000", "193.07500000", name="other"), "invalid-value"),
        (media("193.2", "", name="other"), "missing-element"),
        (media(degree=3, name="other"), "data-missing"),
        (network("other", "1/0", "L1", on="none"), "data-missing"),
        (network("other", "1/0", "L1", on="mc", frequency="193.20000000"), "invalid-value"),
        (network("other", "1/0", "L1"), "invalid-value"),
        (network("other", "3/0", "C2", on="mc"), "invalid-value"),
        (network("other", "3/0", "C99"), "data-missing"),
        (network("other", "3/0", "C1"), "data-exists"),
        (media("193.10000000", "193.15000000"), "operation-failed"),
        (cross("drop", "none"), "data-missing"),
        (cross("drop", "mc"), "invalid-value"),
        (cross("drop", "deg", mode="power"), "missing-element"),
        (cross("drop", "deg", mode="high"), "invalid-value"),
        (ended("interface", "name", "OMS-DEG1-TTP-TXRX"), "operation-failed"),
        (ended("interface", "name", "none"), "data-missing"),
        ("<info><vendor>me</vendor></info>", "unknown-element"),
    ],
)
def test_what_does_not_go_together_is_refused_and_changes_nothing(
    node: Node, edit: str, tag: str
) -> None:
    before = node.rpc("<get-config><source><running/></source></get-config>")
    assert f"<error-tag>{tag}</error-tag>" in node.edit(edit)
    assert node.rpc("<get-config><source><running/></source></get-config>") == before


def test_a_whole_that_is_replaced_or_deleted_takes_what_is_not_named_along(node: Node) -> None:
    shown = node.rpc("<get-config><source><running/></source></get-config>")
    whole = f'<org-openroadm-device xmlns="{DEVICE}" xmlns:nc="{BASE}" nc:operation="{{}}">{{}}</org-openroadm-device>'
    edit = f"<edit-config><target><running/></target><config>{whole}</config></edit-config>"
    assert "OTS-DEG1-TTP-TXRX: belongs to the line" in node.rpc(edit.format("delete", ""))
    assert "OTS-DEG1-TTP-TXRX: belongs to the line" in node.rpc(
        edit.format("replace", media(name="only"))
    )
    assert node.rpc("<get-config><source><running/></source></get-config>") == shown
    line = re.findall("<interface><name>O[TM]S.*?</interface>", shown)
    assert len(line) == 4 and "<ok/>" in node.rpc(
        edit.format("replace", "".join((*line, media(name="only"))))
    )
    assert re.findall("<name>([^O].*?)</name>", node.rpc("<get/>")) == ["only"]


def test_text_is_shown_as_it_was_written(node: Node) -> None:
    node.made(media("193.20000000", "193.25000000", name="a &lt;&amp;&gt; &#13; b"))
    assert "<name>a &lt;&amp;&gt; &#13; b</name>" in node.rpc("<get/>")


def test_a_wavelength_is_used_once_in_a_group_where_the_node_says_so() -> None:
    node = Node(duplication="one-per-srg")
    node.made(*ENDS)
    assert "<error-tag>data-exists</error-tag>" in node.edit(network("second", "3/0", "C2"))
    assert "one-per-srg" in node.rpc("<get/>")


def test_a_node_whose_ports_are_of_one_direction_has_lines_and_partners_for_both() -> None:
    ports = {"in": ["SRG1/3/0/C1-RX", "DEG1"], "out": ["SRG1/3/0/C1-TX", "DEG1"]}
    node = Node(ports=ports, preset=[["SRG1/3/0/C1-RX", "DEG1", 193075, 193125]])
    assert node.light() == {("SRG1/3/0/C1-RX", "DEG1", LOW, HIGH)}
    shown = node.rpc("<get/>")
    assert (
        "OMS-DEG1-TTP-RX" in shown
        and "OMS-DEG1-TTP-TX" in shown
        and "<port-name>C1-TX</port-name>" in shown
    )
    assert "<port-direction>rx</port-direction>" in shown and "partner-port" in shown


def test_what_was_configured_comes_back_after_a_power_cycle(node: Node) -> None:
    node.made(cross("drop", "deg", mode="power", target="-9.00"))
    node.wait(12.0)
    node.dialect.reboot(True, node.now)
    node.wait(20.0)
    assert node.light() == {ADD}
