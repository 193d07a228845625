"""A lab of four hosts with two optical ports each and one at a packet switch, as generated."""

from __future__ import annotations

import tempfile
from functools import cache
from itertools import combinations
from pathlib import Path

from emulators.generate.command import main
from optics import Link
from orchestrator.inventory.lab import Lab
from orchestrator.session import load_lab

HOSTS = ("gpu01", "gpu02", "gpu03", "gpu04")


@cache
def lab() -> Lab:
    with tempfile.TemporaryDirectory() as folder:
        argv = [
            "--hosts",
            "4",
            "--ports",
            "2",
            "--electrical",
            "ideal@40",
            "--rate-mbps",
            "100",
            "--out",
            folder,
        ]
        main(argv)
        for file in Path(folder).glob("*.yml"):
            file.write_text(file.read_text().replace("name: ideal", "name: packets"))
        return load_lab(Path(folder))


def electrical() -> list[Link]:
    ports = lab().segments["packets"].ports
    return [Link(ports[a], ports[b]) for a, b in combinations(HOSTS, 2)]
