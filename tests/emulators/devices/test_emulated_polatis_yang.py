"""Polatis over RESTCONF and NETCONF, as public clients know it, asserted on the glass. Referees:
httpx, curl, ncclient.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree
from ncclient import manager
from ncclient.operations import RPCError

from emulators.devices.dialects.netconf_framing import encode
from emulators.devices.families import device_from_config
from emulators.devices.server import Access
from tests.emulators.emulated import Device, Start, until

NETCONF = "urn:ietf:params:xml:ns:netconf:base:1.0"
OPTICAL = "http://www.polatis.com/yang/optical-switch"
SWITCH = "http://www.polatis.com/yang/polatis-switch"
DATA = "/api/data/optical-switch:"
CROSS = f"{DATA}cross-connects"
JSON = {"Accept": "application/yang-data+json"}


@pytest.fixture
async def rest(start: Start) -> Device:
    return await start("polatis-restconf", served={"scheme": "http"}, size="8x8")


@pytest.fixture
async def http(rest: Device) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(rest) as client:
        yield client


def client_of(device: Device, **headers: str) -> httpx.AsyncClient:
    url = f"http://127.0.0.1:{device.server.port}"
    return httpx.AsyncClient(
        base_url=url,
        auth=("admin", "root"),
        headers={**JSON, **headers},
        trust_env=False,
        timeout=3,
    )


def put(*pairs: tuple[int, int], name: str = "pair") -> dict[str, Any]:
    return {
        "optical-switch:cross-connects": {name: [{"ingress": i, "egress": e} for i, e in pairs]}
    }


def tag(answer: httpx.Response) -> str:
    found: str = answer.json()["ietf-restconf:errors"]["error"][0]["error-tag"]
    return found


# RESTCONF


async def test_a_put_of_the_collection_replaces_all_of_it_and_leaves_alone_what_stays(
    rest: Device, http: httpx.AsyncClient
) -> None:
    assert (await http.put(CROSS, json=put((1, 9), (2, 10)))).status_code == 204
    await rest.settle()
    since = rest.plant.since(("1", "9"))
    assert (await http.put(CROSS, json=put((1, 9), (3, 10)))).status_code == 204
    assert rest.plant.pairs() == (("1", "9"), ("3", "10")) and rest.plant.since(("1", "9")) == since
    assert all(("1", "9") in lit for _, lit in rest.light[1:])
    await rest.settle()
    assert rest.lit() == {("1", "9"), ("3", "10")}
    answer = await http.get(CROSS)
    assert (
        answer.json() == put((1, 9), (3, 10))
        and answer.headers["content-type"] == "application/yang-data+json"
    )


async def test_answers_are_chunked_tagged_and_end_the_connection(http: httpx.AsyncClient) -> None:
    answer = await http.get(f"{DATA}product-information")
    assert (
        answer.headers["connection"] == "close"
        and answer.headers["transfer-encoding"] == "chunked"
        and answer.headers["etag"]
    )
    assert list(answer.json()["optical-switch:product-information"]) == [
        "manufacturer", "serial-number", "model-name", "software-version",
    ]  # fmt: skip


async def test_one_pair_is_created_replaced_read_and_deleted(
    rest: Device, http: httpx.AsyncClient
) -> None:
    body = "<pair><ingress>1</ingress><egress>{}</egress></pair>"
    codes = [
        (await http.put(f"{CROSS}/pair=1", content=body.format(e))).status_code for e in (9, 10)
    ]
    assert codes == [201, 204] and rest.plant.pairs() == (("1", "10"),)
    assert (await http.get(f"{CROSS}/pair=1")).json() == {
        "optical-switch:pair": {"ingress": 1, "egress": 10}
    }
    assert (await http.get(f"{CROSS}/pair")).json() == {
        "optical-switch:pair": [{"ingress": 1, "egress": 10}]
    }
    codes = [(await http.delete(f"{CROSS}/pair=1")).status_code for _ in range(2)]
    assert codes == [204, 404] and rest.plant.pairs() == ()


async def test_an_empty_switch_shows_an_empty_collection_and_no_pair(
    http: httpx.AsyncClient,
) -> None:
    assert (await http.get(CROSS)).json() == put()
    in_xml = await http.get(CROSS, headers={"Accept": "application/yang-data+xml"})
    assert in_xml.status_code == 200 and len(etree.fromstring(in_xml.content)) == 0
    assert [
        (await http.get(path)).status_code for path in (f"{CROSS}/pair=1", f"{CROSS}/pair")
    ] == [204] * 2


async def test_firmware_may_answer_204_where_a_collection_is_empty(start: Start) -> None:
    device = await start("polatis-restconf", served={"scheme": "http"}, empty_204=True)
    async with client_of(device) as http:
        assert (await http.get(CROSS)).status_code == 204


async def test_the_root_of_restconf_is_found_where_its_standard_says(
    http: httpx.AsyncClient,
) -> None:
    found = await http.get("/.well-known/host-meta", headers={"Accept": "application/xrd+xml"})
    assert found.headers["content-type"] == "application/xrd+xml"
    (link,) = etree.fromstring(found.content)
    assert link.get("rel") == "restconf"
    assert set((await http.get(str(link.get("href")))).json()["ietf-restconf:restconf"]) == {
        "data",
        "operations",
        "yang-library-version",
    }


async def test_a_pair_is_shown_at_once_and_lit_when_the_mirrors_rest(start: Start) -> None:
    device = await start("polatis-restconf", served={"scheme": "http"}, settle_s=0.1)
    async with client_of(device) as http:
        assert (
            await http.post(CROSS, json={"optical-switch:pair": [{"ingress": 1, "egress": 17}]})
        ).status_code == 201
        assert (await http.get(CROSS)).json() == put((1, 17)) and device.lit() == set()
    await device.settle()
    assert device.lit() == {("1", "17")}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        (
            "POST",
            CROSS,
            {"optical-switch:pair": [{"ingress": 1, "egress": 12}]},
            409,
            "data-exists",
        ),
        ("POST", CROSS, {"optical-switch:pair": [{"ingress": 2, "egress": 9}]}, 409, "in-use"),
        ("PUT", f"{CROSS}/pair=2", {"pair": {"ingress": 2, "egress": 9}}, 409, "in-use"),
        ("PUT", f"{CROSS}/pair=2", {"pair": {"ingress": 3, "egress": 11}}, 400, "invalid-value"),
        ("PUT", f"{CROSS}/pair=2", {"pair": {"ingress": 2}}, 400, "missing-element"),
        ("PUT", CROSS, put((2, 10), (3, 10)), 409, "in-use"),
        ("PUT", CROSS, put((2, 10), (2, 11)), 409, "data-exists"),
        ("PUT", CROSS, put((2, 17)), 400, "invalid-value"),
        ("PUT", CROSS, put((9, 10)), 400, "invalid-value"),
        ("PUT", CROSS, put((1, 2)), 400, "invalid-value"),
        ("PUT", CROSS, put((2, 10), name="pairs"), 400, "unknown-element"),
        (
            "PUT",
            CROSS,
            {"optical-switch:cross-connects": {"pair": [{"ingress": True, "egress": 10}]}},
            400,
            "malformed-message",
        ),
        ("PUT", CROSS, {"optical-switch:cross-connects": {"pair": [5]}}, 400, "malformed-message"),
        (
            "PUT",
            CROSS,
            {"optical-switch:cross-connects": {"pair": [{"egress": 10}]}},
            400,
            "missing-element",
        ),
        ("PUT", CROSS, {"a": 1, "b": 2}, 400, "malformed-message"),
        ("PUT", CROSS, [], 400, "malformed-message"),
        (
            "POST",
            CROSS,
            {"pair": [{"ingress": 2, "egress": 10}, {"ingress": 3, "egress": 11}]},
            400,
            "malformed-message",
        ),
        ("PATCH", f"{CROSS}/pair=5", {"pair": {"egress": 10}}, 404, "invalid-value"),
        ("POST", f"{CROSS}/pair=5", {"pair": {"egress": 10}}, 405, "operation-not-supported"),
        ("PUT", f"{DATA}opm-power", {"opm-power": {}}, 405, "operation-not-supported"),
        ("GET", "/api/data/polatis-switch:cross-connects", None, 404, "invalid-value"),
        ("GET", f"{DATA}aps", None, 404, "invalid-value"),
        ("GET", "/", None, 404, "invalid-value"),
        (
            "PUT",
            f"{DATA}port-config/port=1",
            {"port": {"port-id": 1, "status": "BURNING"}},
            400,
            "invalid-value",
        ),
        (
            "PATCH",
            f"{DATA}voa/port=1",
            {"port": {"atten-mode": "VOA_MODE_NONE"}},
            404,
            "invalid-value",
        ),
        (
            "PATCH",
            f"{DATA}voa/port=9",
            {"port": {"atten-mode": "VOA_MODE_ABSOLUTE"}},
            400,
            "invalid-value",
        ),
    ],
)
async def test_what_cannot_be_is_refused_whole(
    start: Start, method: str, path: str, body: Any, status: int, message: str
) -> None:
    device = await start("polatis-restconf", served={"scheme": "http"}, size="8x8", preset=[[1, 9]])
    async with client_of(device) as http:
        answer = await http.request(method, path, json=body)
    assert (answer.status_code, tag(answer)) == (status, message)
    assert device.plant.pairs() == (("1", "9"),) and not device.plant.violations


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"<",
        b"<a/>",
        b'"x"',
        b"[" * 60_000,
        b"<a>" * 5000,
        b"\xff\xfe",
        b"<!DOCTYPE a []><a/>",
    ],
)
async def test_a_body_that_is_none_changes_nothing(
    rest: Device, http: httpx.AsyncClient, body: bytes
) -> None:
    for method in ("PUT", "POST", "PATCH"):
        assert (await http.request(method, CROSS, content=body)).status_code == 400
    assert rest.plant.pairs() == ()


async def test_a_change_on_an_old_state_is_refused_by_its_tag(
    rest: Device, http: httpx.AsyncClient
) -> None:
    first = (await http.put(CROSS, json=put((1, 9)))).headers["etag"]
    assert (await http.get(CROSS, headers={"If-None-Match": first})).status_code == 304
    assert (
        await http.put(CROSS, json=put((1, 10)), headers={"If-Match": first})
    ).status_code == 204
    late = await http.put(CROSS, json=put((1, 11)), headers={"If-Match": first})
    assert (late.status_code, tag(late)) == (412, "operation-failed") and rest.plant.pairs() == (
        ("1", "10"),
    )
    assert (await http.get(CROSS, headers={"If-None-Match": first})).status_code == 200


async def test_without_accept_it_speaks_xml_and_logins_are_asked_for(
    rest: Device, http: httpx.AsyncClient
) -> None:
    await http.put(CROSS, json=put((1, 9)))
    url = f"http://127.0.0.1:{rest.server.port}{CROSS}"
    curl = await asyncio.create_subprocess_exec(
        "curl", "-sS", "-u", "admin:root", url, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await curl.communicate()
    assert etree.fromstring(out).findtext(f"{{{OPTICAL}}}pair/{{{OPTICAL}}}egress") == "9"
    async with httpx.AsyncClient(trust_env=False) as stranger:
        assert (
            (await stranger.get(url)).status_code
            == (await stranger.get(url, auth=("admin", "toor"))).status_code
            == 401
        )


async def test_an_older_module_has_pairs(start: Start) -> None:
    device = await start(
        "polatis-restconf", served={"scheme": "http"}, size="8x8", revision="2017-04-10"
    )
    async with client_of(device) as http:
        assert (await http.put(CROSS, json=put((1, 9), name="pair"))).status_code == 400
        assert (await http.put(CROSS, json=put((1, 9), name="pairs"))).status_code == 204
        assert (await http.get(f"{CROSS}/pairs=1")).status_code == 200 and (
            await http.get(f"{CROSS}/pair=1")
        ).status_code == 404
    assert device.plant.pairs() == (("1", "9"),)


async def test_what_was_posted_may_be_lost_and_what_was_put_is_not(start: Start) -> None:
    device = await start(
        "polatis-restconf", served={"scheme": "http"}, size="8x8", post_lost_s=0.1, settle_s=0.01
    )
    async with client_of(device) as http:
        before = (await http.put(CROSS, json=put((1, 9)))).headers["etag"]
        for ingress, egress in ((2, 10), (3, 11)):
            assert (
                await http.post(CROSS, json={"pair": {"ingress": ingress, "egress": egress}})
            ).status_code == 201
        assert (await http.put(CROSS, json=put((1, 9), (2, 10), (3, 11)))).status_code == 204
        assert (
            await http.post(CROSS, json={"pair": {"ingress": 4, "egress": 12}})
        ).status_code == 201
        await until(lambda: ("4", "12") in device.lit())
        await until(lambda: device.lit() == {("1", "9"), ("2", "10"), ("3", "11")})
        assert (await http.get(CROSS)).headers["etag"] != before


async def test_labels_shutters_power_and_attenuators(start: Start) -> None:
    device = await start("polatis-restconf", served={"scheme": "http"}, size="8x8", preset=[[1, 9]])
    async with client_of(device) as http:
        label = {"port": {"label": "gpu01", "peer-port": "x"}}
        assert (await http.patch(f"{DATA}port-config/port=1", json=label)).status_code == 204
        shown = (await http.get(f"{DATA}port-config/port=1")).json()["optical-switch:port"]
        assert shown == {"port-id": 1, "status": "ENABLED", "label": "gpu01", "peer-port": "x"}

        async def power(port: int) -> float:
            answer = (await http.get(f"{DATA}opm-power/port={port}")).json()["optical-switch:port"]
            return float(answer["power"])

        before = await power(9)
        level = {"port": {"atten-mode": "VOA_MODE_RELATIVE", "atten-level": "6.00"}}
        assert (await http.patch(f"{DATA}voa/port=9", json=level)).status_code == 204
        assert -7 < await power(9) - before < -5
        assert (await http.get("/api/data/polatis-switch:voa/port=9")).json()[
            "optical-switch:port"
        ]["atten-level"] == "6.00"
        target = {"port": {"atten-mode": "VOA_MODE_ABSOLUTE", "atten-level": "-12.5"}}
        assert (await http.patch(f"{DATA}voa/port=9", json=target)).status_code == 204
        assert -14 < await power(9) < -11
        assert (await http.delete(f"{DATA}voa")).status_code == 204
        assert abs(await power(9) - before) < 0.5
        shut = {"input": {"port-disab": 1}}
        assert (
            await http.post("/api/operations/optical-switch:port-set-state", json=shut)
        ).status_code == 204
        assert device.lit() == set() and await power(9) < -40
        assert (await http.get(f"{DATA}port-config/port=1")).json()["optical-switch:port"][
            "status"
        ] == "DISABLED"
        opened = {"port": {"status": "ENABLED"}}
        assert (await http.patch(f"{DATA}port-config/port=1", json=opened)).status_code == 204
        await device.settle()
        assert device.lit() == {("1", "9")}
        device.server.add_fault("failed-port", port="2")
        assert (await http.get(f"{DATA}port-config/port=2")).json()["optical-switch:port"][
            "status"
        ] == "FAILED"
        assert (await http.put(f"{CROSS}/pair=2", json={"pair": {"egress": 10}})).status_code == 409


@pytest.mark.parametrize(
    ("model", "metered"),
    [("I-OST-8x8-LU1-DMHNS", 0), ("N-VST-8x8-LA1-DMHNV-701", 8), ("N-VST-8x8-LA1-DMHNV-801", 16)],
)
async def test_which_ports_have_meters_follows_from_the_model(
    start: Start, model: str, metered: int
) -> None:
    device = await start("polatis-restconf", served={"scheme": "http"}, size="8x8", model=model)
    async with client_of(device) as http:
        answer = await http.get(f"{DATA}opm-power")
    assert len(answer.json()["optical-switch:opm-power"]["port"]) == metered


@pytest.mark.parametrize(
    ("kind", "fields"),
    [("stuck-port", {}), ("port-locked", {"user": "bench2"}), ("failed-port", {})],
)
async def test_a_port_that_cannot_be_moved_keeps_the_whole_change_from_happening(
    rest: Device, http: httpx.AsyncClient, kind: str, fields: dict[str, Any]
) -> None:
    await http.put(CROSS, json=put((1, 9)))
    rest.server.add_fault(kind, port="10", **fields)
    answer = await http.put(CROSS, json=put((2, 10), (3, 11)))
    assert answer.status_code == 409 and rest.plant.pairs() == (("1", "9"),)


async def test_bulk_faults_and_silent_failures_reach_it(
    rest: Device, http: httpx.AsyncClient
) -> None:
    rest.server.add_fault("partial-bulk", match="^PUT", count=1)
    assert (await http.put(CROSS, json=put((1, 9), (2, 10), (3, 11)))).status_code == 204
    assert 0 < len(rest.plant.pairs()) < 3
    await http.delete(CROSS)
    rest.server.add_fault("silent-failure", on="write", count=1)
    assert (await http.put(CROSS, json=put((1, 9)))).status_code == 204 and rest.plant.pairs() == ()
    rest.server.add_fault("stale-read", on="read", seconds=60)
    await http.put(CROSS, json=put((1, 9)))
    assert (await http.get(CROSS)).json() == put()
    assert rest.plant.writes == 4


@pytest.mark.parametrize(("mode", "keep", "after"), [("AUTOSAVE", True, {("1", "9"), ("2", "10")}), ("RESTORE", True, {("1", "9")}),
                                                     ("DARK", True, set()), ("AUTOSAVE", False, set())])  # fmt: skip
async def test_what_survives_a_power_cycle(
    start: Start, mode: str, keep: bool, after: set[tuple[str, str]]
) -> None:
    device = await start(
        "polatis-restconf",
        served={"scheme": "http"},
        size="8x8",
        preset=[[1, 9]],
        boot_mode=mode,
        boot_s=0.02,
    )
    async with client_of(device) as http:
        await http.put(f"{CROSS}/pair=2", json={"pair": {"egress": 10}})
    device.server.add_fault("reboot-keep" if keep else "reboot-lose")
    assert device.lit() == set()
    await asyncio.sleep(0.05)
    await until(lambda: device.lit() == after)


BODY = st.one_of(
    st.binary(max_size=60),
    st.recursive(st.none() | st.booleans() | st.integers(0, 20) | st.text(max_size=5),
                 lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                     st.sampled_from(["pair", "optical-switch:pair", "optical-switch:cross-connects", "ingress", "egress", "port"]),
                     inner, max_size=3), max_leaves=8).map(lambda value: json.dumps(value).encode()),
)  # fmt: skip
PATHS = st.sampled_from(
    [
        CROSS,
        f"{CROSS}/pair=1",
        f"{CROSS}/pair",
        f"{DATA}port-config/port=2",
        f"{DATA}voa/port=4",
        f"{DATA}opm-config",
    ]
)


@given(
    asked=st.lists(
        st.tuples(st.sampled_from(["PUT", "POST", "PATCH", "DELETE", "GET"]), PATHS, BODY),
        max_size=6,
    )
)
@settings(deadline=None)
def test_no_request_upsets_it_and_what_it_shows_is_its_glass(
    asked: list[tuple[str, str, bytes]],
) -> None:
    plant, dialect = device_from_config(
        "ocs1", "polatis-restconf", {"size": "3x3", "keep_alive": True, "username": None}
    )
    session = dialect.open(0.0)
    assert session is not None
    head = "{} {} HTTP/1.1\r\nHost: x\r\nAccept: application/yang-data+{}\r\nContent-Length: {}\r\n\r\n"
    for method, path, body in [*asked, ("GET", CROSS, b"")]:
        kind = "xml" if len(body) % 2 else "json"
        dialect.receive(session, head.format(method, path, kind, len(body)).encode() + body, 1.0)
    lines = [data for _, _, data in dialect.drain() if data]
    assert len(lines) == len(asked) + 1 and all(200 <= int(data[9:12]) < 500 for data in lines)
    shown = (
        json.loads(lines[-1].split(b"\r\n")[-4])["optical-switch:cross-connects"]["pair"]
        if lines[-1][9:12] == b"200"
        else []
    )
    assert {(str(row["ingress"]), str(row["egress"])) for row in shown} == set(plant.pairs())
    assert len({e for _, e in plant.pairs()}) == len(plant.pairs())


# NETCONF


@pytest.fixture
async def nc(start: Start) -> Device:
    return await start(
        "polatis-netconf",
        served={"scheme": "netconf", "access": Access("admin", "root")},
        size="8x8",
    )


async def with_ncclient(device: Device, do: Callable[[Any], None]) -> None:
    def run() -> None:
        where = {
            "host": "127.0.0.1",
            "port": device.server.port,
            "username": "admin",
            "password": "root",
        }
        with manager.connect(
            **where, hostkey_verify=False, allow_agent=False, look_for_keys=False, timeout=5
        ) as m:
            do(m)

    await asyncio.to_thread(run)


def config(inside: str) -> str:
    return f'<nc:config xmlns:nc="{NETCONF}"><cross-connects xmlns="{OPTICAL}">{inside}</cross-connects></nc:config>'


def pair(ingress: int, egress: int, name: str = "pair", how: str = "") -> str:
    return f"<{name}{how}><ingress>{ingress}</ingress><egress>{egress}</egress></{name}>"


def seen(m: Any, name: str = "pair") -> list[tuple[str, str]]:
    """As public scripts ask."""
    wanted = (
        f'<cross-connects xmlns="{OPTICAL}"><{name}><ingress/><egress/></{name}></cross-connects>'
    )
    found = m.get(filter=("subtree", wanted)).data_ele.iter(f"{{{OPTICAL}}}{name}")
    return [
        (row.findtext(f"{{{OPTICAL}}}ingress"), row.findtext(f"{{{OPTICAL}}}egress"))
        for row in found
    ]


async def test_public_clients_edits_and_filters_work_over_netconf(nc: Device) -> None:
    def do(m: Any) -> None:
        assert m.edit_config(
            target="running", config=config(pair(1, 9) + pair(2, 10, how=' operation="merge"'))
        ).ok
        assert seen(m) == [("1", "9"), ("2", "10")]
        assert m.edit_config(target="running", config=config(pair(2, 11))).ok
        assert m.edit_config(
            target="running",
            config=config('<pair nc:operation="delete"><ingress>1</ingress></pair>'),
        ).ok
        assert seen(m) == [("2", "11")]
        with pytest.raises(RPCError) as no:
            m.edit_config(
                target="running",
                config=config('<pair nc:operation="delete"><ingress>1</ingress></pair>'),
            )
        assert no.value.tag == "data-missing"
        with pytest.raises(RPCError) as no:
            m.edit_config(target="running", config=config(pair(3, 12) + pair(4, 11)))
        assert (no.value.tag, no.value.app_tag) == ("in-use", "data-not-unique")
        assert seen(m) == [("2", "11")]
        for what in ("port-disab", "port-enab"):
            m.dispatch(
                etree.fromstring(
                    f'<port-set-state xmlns="{OPTICAL}"><{what}>2</{what}></port-set-state>'
                )
            )
            wanted = f'<port-config xmlns="{OPTICAL}"><port><port-id>2</port-id><status/></port></port-config>'
            assert m.get(filter=("subtree", wanted)).data_ele[0][0][1].text == (
                "DISABLED" if what == "port-disab" else "ENABLED"
            )
        m.dispatch(
            etree.fromstring(
                f'<port-shutter-set-state xmlns="{SWITCH}"><port-enab>3</port-enab></port-shutter-set-state>'
            )
        )
        wanted = (
            f'<opm-power xmlns="{OPTICAL}"><port><port-id>11</port-id><power/></port></opm-power>'
        )
        assert -60 <= float(m.get(filter=("subtree", wanted)).data_ele[0][0][1].text) < 0
        product = m.get(filter=("subtree", f'<product-information xmlns="{OPTICAL}"/>')).data_ele
        assert [leaf.text for leaf in product[0]][:2] == ["Polatis", "2000"]
        with pytest.raises(RPCError) as no:
            m.dispatch(
                etree.fromstring(
                    f'<port-set-state xmlns="{OPTICAL}"><port-enab>99</port-enab></port-set-state>'
                )
            )
        assert no.value.tag == "invalid-value"

    await with_ncclient(nc, do)
    assert nc.plant.pairs() == (("2", "11"),)
    await nc.settle()
    assert nc.lit() == {("2", "11")}


async def test_the_container_is_deleted_whole_and_attenuators_are_set(nc: Device) -> None:
    def do(m: Any) -> None:
        m.edit_config(target="running", config=config(pair(1, 9) + pair(2, 10)))
        level = f'<voa xmlns="{OPTICAL}"><port><port-id>9</port-id><atten-mode>VOA_MODE_MAXIMUM</atten-mode></port></voa>'
        m.edit_config(
            target="running", config=f'<nc:config xmlns:nc="{NETCONF}">{level}</nc:config>'
        )
        assert (
            m.get_config("running", filter=("subtree", f'<voa xmlns="{OPTICAL}"/>'))
            .data_ele[0][0][1]
            .text
            == "VOA_MODE_MAXIMUM"
        )

    await with_ncclient(nc, do)
    await until(lambda: nc.lit() == {("2", "10")})
    everything = f'<nc:config xmlns:nc="{NETCONF}"><cross-connects xmlns="{OPTICAL}" nc:operation="delete"/></nc:config>'
    await with_ncclient(nc, lambda m: m.edit_config(target="running", config=everything))
    assert nc.plant.pairs() == () and nc.plant.writes == 3


@pytest.mark.parametrize(
    ("revision", "name"), [("2017-08-04", "pair"), ("2017-08-03", "pairs"), ("2019-01-01", "pair")]
)
async def test_the_capability_tells_the_revision_and_so_the_name_of_the_list(
    start: Start, revision: str, name: str
) -> None:
    served = {"scheme": "netconf", "access": Access("admin", "root")}
    device = await start(
        "polatis-netconf", served=served, size="8x8", revision=revision, base_1_1=False
    )

    def do(m: Any) -> None:
        assert f"{OPTICAL}?module=optical-switch&revision={revision}" in list(m.server_capabilities)
        m.edit_config(target="running", config=config(pair(1, 9, name)))
        assert seen(m, name) == [("1", "9")]

    await with_ncclient(device, do)


async def test_a_large_switch_answers_netconf_without_holding_up_light() -> None:
    """Only the tables asked about are written out."""
    plant, dialect = device_from_config("ocs1", "polatis-netconf", {"size": "320x320"})
    session = dialect.open(0.0)
    hello = f'<hello xmlns="{NETCONF}"><capabilities><capability>urn:ietf:params:netconf:base:1.0</capability></capabilities></hello>'
    dialect.receive(session, encode(hello.encode(), False), 1.0)
    everything = "".join(pair(k, 320 + k) for k in range(1, 321))
    inside = f"<edit-config><target><running/></target>{config(everything).replace('nc:', '')}</edit-config>"
    dialect.receive(
        session,
        encode(f'<rpc xmlns="{NETCONF}" message-id="1">{inside}</rpc>'.encode(), False),
        1.0,
    )
    *_, (_, _, reported) = dialect.drain()
    assert reported and b"<ok/>" in reported and len(plant.pairs()) == 320


async def test_an_authorised_script_may_send_its_password_with_the_first_request(
    rest: Device,
) -> None:
    client = await rest.connect()
    word = base64.b64encode(b"admin:root").decode()
    client.send(f"GET /api HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {word}\r\n\r\n")
    assert (await client.ended()).startswith(b"HTTP/1.1 200 OK\r\n")
