"""Clocks, process numbers and random numbers that come from the loop, for everything in this Python
process.

Nothing else may run beside it: a batch of seeds has a process of its own.
"""

from __future__ import annotations

import gc
import os
import random
import secrets
import time
from asyncio import tasks
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from tests.sim.loop import ACTOR, SimLoop

REAL = time.perf_counter
CPU = time.process_time


@contextmanager
def simulated(loop: SimLoop, seed: str) -> Iterator[None]:
    """Replace them while the body runs."""
    gmtime, strftime = time.gmtime, time.strftime
    rng, state, me = random.Random(f"secrets/{seed}"), random.getstate(), os.getpid()

    def wall() -> float:
        return loop.now + ACTOR.get(loop.sea).machine.wall_s

    def monotonic_ns() -> int:
        return int(loop.now * 1e9)

    def boot_ns(clock: int) -> int:
        return int((loop.now - ACTOR.get(loop.sea).machine.booted) * 1e9)

    def sleep(seconds: float) -> None:
        """One process stands still; as nothing runs beside it here, all do."""
        loop.now += seconds
        loop.paused += seconds
        loop.stalled_at = loop.now

    new = {
        (time, "monotonic"): loop.time,
        (time, "perf_counter"): loop.time,
        (time, "monotonic_ns"): monotonic_ns,
        (time, "perf_counter_ns"): monotonic_ns,
        (time, "clock_gettime_ns"): boot_ns,
        (time, "time"): wall,
        (time, "time_ns"): lambda: int(wall() * 1e9),
        (time, "sleep"): sleep,
        (time, "localtime"): lambda at=None: gmtime(wall() if at is None else at),
        (time, "strftime"): lambda form, at=None: strftime(
            form, gmtime(wall()) if at is None else at
        ),
        (os, "getpid"): lambda: ACTOR.get(loop.sea).pid or me,
        (os, "getppid"): lambda: getattr(ACTOR.get(loop.sea), "parent", 1),
        (secrets, "token_hex"): lambda n=32: f"{rng.getrandbits(8 * n):0{2 * n}x}",
        (gc, "collect"): lambda *which: 0,
    }
    random.seed(f"random/{seed}")
    try:
        with ExitStack() as patches:
            for (module, name), value in new.items():
                patches.enter_context(patch.object(module, name, value))
            # every task is hashed and kept there, for `asyncio.all_tasks`, which nobody asks
            patches.enter_context(patch.object(tasks._all_tasks, "add", lambda task: None))  # type: ignore[attr-defined]
            yield
    finally:
        random.setstate(state)
