"""A lab whose hosts are cabled to packet switches of every kind."""

from __future__ import annotations

from pathlib import Path

from emulators.generate.defaultlab import generate
from emulators.generate.electrical import parse
from emulators.generate.familylab import Wanted
from orchestrator.inventory.lab import Lab
from tests.kit.labs import lab_in

KINDS = ("ideal@60", "fat-tree@30", "oversubscribed:4", "domains:2@160", "rails:2@20")


def switched_lab(folder: Path) -> Lab:
    """Six hosts of two optical ports of 20 Mb/s, and of five at switches."""
    ssh, devices = tuple(range(22101, 22107)), (25001, 25002)
    generate(
        folder, Wanted(ssh, devices, rate_mbps=20, electrical=tuple(map(parse, KINDS)), rack=3)
    )
    return lab_in(folder)
