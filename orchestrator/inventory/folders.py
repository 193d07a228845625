"""Inventory directories: which exist, and the error for one that does not."""

from __future__ import annotations

from pathlib import Path

from optics import BadFile
from optics.plain import did_you_mean

FILES = ("hosts.yml", "devices.yml", "fibres.yml")
PROGRAMS = "programs.yml"
"""The owner's programs; an inventory need not have it."""


def sibling_inventories(folder: Path) -> list[str]:
    """The inventories in the same directory as `folder`, by name."""
    try:
        return sorted(found.parent.name for found in folder.parent.glob("*/devices.yml"))
    except OSError:
        return []


def absent(inventory: Path) -> BadFile | None:
    """The error if `inventory` is not a directory or has none of the files of an inventory, else
    None.
    """
    if any((inventory / name).exists() for name in FILES):
        return None
    near = did_you_mean(inventory.name, sibling_inventories(inventory))
    if not inventory.exists():
        text = f"{inventory}: no such directory{near}"
    elif not inventory.is_dir():
        text = f"{inventory}: not a directory; an inventory is a directory"
    else:
        text = f"{inventory}: not an inventory: it has no {', no '.join(FILES)}{near}"
    return BadFile(
        [text],
        hint=f"an inventory is a directory with {', '.join(FILES)}, such as inventory/example-lab",
    )
