"""The records that a job writes, taken only where they are sound: they are foreign input, whoever
wrote its program.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

HIGHEST = 1 << 53
"""Whole numbers up to here are exact in every language and database that reads them."""
LARGEST = 1e19
LONGEST_MS = 1e9
"""12 days, as `agent/jobs/heartbeats.py` has it: no iteration takes longer."""
LATEST_NS = 1 << 62
"""The year 2116; clocks' offsets may be added, and 64 bits still hold it."""
WHOLE: Mapping[str, int] = {
    **dict.fromkeys(
        ("iter", "move", "steps", "damaged", "bytes", "wire_bytes", "wide_bytes", "resent_bytes"),
        HIGHEST,
    ),
    **dict.fromkeys(("requests", "hits", "asked_bytes", "served", "kv_bytes"), HIGHEST),
    **dict.fromkeys(("equal", "fetched", "missing", "lost", "checkpoint"), HIGHEST),
    **dict.fromkeys(("rank", "unsent"), HIGHEST),
    "t_wall_ns": LATEST_NS,
}
"""The fields that are whole numbers from 0 on, and the highest of each. Many languages write 3 as
3.0, which is taken for 3.
"""
ITERATION = ("iter", "iter_ms", "t_wall_ns")


class Sound(list[dict[str, Any]]):
    """Sound records, oldest first. bad: how many lines are none; why: what is wrong with the latest
    of these.
    """

    bad = 0
    why = ""


def sound(lines: Iterable[str | bytes], needed: Collection[str] = ITERATION) -> Sound:
    """The records among these lines, with their numbers; a number that is not usable is left out of
    its record.
    """
    found = Sound()
    for line in lines:
        try:
            found.append(_record(line, needed))
        except (ValueError, RecursionError) as error:
            found.bad += 1
            found.why = str(error)
    return found


def _record(line: str | bytes, needed: Collection[str]) -> dict[str, Any]:
    """Raises: ValueError, RecursionError - it is none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("not a line of JSON") from None
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    kept = {
        name: number
        for name, value in record.items()
        if (number := _number(name, value)) is not None
    }
    for name in needed:
        if name not in kept or kept[name] < 0 or (name == "iter_ms" and kept[name] > LONGEST_MS):
            text = json.dumps(record[name])[:40] if name in record else "missing"
            raise ValueError(f"{name} is to be {wanted(name)}, and is {text}")
    return kept


def wanted(name: str) -> str:
    """What a needed field is to be, in words."""
    if name in WHOLE:
        return f"a whole number from 0 to {WHOLE[name]}"
    return f"a number from 0 to {LONGEST_MS:.0f}" if name == "iter_ms" else "a number from 0 on"


def _number(name: str, value: object) -> int | float | None:
    if type(value) not in (int, float):
        return None
    assert isinstance(value, (int, float))
    if name not in WHOLE:
        return value if abs(value) < LARGEST else None
    return int(value) if 0 <= value <= WHOLE[name] and value == int(value) else None
