"""What the job of an opened lab can be asked: one coroutine each, of which `Job` and `AsyncJob`
make their methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optical_testbed.opened import Opened
from optical_testbed.telemetry import Rows
from optical_testbed.verbs import telemetry

if TYPE_CHECKING:
    from orchestrator.change.report import UpReport
    from orchestrator.jobs.report import JobLogs, JobStatus
    from orchestrator.verify.signals import DiagnosisReport


async def launch(lab: Opened) -> JobStatus:
    """Launch the job of the plan that is up, again if it ran before. Raises: Missing - no plan is
    up, or it has no job.
    """
    from orchestrator.verbs import change as verbs

    return await lab.work("job launch", verbs.job_launch)


async def restore(lab: Opened) -> JobStatus:
    """Launch the job that ended last again, from the newest checkpoint of what followed it.

    Raises: Missing - there is none, or another job is in the plan that is up. Refused - it runs.
    """
    from orchestrator.verbs import change as verbs

    return await lab.work("job restore", verbs.job_restore)


async def status(lab: Opened) -> JobStatus:
    """Return the latest job as its ranks report it now. Raises: Missing - none was ever launched.
    Unreachable.
    """
    from orchestrator.verbs import change as verbs

    return await lab.work("job status", verbs.job_status)


async def diagnose(lab: Opened, *, traffic: bool = True) -> DiagnosisReport:
    """Return which component is at fault when the job slows down, stands or dies; what cannot be
    told is not guessed.

    traffic: suspect links may be loaded, which slows a running job for some seconds. Raises:
    Missing - no plan is up. Unreachable.
    """
    from orchestrator.verbs import change as verbs

    return await lab.work("job diagnose", verbs.job_diagnose, traffic=traffic)


async def wait(
    lab: Opened, *, iterations: int | None = None, timeout_s: float | None = None
) -> JobStatus:
    """Wait until the job has ended, or has completed this many iterations, and return its status.

    timeout_s: longest time to wait (s); None: that of the lab. Raises: TimedOut - it has not.
    Missing, Unreachable.
    """
    from orchestrator.verbs import job as job_verbs

    return await lab.within(timeout_s).work("job wait", job_verbs.job_wait, iterations=iterations)


async def pause(lab: Opened, *, for_s: float = 600.0) -> JobStatus:
    """Pause the job at the end of an iteration; it goes on by itself after `for_s` (s, at most
    3600).

    Raises: Refused - it does not run, is paused already, or not all ranks take part; it goes on
    then.
    """
    from orchestrator.verbs import change as verbs

    return await lab.work("job pause", verbs.job_pause, for_s=for_s)


async def resume(lab: Opened) -> JobStatus:
    """Have a paused job go on. Raises: Refused - it is not paused, or a rank does not go on."""
    from orchestrator.verbs import change as verbs

    return await lab.work("job resume", verbs.job_resume)


async def evict(lab: Opened, host: str, *, spare: str = "") -> UpReport:
    """Move the plan and its job off a host, which need not answer: onto `spare`, or onto the other
    hosts.

    Raises: Missing, Infeasible - the plan cannot do without it, or the spare is not like it.
    Interlock - the spare is tagged out or another owner's. Unreachable - it does not answer. As
    `up`.
    """
    from orchestrator.verbs import change as verbs

    return await lab.work("job evict", verbs.evict, {host: spare})


async def join(lab: Opened, host: str) -> UpReport:
    """Have a host's ranks join the running job at the end of an iteration, with the weights of the
    others.

    Raises: Missing - no job runs, or the lab has no such host. Infeasible - the host is in the job,
    there are no ports, or the job cannot grow. Interlock - it is tagged out or another owner's.
    Unreachable - it does not answer. As `up`; the job goes on then with the ranks that it had.
    """
    from orchestrator.verbs import change as verbs

    return await lab.work("job join", verbs.job_join, host)


async def stop(lab: Opened) -> JobStatus:
    """Stop the job at the end of an iteration and return how far it got."""
    from orchestrator.verbs import change as verbs

    return await lab.work("job stop", verbs.job_stop)


async def logs(
    lab: Opened, *, lines: int = 20, host: str | None = None, rank: int | None = None
) -> JobLogs:
    """Return the last lines of each rank's log. host, rank: only of these. Raises: Missing - no
    job, or no such rank.
    """
    from orchestrator.verbs import change as verbs

    return await lab.work("job logs", verbs.job_logs, lines=lines, host=host, rank=rank)


async def records(lab: Opened) -> Rows:
    """Return the iterations of the latest job that were completed so far: rows of the measurement
    `iteration`.

    Raises: as `status` of the job.
    """
    from orchestrator.verbs import change as verbs

    found = await lab.work("job status", verbs.job_status)  # fetches the newest
    return await telemetry(lab, found.run, "iteration")
