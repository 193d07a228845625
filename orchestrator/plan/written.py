"""A checked plan as the content of a plan file: what the reader makes values of. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from optics import LinkKind
from optics.plan import Acceptance, Job, Plan, Schedule, TransitionPolicy, WantedLink
from orchestrator.plan.attached import attachments_of
from orchestrator.results import to_json


def document_of(plan: Plan) -> dict[str, Any]:
    """The content of a plan file that reads as this plan. Raises: ValueError - it avoids parts,
    which no file can say.
    """
    if plan.avoid.message:
        raise ValueError(
            f"plan {plan.name} avoids {', '.join(plan.avoid.message)}; a plan file cannot: give `avoid` to `up`"
        )
    found: dict[str, Any] = {"schema": "testbed.plan/1", "name": plan.name}
    found |= {"description": plan.description} if plan.description else {}
    # The links of packet switches are among the plan's; the file names the switches instead.
    found |= {
        "links": [_link(link) for link in plan.links if not link.place.startswith("segments")]
    }
    found |= (
        {"segments": [_segment(plan, index) for index in range(len(plan.segments))]}
        if plan.segments
        else {}
    )
    if plan.job is not None:
        found["job"] = _job(plan.job)
        found |= {"predicted": dict(plan.job.predicted)} if plan.job.predicted else {}
        for kind, value in attachments_of(plan.job):
            kind.write(value, found)
    if plan.routes:
        found["routes"] = [
            {"src": r.source, "dst": r.target, "via": list(r.via)}
            | ({} if r.lane is None else {"lane": r.lane})
            for r in plan.routes
        ]
    found |= (
        {"interchangeable": [list(group) for group in plan.interchangeable]}
        if plan.interchangeable
        else {}
    )
    for key, value, usual in (
        ("acceptance", plan.acceptance, Acceptance()),
        ("transition", plan.transition, TransitionPolicy()),
    ):
        if value != usual:
            found[key] = _others(value, usual)
    if plan.schedule is not None:
        found["schedule"] = _schedule(plan.schedule)
    return found


def _schedule(schedule: Schedule) -> dict[str, Any]:
    """The schedule with its slots written out, of a pattern too, as they are what counts."""
    texts = _others(schedule, Schedule((), 0.0))
    slots = [{"links": [_link(link) for link in slot.links]} for slot in schedule.slots]
    return {name: value for name, value in texts.items() if name not in ("slots", "pattern")} | {
        "slots": slots
    }


def _link(link: WantedLink) -> dict[str, str]:
    ends = {"a": str(link.a), "b": str(link.b)}
    return ends if link.kind is LinkKind.DUPLEX else ends | {"kind": link.kind.value}


def _segment(plan: Plan, index: int) -> dict[str, Any]:
    """A packet switch with those of its hosts that the plan links over it."""
    hosts = dict.fromkeys(
        host for link in plan.links if link.place == f"segments[{index}]" for host in link.hosts
    )
    name = plan.segments[index]
    return {"name": name, "hosts": list(hosts)}


def _others(value: Any, usual: Any) -> dict[str, Any]:
    """The fields that differ from the usual ones."""
    return {
        f.name: to_json(v)
        for f in fields(value)
        if (v := getattr(value, f.name)) != getattr(usual, f.name)
    }


def _job(job: Job) -> Mapping[str, Any]:
    """The fields that are not at their defaults, under their names, which are those of the file."""
    # by the lab's owner, not by a plan
    declared = ("backend", "version", "training") if job.program else ()
    found = {}
    for field in fields(job):
        value = getattr(job, field.name)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if field.name not in ("predicted", "attached", "aside", *declared) and value != default:
            found[field.name] = to_json(value)
    return found
