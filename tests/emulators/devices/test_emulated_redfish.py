"""The emulated BMC by a client of its own: resources, login, and the refusals of real ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from emulators.devices.dialects.redfish import Redfish
from emulators.devices.server import DeviceServer
from emulators.optics.plant import Plant
from tests.kit.managed import Computer

RESET = "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset"


@asynccontextmanager
async def served(
    computer: Computer, password: str = "emulated"
) -> AsyncIterator[httpx.AsyncClient]:
    dialect = Redfish(Plant("gpu01", (), ()), computer, username="root", password="emulated")
    server = DeviceServer("bmc", dialect, scheme="http", chunking="split")
    await server.start()
    url = f"http://127.0.0.1:{server.port}"
    async with httpx.AsyncClient(base_url=url, auth=("root", password)) as client:
        yield client
    await server.stop()


def said(answer: httpx.Response) -> tuple[int, str]:
    (info,) = answer.json()["error"]["@Message.ExtendedInfo"]
    return answer.status_code, info["MessageId"].rpartition(".")[2]


async def test_a_client_finds_the_reset_and_its_values_from_the_root() -> None:
    async with served(Computer()) as client:
        root = (await client.get("/redfish/v1/")).json()
        (member,) = (await client.get(root["Systems"]["@odata.id"])).json()["Members"]
        system = (await client.get(member["@odata.id"])).json()
        action = system["Actions"]["#ComputerSystem.Reset"]
        info = (await client.get(action["@Redfish.ActionInfo"])).json()
    assert system["PowerState"] == "On" and action["target"] == RESET
    assert "PowerCycle" in info["Parameters"][0]["AllowableValues"]


async def test_only_the_root_is_shown_without_a_login() -> None:
    async with served(Computer(), "wrong") as client:
        assert (await client.get("/redfish/v1")).status_code == 200
        for path in ("/redfish/v1/Systems", "/redfish/v1/Systems/1", "/redfish/v1/nothing"):
            assert said(await client.get(path)) == (401, "NoValidSession")
        assert (await client.post(RESET, json={"ResetType": "ForceOff"})).status_code == 401


async def test_each_mistake_has_the_answer_of_a_real_bmc() -> None:
    computer = Computer()
    async with served(computer) as client:
        assert said(await client.get("/redfish/v1/Systems/2")) == (404, "ResourceMissingAtURI")
        assert (await client.get(RESET)).status_code == 405
        assert (await client.delete("/redfish/v1/Systems/1")).headers["allow"] == "GET, HEAD"
        assert said(await client.post(RESET, content=b"{")) == (400, "MalformedJSON")
        assert said(await client.post(RESET, json={})) == (400, "ActionParameterMissing")
        for kind in ("Explode", 7, ["On"]):
            answer = await client.post(RESET, json={"ResetType": kind})
            assert said(answer) == (400, "ActionParameterValueNotInList")
        assert said(await client.post(RESET, json={"ResetType": "On"})) == (409, "PSU501")
        assert computer.did == []


@pytest.mark.parametrize(
    ("power", "kind", "did"),
    [
        ("On", "ForceOff", ["off"]),
        ("On", "ForceRestart", ["off", "on"]),
        ("On", "PowerCycle", ["off", "on"]),
        ("Off", "On", ["on"]),
    ],
)
async def test_a_reset_does_what_its_name_says(power: str, kind: str, did: list[str]) -> None:
    computer = Computer(power)
    async with served(computer) as client:
        assert (await client.post(RESET, json={"ResetType": kind})).status_code == 204
        state = (await client.get("/redfish/v1/Systems/1")).json()["PowerState"]
    assert computer.did == did and state == ("On" if "on" in did else "Off")
