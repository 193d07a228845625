"""The effect of a change on the running job: whether it can keep running, and how long training pauses if it is relaunched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optics import Infeasible
from optics.plain import seconds_text
from optics.plan import Job, Plan
from optics.ranks import hosts_of
from orchestrator.engine.change.decision import decide, differing
from orchestrator.engine.change.job_record import turning
from orchestrator.fabric.rules import hops
from orchestrator.inventory.lab import Lab
from orchestrator.plan.target import Target
from orchestrator.store.records import JobRecord

PAUSE = ("launch", "job")
"""The phases of a run in which a relaunched job does not train."""


def launched_as(record: JobRecord) -> Mapping[str, Any]:
    """The plan's section on the job when it was launched; None if the store does not have it."""
    wanted = record.spec.get("wanted") if isinstance(record.spec, dict) else None
    return wanted if isinstance(wanted, dict) else {}


def is_same(record: JobRecord, job: Job) -> bool:
    """Whether a plan's job is the one that runs, which is then not relaunched."""
    return not turning(record) and not differing(launched_as(record), job)


def fits(record: JobRecord, plan: Plan, goal: Target, lab: Lab) -> str:
    """The note on a job that keeps running during a change. Raises: Infeasible - some of its ranks could not reach each other."""
    hosts = hosts_of(map(str, launched_as(record).get("ranks", ())))
    joined = hops(goal.links, lab, plan.routes)
    if apart := [f"{a} and {b}" for a in hosts for b in hosts if a < b and (a, b) not in joined]:
        raise Infeasible(
            f"{record.name} cannot keep running: {plan.name} does not join {apart[0]}"
            + (f", nor {len(apart) - 1} more pairs of its hosts" if len(apart) > 1 else ""),
            hint="leave --job keep out: the job is then stopped, and the plan's job launched",
        )
    return f"job {record.name} keeps running as launched (run {record.run}); rings of {plan.name} come with its next launch"


def consequence(
    record: JobRecord, job: Job | None, affected: bool, usual: Mapping[str, float], live: str = "prefer", mode: str | None = None
) -> str:
    """What a change does to the running job, in words. usual: seconds per phase, from earlier runs. live: as `decide`.

    mode: what the operator asked for with `--job`, if anything; with `keep`, `job` is what is not launched.
    """
    if mode == "keep":
        later = "" if job is None or is_same(record, job) else "; this plan's job comes with its next launch"
        return consequence(record, None, affected, usual) + later
    found = decide(record, job, live)
    if found.kind == "turn":
        return f"{record.name} goes on; its rings change at the end of an iteration"
    if job is None or found.kind == "keep":
        return f"{record.name} keeps running" + ("; its links are dark for as long as the light moves" if affected else "")
    known = [usual[name] for name in PAUSE if name in usual]
    pause = f"about {seconds_text(sum(known))}, as in earlier runs" if known else "until the new one has made its first iteration"
    what = "is stopped and launched again as this plan has it" if job.name == record.name else f"is stopped, {job.name} launched"
    asked = "as --job restart asks" if mode == "restart" else "the plan says live: never"
    why = f": {found.why or asked}"
    if live == "require":
        return f"{record.name} cannot take over this plan while it runs{why}; transition.live is require, so up refuses"
    return f"{record.name} {what}{why}; training pauses {pause} (up --job keep: {record.name} keeps running)"
