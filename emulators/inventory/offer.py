"""What a packet switch offers of its functions, as fibres.yml says it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from emulators.inventory.addresses import LOOPBACK

RANGES: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "aggregate": {"slots": (1, 4096), "slot_bytes": (64, 8896), "jobs": (1, 64)},
    "cache": {"entries": (1, 65_536), "entry_bytes": (1, 8896)},
}
"""docs/reference/functions-dialect.md"""
HEADERS_BYTES = 60  # of IP, UDP and the function


def read_offer(entry: Mapping[str, Any]) -> tuple[dict[str, dict[str, int]], int]:
    """The functions of a segment's entry, and the loopback port of their control; 0 without
    functions. Raises: ValueError.
    """
    given = entry.get("functions") or {}
    if not given:
        return {}, 0
    if unknown := sorted(set(given) - set(RANGES)):
        raise ValueError(f"no function {unknown[0]}; there are {', '.join(RANGES)}")
    found: dict[str, dict[str, int]] = {}
    for name, most in given.items():
        if not isinstance(most, Mapping) or set(most) != set(RANGES[name]):
            raise ValueError(f"function {name}: wanted {', '.join(RANGES[name])}")
        for key, (least, highest) in RANGES[name].items():
            if (
                type(most[key]) is not int
                or not least <= most[key] <= highest
                or (key == "slot_bytes" and most[key] % 4)
            ):
                fours = ", a multiple of 4" if key == "slot_bytes" else ""
                raise ValueError(
                    f"function {name}: {key} {most[key]}: wanted {least} to {highest}{fours}"
                )
        found[name] = dict(most)
    at = re.fullmatch(r"([^:]+):(\d{1,5})", str(entry.get("address", "")))
    if at is None or at[1] not in LOOPBACK or not 0 < int(at[2]) < 65_536:
        raise ValueError(
            f"address {entry.get('address')}: emulated functions are controlled at 127.0.0.1:PORT"
        )
    return found, int(at[2])


def too_large(functions: Mapping[str, Mapping[str, int]], mtu: int) -> str:
    """Why a function's largest packet does not fit `mtu` (bytes); empty if it does."""
    for name, most in functions.items():
        key = "slot_bytes" if name == "aggregate" else "entry_bytes"
        if most[key] + HEADERS_BYTES > mtu:
            return f"function {name}: {key} {most[key]} and {HEADERS_BYTES} of headers do not fit the MTU, {mtu}"
    return ""
