"""The effect of a change on the running job: whether it can keep running, and how long training pauses if it is relaunched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optics import Infeasible
from optics.plain import seconds_text
from optics.plan import Job, Plan
from orchestrator.fabric.rules import hops
from orchestrator.inventory.lab import Lab
from orchestrator.plan.target import Target
from orchestrator.results import to_json
from orchestrator.store.records import JobRecord

PAUSE = ("launch", "job")
"""The phases of a run in which a relaunched job does not train."""


def launched_as(record: JobRecord) -> Mapping[str, Any]:
    """The plan's section on the job when it was launched; None if the store does not have it."""
    wanted = record.spec.get("wanted") if isinstance(record.spec, dict) else None
    return wanted if isinstance(wanted, dict) else {}


def is_same(record: JobRecord, job: Job) -> bool:
    """Whether a plan's job is the one that runs, which is then not relaunched."""
    return {"traffic": None, "predicted": {}} | dict(launched_as(record)) == to_json(job)


def fits(record: JobRecord, plan: Plan, goal: Target, lab: Lab) -> str:
    """The note on a job that keeps running during a change. Raises: Infeasible - some of its ranks could not reach each other."""
    ranks = [str(host) for host in launched_as(record).get("ranks", ())]
    joined = hops(goal.links, lab, plan.routes)
    if apart := [f"{a} and {b}" for a in ranks for b in ranks if a < b and (a, b) not in joined]:
        raise Infeasible(
            f"{record.name} cannot keep running: {plan.name} does not join {apart[0]}"
            + (f", nor {len(apart) - 1} more pairs of its hosts" if len(apart) > 1 else ""),
            hint="leave --keep-job out: the job is then stopped, and the plan's job launched",
        )
    return f"job {record.name} keeps running as launched (run {record.run}); rings of {plan.name} come with its next launch"


def consequence(record: JobRecord, job: Job | None, affected: bool, usual: Mapping[str, float]) -> str:
    """What a change does to the running job, in words. usual: seconds per phase, from earlier runs."""
    if job is None or is_same(record, job):
        return f"{record.name} keeps running" + ("; its links are dark for as long as the light moves" if affected else "")
    known = [usual[name] for name in PAUSE if name in usual]
    pause = f"about {seconds_text(sum(known))}, as in earlier runs" if known else "until the new one has made its first iteration"
    what = "is stopped and launched again as this plan has it" if job.name == record.name else f"is stopped, {job.name} launched"
    return f"{record.name} {what}; training pauses {pause} (up --keep-job: {record.name} keeps running)"
