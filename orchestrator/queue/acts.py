"""What the queue asks of a lab for a job: which hosts it may have, a plan on them, to start, to
tell its end, to stop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Protocol

from optics import HostName
from optics.plain import seconds_text
from orchestrator.inventory.partitions import compatible_hosts
from orchestrator.plan.queue import NAMED, TURNOVER_S, Decision, Running, Waiting, decide_queue
from orchestrator.store.queue import HOLDING, QueuedJob

NOT_STOPPED = "; cannot be stopped: "
"""In the detail of a job: its stop has failed, and why, behind this."""
STUCK_S = 60.0
"""The hosts of a job whose stop has failed for so long (s) are not waited for: they may not come
back.
"""


class Acts(Protocol):
    """What is done for jobs. Whatever was done already, wholly or half, may be asked for again."""

    @property
    def hosts(self) -> Collection[HostName]:
        """The hosts of the lab."""
        ...

    def able(self, job: QueuedJob) -> tuple[HostName, ...]:
        """The hosts that could hold it, in the lab's order."""
        ...

    def out(self, jobs: Collection[QueuedJob]) -> Mapping[HostName, str]:
        """The hosts that others than these jobs have, or that cannot be used now, and why."""
        ...

    def booked(self) -> Mapping[HostName, Sequence[tuple[float, float]]]:
        """From when to when (s from now) hosts are booked, in order."""
        ...

    def plan(self, job: QueuedJob, hosts: tuple[HostName, ...]) -> str:
        """The text of its plan on these hosts. Raises: Infeasible - they cannot hold it."""
        ...

    def is_up(self, job: QueuedJob) -> bool:
        """Whether its plan is up, by the store."""
        ...

    async def start(self, job: QueuedJob) -> str:
        """Bring its plan up and launch its job; return how it runs, in words. Raises:
        TestbedError.
        """
        ...

    async def ended(self, job: QueuedJob) -> tuple[bool, str]:
        """Wait until its job ends by itself; return whether it finished, and how it ended."""
        ...

    async def stop(self, job: QueuedJob) -> tuple[int, str]:
        """End its job with a checkpoint, take its plan down; return the iterations that it did,
        and, if it had finished by itself before, that in words. Raises: TestbedError."""
        ...

    async def left(self, job: QueuedJob) -> Collection[HostName]:
        """Its hosts that are not free after a stop that failed."""
        ...


def decided(
    acts: Acts,
    jobs: Iterable[QueuedJob],
    served: Collection[str],
    refused: Mapping[int, Collection[frozenset[HostName]]] | None = None,
) -> Decision:
    """What to do about the jobs of a lab now.

    served: users whose jobs a process starts and stops; those of others neither start nor end, so
    nothing waits for that. refused: sets of hosts of which it is known that a job cannot run on
    them.
    """
    jobs = list(jobs)
    out, booked = acts.out(jobs), acts.booked()
    waits = [
        Waiting(
            j.number,
            j.count,
            acts.able(j),
            j.left_s,
            j.preemptible,
            frozenset((refused or {}).get(j.number, ())),
            _later(booked, j.left_s + TURNOVER_S),
        )
        for j in jobs
        if j.state == "waiting" and j.user in served and not j.rests
    ]
    runs = [
        Running(
            j.number,
            frozenset(j.hosts),
            max(j.left_s, 0.0) + TURNOVER_S,
            j.preemptible,
            j.state == "stopping",
        )
        if j.user in served
        and not (j.state == "stopping" and NOT_STOPPED in j.detail and j.age_s >= STUCK_S)
        else Running(j.number, frozenset(j.hosts), inf)
        for j in jobs
        if j.state in HOLDING
    ]
    held = {host for job in runs for host in job.hosts}
    found = decide_queue(waits, runs, compatible_hosts(acts.hosts, held | out.keys()), out)
    for job in waits:
        if job.number in found.why and (later := [host for host in job.able if host in job.later]):
            names = ", ".join(later[:NAMED]) + (" ..." if len(later) > NAMED else "")
            found.why[job.number] += f"; booked before it could be over: {names}"
    asleep = [j for j in jobs if j.state == "waiting" and j.user not in served]
    found.why |= {
        j.number: f"{j.user} does not serve the queue: testbed service start queue" for j in asleep
    }
    found.why |= {
        j.number: f"tried again in {seconds_text(j.retry_s - j.age_s)}" for j in jobs if j.rests
    }
    return found


def _later(
    booked: Mapping[HostName, Sequence[tuple[float, float]]], needs_s: float
) -> dict[HostName, float]:
    """The hosts on which a job that begins now meets a booked time, and after how long (s) it does
    not.
    """
    found = {}
    for host, times in booked.items():
        begin = 0.0
        for since, until in times:
            if since < begin + needs_s:
                begin = max(begin, until)
        if begin:
            found[host] = begin
    return found
