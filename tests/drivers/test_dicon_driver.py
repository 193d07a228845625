"""A DiCon tells of one input per question: what a change asks for, and how often."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from drivers.api import CircuitSwitch
from drivers.registry import open_device
from optics import Change, CrossConnect, DeviceConfig, Port

INPUTS = 12
SETTLE_S = 0.05


@dataclass
class Matrix:
    """Inputs that report their output `SETTLE_S` after the command."""

    port: int = 0
    outputs: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(1, INPUTS + 1), 0))
    asked: Counter[int] = field(default_factory=Counter)

    def answer(self, line: str) -> str | None:
        if line == "X1 DIM?":
            return f"{INPUTS},{INPUTS}"
        if line == "SYST:ERR?":
            return "+0, No Error"
        if question := re.fullmatch(r"X1 CH (\d+)\?", line):
            self.asked[int(question[1])] += 1
            return f"{question[1]},{self.outputs[int(question[1])]}"
        if command := re.fullmatch(r"X1 CH (\d+) (\d+)", line):
            asyncio.get_running_loop().call_later(SETTLE_S, self.outputs.__setitem__, int(command[1]), int(command[2]))
        return None


@asynccontextmanager
async def matrix() -> AsyncIterator[tuple[Matrix, CircuitSwitch]]:
    """A matrix on loopback, and its driver."""
    held = Matrix()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if (said := held.answer(line.decode().strip())) is not None:
                writer.write(f"{said}\n".encode())
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    address = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    device = open_device(DeviceConfig("ocs1", "dicon-scpi", address, traits={"settle_s": SETTLE_S}))
    try:
        yield held, device
    finally:
        await device.close()
        server.close()
        await server.wait_closed()


def cross(ingress: int, egress: int) -> CrossConnect:
    return CrossConnect(Port("ocs1", str(ingress)), Port("ocs1", str(egress)))


async def test_inputs_that_were_not_set_are_asked_once_before_a_change_and_once_after_it() -> None:
    async with matrix() as (held, device):
        wanted = frozenset({cross(3, 7), cross(4, 8)})
        outcome = await device.apply(Change("ocs1", frozenset(), wanted))
    assert outcome.observed == wanted and not outcome.failed
    assert {held.asked[n] for n in held.outputs if n not in (3, 4)} == {2}
    assert held.asked[3] > 2


async def test_a_change_right_after_another_sees_what_somebody_did_meanwhile() -> None:
    async with matrix() as (held, device):
        await device.apply(Change("ocs1", frozenset(), frozenset({cross(3, 7)})))
        held.outputs[3], held.outputs[5] = 0, 9
        assert await device.read() == {cross(5, 9)}
        held.outputs[6] = 10
        outcome = await device.apply(Change("ocs1", frozenset(), frozenset({cross(1, 2)})))
    assert outcome.observed == {cross(1, 2), cross(5, 9), cross(6, 10)}


async def test_a_circuit_that_is_made_by_nobody_is_not_reported_from_memory() -> None:
    async with matrix() as (held, device):
        held.outputs[9] = 9

        async def behind_its_back() -> None:
            held.outputs[9] = 0

        change = Change("ocs1", frozenset(), frozenset({cross(1, 2)}))
        outcome = await device.apply(change, behind_its_back)
    assert outcome.observed == {cross(1, 2)}
