"""The look-ahead lab of the repository, read as the program reads it."""

from __future__ import annotations

from functools import cache

from drivers.registry import driver_traits
from orchestrator.inventory.lab import Lab
from tests.kit.labs import lab_of


@cache
def lookahead() -> Lab:
    lab = lab_of("emulated-lookahead")
    return lab.with_traits({name: driver_traits(config) for name, config in lab.devices.items()})
