"""A search that may take long: where it is, and Ctrl-C for the best so far."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from orchestrator.cli.call import Call
from orchestrator.cli.text import ms_text

if TYPE_CHECKING:
    from orchestrator.plan.design.design import Design
    from planner.alternating import Seen, Watch

EVERY_S = 0.1
"""Between two words to the progress."""


def watched(call: Call, find: Callable[[Watch], Design]) -> Design:
    """Show how far a search is. The first Ctrl-C (or SIGTERM) ends it with what it has, a second one the command.

    One that comes when all were tried ends nothing: the design is whole then, and says so.
    """
    stop = False
    told = time.monotonic()

    def stopped(number: int, frame: FrameType | None) -> None:
        nonlocal stop
        if stop:
            raise KeyboardInterrupt
        stop = True

    with call.progress() as progress:

        def watch(seen: Seen) -> bool:
            nonlocal told
            if (now := time.monotonic()) - told >= EVERY_S:
                told = now
                words = f"turn {seen.turn}, best iteration {ms_text(seen.best_s * 1e3)}; Ctrl-C takes the best so far"
                progress.update("search", seen.tried, seen.budget, words)
            return not stop

        before = {number: signal.signal(number, stopped) for number in (signal.SIGINT, signal.SIGTERM)}
        progress.phase("search", "strategies and topologies in turn")
        try:
            found = find(watch)
            progress.done("search", "stopped; the best so far" if found.stopped else "")
            return found
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
