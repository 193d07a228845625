"""Calient tables as real switches write them: ports that are plain numbers or have a suffix, and
rows that no driver can read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import pytest

from drivers.api import PortHolders, PowerMeter
from drivers.registry import open_device
from drivers.wire.calient_rows import natural, parse
from drivers.wire.tl1 import Parser, Reply
from optics import Change, CrossConnect, DeviceConfig, Garbled, Port
from tests.drivers.scripted import Request, http, http_device
from tests.drivers.tl1_device import circuits, driven

# REAL: as a client of a switch with plain port numbers noted it down.
LOOPBACK = "1>1:SRCPORT=1,DSTPORT=1,GRPNAME=SYSTEM,CONNNAME=LOOPBACK_001,CONNTYPE=1WAY,AS=UMA,OS=RDY,OC=OK,PS=UPR,AL=CL"
NAMES = (["1", "2", "10", "17"], ["3.1.4/1", "3.1.4/2", "3.1.4/10", "1.1.2"])
"""Plain numbers (REAL); triplets with a suffix (CODE: a client's pattern for the ports of the REST
interface).
"""


def stream(*rows: str) -> bytes:
    lines = "".join(f'   "{row}"\r\n' for row in rows)
    return f"\r\n\n   CALIENT01TS 16-11-04 09:26:57\r\nM  0 COMPLD\r\n{lines};".encode()


class Switch:
    """A connection table that obeys; `strange`: rows it has besides, in words of its own."""

    def __init__(self, ports: list[str], *strange: str) -> None:
        self.ports, self.strange = ports, [*strange]
        self.states: dict[str, str] = {}

    def __call__(self, verb: str, aid: str, payload: str) -> str | list[str]:
        match verb:
            case "RTRV-NE":
                return ['"SID:CHASSISTYPE=S320,SERIALNUMBER=C00002227,SWPACKAGE=6.0-3"']
            case "RTRV-PORT":
                return [f'"{port}:ALIAS=NONE"' for port in self.ports]
            case "RTRV-PORT-SUM":
                return [f'"{aid}:ALIAS=NONE,INPWR=-3.50,OUTPWR=-4.75"']
            case "RTRV-CRS":
                return [
                    *(f'"{row}"' for row in self.strange),
                    *(self.row(at, state) for at, state in self.states.items()),
                ]
            case "ENT-CRS":
                self.states[aid] = "UMA,OS=RDY"
            case "ACT-CRS":
                self.states[aid] = "IS,OS=IS"
            case "CANC-CRS":
                self.states[aid] = "UMA,OS=RDY"
            case "DLT-CRS":
                self.states.pop(aid)
        return []

    def row(self, at: str, state: str) -> str:
        a, b = at.split(",")
        return f'"{a}>{b}:SRCPORT={a},DSTPORT={b},GRPNAME=TESTBED,CONNNAME={a}>{b},CONNTYPE=1WAY,AS={state},OC=OK"'


def pieces(data: bytes) -> Iterator[list[bytes]]:
    """The data whole, split at every place, and byte by byte."""
    yield [data]
    yield from ([data[:at], data[at:]] for at in range(1, len(data)))
    yield [data[at : at + 1] for at in range(len(data))]


def test_a_loopback_of_a_plain_number_is_a_row_however_it_arrives() -> None:
    for cut in pieces(stream(LOOPBACK)):
        parser = Parser()
        (answer,) = [message for piece in cut for message in parser.feed(piece)]
        assert isinstance(answer, Reply) and not answer.stray
        (row,) = map(parse, answer.rows)
        assert (row.source, row.destination, row.name, row.state) == (
            "1",
            "1",
            "LOOPBACK_001",
            "AS=UMA,OS=RDY,OC=OK",
        )


def test_plain_numbers_and_suffixes_sort_as_people_count() -> None:
    assert sorted(["10", "2", "1.1.10", "1.1.2/10", "1.1.2/9", "1.1.2"], key=natural) == [
        *("1.1.2", "1.1.2/9", "1.1.2/10", "1.1.10", "2", "10")
    ]


@pytest.mark.parametrize("ports", NAMES, ids=["numbers", "suffixes"])
async def test_a_switch_with_other_port_names_is_identified_read_and_changed(
    ports: list[str],
) -> None:
    switch = Switch([*reversed(ports)])
    async with driven("calient-tl1", switch) as (device, _):
        identity = await device.identify()
        assert identity.ingress == identity.egress == tuple(sorted(ports, key=natural))
        made = await device.apply(
            Change("ocs1", frozenset(), circuits((ports[0], ports[2]), (ports[1], ports[3])))
        )
        assert not made.failed and await device.read() == circuits(
            (ports[0], ports[2]), (ports[1], ports[3])
        )
        moved = await device.apply(
            Change("ocs1", circuits((ports[0], ports[2])), circuits((ports[0], ports[0])))
        )
        assert not moved.failed and await device.read() == circuits(
            (ports[0], ports[0]), (ports[1], ports[3])
        )
        assert isinstance(device, PowerMeter)
        port = Port("ocs1", ports[0])
        assert await device.power([port, Port("ocs1", f"{ports[0]}:in")]) == {
            port: -4.75,
            Port("ocs1", f"{ports[0]}:in"): -3.5,
        }


async def test_a_reserved_loopback_of_a_plain_number_holds_its_port() -> None:
    async with driven("calient-tl1", Switch(["1", "2"], LOOPBACK)) as (device, heard):
        assert await device.read() == frozenset()
        assert isinstance(device, PortHolders)
        assert [*device.holders()] == [*circuits(("1", "1"))]
        outcome = await device.apply(Change("ocs1", frozenset(), circuits(("2", "1"))))
        assert "connection 'LOOPBACK_001' of group 'SYSTEM'" in next(iter(outcome.failed.values()))
        assert not heard.verbs("ENT-CRS")


STRANGE = {
    "kind": (
        "1.1.3>1.1.4:SRCPORT=1.1.3,DSTPORT=1.1.4,GRPNAME=LAB,CONNNAME=x,CONNTYPE=MCAST,AS=IS,OS=IS,OC=OK",
        {"1.1.3", "1.1.4"},
    ),
    "port": (
        "x:SRCPORT=1.1.3,DSTPORT=1.1.4#2,GRPNAME=LAB,CONNNAME=x,CONNTYPE=1WAY,AS=IS,OS=IS,OC=OK",
        {"1.1.3", "1.1.4", "1.1.4#2"},
    ),
    "short": ("1.1.3-1.1.4:SRCPORT=1.1.3", {"1.1.3", "1.1.4"}),
}


@pytest.mark.parametrize("name", STRANGE)
async def test_a_row_that_cannot_be_read_hides_no_other_and_its_ports_are_never_free(
    name: str,
) -> None:
    row, named = STRANGE[name]
    switch = Switch(["1.1.1"], row)
    switch.states["1.1.1,1.1.2"] = "IS,OS=IS"
    async with driven("calient-tl1", switch) as (device, heard):
        assert await device.read() == circuits(("1.1.1", "1.1.2"))
        assert isinstance(device, PortHolders)
        reply = device.holders()
        assert reply.keys() == {Port("ocs1", label) for label in named}
        assert all("not understood" in text and row[:40] in text for text in reply.values())
        (blocked,) = circuits(("1.1.5", "1.1.4"))
        (free,) = circuits(("1.1.5", "1.1.6"))
        outcome = await device.apply(Change("ocs1", frozenset(), frozenset({blocked})))
        assert outcome.failed[blocked].startswith(
            "port 1.1.4 is unknown, its row is not understood"
        )
        assert not heard.verbs("ENT-CRS")
        outcome = await device.apply(
            Change("ocs1", circuits(("1.1.1", "1.1.2")), frozenset({free}))
        )
        assert not outcome.failed and outcome.observed == {free}
        (behind,) = circuits(("1.1.3", "1.1.4"))
        outcome = await device.apply(Change("ocs1", frozenset({behind}), frozenset()))
        assert outcome.failed[behind].startswith(
            "not known whether it is there: port 1.1.3 is unknown"
        )


async def test_a_row_that_names_no_port_may_be_any_and_nothing_new_is_made() -> None:
    switch = Switch(["1.1.1"], "under maintenance")
    switch.states["1.1.1,1.1.2"] = "IS,OS=IS"
    async with driven("calient-tl1", switch) as (device, heard):
        assert await device.read() == circuits(("1.1.1", "1.1.2"))
        assert isinstance(device, PortHolders) and [*device.holders()] == [Port("ocs1", "?")]
        (wanted,) = circuits(("1.1.5", "1.1.6"))
        outcome = await device.apply(Change("ocs1", frozenset(), frozenset({wanted})))
        assert outcome.failed[wanted].startswith("any port may be unknown")
        assert not heard.verbs("ENT-CRS")


async def test_a_row_that_is_unreadable_only_once_was_garbled_on_its_way() -> None:
    asked = 0

    def noisy(verb: str, aid: str, payload: str) -> str | list[str]:
        nonlocal asked
        asked += verb == "RTRV-CRS"
        row = switch(verb, aid, payload)
        return [line.replace("1WAY", f"{asked}WA~") for line in row] if verb == "RTRV-CRS" else row

    switch = Switch(["1.1.1"])
    switch.states["1.1.1,1.1.2"] = "IS,OS=IS"
    async with driven("calient-tl1", noisy) as (device, _):
        with pytest.raises(Garbled, match="connection table: not a row: '1"):
            await device.read()


async def test_a_strange_row_is_asked_about_again_only_while_it_is_new() -> None:
    async with driven("calient-tl1", Switch(["1.1.1"], STRANGE["kind"][0])) as (device, heard):
        for asked in (2, 3, 4):
            await device.read()
            assert len(heard.verbs("RTRV-CRS")) == asked


# REST


class RestSwitch:
    """The same over REST."""

    def __init__(self, ports: list[str], *strange: Any) -> None:
        self.ports, self.strange = ports, [*strange]
        self.rows: dict[str, Any] = {}

    def __call__(self, request: Request) -> bytes:
        path = unquote(request.path)
        if path.startswith("/rest/crossconnects/?id=list"):
            return http(200, json.dumps([*self.strange, *self.rows.values()]))
        if path.startswith("/rest/ports/?id=detail&port="):
            return http(
                200,
                json.dumps(
                    [{"port": path.rpartition("=")[2], "inpower": "-3.4", "outpower": "-4.8"}]
                ),
            )
        if path.startswith("/rest/ports/"):
            return http(200, json.dumps([{"port": port} for port in self.ports]))
        if path.startswith("/rest/info/"):
            return http(200, '{"version":"6.0-3"}')
        if path.startswith("/rest/node/"):
            return http(200, '{"serialnumber":"C00002227","partnumber":"S160"}')
        items = json.loads(request.body)
        for item in items:
            if path.endswith("bdel"):
                del self.rows[item["conn"]]
            else:
                conn = f"{item['in']}>{item['out']}"
                half = {"conn": conn, "as": "IS", "os": "IS", "oc": "OK"}
                self.rows[conn] = {"name": conn, "group": "SYSTEM", "dir": "uni", "half1": half}
        return http(200, json.dumps([{"response": {"status": "1"}}] * len(items)))


@pytest.mark.parametrize("ports", NAMES, ids=["numbers", "suffixes"])
async def test_the_same_over_rest(ports: list[str]) -> None:
    async with http_device(RestSwitch([*reversed(ports)])) as (address, heard):
        device: Any = open_device(
            DeviceConfig("ocs1", "calient-rest", address, "admin", "x", {"settle_s": 0.01}, 1.0)
        )
        assert (await device.identify()).ingress == tuple(sorted(ports, key=natural))
        made = await device.apply(
            Change("ocs1", frozenset(), circuits((ports[0], ports[2]), (ports[1], ports[3])))
        )
        assert not made.failed
        moved = await device.apply(
            Change("ocs1", circuits((ports[0], ports[2])), circuits((ports[0], ports[0])))
        )
        assert not moved.failed and moved.observed == circuits(
            (ports[0], ports[0]), (ports[1], ports[3])
        )
        assert await device.power([Port("ocs1", ports[0])]) == {Port("ocs1", ports[0]): -4.8}
        assert all(re.fullmatch(r"[^?]*\?[\w=&.%]*", request.path) for request in heard)
        await device.close()


@pytest.mark.parametrize(
    ("row", "named"),
    [
        (
            {"name": "m", "dir": "uni", "half1": {"conn": "1.1.3>1.1.4>1.1.5", "as": "IS"}},
            {"1.1.3", "1.1.4", "1.1.5"},
        ),
        (
            {
                "name": "m",
                "dir": "bi",
                "half1": {"conn": "1.1.3>1.1.4"},
                "half2": {"conn": "1.1.3>1.1.4"},
            },
            {"1.1.3", "1.1.4"},
        ),
        ({"name": "1.1.3-1.1.4", "half1": []}, {"1.1.3", "1.1.4"}),
        ({"name": "m", "half1": {"conn": "1.1.4#2>1.1.3"}}, {"1.1.3", "1.1.4", "1.1.4#2"}),
    ],
)
async def test_a_row_of_the_list_that_cannot_be_read_hides_no_other(
    row: dict[str, Any], named: set[str]
) -> None:
    switch = RestSwitch(["1.1.1"], row)
    async with http_device(switch) as (address, heard):
        device: Any = open_device(
            DeviceConfig("ocs1", "calient-rest", address, "admin", "x", {"settle_s": 0.01}, 1.0)
        )
        (blocked,) = circuits(("1.1.6", "1.1.4"))
        good = circuits(("1.1.1", "1.1.2"))
        outcome = await device.apply(Change("ocs1", frozenset(), frozenset({*good, blocked})))
        assert outcome.observed == good
        assert (
            outcome.failed.keys() == {blocked}
            and "port 1.1.4 is unknown" in outcome.failed[blocked]
        )
        assert {
            what.label for what in device.holders() if not isinstance(what, CrossConnect)
        } == named
        assert sum(request.path.endswith("badd") for request in heard) == 1
        await device.close()
