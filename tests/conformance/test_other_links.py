"""The same Polatis driver over pyvisa and over a serial line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import socket
import tty
from collections.abc import AsyncIterator

import pytest

from drivers.registry import open_device
from optics import Change, DeviceConfig, TimedOut, Unreachable
from tests.conformance.families import FAMILIES, bench

POLATIS = FAMILIES[0]
VISA = "visa://TCPIP::127.0.0.1::{port}::SOCKET"


async def exercise(b) -> None:  # type: ignore[no-untyped-def]
    """The three verbs, a move of a busy port, a lost answer."""
    assert (await b.device.identify()).ingress == POLATIS.ingress
    first, second = b.set((1, 2), (2, 1), (3, 4)), b.set((1, 4), (3, 2))
    await b.apply(add=first)
    assert b.light == first
    b.server.add_fault("drop-after", match="conn:add", count=1)
    outcome = await b.apply(remove=first, add=second)
    assert b.light == second
    assert not outcome.failed
    b.honest(outcome)
    assert await b.device.read() == b.settings(second)


@pytest.mark.parametrize("chunking", ["whole", "split", "byte"])
async def test_a_polatis_switch_is_driven_over_visa(chunking: str) -> None:
    async with bench(POLATIS, chunking=chunking, address=VISA) as b:
        await exercise(b)


async def test_silence_over_visa_is_a_time_out() -> None:
    async with bench(POLATIS, address=VISA, timeout_s=0.3) as b:
        await b.device.read()
        b.server.add_fault("hang")
        with pytest.raises(TimedOut, match="conn:stat"):
            await b.device.read()


async def test_an_idle_visa_session_that_was_dropped_is_made_again() -> None:
    async with bench(POLATIS, address=VISA) as b:
        await b.device.read()
        b.server.add_fault("idle-drop", seconds=0.05)
        await asyncio.sleep(0.15)
        assert await b.device.read() == frozenset()


async def test_a_refused_visa_connection_is_unreachable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = VISA.format(port=taken.getsockname()[1])
        device = open_device(DeviceConfig("ocs1", "polatis-scpi", address, timeout_s=1.0))
        with pytest.raises(Unreachable, match="ocs1"):
            await device.read()
        await device.close()


@contextlib.asynccontextmanager
async def serial_line(port: int) -> AsyncIterator[str]:
    """A pseudo terminal whose other end is the emulator's socket; yields the path to open."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    os.set_blocking(master, False)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    loop = asyncio.get_running_loop()
    loop.add_reader(master, lambda: writer.write(os.read(master, 4096)))

    async def back() -> None:
        while data := await reader.read(4096):
            os.write(master, data)

    task = asyncio.create_task(back())
    try:
        yield os.ttyname(slave)
    finally:
        loop.remove_reader(master)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        os.close(master)
        os.close(slave)


async def test_a_polatis_switch_is_driven_over_a_serial_line() -> None:
    async with bench(POLATIS) as b, serial_line(b.server.port) as path:
        config = DeviceConfig(
            "ocs1",
            "polatis-scpi",
            f"serial://{path}?baud=38400",
            traits={"settle_s": 0.02},
            timeout_s=1.0,
        )
        device = open_device(config)
        try:
            wanted = b.settings(b.set((1, 2), (3, 4)))
            outcome = await device.apply(Change("ocs1", add=wanted))
            assert outcome.observed == wanted
            assert b.light == b.set((1, 2), (3, 4))
            b.server.add_fault("swallow", match="conn:stat", count=1)
            quick = open_device(
                DeviceConfig("ocs1", "polatis-scpi", f"serial://{path}", timeout_s=0.2)
            )
            with pytest.raises(Unreachable):  # one program per line
                await quick.read()
            await quick.close()
        finally:
            await device.close()
