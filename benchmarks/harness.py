"""What every benchmark ends with: its figure held against a limit, as one JSON object on the last
line.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal


def spread(values: Sequence[float]) -> float:
    """Return (max - min) / median, 0 for a single value."""
    return (max(values) - min(values)) / statistics.median(values) if len(values) > 1 else 0.0


def undisturbed() -> None:
    """Run from here on, children included, before everything of ordinary priority, where the kernel
    lets us.
    """
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def ahead() -> None:
    """Run from here on, children included, ahead of most others, where the kernel lets us; unlike
    `undisturbed` all take turns.

    Where the kernel groups processes by session (sched_autogroup_enabled) that is ahead of its own
    session's alone; a job's ranks have a session each and ordinary priority, so whatever else runs
    on the machine slows them.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -15)


def verdict(
    name: str,
    value: float,
    unit: str,
    limit: float | None,
    kind: Literal["at most", "at least"],
    *,
    also: bool = True,
    **more: object,
) -> int:
    """Print the JSON line and return the exit code: 0 when the limit is met and `also`, any further
    condition, holds.

    ratio is value / limit: below 1 is good where the limit is a most, above 1 where it is a least.
    limit None: the value is only reported; of 0: without a ratio.
    """
    good = also and (limit is None or (value <= limit if kind == "at most" else value >= limit))
    ratio = round(value / limit, 4) if limit else None
    line = {
        "name": name,
        "value": round(value, 4),
        "unit": unit,
        "limit": limit,
        "ratio": ratio,
        "pass": good,
    }
    print(json.dumps(line | {"kind": kind} | more), flush=True)
    return 0 if good else 1
