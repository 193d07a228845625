"""The socket side: pieces, pipelines, time, and a clean end."""

import asyncio
import random
import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest

from emulators.devices.families import device_from_config
from emulators.devices.server import DeviceServer
from emulators.devices.transports.base import BYTEWISE, SHORT, Conversation
from tests.emulators.emulated import Start, until


@pytest.mark.parametrize("chunking", ["whole", "split", "byte"])
async def test_pipelined_commands_are_answered_in_order_however_they_arrive(
    start: Start, chunking: str
) -> None:
    device = await start("polatis-scpi", chunking=chunking)
    client = await device.connect()
    for byte in "*IDN?\n:oxc:swit:size?\r\n:oxc:swit:conn:stat?\n":
        client.send(byte)
        await asyncio.sleep(0)
    assert [(await client.line())[:8] for _ in range(3)] == ["Polatis,", "16,16", "(@),(@)"]


@pytest.mark.parametrize(("chunking", "fewest"), [("whole", 1), ("split", 2), ("byte", 60)])
async def test_replies_leave_in_the_pieces_asked_for(
    start: Start, chunking: str, fewest: int
) -> None:
    device = await start("calient-tl1", chunking=chunking)
    client = await device.connect()
    client.send("RTRV-HDR:::1;RTRV-NE:::2;")
    pieces = [await client.reader.read(1000)]
    while not pieces[-1].endswith(b";") or b"".join(pieces).count(b";") < 2:
        pieces.append(await client.reader.read(1000))
    assert len(pieces) >= fewest


@pytest.mark.parametrize("length", [0, 1, 512, 513, 5000])
def test_of_an_answer_sent_byte_by_byte_both_ends_are_single_bytes(length: int) -> None:
    device: Any = SimpleNamespace(chunking="byte")
    data = random.Random(length).randbytes(length)
    talk = Conversation(device, device, device, random.Random(0))
    pieces = list(talk._cut(data))
    assert b"".join(pieces) == data
    assert {len(piece) for piece in (*pieces[:BYTEWISE], *pieces[-BYTEWISE:])} <= {1}
    assert all(0 < len(piece) <= SHORT for piece in pieces)


async def test_light_is_told_when_it_has_settled_and_not_before(start: Start) -> None:
    device = await start("polatis-scpi", settle_s=0.03)
    client = await device.connect()
    for egress in range(17, 22):
        await client.line(f":oxc:swit:conn:only (@1),(@{egress});:syst:err?")
        made = device.plant.history[-1].at_s
        wanted = frozenset({("1", str(egress))})
        await until(lambda wanted=wanted: [lit for _, lit in device.light][-1:] == [wanted])  # type: ignore[misc]
        assert device.light[-1][0] >= made + 0.03


async def test_every_change_of_light_is_told_once_and_presets_at_the_start() -> None:
    notices: list[frozenset[tuple[str, str]]] = []
    plant, dialect = device_from_config(
        "ocs1", "polatis-scpi", {"preset": [[1, 17]], "settle_s": 0.01}
    )
    server = DeviceServer(
        "ocs1", dialect, plant, on_light_change=lambda name, lit, now: notices.append(lit)
    )
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b":oxc:swit:conn:stat?\n:oxc:swit:conn:add (@2,3),(@18,19)\n*IDN?\n")
    await reader.readline()
    await reader.readline()
    await asyncio.sleep(0.02)
    writer.close()
    await writer.wait_closed()
    await server.stop()
    assert notices == [{("1", "17")}, {("1", "17"), ("2", "18"), ("3", "19")}]


async def test_light_goes_when_the_fabric_has_followed() -> None:
    took_s = 0.02
    dialect = device_from_config("ocs1", "polatis-scpi", {"settle_s": 0.0})[1]
    server = DeviceServer("ocs1", dialect, on_light_change=lambda *_: time.sleep(took_s))
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for pair in ("(@2),(@18)", "(@2),(@19)"):
        writer.write(f":oxc:swit:conn:only {pair};:syst:err?\n".encode())
        await reader.readline()
    writer.close()
    await writer.wait_closed()
    await server.stop()
    (ended,) = (e for e in server.plant.history if e.what == "broken")
    assert took_s <= server.shown_s(ended.at_s) - ended.at_s


async def test_the_socket_may_be_bound_by_somebody_else_and_is_free_after_the_end() -> None:
    bound = socket.create_server(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    server = DeviceServer("ocs1", device_from_config("ocs1", "polatis-scpi")[1], sock=bound)
    await server.start()
    assert server.port == port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b":oxc:swit:conn:add (@2,3),(@18,19)\n*IDN?\n")
    assert await reader.readline()
    await server.stop()
    with pytest.raises(ConnectionError):
        if not await reader.read():
            raise ConnectionResetError
    writer.close()
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection("127.0.0.1", port)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_line_without_an_end_closes_the_connection(start: Start) -> None:
    device = await start("polatis-scpi")
    client = await device.connect()
    client.send("x" * 70_000)
    with pytest.raises(ConnectionError):
        if await client.ended() == b"":
            raise ConnectionResetError


@pytest.mark.parametrize(
    ("driver", "overrides", "message"),
    [
        ("polatis", {}, "no emulator for driver 'polatis'; there are "),
        ("polatis-scpi", {"setle_s": 1}, "unknown key 'setle_s'; did you mean settle_s"),
        ("polatis-scpi", {"size": "16"}, "size: wanted such as 16x16, seen '16'"),
        ("calient-tl1", {"size": "16x8"}, "a duplex faceplate is square"),
        ("polatis-scpi", {"settle_s": -1}, "settle_s"),
        ("polatis-scpi", {"boot_mode": "never"}, "boot_mode 'never'"),
        ("polatis-scpi", {"preset": [["1", "17"], ["1", "18"]]}, "port 1 in use"),
        (
            "calient-tl1",
            {"preset": [{"in": "1.1.1", "to": "1.1.2"}]},
            "out, to is missing or unknown",
        ),
        ("calient-tl1", {"preset": [["1.1.1", "9.9.9"]]}, "no out port 9.9.9"),
        ("calient-tl1", {"faults": [{"kind": "nonsense"}]}, "no fault is named"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_with_the_reason(
    driver: str, overrides: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        device_from_config("ocs1", driver, overrides)
