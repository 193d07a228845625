"""What the store keeps of a launched job, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from optics import HostName, Missing
from optics.plan import Job
from optics.ranks import RankName, host_of_rank, hosts_of
from orchestrator.hosts import JobState, job_name
from orchestrator.hosts.launch import backend, identity
from orchestrator.inventory.lab import Lab
from orchestrator.plan.target import Target
from orchestrator.store.job_spec import JobSpec
from orchestrator.store.records import JobRecord, RunRecord
from orchestrator.store.store import Store

FINISHED = ("stopped", "finished")
"""The states of a job that is not to be launched again unless somebody asks for it."""


def spec_of(job: Job, lab: Lab, run: str) -> JobSpec:
    """What the store keeps of a job that is to be launched."""
    return JobSpec(job, job_name(job.name, run), backend(job, lab))


def workload_name(job: Job) -> str:
    """What a job runs: the workload, or the name of the owner's program."""
    return job.program or job.workload


def counts_collectives(record: JobRecord) -> bool:
    """Whether the boundaries of the job's moves count collectives, as those of the owner's programs
    do, and not iterations.
    """
    return bool(record.spec.wanted.program)


def boundary(record: JobRecord, number: int) -> str:
    """In words, the boundary with this number at which ranks do what a move asks."""
    return f"{'collective' if counts_collectives(record) else 'iteration'} {number}"


def ranks_of(record: JobRecord, lab: Lab) -> tuple[RankName, ...]:
    """The ranks on hosts that this inventory still contains."""
    return tuple(rank for rank in record.spec.wanted.ranks if host_of_rank(rank) in lab.hosts)


def hosts_of_job(record: JobRecord, lab: Lab) -> tuple[HostName, ...]:
    """The hosts of the job that this inventory still contains."""
    return hosts_of(ranks_of(record, lab))


def launching(record: JobRecord, run: RunRecord | None) -> bool:
    """Whether a job is being launched at this moment, by `run`, that of its record: not all of its
    ranks are there yet.
    """
    return (
        record.ended is None
        and record.state == "starting"
        and run is not None
        and run.status == "running"
    )


def new_hosts(job: Job, latest: JobRecord | None) -> list[HostName]:
    """The hosts that this training did not run on the last time; what they kept of an earlier one
    is of no use to it.
    """
    before = latest.spec.wanted if latest is not None else None
    if before is None or (before.name, identity(before)) != (job.name, identity(job)):
        return []
    return sorted(set(job.hosts) - set(before.hosts))


def affected(record: JobRecord | None, goal: Target) -> tuple[str, ...]:
    """Names of running jobs one of whose links the change breaks."""
    if record is None or record.ended is not None or not goal.change.changes:
        return ()
    hosts = set(record.spec.wanted.hosts)
    removed = set(goal.old_links) - set(goal.kept_links)
    return (record.name,) if any({link.a.host, link.b.host} <= hosts for link in removed) else ()


def launched(record: JobRecord, lab: Lab, wanted: Job | None = None) -> Job:
    """The job as it was launched, of a program its present version. wanted: with the rings that it
    had then.

    Raises: Missing - a host of its ranks is not in the inventory any more.
    """
    job = wanted if wanted is not None else record.spec.wanted
    if removed := [host for host in job.hosts if host not in lab.hosts]:
        raise Missing(
            f"job {record.name} ran on {', '.join(removed)}, not in the inventory any more",
            hint="testbed job launch",
        )
    program = lab.programs.get(job.program) if job.program else None
    # what is launched now is the present one
    return replace(job, version=program.version) if program is not None else job


def state_of(
    record: JobRecord, states: Mapping[RankName, JobState], iterations: int
) -> tuple[str, str]:
    """The job's state and what to say of it, by how its ranks are. iterations: how many it made."""
    bad = [
        f"{rank}: {'exit ' + str(s.code) if s.code else s.state}"
        for rank, s in states.items()
        if s.state in ("killed", "absent") or s.code
    ]
    if record.ended is not None:  # its hosts may have discarded it since
        return record.state, record.detail
    if bad:
        return "failed", "; ".join(bad[:4]) + (f"; and {len(bad) - 4} more" if len(bad) > 4 else "")
    if any(s.state == "running" for s in states.values()):
        return ("running" if iterations else "starting"), ""
    return ("stopped", record.spec.stopping) if record.spec.stopping else ("finished", "")


def stopping(store: Store, record: JobRecord, why: str) -> JobRecord:
    """Note that the ranks of a job are about to be asked to stop: who asks may die before it can
    record that they have.
    """
    now = store.job(record.id) or record
    store.set_job_spec(record.id, replace(now.spec, stopping=why))
    return store.job(record.id) or record
