"""The three-line reporter: a training program's own iterations in the testbed's records."""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path
from typing import Any

from ..progress.heartbeat import Heartbeat
from ..progress.records import Clock, Records

_clock = Clock()
_last_ns = time.monotonic_ns()


@cache
def records(rank: int) -> Records:
    """This process's records; none are kept outside the testbed."""
    directory = os.environ.get("TESTBED_JOB_DIR", "")
    return Records(Path(directory or "."), rank if directory else -1)


@cache
def heartbeat() -> Heartbeat:
    """This process's heartbeat (heartbeat.py); written nowhere outside the testbed."""
    directory = os.environ.get("TESTBED_JOB_DIR", "")
    rank = os.environ.get("RANK", "0")
    return Heartbeat(Path(directory) if directory else None, int(rank) if rank.isdecimal() else 0)


def report(iteration: int, **values: float) -> None:
    """Record that `iteration` has ended, with values such as `loss`: rank 0 writes them to
    `iterations.jsonl` in TESTBED_JOB_DIR.

    Every rank that calls it shows its iterations and their times (heartbeat.py). `iter_ms` is the
    time since the call before, unless it is given. Without TESTBED_JOB_DIR nothing happens. Raises:
    TypeError, ValueError - the iteration or a value is not a number.
    """
    global _last_ns
    begin_ns, _last_ns = _last_ns, time.monotonic_ns()
    if not os.environ.get("TESTBED_JOB_DIR"):
        return
    heartbeat().shown(int(iteration), _last_ns - begin_ns)
    if os.environ.get("RANK", "0") != "0":
        return
    record: dict[str, Any] = {"iter": int(iteration), "t_wall_ns": _clock.wall_ns(begin_ns)}
    record["iter_ms"] = round((_last_ns - begin_ns) / 1e6, 3)
    record |= {name: float(value) for name, value in values.items()}
    records(0).iteration(record, aloud=False)
