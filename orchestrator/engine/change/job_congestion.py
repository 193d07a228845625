"""The congestion control of a job that goes on under another plan."""

from __future__ import annotations

from optics.plan import Job
from orchestrator.engine.change.decision import Decision
from orchestrator.engine.change.job_record import ranks_of
from orchestrator.session import Session
from orchestrator.store.records import JobRecord


async def follow(session: Session, decision: Decision, record: JobRecord | None, job: Job | None) -> list[str]:
    """Give the connections of a job that goes on the congestion control that the plan wants; return what there is to say about it.
    record: the job as it ran before.

    Raises: Refused, Unreachable - a host cannot have it.
    """
    if record is None or job is None or decision.kind not in ("keep", "turn"):
        return []
    if record.spec.wanted.congestion == job.congestion:
        return []
    await session.hosts.congestion.set(record.spec.on_hosts, ranks_of(record, session.lab), job.congestion)
    control = job.congestion.control if job.congestion is not None else "that of the routes"
    return [f"the congestion control of {record.name}'s connections is {control} now"]
