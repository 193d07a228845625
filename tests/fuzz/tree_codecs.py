"""Targets: JSON, XML and profiles."""

from __future__ import annotations

from contextlib import suppress

from lxml import etree

from drivers import calient_rest, polatis_restconf, waveshaper_http
from drivers.link.http import Answer
from drivers.wire import calient_rest as calient
from drivers.wire import netconf, openroadm, polatis, rest, roadm, wsp
from optics import Garbled, Refused
from orchestrator.hosts.redfish import redfish_message
from tests.fuzz.targets import target


@target("json")
def json(data: bytes) -> None:
    with suppress(Garbled):
        value = rest.parse_json(data)
        for row in rest.rows(value, "the answer"):
            for key in row:
                with suppress(Garbled):
                    rest.number(row, key)
                    rest.whole(row, key)
    assert len(rest.restconf_message(409, data)) < 2 * len(data) + 100
    assert redfish_message(data).isprintable()


@target("calient-json")
def calient_json(data: bytes) -> None:
    with suppress(Garbled):
        value = calient.body(200, data)
        with suppress(Garbled):
            calient.refusals(value, 2)
        for row in calient.connections(value):
            strange = calient.unreadable(row)
            with suppress(Garbled):
                read = calient_rest._parse_row(row)
                assert strange.ports >= {read.source, read.destination}
            with suppress(Garbled):
                calient.level(row, "inpower")


@target("polatis-json")
def polatis_json(data: bytes) -> None:
    with suppress(Garbled):
        polatis_restconf._parse_map(Answer(200, data))
    with suppress(Garbled):
        polatis.size(data.decode("utf-8", "replace"))
    polatis.port_state(data.decode("utf-8", "replace"))


@target("waveshaper-json")
def waveshaper_json(data: bytes) -> None:
    with suppress(Garbled):
        waveshaper_http._parse_info(Answer(200, data))


@target("wsp")
def wsp_profile(data: bytes) -> None:
    with suppress(Garbled):
        rows = wsp.parse(data.decode("utf-8", "backslashreplace"))
        wsp.bands(rows)
        again = wsp.parse(wsp.write(rows))
        assert [(r.mhz, r.db, r.port) for r in again] == [(r.mhz, r.db, r.port) for r in rows]


@target("netconf-xml")
def netconf_xml(data: bytes) -> None:
    with suppress(Garbled, Refused):
        reply = netconf.parse_reply(data.decode("utf-8", "replace"))
        with suppress(Garbled):
            netconf.done(reply)
        with suppress(Garbled):
            netconf.number(netconf.data(reply), "a", "b")


@target("openroadm-xml")
def openroadm_xml(data: bytes) -> None:
    """A node and its table in one document."""
    with suppress(Garbled, Refused):
        held = netconf.data(netconf.parse_reply(data.decode("utf-8", "replace")))
        table = openroadm.parse_table(held, openroadm.parse_node(held))
        for each in table.interfaces.values():
            if each.slot is not None:
                etree.fromstring(openroadm.config_of(openroadm.interface_of(each)))


@target("roadm-xml")
def roadm_xml(data: bytes) -> None:
    with suppress(Garbled, Refused):
        found = roadm.parse_connections(
            netconf.data(netconf.parse_reply(data.decode("utf-8", "replace")))
        )
        netconf.show(roadm.config_of(*found))
