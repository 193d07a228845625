"""One invocation of a verb, by the command line or the Python API: the emulated lab, the copies of
journals, the deadline.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from optics.errors import TestbedError, TimedOut, Unreachable

if TYPE_CHECKING:
    from orchestrator.session import Command
    from orchestrator.settings import Settings
    from orchestrator.store.store import Store
    from orchestrator.telemetry.phases import PhaseTime
    from orchestrator.telemetry.progress import Progress

T = TypeVar("T")

GRACE_S = 15.0
"""The engine keeps its own deadline; this much later (s) its caller stops it."""


@contextmanager
def invoked(progress: Progress, store: Store, settings: Settings) -> Iterator[Command]:
    """What a verb works with; journals are copied meanwhile, if configured.

    Raises: Unreachable - in place of what an emulated lab that does not run causes.
    """
    from orchestrator.session import Command

    copy_journals(settings)
    try:
        yield Command(progress, store, settings)
    except Unreachable as error:
        if is_stopped_lab(settings.inventory):
            raise Unreachable(
                "the emulated lab is not running", hint="testbed lab start"
            ) from error
        raise
    finally:
        copy_journals(settings)  # again: a long command may have outlived an idle sink


async def bounded(work: Coroutine[Any, Any, T], verb: str, limit_s: float) -> T:
    """Await `work` for `limit_s` (s) at most, which its own deadline may extend. Raises:
    TimedOut.
    """
    import asyncio

    from orchestrator.deadline import OUTER

    try:
        async with asyncio.timeout(limit_s) as timer:
            OUTER.set(timer)
            return await work
    except TimeoutError as error:
        if isinstance(error, TestbedError):
            raise
        raise TimedOut(
            f"{verb}: not finished after {limit_s:.0f} s", hint="testbed status says what is"
        ) from error


def copy_journals(settings: Settings) -> None:
    """Make sure that journals are copied to InfluxDB, if configured; never waits for it and never
    fails.
    """
    if settings.influx.url != "none":
        from orchestrator.telemetry.sink import ensure

        ensure(settings)


def start_lab(settings: Settings, progress: Progress) -> PhaseTime | None:
    """Start the emulated lab if the inventory is one and it does not run yet; return how long that
    took.
    """
    from orchestrator import emulated as labproc
    from orchestrator.telemetry.phases import PhaseTime

    if not is_stopped_lab(settings.inventory):
        return None
    progress.phase("lab", "starting the emulated lab")
    started = labproc.start_emulated_lab(settings.inventory, settings.timeout_s)
    detail = f"started: {labproc.about(labproc.ask(settings.inventory, 'status'))}"
    progress.done("lab", detail, started.seconds)
    return PhaseTime("lab", started.seconds, detail)


def is_stopped_lab(inventory: Path) -> bool:
    """Whether the inventory is one of an emulated lab that does not run now."""
    from orchestrator import emulated as labproc

    return labproc.is_emulated(inventory) and not labproc.is_running(inventory)
