"""What each driver declares it can do, and how to put it in front of its emulator. A declared
ability that fails is a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from drivers.api import CircuitSwitch
from drivers.registry import open_device
from emulators.devices.families import device_from_config
from emulators.devices.server import DeviceServer
from optics import Change, CrossConnect, DeviceConfig, Outcome, Port

SETTLE_S = 0.02


@dataclass(frozen=True)
class Family:
    """One driver. `breaks` and `makes`: patterns of the commands that do so, in the order they are
    sent.
    """

    driver: str
    ingress: tuple[str, ...]
    egress: tuple[str, ...]
    breaks: tuple[str, ...]
    makes: tuple[str, ...]
    reads: str
    power: bool
    unsolicited: tuple[str, ...] = ()  # SCPI over a socket has none
    plant: Mapping[str, Any] = field(default_factory=dict)

    @property
    def writes(self) -> tuple[str, ...]:
        return (*self.breaks, *self.makes)

    def pair(self, a: int, b: int) -> tuple[str, str]:
        """Light enters at the a-th ingress port, leaves at the b-th egress port."""
        return (self.ingress[a - 1], self.egress[b - 1])


AIDS = tuple(f"1.{module}.{port}" for module in (1, 2) for port in range(1, 9))
UNSOLICITED = ("unsolicited-before", "unsolicited-inside", "unsolicited-after")
FAMILIES = [
    Family(
        driver="polatis-scpi",
        ingress=tuple(str(n) for n in range(1, 17)),
        egress=tuple(str(n) for n in range(17, 33)),
        breaks=("conn:sub",),
        makes=("conn:add",),
        reads=r"conn:stat\?",
        power=True,
    ),
    Family(
        driver="calient-tl1",
        ingress=AIDS,
        egress=AIDS,
        breaks=("CANC-CRS", "DLT-CRS"),
        makes=("ENT-CRS", "ACT-CRS"),
        reads="RTRV-CRS",
        power=True,
        unsolicited=UNSOLICITED,
        plant={"bulk_settle_s": SETTLE_S},
    ),
    Family(
        driver="polatis-tl1",
        ingress=tuple(str(n) for n in range(1, 17)),
        egress=tuple(str(n) for n in range(17, 33)),
        breaks=("DLT-PATCH",),
        makes=("ENT-PATCH",),
        reads="RTRV-PATCH",
        power=True,
        unsolicited=UNSOLICITED,
        plant={"login_s": 0.0, "denied_s": 0.0},
    ),
    Family(
        driver="glimmerglass-tl1",
        ingress=tuple(str(10000 + n) for n in range(1, 17)),
        egress=tuple(str(20000 + n) for n in range(1, 17)),
        breaks=("dlt-crs-fiber",),
        makes=("ent-crs-fiber",),
        reads="rtrv-crs-fiber",
        power=True,
        unsolicited=UNSOLICITED,
    ),
]


class Bench:
    """One driver in front of one emulated switch: questions by the driver, truth from the light
    path."""

    def __init__(self, family: Family, server: DeviceServer, device: CircuitSwitch) -> None:
        self.family = family
        self.server = server
        self.device = device

    @property
    def light(self) -> frozenset[tuple[str, str]]:
        """Which pairs are lit now."""
        return frozenset(self.server.plant.lit(asyncio.get_running_loop().time()))

    @property
    def writes(self) -> int:
        return self.server.plant.writes

    def settings(self, pairs: Iterable[tuple[str, str]]) -> frozenset[CrossConnect]:
        return frozenset(CrossConnect(Port("ocs1", a), Port("ocs1", b)) for a, b in pairs)

    def set(self, *numbers: tuple[int, int]) -> frozenset[tuple[str, str]]:
        return frozenset(self.family.pair(a, b) for a, b in numbers)

    async def apply(
        self, remove: Iterable[tuple[str, str]] = (), add: Iterable[tuple[str, str]] = ()
    ) -> Outcome:
        return await self.device.apply(Change("ocs1", self.settings(remove), self.settings(add)))

    def honest(self, outcome: Outcome) -> None:
        """The outcome is true: its map is the emulator's, its failures are not lit, its timestamps
        are in order.
        """
        assert {(s.ingress.label, s.egress.label) for s in outcome.observed} == self.light
        assert outcome.sent_ns <= outcome.broken_ns <= outcome.acked_ns <= outcome.settled_ns
        assert not self.server.plant.violations


@asynccontextmanager
async def bench(
    family: Family,
    *,
    chunking: str = "whole",
    timeout_s: float = 1.0,
    address: str = "",
    options: Mapping[str, str] | None = None,
    password: str = "secret",
    scheme: str = "tcp",
    **plant: Any,
) -> AsyncIterator[Bench]:
    """Start the emulated switch, every ingress lit, and a driver for it; stop both afterwards."""
    own = {"settle_s": SETTLE_S, **family.plant, **plant}
    if family.driver.endswith("-tl1"):
        own |= {"username": "admin", "password": "secret"}
    model, dialect = device_from_config("ocs1", family.driver, own)
    for port in family.ingress:
        model.set_input(port, 0.0)
    server = DeviceServer("ocs1", dialect, model, chunking=chunking, scheme=scheme)  # type: ignore[arg-type]
    await server.start()
    config = DeviceConfig(
        "ocs1",
        family.driver,
        (address or scheme + "://127.0.0.1:{port}").format(port=server.port),
        "admin",
        password,
        traits={"settle_s": SETTLE_S},
        timeout_s=timeout_s,
        options={"patience_s": "0.5", **(options or {})},
    )
    device = open_device(config)
    try:
        yield Bench(family, server, device)
    finally:
        await device.close()
        await server.stop()
