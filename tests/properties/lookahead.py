"""The look-ahead lab of the repository, read as the program reads it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from drivers.registry import driver_traits
from orchestrator.inventory.lab import Lab, read_lab

INVENTORY = Path(__file__).resolve().parents[2] / "inventory" / "emulated-lookahead"


@cache
def lookahead() -> Lab:
    lab = read_lab(*((INVENTORY / part).read_text() for part in ("hosts.yml", "devices.yml", "fibres.yml")))
    return lab.with_traits({name: driver_traits(config) for name, config in lab.devices.items()})
