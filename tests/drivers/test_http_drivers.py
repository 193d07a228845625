"""Polatis RESTCONF, Calient REST, WaveShaper: what goes over the wire, in which order, and what
becomes of each refusal.

The devices here are a few lines each and speak as the public sources say; behaviour over time is
the conformance suite's.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from drivers.api import Attenuator, CircuitSwitch, PortControl, PowerMeter
from drivers.registry import open_device
from drivers.wire import wsp
from optics import (
    BadFile,
    Change,
    CrossConnect,
    DeviceConfig,
    FrequencySlot,
    Garbled,
    Outcome,
    Port,
    PortState,
    Refused,
    Setting,
    SpectralRoute,
)
from tests.drivers.scripted import Request, http, http_device

Answers = Callable[[Request], bytes]


@asynccontextmanager
async def opened(
    driver: str, answers: Answers, **options: str
) -> AsyncIterator[tuple[Any, list[Request]]]:
    async with http_device(answers) as (address, heard):
        more = {"patience_s": "0.3", **options}
        device = open_device(
            DeviceConfig("ocs1", driver, address, "admin", "root", {"settle_s": 0.02}, 0.3, more)
        )
        try:
            yield device, heard
        finally:
            await device.close()


def cross(*pairs: tuple[str, str]) -> frozenset[Setting]:
    return frozenset(CrossConnect(Port("ocs1", a), Port("ocs1", b)) for a, b in pairs)


async def apply(
    device: CircuitSwitch,
    remove: frozenset[Setting] = frozenset(),
    add: frozenset[Setting] = frozenset(),
) -> Outcome:
    return await device.apply(Change("ocs1", remove, add))


def writes(heard: list[Request]) -> list[str]:
    return [
        f"{request.method} {request.path.rpartition('/')[2]}"
        for request in heard
        if request.method != "GET"
    ]


# Polatis RESTCONF


class Polatis:
    """RESTCONF as public clients know it. `tags`: whether answers carry an ETag; `meanwhile`:
    another client before a write.
    """

    def __init__(self, *pairs: tuple[int, int], tags: bool = True) -> None:
        self.pairs = dict(pairs)
        self.tags = tags
        self.version = 1
        self.meanwhile: Callable[[], None] = lambda: None
        self.refuse: Callable[[Request], bytes | None] = lambda _: None

    def change(self, **_: object) -> None:
        self.version += 1

    def __call__(self, request: Request) -> bytes:
        tag = {"etag": f'"{self.version}"'} if self.tags else {}
        assert request.headers["authorization"] == "Basic YWRtaW46cm9vdA=="
        if request.method == "GET" and request.path == "/api/data/optical-switch:cross-connects":
            rows = [{"ingress": a, "egress": b} for a, b in sorted(self.pairs.items())]
            return http(200, json.dumps({"optical-switch:cross-connects": {"pair": rows}}), **tag)
        if request.method == "GET":
            return self.others(request)
        assert request.method in ("PUT", "DELETE")  # never POST
        self.meanwhile()
        self.meanwhile = lambda: None
        if refused := self.refuse(request):
            return refused
        if "if-match" in request.headers and request.headers["if-match"] != f'"{self.version}"':
            return http(412)
        self.change()
        if request.path.endswith("cross-connects"):
            rows = json.loads(request.body)["optical-switch:cross-connects"]["pair"]
            self.pairs = {row["ingress"]: row["egress"] for row in rows}
            return http(204)
        found = re.fullmatch(r"/api/data/optical-switch:cross-connects/pair=(\d+)", request.path)
        assert found
        ingress = int(found[1])
        if request.method == "DELETE":
            return http(204) if self.pairs.pop(ingress, None) else http(404)
        if ingress in self.pairs and request.headers.get("if-none-match") == "*":
            return http(412)
        body = re.fullmatch(
            rb"<pair><ingress>(\d+)</ingress><egress>(\d+)</egress></pair>", request.body
        )
        assert (
            body
            and int(body[1]) == ingress
            and request.headers["content-type"] == "application/yang-data+xml"
        )
        if int(body[2]) in self.pairs.values():
            errors = {
                "error": [
                    {"error-tag": "in-use", "error-message": f"port {int(body[2])} is connected"}
                ]
            }
            return http(409, json.dumps({"ietf-restconf:errors": errors}))
        self.pairs[ingress] = int(body[2])
        return http(201)

    def others(self, request: Request) -> bytes:
        name = request.path.removeprefix("/api/data/")
        if name == "optical-switch:product-information":
            # REAL: mock in a public repository
            return http(
                200,
                '{"optical-switch:product-information":{"manufacturer":"Polatis","serial-number":"2000",'
                '"model-name":"N-VST-512x512-LA1-DMHNV-701","software-version":"6.7.3.9-dev-jenkins-20180130-181944"}}',
            )
        if name == "optical-switch:opm-power":
            return http(
                200,
                '{"optical-switch:opm-power":{"port":[{"port-id":9,"power":"-3.25"},{"port-id":10,"power":-60.0}]}}',
            )
        return http(404)


async def test_polatis_moves_circuits_one_by_one_removals_first() -> None:
    switch = Polatis((1, 9), (2, 10), (5, 13))
    async with opened("polatis-restconf", switch) as (device, heard):
        outcome = await apply(
            device, cross(("1", "9"), ("2", "10")), cross(("1", "10"), ("2", "9"))
        )
        assert (
            not outcome.failed
            and outcome.observed
            == cross(("1", "10"), ("2", "9"), ("5", "13"))
            == await device.read()
        )
        assert writes(heard) == ["DELETE pair=1", "DELETE pair=2", "PUT pair=1", "PUT pair=2"]
        assert outcome.writes == 4
        assert outcome.sent_ns <= outcome.broken_ns <= outcome.acked_ns <= outcome.settled_ns
        again = await apply(device, cross(("1", "9")), cross(("1", "10")))
        assert (again.writes, len(writes(heard))) == (0, 4)
    assert switch.pairs == {1: 10, 2: 9, 5: 13}


async def test_polatis_says_who_it_is_and_what_light_it_sees() -> None:
    async with opened("polatis-restconf", Polatis()) as (device, _):
        identity = await device.identify()
        assert (identity.vendor, identity.serial, identity.ingress[-1], identity.egress[0]) == (
            "Polatis",
            "2000",
            "512",
            "513",
        )
        assert (
            isinstance(device, PowerMeter)
            and isinstance(device, PortControl)
            and isinstance(device, Attenuator)
        )
        ports = [Port("ocs1", label) for label in ("9", "10", "11", "9:in", "x")]
        assert await device.power(ports) == {ports[0]: -3.25}


@pytest.mark.parametrize("tags", [True, False])
async def test_polatis_never_replaces_what_somebody_made_meanwhile(tags: bool) -> None:
    switch = Polatis(tags=tags)

    def somebody() -> None:
        switch.pairs[1] = 12
        switch.change()

    switch.meanwhile = somebody
    async with opened("polatis-restconf", switch) as (device, _):
        outcome = await apply(device, add=cross(("1", "9"), ("2", "10")))
        assert switch.pairs == {1: 12, 2: 10}
        ((setting, text),) = outcome.failed.items()
        assert setting == CrossConnect(Port("ocs1", "1"), Port("ocs1", "9")) and "1->12" in text


async def test_polatis_deletes_under_the_tag_it_read_and_reads_again_when_that_is_old() -> None:
    switch = Polatis((1, 9), (2, 10))

    def somebody() -> None:
        switch.pairs[1] = 12
        switch.change()

    switch.meanwhile = somebody
    async with opened("polatis-restconf", switch) as (device, _):
        outcome = await apply(device, remove=cross(("1", "9"), ("2", "10")))
        # 1->9 was to go, and is gone; what took its place belongs to another client
        assert switch.pairs == {1: 12}
        assert not outcome.failed


async def test_polatis_refusals_are_told_in_its_words() -> None:
    switch = Polatis()
    page = b"<html><body><h1>403</h1>read only</body></html>"
    switch.refuse = lambda request: http(403, page) if request.path.endswith("=2") else None
    async with opened("polatis-restconf", switch) as (device, _):
        outcome = await apply(device, add=cross(("1", "9"), ("2", "10")))
        ((_, text),) = outcome.failed.items()
        assert (
            "refused" in text and "user 'admin'" in text and "read only" in text and "<" not in text
        )
        assert switch.pairs == {1: 9}
        switch.refuse = lambda request: http(
            409, '{"ietf-restconf:errors":{"error":[{"error-tag":"in-use","error-message":"9"}]}}'
        )
        outcome = await apply(device, add=cross(("3", "11")))
        assert [*outcome.failed.values()] == [
            'refused "PUT cross-connects/pair=3": HTTP 409: in-use: 9'
        ]


async def test_polatis_whole_map_only_with_a_tag_and_never_over_somebody_elses_circuit() -> None:
    switch = Polatis((5, 13))

    def somebody() -> None:
        switch.pairs[6] = 14
        switch.change()

    switch.meanwhile = somebody
    wanted = cross(("1", "9"), ("2", "10"))
    async with opened("polatis-restconf", switch, bulk_from="2") as (device, heard):
        outcome = await apply(device, add=wanted)
        assert not outcome.failed
        assert switch.pairs == {1: 9, 2: 10, 5: 13, 6: 14}
        puts = [request for request in heard if request.method == "PUT"]
        assert (
            all(
                request.path.endswith("cross-connects") and request.headers["if-match"]
                for request in puts
            )
            and len(puts) == 2
        )
    async with opened("polatis-restconf", Polatis(tags=False), bulk_from="2") as (device, heard):
        assert not (await apply(device, add=wanted)).failed
        assert writes(heard) == ["PUT pair=1", "PUT pair=2"]


async def test_polatis_ports_are_shut_by_their_whole_row_and_attenuators_set() -> None:
    rows = {3: {"port-id": 3, "status": "ENABLED", "label": "x", "peer-port": 9}}
    voas = {9: {"port-id": 9, "atten-mode": "VOA_MODE_NONE", "atten-level": "0.0"}}

    def answers(request: Request) -> bytes:
        if "cross-connects" in request.path:
            return http(
                200, '{"optical-switch:cross-connects":{"pair":[{"ingress":1,"egress":9}]}}'
            )
        if "opm-power" in request.path:
            # The meters disagree by 0.7 dB: the true loss is 0.5 dB.
            relative = voas[9]["atten-mode"] == "VOA_MODE_RELATIVE"
            level = -0.7 - float(str(voas[9]["atten-level"])) if relative else -1.2
            ports = [{"port-id": 1, "power": "0.0"}, {"port-id": 9, "power": f"{level:.2f}"}]
            return http(200, json.dumps({"optical-switch:opm-power": {"port": ports}}))
        kind, held = (
            ("optical-switch:port-config", rows)
            if "port-config" in request.path
            else ("optical-switch:voa", voas)
        )
        if request.method == "GET":
            return http(200, json.dumps({kind: {"port": [*held.values()]}}))
        ((_, (row,)),) = json.loads(request.body).items()
        held[row["port-id"]] = row
        return http(204)

    three, nine, four = (Port("ocs1", label) for label in ("3", "9", "4"))
    async with opened("polatis-restconf", answers) as (device, _):
        assert await device.set_ports([three], enabled=False) == {three: PortState.DISABLED}
        assert rows[3] == {"port-id": 3, "status": "DISABLED", "label": "x"}
        with pytest.raises(Refused, match="port 4 has no port-config"):
            await device.set_ports([four], enabled=True)
        assert await device.attenuation([nine, four]) == {nine: 0.0}
        assert await device.attenuate({nine: 2.5}) == {nine: 2.5}
        assert voas[9] == {
            "port-id": 9,
            "atten-mode": "VOA_MODE_RELATIVE",
            "atten-level": "3.00",
            "reference-port": 1,
        }
        with pytest.raises(Refused, match="no attenuator"):
            await device.attenuate({three: 1.0})
        assert await device.attenuate({nine: 0.0}) == {nine: 0.0}
        voas[9] = {"port-id": 9, "atten-mode": "VOA_MODE_ABSOLUTE", "atten-level": "-3.00"}
        assert await device.attenuation([nine]) == {}  # a power, not an attenuation
        with pytest.raises(Refused, match="not between"):
            await device.attenuate({nine: -1.0})


BAD_BODIES = {
    "truncated": (200, '{"optical-switch:cross-connects":{"pair":[{"ingress":1'),
    "html": (200, "<html><body>please log in</body></html>"),
    "error page": (503, "<html><body>busy</body></html>"),
    "redirect": (302, ""),
    "not found": (404, "<html>404</html>"),
    "list": (200, "[]"),
    "null": (200, "null"),
    "another": (200, '{"optical-switch:ports":{}}'),
    "text port": (200, '{"optical-switch:cross-connects":{"pair":[{"ingress":"one","egress":2}]}}'),
    "half": (200, '{"optical-switch:cross-connects":{"pair":[{"ingress":1}]}}'),
    "pair no list": (200, '{"optical-switch:cross-connects":{"pair":"1-9"}}'),
    "fraction": (200, '{"optical-switch:cross-connects":{"pair":[{"ingress":1.5,"egress":9}]}}'),
    "port twice": (
        200,
        '{"optical-switch:cross-connects":{"pair":[{"ingress":1,"egress":9},{"ingress":1,"egress":10}]}}',
    ),
    "empty": (200, ""),
}


@pytest.mark.parametrize("driver", ["polatis-restconf", "calient-rest", "waveshaper-http"])
@pytest.mark.parametrize("name", BAD_BODIES)
async def test_a_malformed_answer_is_garbled_and_nothing_is_written(driver: str, name: str) -> None:
    status, body = BAD_BODIES[name]
    if driver == "calient-rest" and name == "list":
        body = '[{"half1":[]}]'  # an empty list is an empty table there
    async with opened(driver, lambda _: http(status, body)) as (device, heard):
        with pytest.raises(Garbled, match='ocs1: answer to "GET '):
            await device.read()
        with pytest.raises(Garbled):
            await apply(device, add=cross(("1.1.1", "1.1.2")))
        assert not writes(heard)


async def test_an_empty_map_may_be_missing_only_in_restconfs_own_words() -> None:
    missing = '{"ietf-restconf:errors":{"error":[{"error-type":"application","error-tag":"invalid-value"}]}}'
    async with opened("polatis-restconf", lambda _: http(404, missing)) as (device, _):
        assert await device.read() == frozenset()


@pytest.mark.parametrize(
    ("driver", "options"),
    [
        ("polatis-restconf", {"size": "many"}),
        ("polatis-restconf", {"bulk_from": "x"}),
        ("calient-rest", {"group": "a b"}),
        ("waveshaper-http", {"slices": "7"}),
        ("waveshaper-http", {"slice": "1"}),
    ],
)
def test_a_wrong_option_is_named(driver: str, options: dict[str, str]) -> None:
    with pytest.raises(BadFile, match=f"ocs1.*({next(iter(options))}|options)"):
        open_device(DeviceConfig("ocs1", driver, "http://127.0.0.1:1", options=options))
    with pytest.raises(BadFile, match="address 'tcp://h:1'"):
        open_device(DeviceConfig("ocs1", driver, "tcp://h:1"))


# Calient REST


class Calient:
    """REST as public clients know it; `fail`: circuits that are refused; `dark`: circuits that come
    to OC=FAIL.
    """

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.fail: set[str] = set()
        self.dark: set[str] = set()
        self.read_only = False

    def row(self, name: str, bidirectional: bool) -> dict[str, Any]:
        a, b = re.split("[->]", name)
        state = {
            "as": "IS",
            "os": "IS",
            "oc": "FAIL" if name in self.dark else "OK",
            "inp": "-3.0",
            "outp": "-4.0",
            "loss": "1.0",
        }
        found: dict[str, Any] = {
            "name": name,
            "connid": name,
            "group": "SYSTEM",
            "dir": "bi" if bidirectional else "uni",
            "band": "C",
        }
        found["half1"] = {"conn": f"{a}>{b}", **state}
        return {**found, "half2": {"conn": f"{b}>{a}", **state}} if bidirectional else found

    def __call__(self, request: Request) -> bytes:
        if request.method == "GET" and request.path == "/rest/crossconnects/?id=list":
            return http(200, json.dumps([*self.rows.values()]), set_cookie="JSESSIONID=4")
        if request.path.startswith("/rest/ports/?id=detail&port="):
            # REAL: NTT Com RENAT
            return http(
                200,
                '[{"port":"3.3.1","inpower":"-3.4","outpower":"-4.8","inoptc":"-20.0","inos":"OOS","inoc":"NOHW"}]',
            )
        if request.path.startswith("/rest/ports/"):
            return http(200, json.dumps([{"port": f"1.1.{n}"} for n in (10, 2, 1)]))
        if request.path == "/rest/info/?id=softwareversion":
            return http(200, '{"version":"6.0-3"}')
        if request.path.startswith("/rest/node/"):
            return http(200, '{"serialnumber":"C00002227","partnumber":"S160"}')
        assert request.method == "POST"
        verb, items = request.path.rpartition("=")[2], json.loads(request.body)
        if self.read_only:
            return http(200, '[{"status":"0","msg":"Failed","description":"user is read-only"}]')
        results = []
        for item in items:
            bidirectional = item.get("dir") == "bi"
            name = (
                item["conn"]
                if verb == "bdel"
                else f"{item['in']}{'-' if bidirectional else '>'}{item['out']}"
            )
            if name in self.fail:
                results.append(
                    {
                        "response": {
                            "status": "0",
                            "msg": "Failed",
                            "description": f"{name}: port in use",
                        }
                    }
                )
                continue
            if verb == "bdel":
                self.rows.pop(name)
            else:
                self.rows[name] = self.row(name, bidirectional)
            results.append({"response": {"status": "1", "msg": "Successful", "description": ""}})
        return http(200, json.dumps(results))


async def test_calient_moves_circuits_in_two_batches_removals_first() -> None:
    switch = Calient()
    switch.rows = {name: switch.row(name, "-" in name) for name in ("1.1.1-1.1.2", "1.1.5>1.1.6")}
    async with opened("calient-rest", switch) as (device, heard):
        other = cross(("1.1.1", "1.1.2"), ("1.1.2", "1.1.1"))
        new = cross(("1.1.1", "1.1.3"), ("1.1.3", "1.1.1"), ("1.1.2", "1.1.4"))
        outcome = await apply(device, other, new)
        assert not outcome.failed and outcome.observed == new | cross(("1.1.5", "1.1.6"))
        assert writes(heard) == ["POST ?id=bdel", "POST ?id=badd"]
        assert json.loads(heard[-2].body if heard[-1].method == "GET" else heard[-1].body) == [
            {"in": "1.1.1", "out": "1.1.3", "dir": "bi"},
            {"in": "1.1.2", "out": "1.1.4", "dir": "uni"},
        ]
        assert heard[-1].headers["cookie"] == "JSESSIONID=4"


async def test_calient_failure_inside_http_200_is_told_item_by_item() -> None:
    switch = Calient()
    switch.fail = {"1.1.1>1.1.2"}
    async with opened("calient-rest", switch) as (device, _):
        outcome = await apply(device, add=cross(("1.1.1", "1.1.2"), ("1.1.3", "1.1.4")))
        assert outcome.failed == {
            CrossConnect(
                Port("ocs1", "1.1.1"), Port("ocs1", "1.1.2")
            ): 'refused "badd": Failed: 1.1.1>1.1.2: port in use'
        }
        assert outcome.observed == cross(("1.1.3", "1.1.4"))
        switch.read_only = True
        outcome = await apply(
            device, cross(("1.1.3", "1.1.4")), cross(("1.1.5", "1.1.6"), ("1.1.7", "1.1.8"))
        )
        assert len(outcome.failed) == 3 and all(
            "user is read-only" in text for text in outcome.failed.values()
        )


async def test_calient_circuit_that_does_not_come_to_light_is_deleted_again_where_we_made_it() -> (
    None
):
    switch = Calient()
    switch.dark = {"1.1.1>1.1.2"}
    async with opened("calient-rest", switch) as (device, heard):
        outcome = await apply(device, add=cross(("1.1.1", "1.1.2"), ("1.1.3", "1.1.4")))
        ((_, text),) = outcome.failed.items()
        assert (
            "OC=FAIL" in text
            and outcome.observed == cross(("1.1.3", "1.1.4"))
            and [*switch.rows] == ["1.1.3>1.1.4"]
        )
        assert writes(heard)[-1] == "POST ?id=bdel"


async def test_calient_circuit_that_comes_to_light_in_the_last_moment_is_not_deleted() -> None:
    switch, looks = Calient(), 0
    switch.dark = {"1.1.1>1.1.2"}

    def late(request: Request) -> bytes:
        nonlocal looks
        looks += request.path.startswith("/rest/ports/?id=detail")
        if looks > 1 and switch.dark:  # patience is over, and the meter reports that light enters
            switch.dark.clear()
            switch.rows = {name: switch.row(name, False) for name in switch.rows}
        return switch(request)

    async with opened("calient-rest", late) as (device, heard):
        outcome = await apply(device, add=cross(("1.1.1", "1.1.2")))
    assert (outcome.observed, outcome.failed) == (cross(("1.1.1", "1.1.2")), {})
    assert writes(heard) == ["POST ?id=badd"]


async def test_calient_says_who_it_is_and_what_light_it_sees() -> None:
    async with opened("calient-rest", Calient()) as (device, _):
        identity = await device.identify()
        assert (identity.serial, identity.firmware, identity.ingress) == (
            "C00002227",
            "6.0-3",
            ("1.1.1", "1.1.2", "1.1.10"),
        )
        out, into = Port("ocs1", "3.3.1"), Port("ocs1", "3.3.1:in")
        assert await device.power([out, into]) == {out: -4.8, into: -3.4}


async def test_calient_question_that_fails_inside_http_200_is_refused() -> None:
    async with opened(
        "calient-rest",
        lambda _: http(200, '[{"status":"0","msg":"Failed","description":"session"}]'),
    ) as (
        device,
        _,
    ):
        with pytest.raises(Refused, match="Failed: session"):
            await device.read()


# WaveShaper


class Shaper:
    """A WaveShaper 4000 of a narrow range; `rc`: results of uploads to come."""

    def __init__(self, profile: str = "") -> None:
        rows = (wsp.Row(mhz, "60.000", "0.250", 0) for mhz in range(192_900_000, 193_201_000, 1000))
        self.profile = profile or wsp.write(rows)
        self.rc: list[tuple[int, str]] = []
        self.uploads: list[str] = []

    def __call__(self, request: Request) -> bytes:
        if request.path == "/waveshaper/devinfo":
            info = '{"model":"4000A","sno":"SN1","ver":"2.7","startfreq":192.9,"stopfreq":193.2,"ip":"x","portcount":4,"rctext":"ok"}'
            return http(200, info, content_type="text/plain")
        if request.path == "/waveshaper/getprofile":
            return http(200, self.profile, content_type="text/html")
        assert request.path == "/waveshaper/loadprofile"
        body = json.loads(request.body)
        assert body["type"] == "wsp"
        code, text = self.rc.pop(0) if self.rc else (0, "Success")
        if not code:
            self.profile = body["wsp"]
            self.uploads.append(body["wsp"])
        return http(200, json.dumps({"rc": code, "rctext": text, "sno": "SN1"}))


def route(egress: int, low: int, width: int = 50, db: float = 0.0) -> SpectralRoute:
    """A route from `low` GHz above 192.9 THz."""
    edge = 192_900_000 + low * 1000
    return SpectralRoute(
        Port("ocs1", "in"), Port("ocs1", str(egress)), FrequencySlot(edge, edge + width * 1000), db
    )


async def test_waveshaper_writes_the_whole_spectrum_once_and_keeps_phase_and_foreign_bands() -> (
    None
):
    shaper = Shaper()
    foreign = route(3, 200, 30, 2.0)
    async with opened("waveshaper-http", shaper) as (device, _):
        await apply(device, add=frozenset({foreign}))
        before = wsp.parse(shaper.profile)
        outcome = await apply(device, add=frozenset({route(1, 0), route(2, 50), route(2, 100, 50)}))
        assert not outcome.failed
        # touching bands of one port stay two
        assert outcome.observed == {foreign, route(1, 0), route(2, 50), route(2, 100)}
        assert outcome.writes == 1 and len(shaper.uploads) == 2
        rows = wsp.parse(shaper.profile)
        assert len(rows) == 301 and {row.phase for row in rows} == {"0.250"}
        assert [row for row in rows if (row.mhz - 192_900_000) // 1000 >= 200] == [
            r for r in before if r.mhz >= 193_100_000
        ]
        moved = await apply(device, frozenset({route(1, 0)}), frozenset({route(4, 0)}))
        assert not moved.failed and route(4, 0) in moved.observed and moved.writes == 1


async def test_waveshaper_changes_an_attenuation_in_place() -> None:
    shaper = Shaper()
    async with opened("waveshaper-http", shaper) as (device, _):
        await apply(device, add=frozenset({route(1, 0, db=3.0)}))
        outcome = await apply(
            device, frozenset({route(1, 0, db=3.0)}), frozenset({route(1, 0, db=4.5)})
        )
        assert not outcome.failed and outcome.observed == {route(1, 0, db=4.5)}
        # never dark
        assert all(
            any(band.port == 1 for band in wsp.bands(wsp.parse(text))) for text in shaper.uploads
        )


async def test_waveshaper_cuts_a_change_into_slices() -> None:
    shaper = Shaper()
    async with opened("waveshaper-http", shaper, slices="3") as (device, _):
        outcome = await apply(device, add=frozenset(route(1 + n % 4, 40 * n, 20) for n in range(6)))
        assert not outcome.failed and outcome.writes == 3
        assert [len(wsp.bands(wsp.parse(text))) for text in shaper.uploads] == [2, 4, 6]


async def test_waveshaper_result_is_in_rc_and_rules_are_kept_before_sending() -> None:
    shaper = Shaper()
    shaper.rc = [(-7, "invalid profile")]
    bad = {route(1, 0, 9), route(1, 290, 20), route(5, 0), route(1, 0, db=41.0)}
    async with opened("waveshaper-http", shaper) as (device, heard):
        outcome = await apply(device, add=frozenset(bad))
        assert outcome.failed.keys() == bad and not writes(heard)
        assert {text.split(" ", 1)[1][:12] for text in outcome.failed.values()} >= {"41.0 dB is n"}
        outcome = await apply(device, add=frozenset({route(1, 0)}))
        assert [*outcome.failed.values()] == ['refused "loadprofile": rc -7: invalid profile']
        clash = await apply(device, add=frozenset({route(1, 100), route(2, 120)}))
        ((_, text),) = clash.failed.items()
        assert "held by ocs1:in->1" in text


@pytest.mark.parametrize("body", ['{"rctext":"?"}', '{"rc":"x"}', "[]", "", "<html>ok</html>"])
async def test_waveshaper_answer_without_a_result_is_a_lost_answer(body: str) -> None:
    shaper = Shaper()

    def answers(request: Request) -> bytes:
        reported = shaper(request)
        return http(200, body) if request.method == "POST" else reported

    async with opened("waveshaper-http", answers) as (device, heard):
        outcome = await apply(device, add=frozenset({route(1, 0)}))
        assert not outcome.failed and outcome.observed == {route(1, 0)}
        assert len(writes(heard)) == 1  # done, as reading showed: not sent again


@pytest.mark.parametrize("port", ["5", "9"])
async def test_waveshaper_profile_beyond_its_own_ports_is_garbled(port: str) -> None:
    async with opened("waveshaper-http", Shaper(f"193.000\t0\t0\t{port}\n")) as (device, _):
        with pytest.raises(Garbled, match="beyond what devinfo says"):
            await device.read()
