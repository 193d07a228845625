"""The job that ran in an earlier state, brought back: it takes over the rings that it had, or is
launched again.
"""

from __future__ import annotations

from contextlib import suppress

from optics import TestbedError
from optics.plan import Plan, TransitionPolicy
from orchestrator.change.context import Context
from orchestrator.change.ring_change import RingChange
from orchestrator.change.snapshot import Snapshot
from orchestrator.inventory.lab import Lab
from orchestrator.jobs.attachments import adjust
from orchestrator.jobs.keep import apart
from orchestrator.jobs.record import launched
from orchestrator.jobs.report import JobStatus
from orchestrator.plan.reader import read_plan


def plan_of(to: Snapshot, lab: Lab) -> Plan | None:
    """The plan that was up, with all its slots; None if none was, or if the inventory changed
    since.
    """
    if to.current is not None:
        with suppress(TestbedError):
            return read_plan(to.current.plan_text, to.current.plan_name, lab)
    return None


async def resume_job(
    context: Context, to: Snapshot, notes: list[str], unfit: str = ""
) -> JobStatus | None:
    """Resume the job that ran in the state `to`, unless it is known why it cannot be launched,
    which is added to `notes`.

    unfit: why, if that is known already. An `up` that died may have cut a job before it replaced
    it: its ranks would wait for each other in vain. Raises: as `Jobs.resume_previous`.
    """
    jobs, record, plan = (
        context.jobs,
        None if to.job is None else context.store.job(to.job),
        plan_of(to, context.session.lab),
    )
    if (
        record is not None
        and record.state != "finished"
        and plan is not None
        and (text := apart(record, plan))
    ):
        runs = await jobs.running()
        unfit = unfit if runs is not None and runs.id == record.id else unfit or text
    if unfit:
        notes.append(f"its job is not resumed: {unfit}; once it can be: testbed job launch")
    number = None if unfit else to.job
    return await jobs.resume_previous(
        context.run.id, number, to.wanted, context.recorder, sample=context.sample_hz > 0
    )


async def change_rings_back(context: Context, to: Snapshot, policy: TransitionPolicy) -> list[str]:
    """Have the running job use the rings that it had in the state `to`, if it is still that job; no
    light is moved.

    policy: of the plan of that state. Return what there is to say about it. Raises: Locked; Missing
    - a host of it is not in the inventory any more. What else keeps it from that is left to a
    restart.
    """
    record = await context.jobs.running()
    if record is None or record.id != to.job:
        return []
    ring_change = RingChange(context, policy, "never" if policy.live == "never" else "prefer")
    await ring_change.choose(record, launched(record, context.session.lab, to.wanted))
    ring_change.notes += await adjust(
        context.session, ring_change.decision, record, ring_change.job
    )
    await ring_change.finish()
    return ring_change.notes
