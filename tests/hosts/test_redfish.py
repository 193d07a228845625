"""The Redfish client against the emulated BMC, and against BMCs that answer anything else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from drivers.link.http import LONGEST_BODY
from emulators.devices.dialects.redfish import Redfish as EmulatedBmc
from emulators.devices.server import DeviceServer
from emulators.optics.plant import Plant
from optics import Garbled, Missing, Refused, TimedOut, Unreachable
from orchestrator.hosts.redfish import CYCLE, LONGEST_TEXT, MOST_BYTES, ON, PowerState, Redfish
from orchestrator.inventory.logins import Bmc
from orchestrator.verify.doctor_reach import ask_bmc
from tests.drivers.scripted import Request, http, http_device
from tests.kit.managed import Computer, managed_host

SYSTEM = {
    "PowerState": "On",
    "Status": {"Health": "OK"},
    "Manufacturer": "Dell Inc.",
    "Model": "XE9680",
    "Actions": {
        "#ComputerSystem.Reset": {
            "target": "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset",
            "ResetType@Redfish.AllowableValues": ["On", "ForceOff", "ForceRestart"],
        }
    },
}
ONE = {"Members": [{"@odata.id": "/redfish/v1/Systems/1"}]}


def client(address: str, *, password: str = "emulated", system: str = "") -> Redfish:
    return Redfish("gpu07", Bmc(address, "root", password, None, "", system, 0.5), password)


@asynccontextmanager
async def emulated(computer: Computer) -> AsyncIterator[str]:
    dialect = EmulatedBmc(Plant("gpu07", (), ()), computer, username="root", password="emulated")
    server = DeviceServer("bmc", dialect, scheme="http")
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()


Answers = Callable[[Request], bytes]


async def read(answers: Answers, system: str = "") -> PowerState:
    async with http_device(answers) as (address, _):
        bmc = client(address, system=system)
        try:
            return await bmc.read()
        finally:
            await bmc.close()


def serving(system: object = SYSTEM, members: object = ONE) -> Answers:
    def answers(request: Request) -> bytes:
        return http(200, json.dumps(members if request.path.endswith("/Systems") else system))

    return answers


async def test_power_health_and_the_allowed_resets_are_read_from_the_emulated_bmc() -> None:
    async with emulated(Computer()) as address:
        bmc = client(address)
        state = await bmc.read()
        await bmc.close()
    assert (state.power, state.health, state.model) == ("On", "OK", "Emulated GPU server")
    assert state.resets == ("On", "ForceOff", "ForceRestart", "PowerCycle")


async def test_a_power_cycle_reaches_the_machine_and_what_is_in_that_state_already_is_refused() -> (
    None
):
    computer = Computer()
    async with emulated(computer) as address:
        bmc = client(address)
        state = await bmc.read()
        assert await bmc.reset(state, CYCLE) == ("PowerCycle", "HTTP 204")
        assert computer.did == ["off", "on"]
        with pytest.raises(Refused, match=r"HTTP 409: Server is already powered ON\."):
            await bmc.reset(state, ON)
        computer.broken = True
        with pytest.raises(Refused, match="HTTP 500: The host cannot do that: no power supply"):
            await bmc.reset(state, CYCLE)
        await bmc.close()


async def test_a_wrong_password_is_refused_and_not_shown() -> None:
    async with emulated(Computer()) as address:
        bmc = client(address, password="s3cr3t")
        with pytest.raises(Refused, match=r"HTTP 401: .*user 'root'") as caught:
            await bmc.read()
        await bmc.close()
    assert "s3cr3t" not in str(caught.value) and "hosts.yml" in caught.value.hint


async def test_resets_may_be_listed_inline_or_not_at_all() -> None:
    state = await read(serving())
    assert state.resets == ("On", "ForceOff", "ForceRestart") and state.model == "Dell Inc. XE9680"
    reset = {"target": SYSTEM["Actions"]["#ComputerSystem.Reset"]["target"]}  # type: ignore[index]
    bare = SYSTEM | {"Actions": {"#ComputerSystem.Reset": reset}}
    requested: list[bytes] = []

    def answers(request: Request) -> bytes:
        if request.method == "POST":
            requested.append(request.body)
            return http(202, "")
        return serving(bare)(request)

    async with http_device(answers) as (address, _):
        bmc = client(address)
        found = await bmc.read()
        assert found.resets == () and await bmc.reset(found, CYCLE) == ("ForceRestart", "HTTP 202")
        await bmc.close()
    assert requested == [b'{"ResetType": "ForceRestart"}']


async def test_a_bmc_that_allows_no_such_reset_is_asked_for_none() -> None:
    heard: list[str] = []

    def answers(request: Request) -> bytes:
        heard.append(request.method)
        return serving(SYSTEM | {"Actions": {}})(request)

    async with http_device(answers) as (address, _):
        bmc = client(address)
        with pytest.raises(Refused, match="offers no reset; wanted PowerCycle or ForceRestart"):
            await bmc.reset(await bmc.read(), CYCLE)
        await bmc.close()
    assert "POST" not in heard


async def test_of_several_systems_the_named_one_is_asked() -> None:
    several = {
        "Members": [{"@odata.id": f"/redfish/v1/Systems/{name}"} for name in ("DGX", "HGX_0")]
    }
    with pytest.raises(Missing, match="has 2 systems: DGX, HGX_0"):
        await read(serving(members=several))
    assert (await read(serving(members=several), system="DGX")).power == "On"
    with pytest.raises(Missing, match="has no system CPU: DGX, HGX_0"):
        await read(serving(members=several), system="CPU")


@pytest.mark.parametrize(
    "answer",
    [
        http(200, b" " * (LONGEST_BODY + 1)),
        http(200, b'{"Members": ["' + b"x" * MOST_BYTES + b'"]}'),
        http(200, b"[" * 100_000),
        http(200, b"<html>login</html>"),
        http(200, b"null"),
        http(200, b'{"Members": 7}'),
        http(200, b'{"Members": [{"@odata.id": 5}]}'),
        http(200, b'{"Members": [{"@odata.id": "@evil.example/redfish/v1/Systems/1"}]}'),
        http(200, b'{"Members": [{"@odata.id": "/redfish/v1/Systems/1?x=\\r\\nX: y"}]}'),
        http(200, b'{"Members": [{"@odata.id": "/redfish/v1/../../etc/passwd"}]}'),
        http(302, b"", location="http://127.0.0.1:1/\x1b[2J"),
        http(404, b"not here"),
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    ],
    ids=[
        "endless", "long", "deep", "html", "null", "a number", "no text", "another host", "a header", "upwards", "redirect",
        "not found", "cut short", "ssh",
    ],
)  # fmt: skip
async def test_an_answer_of_anything_else_is_garbled_and_printed_safely(answer: bytes) -> None:
    with pytest.raises(Garbled, match="BMC of gpu07") as caught:
        await read(lambda _: answer)
    text = f"{caught.value} {caught.value.hint}"
    assert text.isprintable() and len(text) < 600


async def test_a_hostile_text_is_escaped_and_cut() -> None:
    error = {"error": {"@Message.ExtendedInfo": [{"Message": "\x1b[2J\u202eno" + "x" * 9000}]}}
    with pytest.raises(Refused) as caught:
        await read(lambda _: http(500, json.dumps(error)))
    assert str(caught.value).isprintable() and len(str(caught.value)) < LONGEST_TEXT + 150
    strange = SYSTEM | {"PowerState": "\x1b[31mOn" + "y" * 9000, "Status": {"Health": None}}
    state = await read(serving(strange))
    assert state.power == "unknown" and not state.health


async def test_words_that_are_no_power_state_do_not_get_into_the_audit() -> None:
    forged = SYSTEM | {"PowerState": "On and does not answer; run r1"}
    assert (await read(serving(forged))).power == "unknown"


@pytest.mark.parametrize("status", [401, 404, 500])
async def test_a_list_of_resets_that_cannot_be_read_is_done_without(status: int) -> None:
    action = {
        "target": "/redfish/v1/Systems/1/Actions/Reset",
        "@Redfish.ActionInfo": "/redfish/v1/Systems/1/ResetActionInfo",
    }
    whole = serving(SYSTEM | {"Actions": {"#ComputerSystem.Reset": action}})
    state = await read(
        lambda asked: http(status, b"") if asked.path.endswith("ActionInfo") else whole(asked)
    )
    assert (state.power, state.resets) == ("On", ())


async def test_a_bmc_whose_answers_drip_is_given_up() -> None:
    ended = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n")
            while not reader.at_eof():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.1)
        writer.close()
        ended.set()

    server = await asyncio.start_server(drip, "127.0.0.1", 0)
    bmc = client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    with pytest.raises(TimedOut, match=r"BMC of gpu07: no whole power state in 1.5 s"):
        await bmc.read()
    await bmc.close()
    await ended.wait()
    server.close()


async def test_certificates_that_cannot_be_read_are_told_with_their_key_in_hosts_yml() -> None:
    bmc = Redfish("gpu07", Bmc("https://127.0.0.1:1", "root", "", None, "/none", "", 0.5), "")
    with pytest.raises(Unreachable, match="cannot read certificates") as caught:
        await bmc.read()
    assert "testbed_bmc.ca_file in hosts.yml" in caught.value.hint


async def test_a_slow_bmc_and_one_that_is_not_there_are_given_up() -> None:
    async def never(_: Request) -> bytes:
        await asyncio.sleep(60)
        return b""

    async with http_device(never) as (address, _):
        bmc = client(address)
        with pytest.raises(TimedOut, match="BMC of gpu07"):
            await bmc.read()
        await bmc.close()
    bmc = client("http://127.0.0.1:1")
    with pytest.raises(Unreachable, match="BMC of gpu07"):
        await bmc.read()
    await bmc.close()


async def test_a_reset_whose_answer_is_lost_is_not_sent_again() -> None:
    sent: list[str] = []

    def answers(request: Request) -> bytes:
        sent.append(request.method)
        return b"" if request.method == "POST" else serving()(request)

    async with http_device(answers) as (address, _):
        bmc = client(address)
        state = await bmc.read()
        assert await bmc.reset(state, CYCLE) == ("ForceRestart", "no answer")
        await bmc.close()
    assert sent.count("POST") == 1


async def test_doctor_says_whether_a_bmc_answers_and_names_what_switches_a_host_on() -> None:
    computer = Computer()
    async with emulated(computer) as address:
        host = managed_host(address)
        found = await ask_bmc(host)
        assert found.state == "ok" and "the host is on, health OK" in found.detail
        computer.off()
        found = await ask_bmc(host)
        assert found.state == "warn" and found.fix == "testbed host power gpu01 --on"
    found = await ask_bmc(managed_host("http://127.0.0.1:1"))
    assert found.state == "warn" and "Connection refused" in found.detail
    assert found.works == "everything but testbed host power"
