"""What the store keeps of a launched job, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from optics import HostName, Missing, TestbedError
from optics.plan import Congestion, Function, Job, Region, Shadow, Traffic
from optics.ranks import RankName, host_of_rank, hosts_of
from orchestrator.hosts import JobState, job_name
from orchestrator.hosts.launch import backend, identity
from orchestrator.hosts.shadow import tapped
from orchestrator.inventory.lab import Lab
from orchestrator.plan.target import Target
from orchestrator.results import to_json
from orchestrator.store.records import JobRecord, RunRecord

TURNING = "turning"
"""The key of a record's spec with the number of a move that may be decided at any moment: `turning`."""
PAUSE = "pause"
"""The key with the latest pause: `pause_of`."""
ALONE = "alone"
"""The key with why a job was launched without its shadow."""
UNLAUNCHED = "unlaunched"
"""The key of a record whose launch failed, so that no rank ran; its `detail` says why."""


def spec_of(job: Job, lab: Lab, run: str) -> dict[str, Any]:
    """What the store keeps of a launched job; `wanted` alone decides whether another job is the same."""
    return {"wanted": to_json(job), "on_hosts": job_name(job.name, run), "backend": backend(job, lab)}


def facts(record: JobRecord) -> tuple[str, str, dict[str, Any]]:
    """The job's name on the hosts, its backend, and its section of the plan."""
    spec = record.spec
    wanted = spec.get("wanted") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(wanted, dict):
        raise TestbedError(f"job {record.name}: its record in the store is not readable")
    return str(spec["on_hosts"]), str(spec["backend"]), wanted


def runs(wanted: Mapping[str, Any]) -> str:
    """What a job runs, by its section of the plan: the workload, or the name of the owner's program."""
    return str(wanted.get("program") or wanted["workload"])


def counts_collectives(record: JobRecord) -> bool:
    """Whether the boundaries of the job's moves count collectives, as those of the owner's programs do, and not iterations."""
    return bool(facts(record)[2].get("program"))


def boundary(record: JobRecord, number: int) -> str:
    """In words, the boundary with this number at which ranks do what a move asks."""
    return f"{'collective' if counts_collectives(record) else 'iteration'} {number}"


def ranks_of(record: JobRecord, lab: Lab) -> tuple[RankName, ...]:
    """The ranks on hosts that this inventory still contains."""
    return tuple(rank for rank in facts(record)[2]["ranks"] if host_of_rank(rank) in lab.hosts)


def hosts_of_job(record: JobRecord, lab: Lab) -> tuple[HostName, ...]:
    """The hosts of the job that this inventory still contains."""
    return hosts_of(ranks_of(record, lab))


def shadow_host(record: JobRecord, lab: Lab) -> HostName | None:
    """The host of the job's shadow; None where it has none, or this inventory has the host no more."""
    found = facts(record)[2].get("shadow")
    return found["host"] if found and found["host"] in lab.hosts else None


def tapped_hosts(record: JobRecord, lab: Lab) -> tuple[HostName, ...]:
    """The hosts whose received packets are copied to the job's shadow, as far as this inventory still has the job's."""
    job = wanted_job(record)
    return tuple(sorted(tapped(job, lab))) if job.shadow is not None and set(job.hosts) <= lab.hosts.keys() else ()


def shadowed(job: Job, record: JobRecord | None) -> bool:
    """Whether a record is of the same training as a job, with its shadow on the same host: what that kept is of this training."""
    was = wanted_job(record) if record is not None else None
    if was is None or (was.name, identity(was)) != (job.name, identity(job)):
        return False
    return job.shadow is not None and was.shadow is not None and was.shadow.host == job.shadow.host


def unshadowed(record: JobRecord) -> str:
    """Why a job was launched without the shadow that it is to have; empty if it was not."""
    return str(record.spec.get(ALONE, "")) if isinstance(record.spec, dict) else ""


def launching(record: JobRecord, run: RunRecord | None) -> bool:
    """Whether a job is being launched at this moment, by `run`, that of its record: not all of its ranks are there yet."""
    return record.ended is None and record.state == "starting" and run is not None and run.status == "running"


