"""Run a lab, with its control socket, in its own event loop."""

from __future__ import annotations

import asyncio
import os
import selectors
from collections.abc import Callable, Mapping

from emulators.devices.dialects.base import AnyDialect
from emulators.fabric.build import Fabric
from emulators.fabric.priority import LAB
from emulators.inventory.config import LabConfig
from emulators.lab.control import Control
from emulators.lab.running import Lab, Listeners, log


def take_priority() -> None:
    """Run this process before all others, its children not: a busy machine must not stretch the
    switching time it emulates.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(LAB))
    except OSError as problem:
        log(
            f"no real-time priority ({problem.strerror}): light may move late when the cores are busy"
        )


def serve(
    config: LabConfig,
    dialects: Mapping[str, AnyDialect],
    listeners: Listeners,
    fabric: Fabric | None,
    ready: Callable[[], None],
) -> None:
    """Run a lab in its own event loop until it is stopped."""

    async def main() -> None:
        lab = Lab(config, dialects, listeners, fabric)
        await lab.run(Control(lab), ready)

    # epoll counts in milliseconds and rounds up; light that is due should not wait for that.
    # select() takes few descriptors.
    loop = (
        asyncio.SelectorEventLoop(selectors.SelectSelector())
        if len(config.hosts) <= 64
        else asyncio.new_event_loop()
    )
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())
