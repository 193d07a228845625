"""A designed job's traffic: what one iteration moves, as TESTBED_TRAFFIC has it (described in
replay.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .schedule import Send


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks that sum a buffer together: the orders they pass it on in, and the lane of each
    order.
    """

    id: str
    bytes: int
    rings: tuple[tuple[int, ...], ...]
    lanes: tuple[int, ...]
    schedule: tuple[Send, ...] = ()


@dataclass(frozen=True, slots=True)
class Transfer:
    """Bytes from one rank to another over a lane's addresses; via: the rank that passes them on."""

    source: int
    target: int
    bytes: int
    lane: int
    via: int | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one iteration moves."""

    compute_s: float
    groups: tuple[Group, ...]
    transfers: tuple[Transfer, ...]


def read_traffic(env: Mapping[str, str], world: int) -> Traffic:
    """The traffic in TESTBED_TRAFFIC. Raises ValueError, naming what is wrong with it."""
    if "TESTBED_TRAFFIC" not in env:
        raise ValueError("TESTBED_TRAFFIC: missing")
    try:
        given = json.loads(env["TESTBED_TRAFFIC"])
    except ValueError as error:
        raise ValueError(f"TESTBED_TRAFFIC: not JSON: {error}") from error
    return parse_traffic(given, world, "TESTBED_TRAFFIC")


def parse_traffic(given: Any, world: int, name: str = "traffic") -> Traffic:
    """The traffic that a value describes. Raises ValueError, naming what is wrong with `name`."""
    try:
        groups = tuple(
            Group(
                str(g["id"]),
                int(g["bytes"]),
                tuple(tuple(map(int, ring)) for ring in g["rings"]),
                tuple(map(int, g["lanes"])),
                tuple(
                    Send(*map(int, row[:4]), *map(float, row[4:])) for row in g.get("schedule", ())
                ),
            )
            for g in given["groups"]
        )
        transfers = tuple(Transfer(*map(int, row)) for row in given["transfers"])
        found = Traffic(float(given["compute_s"]), groups, transfers)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{name}: not as it should be: {type(error).__name__}: {error}") from error
    if not 0 <= found.compute_s < 86400:
        raise ValueError(f"{name}: compute_s: {found.compute_s}: not a number of seconds")
    for group in found.groups:
        members = set(group.rings[0]) if group.rings else set()
        if (
            not group.rings
            or len(group.lanes) != len(group.rings)
            or not members <= set(range(world))
        ):
            raise ValueError(
                f"{name}: group {group.id}: needs a lane for each ring, and ranks of 0..{world - 1}"
            )
        if any(sorted(ring) != sorted(members) for ring in group.rings):
            raise ValueError(
                f"{name}: group {group.id}: its rings do not name the same ranks, each once"
            )
        if any(not {send.source, send.target, send.shard} <= members for send in group.schedule):
            raise ValueError(
                f"{name}: group {group.id}: its schedule names ranks that are no members"
            )
    for transfer in found.transfers:
        ends = [transfer.source, transfer.target]
        ends += [] if transfer.via is None else [transfer.via]
        if len({*ends}) < len(ends) or not {*ends} <= {*range(world)} or transfer.bytes < 1:
            raise ValueError(
                f"{name}: {transfer}: needs two ranks of 0..{world - 1}, another where one passes it on, and a byte or more"
            )
    return found
