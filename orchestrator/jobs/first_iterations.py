"""The first iterations of a job that was launched: waited for, and what is said of its start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from optics.plain import counted
from optics.ranks import RankName
from orchestrator.hosts import Hosts, JobState
from orchestrator.hosts.output import last_line
from orchestrator.jobs.report import ALIVE, JobStatus
from orchestrator.telemetry.progress import Progress

FIRST_ITERATIONS = 4
"""`up` reports a job's speed after this many iterations: the first includes the setup and does not
count.
"""
FIRST_ITERATIONS_S = 120.0
SLOW_S = 20.0
"""After this time (s) two are enough: a job's iterations may take half a minute."""
POLL_S = 0.25


def starting_text(ranks: int) -> str:
    return f"waiting for {counted(ranks, 'rank')} to start and meet, then for {FIRST_ITERATIONS} iterations"


async def first_iterations(
    ask: Callable[[], Awaitable[JobStatus]], starts: str, progress: Progress
) -> JobStatus:
    """Ask for the job's status until it has made its first iterations (two after SLOW_S), will show
    none, has ended, or FIRST_ITERATIONS_S are over. starts: what is shown before the first one.
    """
    begun = time.monotonic()
    while True:
        status = await ask()
        made, silent = status.iterations, status.detail or status.bad_record
        waited = time.monotonic() - begun
        if (
            made >= (FIRST_ITERATIONS if waited < SLOW_S else 2)
            or status.state not in ALIVE
            or waited > FIRST_ITERATIONS_S
            or (silent and not made)
        ):
            return status
        text = f"iterations, {status.state}" if made else starts
        progress.update("job", made, FIRST_ITERATIONS if made else 0, text)
        await asyncio.sleep(POLL_S)


def started_text(status: JobStatus) -> str:
    """How the job has started, in a line."""
    text = f"{status.name} {status.state}"
    if status.resumed_from:
        text += f", resumed after iteration {status.resumed_from}"
    if status.damaged:
        text += f"; that of iteration {status.damaged} is damaged, and was passed over"
    if status.iteration_ms is not None:
        text += f", iteration {status.iteration_ms:.0f} ms"
    return text + (f"; {status.detail.splitlines()[0]}" if status.detail else "")


async def last_lines(hosts: Hosts, name: str, states: Mapping[RankName, JobState]) -> str:
    """The last line of each rank that failed, at most three of them."""
    failed = [rank for rank, s in states.items() if s.code or s.state == "killed"][:3]
    found = [f"  {rank}: {await last_line(hosts, name, rank) or 'no output'}" for rank in failed]
    return "\n".join(found)
