"""The effect of a change on the running job: whether it can keep running, and how long training
pauses if it is relaunched.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from optics import HostName, Interlock
from optics.plain import counted, seconds_text
from optics.plan import Job, Mode, Plan, reached, steps_of
from orchestrator.jobs.decision import LIVE, decide_job, differing
from orchestrator.jobs.record import affected
from orchestrator.jobs.report import JobStatus
from orchestrator.plan.target import Target
from orchestrator.store.records import JobRecord

PAUSE = ("launch", "job")
"""The phases of a run in which a relaunched job does not train."""


def is_same(record: JobRecord, job: Job) -> bool:
    """Whether a plan's job is the one that runs, which is then not relaunched."""
    return not record.spec.changing and not differing(record.spec.wanted, job)


def parted(record: JobRecord, plan: Plan) -> list[str]:
    """The pairs of hosts of a job that could not reach each other over the links of a plan, in
    words; of slots, over those of none.

    Hosts forward, so a path may go over any host of the plan.
    """
    hosts = record.spec.wanted.hosts
    slots = [slot.links for slot in plan.schedule.slots] if plan.schedule is not None else [()]
    paths = [steps_of((*plan.links, *links)) for links in slots]
    reach = {
        host: set[HostName]().union(*(reached(host, steps) for steps in paths)) for host in hosts
    }
    found = []
    for a, b in combinations(hosts, 2):
        if b not in reach[a] or a not in reach[b]:
            found.append(f"{a} cannot reach {b}" if b not in reach[a] else f"{b} cannot reach {a}")
    return found


def apart(record: JobRecord, plan: Plan) -> str:
    """Which hosts of a job could not reach each other over a plan, in words; empty: all can."""
    pairs = parted(record, plan)
    more = (
        f", and {counted(len(pairs) - 1, 'more pair')} of its hosts likewise" if pairs[1:] else ""
    )
    return f"job {record.name}: {pairs[0]} over this plan{more}" if pairs else ""


def together(record: JobRecord, plan: Plan, mode: Mode | None = None) -> None:
    """Check that the ranks of a job that goes on can reach each other over a plan. mode: as `up`.

    Raises: Interlock - they cannot, and what to do.
    """
    if text := apart(record, plan):
        hint = f"to end the job first: testbed job stop, then this again; or a plan that joins the hosts of {record.name}"
        if plan.job is not None:
            option = "--job keep" if mode == "keep" else "--no-job"
            hint += (
                f"; to launch {plan.name}'s own job in its place: --job restart instead of {option}"
            )
        raise Interlock(f"{text}, so it cannot go on; nothing was changed", hint=hint)


def as_asked(record: JobRecord | None, plan: Plan, mode: Mode | None) -> list[str]:
    """The notes on what `--job` comes to. record: the job that runs."""
    if mode == "restart" and plan.job is None:
        which = (
            f"job {record.name} goes on (testbed job stop ends it)"
            if record is not None
            else "nothing is launched"
        )
        return [f"--job restart: {plan.name} has no job, so {which}"]
    if mode != "keep" or record is None or plan.job is None or is_same(record, plan.job):
        return []
    return [
        f"job {record.name} keeps running as launched (run {record.run}); rings of {plan.name} come with its next launch"
    ]


def ended(job: JobStatus | None) -> tuple[str, ...]:
    """What launches a job that has finished again, for a command that leaves it so; empty for one
    that has not.
    """
    if job is None or job.state != "finished":
        return ()
    return (
        f"job {job.name} has finished after {counted(job.iterations, 'iteration')}; to launch it again: testbed job launch",
    )


def foretold(
    record: JobRecord | None,
    plan: Plan,
    goal: Target,
    usual: Mapping[str, float],
    *,
    launch: bool,
    mode: Mode | None,
) -> tuple[str, str]:
    """What `up` would do with the latest job, in words, and why it would refuse because of it;
    empty where there is nothing to say.

    goal: what the plan comes to now. usual: as `consequence`. launch, mode: as `up`.
    """
    job = plan.job if launch else None
    if record is None or (record.ended is not None and (job is None or not is_same(record, job))):
        return "", ""
    if record.ended is not None:
        if record.state == "finished" and not goal.moving and mode != "restart":
            return f"{record.name} has finished; to launch it again: testbed job launch", ""
        return (
            f"{record.name} {'has finished' if record.state == 'finished' else record.state}; up launches it again",
            "",
        )
    live = LIVE.get(mode, plan.transition.live)
    goes_on = (
        mode == "keep" or decide_job(record, job, live, restart=mode == "restart").kind == "keep"
    )
    if goes_on and (text := apart(record, plan)):
        return text.removeprefix("job "), f"{text}; to end the job first: testbed job stop"
    return consequence(record, job, bool(affected(record, goal)), usual, live, mode), ""


def consequence(
    record: JobRecord,
    job: Job | None,
    breaks: bool,
    usual: Mapping[str, float],
    live: str = "prefer",
    mode: str | None = None,
) -> str:
    """What a change does to the running job, in words. breaks: links of it. usual: seconds per
    phase, from earlier runs.

    live: as `decide_job`. mode: what the operator asked for with `--job`, if anything; with `keep`,
    `job` is what is not launched.
    """
    if mode == "keep":
        later = (
            ""
            if job is None or is_same(record, job)
            else "; this plan's job comes with its next launch"
        )
        return consequence(record, None, breaks, usual) + later
    found = decide_job(record, job, live, restart=mode == "restart")
    if found.kind == "join" and job is not None:
        new = ", ".join(job.ranks[len(record.spec.wanted.ranks) :])
        return f"{record.name} goes on; {new} joins it at the end of an iteration"
    if found.kind == "rings":
        return f"{record.name} goes on; its rings change at the end of an iteration"
    if job is None or found.kind == "keep":
        return f"{record.name} keeps running" + (
            "; its links are dark for as long as the light moves" if breaks else ""
        )
    known = [usual[name] for name in PAUSE if name in usual]
    pause = (
        f"about {seconds_text(sum(known))}, as in earlier runs"
        if known
        else "until the new one has made its first iteration"
    )
    what = (
        "is stopped and launched again as this plan has it"
        if job.name == record.name
        else f"is stopped, {job.name} launched"
    )
    asked = "as --job restart asks" if mode == "restart" else "the plan says live: never"
    why = f": {found.why or asked}"
    if live == "require":
        return f"{record.name} cannot take over this plan while it runs{why}; transition.live is require, so up refuses"
    return f"{record.name} {what}{why}; training pauses {pause} (up --job keep: {record.name} keeps running)"
