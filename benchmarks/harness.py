"""What every benchmark ends with: the median of its runs, held against a limit, as one JSON object on the last line."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from typing import Literal


def median_of(
    runs: int, measure: Callable[[], float], say: Callable[[int, float], None] | None = None
) -> tuple[float, list[float]]:
    """Return the median of `runs` calls of `measure`, and what each gave; `say` hears each as it comes."""
    seen = []
    for run in range(runs):
        seen.append(measure())
        if say is not None:
            say(run, seen[-1])
    return statistics.median(seen), seen


def spread(values: Sequence[float]) -> float:
    """Return (max - min) / median, 0 for a single value."""
    return (max(values) - min(values)) / statistics.median(values) if len(values) > 1 else 0.0


def verdict(
    name: str, value: float, unit: str, limit: float, kind: Literal["at most", "at least"], *, also: bool = True, **more: object
) -> int:
    """Print the JSON line and return the exit code: 0 when the limit is met and `also`, any further condition, holds.

    ratio is value / limit: below 1 is good where the limit is a most, above 1 where it is a least.
    """
    good = also and (value <= limit if kind == "at most" else value >= limit)
    line = {"name": name, "value": round(value, 4), "unit": unit, "limit": limit, "ratio": round(value / limit, 4), "pass": good}
    print(json.dumps(line | {"kind": kind} | more), flush=True)
    return 0 if good else 1
