"""Calient over REST, as public clients know it: on sockets, asserted on the glass. Referees: httpx,
http.client, curl.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulators.devices.families import device_from_config
from tests.emulators.emulated import Device, Start, until

CROSS = "/rest/crossconnects/"
FORWARD, BACK = ("1.1.1", "1.1.2"), ("1.1.2", "1.1.1")
DETAIL = {  # NTT RENAT, a comment in its optic switch module: the members of a port
    "outoc", "outopwdh", "inos", "outalias", "inowner", "outopwct", "inpower", "inas", "outpower", "outas", "inopt", "inopth",
    "incircuit", "inalias", "inoc", "inoptc", "outos", "port", "outowner", "outcircuit",
}  # fmt: skip


def client_of(device: Device, **how: Any) -> httpx.AsyncClient:
    how = {"auth": ("admin", "emulated"), **how}
    return httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{device.server.port}", trust_env=False, timeout=3, **how
    )


@pytest.fixture
async def switch(start: Start) -> Device:
    return await start("calient-rest", served={"scheme": "http"}, size="8x8")


@pytest.fixture
async def rest(switch: Device) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(switch) as client:
        yield client


async def ask(client: httpx.AsyncClient, method: str, what: str, body: Any = None) -> Any:
    answer = await client.request(method, CROSS + what, **({} if body is None else {"json": body}))
    assert answer.status_code == 200
    return answer.json()


async def test_a_connection_is_added_lights_up_and_is_deleted(
    switch: Device, rest: httpx.AsyncClient
) -> None:
    (reply,) = await ask(
        rest, "POST", "?id=add", {"in": "1.1.1", "out": "1.1.2", "dir": "bi", "group": "SYSTEM"}
    )
    assert set(reply) == {"status", "msg", "description"} and reply["status"] == "1"
    assert switch.lit() == set()
    await switch.settle()
    assert switch.lit() == {FORWARD, BACK}
    (row,) = await ask(rest, "GET", "?id=list")
    assert (row["name"], row["connid"], row["dir"]) == ("1.1.1-1.1.2", "1.1.1-1.1.2", "bi")
    assert row["half1"]["conn"] == "1.1.1>1.1.2" and row["half2"]["conn"] == "1.1.2>1.1.1"
    assert all(
        isinstance(value, str) for half in ("half1", "half2") for value in row[half].values()
    )
    (reply,) = await ask(
        rest, "DELETE", "?id=delete&conn=1.1.1-1.1.2&group=SYSTEM&name=1.1.1-1.1.2"
    )
    assert (
        reply["status"] == "1"
        and switch.lit() == set()
        and await ask(rest, "GET", "?id=list") == []
    )


async def test_public_clients_way_of_one_way_connections_by_form_and_delete_without_id(
    switch: Device,
) -> None:
    """As NTT RENAT does: two one-way connections, requested by a form; deleted by the name found in
    the port.
    """
    async with client_of(switch) as client:
        for source, target in (FORWARD, BACK):
            (reply,) = (
                await client.post(
                    CROSS, data={"id": "add", "in": source, "out": target, "dir": "uni"}
                )
            ).json()
            assert reply["status"] == "1"
        (port,) = (await client.get("/rest/ports/?id=detail&port=1.1.1")).json()
        assert (port["incircuit"], port["outcircuit"]) == ("1.1.1>1.1.2", "1.1.2>1.1.1")
        (row, _) = (await client.get(CROSS + "?id=list")).json()
        assert row["dir"] == "uni" and "half2" not in row

        def delete() -> Any:
            connection = http.client.HTTPConnection("127.0.0.1", switch.server.port, timeout=3)
            cookie = f"JSESSIONID={client.cookies['JSESSIONID']}"
            connection.request(
                "DELETE", f"{CROSS}?conn={port['incircuit']}", headers={"Cookie": cookie}
            )
            answer = json.loads(connection.getresponse().read())
            connection.close()
            return answer

        assert (await asyncio.to_thread(delete))[0]["status"] == "1"
    assert switch.plant.pairs() == (BACK,)


async def test_the_members_of_a_port_are_all_text(switch: Device, rest: httpx.AsyncClient) -> None:
    (port,) = (await rest.get("/rest/ports/?id=detail&port=1.1.3")).json()
    assert set(port) == DETAIL and all(isinstance(value, str) for value in port.values())
    assert (port["incircuit"], port["inowner"], port["inpower"][-2]) == ("", "NONE", ".")
    ports = (await rest.get("/rest/ports/?id=summary")).json()
    assert [row["port"] for row in ports] == [f"1.1.{k}" for k in range(1, 9)]


async def test_every_item_of_a_batch_has_its_own_verdict_inside_a_200(
    switch: Device, rest: httpx.AsyncClient
) -> None:
    items = [
        {"in": "1.1.1", "out": "1.1.2", "dir": "bi"},
        {"in": "1.1.1", "out": "1.1.3", "dir": "uni"},
        {"in": "9.9.9", "out": "1.1.3", "dir": "uni"},
        {"in": "1.1.3", "out": "1.1.3", "dir": "bi"},
        {"in": "1.1.3", "out": "1.1.4", "dir": "sideways"},
        "x",
        {"in": "1.1.5", "out": "1.1.6", "dir": "uni"},
    ]
    reply = await ask(rest, "POST", "?id=badd", items)
    assert [item["response"]["status"] for item in reply] == ["1", "0", "0", "0", "0", "0", "1"]
    assert "1.1.1-1.1.2" in reply[1]["response"]["description"]
    assert set(switch.plant.pairs()) == {FORWARD, BACK, ("1.1.5", "1.1.6")}
    assert len(switch.plant.violations) == 1
    reply = await ask(
        rest,
        "POST",
        "?id=bdel",
        [{"conn": "1.1.1-1.1.2"}, {"conn": "1.1.1-1.1.2"}, {"conn": "1.1.5>1.1.6"}],
    )
    assert [item["response"]["status"] for item in reply] == ["1", "0", "1"]
    assert switch.plant.pairs() == ()


async def test_a_batch_moves_as_one_set(start: Start) -> None:
    device = await start(
        "calient-rest", served={"scheme": "http"}, size="8x8", settle_s=0.02, bulk_settle_s=0.1
    )
    async with client_of(device) as client:
        await ask(
            client,
            "POST",
            "?id=badd",
            [{"in": f"1.1.{k}", "out": f"1.1.{k}", "dir": "uni"} for k in range(1, 7)],
        )
    await until(lambda: len(device.lit()) == 6)
    made = {event.at_s for event in device.plant.history if event.what == "making"}
    lit = {event.at_s for event in device.plant.history if event.what == "lit"}
    assert len(made) == len(lit) == 1 and abs(lit.pop() - made.pop() - 0.1) < 1e-6


async def test_a_connection_is_put_aside_and_taken_up_again(
    switch: Device, rest: httpx.AsyncClient
) -> None:
    await ask(rest, "POST", "?id=add", {"in": "1.1.1", "out": "1.1.2", "dir": "bi", "conn": "mine"})
    await switch.settle()
    for status, operation, lit in (
        ("1", "deactivate", 0),
        ("0", "deactivate", 0),
        ("1", "activate", 2),
        ("0", "activate", 2),
    ):
        (reply,) = await ask(rest, "POST", f"?id={operation}&conn=mine&group=SYSTEM&name=mine")
        await switch.settle()
        assert (reply["status"], len(switch.lit())) == (status, lit)
        (row,) = await ask(rest, "GET", "?id=detail&conn=mine")
        assert row["half1"]["as"] == ("UMA" if not lit else "IS")
    (reply,) = await ask(rest, "POST", "?id=add", {"in": "1.1.3", "out": "1.1.2", "dir": "uni"})
    assert reply["status"] == "0"


async def test_everything_is_deleted_at_once(switch: Device, rest: httpx.AsyncClient) -> None:
    await ask(
        rest, "POST", "?id=badd", [{"in": "1.1.1", "out": "1.1.2"}, {"in": "1.1.3", "out": "1.1.4"}]
    )
    assert len(switch.plant.pairs()) == 4
    (reply,) = await ask(rest, "POST", "?id=deleteall", {})
    assert reply["status"] == "1" and switch.plant.pairs() == ()


async def test_a_cookie_does_instead_of_a_password_and_is_gone_after_a_reboot(start: Start) -> None:
    device = await start("calient-rest", served={"scheme": "http"}, boot_s=0.02)
    async with client_of(device, auth=None) as stranger:
        assert (await stranger.get(CROSS + "?id=list")).status_code == 401
        stranger.cookies.set("JSESSIONID", "0" * 32)
        assert (await stranger.get(CROSS + "?id=list")).status_code == 401
    async with client_of(device) as client:
        assert (await client.get(CROSS + "?id=list")).status_code == 200
        cookies = dict(client.cookies)
    async with client_of(device, auth=None, cookies=cookies) as known:
        answer = await known.get(CROSS + "?id=list")
        assert answer.status_code == 200 and "set-cookie" not in answer.headers
        device.server.add_fault("reboot-keep")
        await asyncio.sleep(0.05)
        assert (await known.get(CROSS + "?id=list")).status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/rest/nothing/?id=list", 404),
        ("PUT", "/rest/crossconnects/?id=add", 405),
        ("POST", "/rest/info/?id=restversion", 405),
        ("GET", "/rest/crossconnects/?id=explode", 200),
        ("GET", "/rest/crossconnects/", 200),
        ("GET", "/rest/ports/?id=detail&port=9.9.9", 200),
        ("POST", "/rest/crossconnects/?id=badd", 200),
    ],
)
async def test_what_is_no_operation_is_no_success(
    rest: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    answer = await rest.request(method, path)
    assert answer.status_code == status
    if status == 200:
        (reply,) = answer.json()
        assert reply["status"] == "0" and reply["msg"]


async def test_identity_is_where_public_inventories_look_for_it(rest: httpx.AsyncClient) -> None:
    lines = [(await rest.get(f"/rest/{what}")).json() for what in (
        "info/?id=softwareversion", "info/?id=restversion", "node/?id=summary&detail=SOFTWARE",
        "node/?id=summary&detail=HARDWARE", "node/?id=summary&detail=SYSCFG",
    )]  # fmt: skip
    assert lines[0]["version"] == lines[2][0]["version"] == "6.0-3" and lines[1]["version"]
    assert (
        lines[3]["nodeSysConfigInfo"]
        == lines[4]
        == {"serialnumber": "C00002227", "partnumber": "S320"}
    )
    assert (await rest.get("/api/swagger.json")).json()["basePath"] == "/rest"


async def test_slow_answers_and_users_who_may_only_look(start: Start) -> None:
    device = await start("calient-rest", served={"scheme": "http"}, answer_s=0.15, read_only=True)
    async with client_of(device) as client:
        began = asyncio.get_running_loop().time()
        (reply,) = await ask(client, "POST", "?id=add", {"in": "1.1.1", "out": "1.1.2"})
        assert asyncio.get_running_loop().time() - began >= 0.15
    assert reply["status"] == "0" and "denied" in reply["msg"] and device.plant.writes == 0


async def test_ports_get_aliases_and_go_out_of_service(
    switch: Device, rest: httpx.AsyncClient
) -> None:
    await ask(rest, "POST", "?id=add", {"in": "1.1.1", "out": "1.1.2", "dir": "uni"})
    await switch.settle()
    body = {"port": "1.1.1", "inalias": "gpu01", "inas": "OOS"}
    (reply,) = (await rest.post("/rest/ports/?id=config", json=body)).json()
    (port,) = (await rest.get("/rest/ports/?id=detail&port=1.1.1")).json()
    assert (reply["status"], port["inalias"], port["inas"]) == (
        "1",
        "gpu01",
        "OOS",
    ) and switch.lit() == set()
    (row,) = await ask(rest, "GET", "?id=list")
    assert row["half1"]["oc"] == "FAIL" and row["half1"]["alarm"] == "CR"


async def test_faults_reach_it(switch: Device, rest: httpx.AsyncClient) -> None:
    items = [{"in": f"1.1.{k}", "out": f"1.1.{k}", "dir": "uni"} for k in range(1, 5)]
    switch.server.add_fault("partial-bulk", match="badd", count=1)
    reply = await ask(rest, "POST", "?id=badd", items)
    done = [item["response"]["status"] for item in reply].count("1")
    assert 0 < done < 4 and len(switch.plant.pairs()) == done
    await ask(rest, "POST", "?id=deleteall")
    for kind, made in (("refuse", 0), ("silent-failure", 0), ("half-duplex", 1)):
        switch.server.add_fault(kind, match="id=add", count=1)
        (one,) = await ask(rest, "POST", "?id=add", {"in": "1.1.1", "out": "1.1.2", "dir": "bi"})
        assert (one["status"], len(switch.plant.pairs())) == (
            "0" if kind == "refuse" else "1",
            made,
        ), kind
    switch.server.add_fault("stuck-port", port="1.1.1")
    (one,) = await ask(rest, "DELETE", "?id=delete&conn=1.1.1-1.1.2")
    assert one["status"] == "0" and len(switch.plant.pairs()) == 1
    switch.server.add_fault("port-locked", port="1.1.7", user="bench2")
    (one,) = await ask(rest, "POST", "?id=add", {"in": "1.1.7", "out": "1.1.8", "dir": "uni"})
    assert one["status"] == "0" and "bench2" in one["description"]


@pytest.mark.parametrize(("keep", "after"), [(True, {FORWARD, BACK}), (False, set())])
async def test_what_survives_a_power_cycle(
    start: Start, keep: bool, after: set[tuple[str, str]]
) -> None:
    device = await start(
        "calient-rest", served={"scheme": "http"}, preset=[list(FORWARD)], boot_s=0.02
    )
    device.server.add_fault("reboot-keep" if keep else "reboot-lose")
    assert device.lit() == set()
    await asyncio.sleep(0.05)
    await until(lambda: device.lit() == after)


@pytest.mark.parametrize(
    ("preset", "message"),
    [
        ([["1.1.1", "1.1.2"], ["1.1.2", "1.1.3"]], "cannot be"),
        ([{"in": "1.1.1", "to": "1.1.2"}], "wanted"),
        ([{"in": "1.1.1", "out": "1.1.2", "dir": "up"}], "cannot be"),
        ([["1.1.1", "9.9.9"]], "no out port 9.9.9"),
    ],
)
def test_a_preset_that_cannot_be_is_refused(preset: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        device_from_config("ocs1", "calient-rest", {"preset": preset})


AID = st.sampled_from(["1.1.1", "1.1.2", "1.1.3", "9.9.9", ""])
DIRECTION = st.sampled_from(["bi", "uni", "x"])
ITEM = st.one_of(
    st.fixed_dictionaries(
        {"in": AID, "out": AID}, optional={"dir": DIRECTION, "conn": st.text(max_size=3)}
    ),
    st.builds(
        lambda a, b, direction: {"conn": f"{a}{direction}{b}"}, AID, AID, st.sampled_from("->")
    ),
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=2),
        max_leaves=3,
    ),
)
BODY = st.one_of(
    st.binary(max_size=30),
    st.one_of(ITEM, st.lists(ITEM, max_size=4)).map(lambda value: json.dumps(value).encode()),
)
OPERATIONS = (
    "add",
    "badd",
    "bdel",
    "delete",
    "activate",
    "deactivate",
    "deleteall",
    "list",
    "config",
    "",
)


@given(
    asked=st.lists(
        st.tuples(st.sampled_from(["POST", "DELETE", "GET"]), st.sampled_from(OPERATIONS), BODY),
        max_size=8,
    )
)
@settings(deadline=None)
def test_no_request_upsets_it_and_its_rows_are_its_glass(
    asked: list[tuple[str, str, bytes]],
) -> None:
    plant, dialect = device_from_config("ocs1", "calient-rest", {"size": "4x4", "username": None})
    session = dialect.open(0.0)
    assert session is not None
    head = "{} /rest/crossconnects/?id={} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n"
    for step, (method, operation, body) in enumerate([*asked, ("GET", "list", b"")]):
        dialect.receive(
            session, head.format(method, operation, len(body)).encode() + body, 1.0 + step
        )
    lines = [data for _, _, data in dialect.drain() if data]
    assert len(lines) == len(asked) + 1 and all(data[9:12] in (b"200", b"405") for data in lines)
    halves = [
        row[half]
        for row in json.loads(lines[-1].partition(b"\r\n\r\n")[2])
        for half in ("half1", "half2")
        if half in row
    ]
    active = {tuple(half["conn"].split(">")) for half in halves if half["state"] == "ACTIVE"}
    assert active == set(plant.pairs())
