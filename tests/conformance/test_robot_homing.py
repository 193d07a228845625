"""A robot that an earlier change left stuck: the next one fails at once, or homes it if the
inventory allows that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from drivers.registry import open_device
from emulators.devices.dialects.rome_cli import FAMILY
from emulators.devices.families import device_from_config
from emulators.devices.server import DeviceServer
from optics import Change, CrossConnect, DeviceConfig, Outcome, Port

SCALE = 600.0  # a move takes 0.1 s, its budget is the driver's least
MOVE = Change("robot", add=frozenset({CrossConnect(Port("robot", "E1"), Port("robot", "W2"))}))


@asynccontextmanager
async def robot() -> AsyncIterator[DeviceServer]:
    """A panel over telnet, its gripper stuck in the middle of a move that an earlier change asked
    for.
    """
    own = {"username": "admin", "password": "admin"}
    model, dialect = device_from_config("robot", FAMILY.driver, own, 1, time_scale=SCALE)
    server = DeviceServer("robot", dialect, model, scheme="telnet")
    await server.start()
    try:
        server.add_fault("robot-stalled", count=1)
        assert (await changed(server, "never")).failed
        yield server
    finally:
        await server.stop()


async def changed(server: DeviceServer, homing: str) -> Outcome:
    address = f"telnet://127.0.0.1:{server.port}"
    device = open_device(
        DeviceConfig(
            "robot",
            FAMILY.driver,
            address,
            "admin",
            "admin",
            time_scale=SCALE,
            options={"homing": homing},
        )
    )
    try:
        return await device.apply(MOVE)
    finally:
        await device.close()


async def test_a_robot_that_was_left_stuck_is_homed_where_that_is_allowed() -> None:
    async with robot() as server:
        outcome = await changed(server, "auto")
        assert not outcome.failed and outcome.observed == MOVE.add


async def test_a_robot_that_was_left_stuck_is_reported_and_gets_no_further_requests() -> None:
    async with robot() as server:
        writes = server.plant.writes
        outcome = await changed(server, "never")
        assert (
            "homing run" in str(outcome.failed)
            and server.plant.writes == writes
            and outcome.writes == 0
        )