def unlaunched(record: JobRecord) -> str:
    """Why none of a job's ranks was begun; empty if they were."""
    return record.detail if isinstance(record.spec, dict) and record.spec.get(UNLAUNCHED) else ""


def new_hosts(job: Job, latest: JobRecord | None) -> list[HostName]:
    """The hosts that this training did not run on the last time; what they kept of an earlier one is of no use to it."""
    before = wanted_job(latest) if latest is not None else None
    if before is None or (before.name, identity(before)) != (job.name, identity(job)):
        return []
    return sorted(set(job.hosts) - set(before.hosts))


def affected(record: JobRecord | None, goal: Target) -> tuple[str, ...]:
    """Names of running jobs one of whose links the change breaks."""
    if record is None or record.ended is not None or not goal.change.changes:
        return ()
    hosts = set(hosts_of(facts(record)[2]["ranks"]))
    gone = set(goal.old_links) - set(goal.kept_links)
    return (record.name,) if any({link.a.host, link.b.host} <= hosts for link in gone) else ()


def launched(record: JobRecord, lab: Lab) -> Job:
    """The job as it was launched, of a program its present version.

    Raises: Missing - a host of its ranks is not in the inventory any more.
    """
    if gone := [host for host in hosts_of(facts(record)[2]["ranks"]) if host not in lab.hosts]:
        raise Missing(f"job {record.name} ran on {', '.join(gone)}, not in the inventory any more", hint="testbed job launch")
    job = wanted_job(record)
    program = lab.programs.get(job.program) if job.program else None
    return replace(job, version=program.version) if program is not None else job  # what is launched now is the present one


def wanted_job(record: JobRecord) -> Job:
    """The job that the record's plan asked for."""
    wanted = facts(record)[2]
    kept = {**wanted, "ranks": tuple(wanted["ranks"]), "rings": tuple(map(tuple, wanted["rings"]))}
    kept["regions"] = tuple(map(Region.of, wanted.get("regions", ())))
    kept["functions"] = tuple(Function(**each) for each in wanted.get("functions", ()))
    kept["congestion"] = Congestion(**wanted["congestion"]) if wanted.get("congestion") else None
    kept["shadow"] = Shadow.of(wanted["shadow"]) if wanted.get("shadow") else None
    return Job(**kept | ({"traffic": Traffic.of(wanted["traffic"])} if wanted.get("traffic") else {}))


def layout_of(record: JobRecord) -> dict[str, Any]:
    """The part of a record that follows its job's turns, as JSON: to go back to."""
    wanted = facts(record)[2]
    return {name: wanted.get(name) for name in ("rings", "traffic", "predicted", "congestion")}


def with_layout(record: JobRecord, layout: Mapping[str, Any] | None) -> JobRecord:
    """The record of the job on another layout (as `layout_of`; None: its own)."""
    if layout is None:
        return record
    spec = cast(dict[str, Any], record.spec)
    return replace(record, spec={**spec, "wanted": {**facts(record)[2], **layout}})


def turning(record: JobRecord) -> int:
    """The number of a move that may have changed the job's rings and whose result is not known; 0 for none."""
    return int(record.spec.get(TURNING) or 0) if isinstance(record.spec, dict) else 0  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of a job: its move, the token of the run that asked for it, and until when (wall s) at the longest."""

    move: int
    token: int
    until: float


def pause_of(record: JobRecord) -> Pause | None:
    """The latest pause of a running job that nothing is known to have ended."""
    found = record.spec.get(PAUSE) if isinstance(record.spec, dict) and record.ended is None else None
    return Pause(**cast(dict[str, Any], found)) if isinstance(found, dict) else None


def with_pause(record: JobRecord, pause: Pause) -> dict[str, Any]:
    """The record's spec with a pause."""
    return {**cast(dict[str, Any], record.spec), PAUSE: to_json(pause)}


def without_pause(record: JobRecord) -> dict[str, Any]:
    """The record's spec once the pause is over."""
    return {k: v for k, v in cast(dict[str, Any], record.spec).items() if k != PAUSE}


def state_of(record: JobRecord, states: Mapping[RankName, JobState], iterations: int) -> tuple[str, str]:
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
    return "finished", ""
