"""Runs seeds: one, many in children of this process, or one with fewer and fewer of its
decisions.
"""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import tempfile
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.sim.bounds import Covered, Kept, OthersRoutes, Overtaken
from tests.sim.catalogue import decisions, plot_of
from tests.sim.clocks import CPU, simulated
from tests.sim.judges import Fencing, Journal, Judge, NoCollision, Outcome, Ownership, Quiet
from tests.sim.lab import Violation, World
from tests.sim.lockjudge import LockModel
from tests.sim.looks import Ends, Status
from tests.sim.loop import Deadlock, Killed, SimLoop
from tests.sim.plots import InTime
from tests.sim.seams import replaced

JUDGES: list[Callable[[World], Judge]] = [
    *(NoCollision, Journal, LockModel, Fencing, Ownership, Quiet, Outcome, Status),
    *(Covered, OthersRoutes, Kept, Overtaken, InTime, Ends),
]
KEPT: list[object] = []
"""What killed processes of seeds that ended were about to do: collected, a coroutine would run its
`finally`.
"""
BATCH = 100
"""Seeds of one child, which keeps what their killed processes left: some hundred kilobytes each."""


@dataclass
class Found:
    """What came of a seed. bad: the promise that was broken, empty if none was. virtual_s: how long
    it took there.
    """

    seed: str
    bad: str = ""
    digest: str = ""
    steps: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    ends: dict[str, int] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)


def run(seed: str, *, trace: bool = False, without: Collection[str] = ()) -> Found:
    """Tell one seed; nothing else may run in this Python process meanwhile, nor for long afterwards
    (see `KEPT`).
    """
    found, began = Found(seed), CPU()
    folder = Path(tempfile.mkdtemp(prefix="sim-", dir="/dev/shm"))
    loop = SimLoop(seed, trace=trace)
    plot = plot_of(seed)
    world = plot.world_of(loop, seed, folder)

    def unexpected(_: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, Killed):
            world.broken(
                f"in a callback: {''.join(traceback.format_exception(error)) if error else context['message']}"
            )

    loop.set_exception_handler(unexpected)

    async def main() -> None:
        await world.start([*JUDGES, *plot.judges])
        await plot(world, seed, without).describe()

    gc.disable()
    try:
        with simulated(loop, seed), replaced(world), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                loop.run_until_complete(main())
            except (Violation, Deadlock, TimeoutError) as error:
                found.bad = str(error) or type(error).__name__
            except Exception:
                found.bad = traceback.format_exc()
            found.bad = found.bad or world.bad
    finally:
        world.close()
        KEPT.append((world, loop.kept))
        shutil.rmtree(folder, ignore_errors=True)
    found.digest, found.steps, found.virtual_s = loop.digest(), loop.steps, loop.now
    found.cpu_s, found.ends, found.trace = CPU() - began, dict(world.ends), loop.trace or []
    return found


def children(
    seeds: Iterable[str], *, trace: bool = False, without: Collection[str] = ()
) -> Iterator[Found]:
    """Tell seeds, `BATCH` of them in a child of this process, whose clocks and memory end with
    it.
    """
    gc.collect()
    gc.freeze()  # what is there is shared with all children
    waiting = list(seeds)
    while waiting:
        batch, waiting = waiting[:BATCH], waiting[BATCH:]
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(ours)
            with os.fdopen(theirs, "wb") as out:
                for seed in batch:
                    pickle.dump(run(seed, trace=trace, without=without), out)
                    out.flush()
            os._exit(0)  # no `finally` of killed processes
        os.close(theirs)
        try:
            with os.fdopen(ours, "rb") as came:
                for seed in batch:
                    try:
                        yield pickle.load(came)
                    except EOFError:
                        yield Found(
                            seed, f"the process that told it ended, {os.waitpid(pid, 0)[1]}"
                        )
                        return
        finally:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def kind_of(bad: str) -> str:
    """What two violations of one kind have in common: the judge, or the first words."""
    return bad.partition(": ")[0][:40]


def shrink(seed: str, bad: str) -> tuple[list[str], Found]:
    """The decisions that can be left out, and what then comes of it: fates first, then kills, then
    commands.
    """
    typed, fates = decisions(seed)
    names = [
        [one.name for one in reversed(fates)],
        [one.kill for one in typed if one.doom[1]],
        [one.name for one in typed],
    ]
    out: list[str] = []
    last = next(children([seed], trace=True))
    for group in names:
        size = max(1, len(group) // 2)
        while group:
            left = list(group)
            while left:
                part, left = left[:size], left[size:]
                found = next(children([seed], trace=True, without=[*out, *part]))
                if found.bad and kind_of(found.bad) == kind_of(bad):
                    out, last = [*out, *part], found
                    group = [name for name in group if name not in part]
            if size == 1:
                break
            size //= 2
    return out, last
