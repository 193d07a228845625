"""The examples that come with the program, as `testbed examples` lists them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from orchestrator.cli.examplelist import example_table
from tests.kit.labs import ROOT

LISTED: dict[str, dict[str, Any]] = {row["name"]: row for row in example_table(ROOT)[0]}
PLANS = sorted((ROOT / "examples").glob("*.json"))


def option(argv: Sequence[str], *names: str) -> str:
    """The value of an option of a command, empty without it."""
    return next((after for word, after in pairwise(argv) if word in names), "")


def inventory_of(argv: Sequence[str]) -> str:
    """The name of the inventory that a listed command is for."""
    return (option(argv, "-i") or "inventory/emulated").rpartition("/")[2]


def plan_inventory(plan: str) -> str:
    """The name of the inventory with which a plan of `examples` is listed. Raises: StopIteration -
    it is not.
    """
    commands = (shlex.split(command) for row in LISTED.values() for command in row["run"])
    return next(inventory_of(text) for text in commands if f"examples/{plan}" in text)
