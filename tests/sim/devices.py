"""A device of the world: how it is emulated, what is sent to it, and the circuits that it holds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tests.drills.switches import labels, made_by_hand

Circuit = tuple[Any, ...]
"""Ingress and egress, and of a route of wavelengths its lowest and highest MHz."""

LINES = re.compile(r"[\n;]")
FOREIGN = 15
"""The ports with this number carry a circuit of somebody else's, on every device."""


class SimDevice:
    """A switch whose mirrors join two ports. plant, server: of its emulator, once there is one."""

    plant: Any
    server: Any

    def __init__(self, name: str, driver: str) -> None:
        self.name, self.driver = name, driver

    @property
    def foreign(self) -> Circuit:
        """The circuit that somebody else has on it."""
        return labels(self.driver, FOREIGN, FOREIGN)

    def reported(self, settle_s: float, boot_s: float) -> Mapping[str, Any]:
        """What its emulator is told."""
        more = (
            {"row_delay_s": 0.0, "bulk_settle_s": settle_s} if self.driver == "calient-tl1" else {}
        )
        return {"settle_s": settle_s, "boot_s": boot_s, "size": "16x16", **more}

    def lines(self, text: str) -> list[str]:
        """The commands in what is sent to it."""
        return LINES.split(text)

    def make(self) -> None:
        """Somebody else makes his circuit, with means of his own."""
        made_by_hand(self.server, self.foreign)

    def held(self) -> set[Circuit]:
        """The circuits it holds, by its own mirrors."""
        return set(self.plant.pairs())

    def shown(self, now: float) -> list[frozenset[Circuit]]:
        """What it may show now: its mirrors as commanded, or those that have come to rest."""
        return [frozenset(self.held()), self.plant.light(now)]
