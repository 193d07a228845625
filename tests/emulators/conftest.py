"""A device on a free loopback port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from emulators.devices.families import device_from_config
from emulators.devices.server import DeviceServer
from tests.emulators.emulated import Device, Start


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start devices: `await start("calient-tl1", settle_s=0.01, chunking="byte")`."""
    devices: list[Device] = []

    async def begin(
        driver: str,
        *,
        chunking: Any = "whole",
        name: str = "ocs1",
        seed: int = 1,
        served: Any = None,
        **overrides: Any,
    ) -> Device:
        """served: how it is reached, as DeviceServer's keywords; over plain TCP otherwise."""
        overrides.setdefault("settle_s", 0.02)
        if driver == "polatis-tl1":
            overrides.setdefault("login_s", 0)
        plant, dialect = device_from_config(name, driver, overrides, seed)
        device = Device(DeviceServer(name, dialect, plant, chunking=chunking, **(served or {})))
        await device.server.start()
        devices.append(device)
        return device

    yield begin
    for device in devices:
        for client in device.clients:
            client.writer.close()
            try:
                await client.writer.wait_closed()
            except ConnectionError:
                pass
        await device.server.stop()


@pytest.fixture
async def polatis(start: Start) -> Device:
    return await start("polatis-scpi")


@pytest.fixture
async def calient(start: Start) -> Device:
    return await start("calient-tl1", sid="SW")
