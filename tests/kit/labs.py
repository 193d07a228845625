"""Labs as values, read from the files of an inventory."""

from __future__ import annotations

from pathlib import Path

from orchestrator.inventory.lab import Lab, read_lab

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("hosts.yml", "devices.yml", "fibres.yml", "programs.yml")


def lab_in(folder: Path) -> Lab:
    """The lab of these files; there may be no programs."""
    return read_lab(*(path.read_text() for part in PARTS if (path := folder / part).exists()))


def lab_of(name: str) -> Lab:
    """A lab that comes with the project."""
    return lab_in(ROOT / "inventory" / name)
