"""The effect of a change on the running job: it keeps its rings, turns to others, or restarts; and
whether it pauses. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Literal

from optics import HostName
from optics.plan import Job, Mode, TransitionPolicy, ring_steps
from orchestrator.fabric.next_hops import hops
from orchestrator.hosts.launch import identity, why_fixed
from orchestrator.inventory.lab import Lab
from orchestrator.plan.attached import planned
from orchestrator.plan.target import Target
from orchestrator.store.records import JobRecord

CHANGES_RINGS = ("rings", "traffic")
"""Fields of a job that its ranks can take over at the end of an iteration."""
LABELS = ("predicted",)
"""Fields that its ranks do not know."""
GROWS = ("ranks", "evicted", "joined")
"""Fields that differ as ranks join a training, beside its rings."""
DERIVED = ("training", "aside")
"""Fields that follow from others, which say what differs."""
FIELD = {"version": "the declaration or the files of job.program"}
"""What a field is called where no key of the plan file has its name."""
LEAST_DARK_S = 0.1
"""Shorter darkness costs a job over kernel TCP less than a pause: its connections resume by
themselves within 20 to 60 ms.
"""

Live = Literal["require", "prefer", "never"]
LIVE: Mapping[Mode | None, Live] = {"live": "require", "restart": "never"}
"""`up --job` as a policy; without the option the plan's counts."""


@dataclass(frozen=True, slots=True)
class JobDecision:
    """kind: `none`, no job runs; `keep`, it stays as it is; `rings`, it changes to other rings;
    `join`, to those with ranks that join it; `restart`, because of `why` (empty: asked).
    """

    kind: Literal["none", "keep", "rings", "join", "restart"]
    why: str = ""

    @property
    def changes(self) -> bool:
        """Whether the ranks that run change over at the end of an iteration."""
        return self.kind in ("rings", "join")


def differing(running: Job, job: Job) -> list[str]:
    """The fields that differ between the running job and `job`, in the words of the plan file.

    A program that does not send along the rings is the same on any others: its connections keep
    their addresses.
    """
    found = list[str]()
    ignored = DERIVED if job.uses_rings else (*DERIVED, *CHANGES_RINGS)
    for name in (f.name for f in fields(Job)):
        was, value = getattr(running, name), getattr(job, name)
        if was == value or name in ignored:
            continue
        if name == "attached":
            found += [kind.key for kind in planned() if was.get(kind.key) != value.get(kind.key)]
        elif name in ("args", "env"):
            found += [
                f"{name}.{key}" for key in sorted({*was, *value}) if was.get(key) != value.get(key)
            ]
        else:
            found.append(name)
    return found


def decide_job(
    record: JobRecord | None, job: Job | None, live: str, *, restart: bool = False
) -> JobDecision:
    """What becomes of the running job `record` if the plan wants `job` (None: no job, or not to be
    launched).

    live: as `TransitionPolicy`. restart: whatever it is, as the operator asks. A job whose latest
    ring change has an unknown result changes again, which does nothing if it had changed.
    """
    if record is None:
        return JobDecision("none")
    if job is None:
        return JobDecision("keep")
    if restart:
        return JobDecision("restart")
    backend, found = record.spec.backend, differing(record.spec.wanted, job)
    if live != "never" and not why_fixed(job, backend) and _joined(record.spec.wanted, job, found):
        return JobDecision("join")
    adjusting = [kind.key for kind in planned() if kind.adjusts]
    places = FIELD | {kind.key: kind.place for kind in planned() if kind.place}
    if forced := [field for field in found if field not in (*CHANGES_RINGS, *LABELS, *adjusting)]:
        some = ", ".join(places.get(field, f"job.{field}") for field in forced[:4]) + (
            f" and {len(forced) - 4} more" if len(forced) > 4 else ""
        )
        return JobDecision(
            "restart", f"{some} differ{'' if len(forced) > 1 else 's'} from the running job's"
        )
    if not set(found) & set(CHANGES_RINGS) and not record.spec.changing:
        return JobDecision("keep")
    if backend == "nccl":
        return JobDecision(
            "restart", "job.backend is nccl, whose rings are fixed at the start of the job"
        )
    if live == "never":
        return JobDecision("restart", "")
    return JobDecision("rings")


def _joined(running: Job, job: Job, found: Collection[str]) -> bool:
    """Whether `job` is the running one with ranks that joined it."""
    before = len(running.ranks)
    return (
        len(job.ranks) > before
        and job.ranks[:before] == running.ranks
        and set(found) <= {*GROWS, *CHANGES_RINGS, *LABELS}
        and identity(job) == identity(running)
    )


def instead(joins: HostName) -> tuple[str, ...]:
    """What an operator may ask for instead, a restart first. joins: the host, of `job join`."""
    if joins:
        return ("testbed up with a plan of more hosts restarts it",)
    return ("to restart it with the change: --job restart", "to leave it as it is: --job keep")


def pauses(policy: TransitionPolicy, dark_s: float, nccl: bool, cut_off: bool) -> bool:
    """Whether the job pauses while circuits are dark for `dark_s` (s). cut_off: ring neighbours
    have no path meanwhile.
    """
    if policy.hold == "never" or not dark_s:
        return False
    return policy.hold == "always" or nccl or (cut_off and dark_s >= LEAST_DARK_S)


def cut_off(record: JobRecord, goal: Target, lab: Lab, *, drained: bool) -> bool:
    """Whether two hosts that the running job sends between have no path over the circuits that stay
    lit.

    drained: traffic moves to the paths that stay; if not, a pair is cut off by any circuit that
    goes dark.
    """
    if not goal.broken_links:
        return False
    joined = hops(goal.kept_links, lab)
    return not drained or any(pair not in joined for pair in _pairs(record.spec.wanted))


def _pairs(job: Job) -> set[tuple[HostName, HostName]]:
    """The pairs of hosts that send to each other in an iteration."""
    orders = [order for order in job.orders if order] or [job.hosts]
    found = {step for order in orders for step in ring_steps(order)}
    if job.traffic is not None:
        found |= {step for t in job.traffic.transfers for step in t.steps}
        found |= {(send.src, send.dst) for group in job.traffic.groups for send in group.schedule}
    return found
