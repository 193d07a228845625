"""Tells emulated packet switches whose uplinks have a queue for each job which hosts are one
job's.
"""

from __future__ import annotations

import asyncio

from optics.errors import TestbedError
from optics.plan import Job
from orchestrator import emulated
from orchestrator.session import Session


async def uplinks_notified(session: Session, job: Job | None) -> tuple[str, ...]:
    """Tell the emulated lab that this job's hosts are one job; return what to note if it could not
    be notified.

    Nobody tells real switches: what `queue` of their segments says is how their owner configured
    them. Emulated ones know a job by its hosts, so jobs on parts of the same host share one queue.
    """
    if job is None or not any(segment.queue for segment in session.lab.segments.values()):
        return ()
    if not emulated.is_emulated(session.inventory):
        return ()
    try:
        hosts = sorted({session.lab.hosts[name].machine for name in job.needed})
        await asyncio.to_thread(emulated.ask, session.inventory, "queue.job", hosts=hosts)
    except TestbedError as error:
        return (
            f"the emulated switches do not know which hosts are the job's, and share uplinks as before: {error}",
        )
    return ()
