"""How soon a job resumes after a change."""

from __future__ import annotations

import asyncio
import itertools
import time

from optics import TestbedError
from orchestrator.jobs.iterations import (
    LATEST,
    ahead_ns_of,
    collect_iterations,
    ends_before,
    ends_of,
    median_ms,
)
from orchestrator.jobs.jobs import Jobs
from orchestrator.jobs.record import ranks_of
from orchestrator.telemetry.recorder import Recorder

RESUME_S, LONGEST_RESUME_S, RESUME_LOOK_S = 1.0, 5.0, 0.05
"""How long (s) a change waits for its job to resume: for three iterations, within these bounds."""


async def resumption(
    jobs: Jobs, recorder: Recorder, after_ns: int, since_ns: int, was: int | None
) -> tuple[int, int]:
    """When the job ended its first iteration after `after_ns`, and the longest gap between two ends
    of iterations until then.

    Monotonic ns, corrected by the clock of rank 0's host; 0 if no job runs, or no iteration ends
    within seconds. since_ns: gaps before this time do not count. was: the job that ran before,
    whose iterations count too.
    """
    record, journal = jobs.store.latest_job(jobs.tenancy), recorder.journal
    if record is None or record.ended is not None or journal is None or not after_ns:
        return 0, 0
    ranks = ranks_of(record, jobs.session.lab)
    patience_s, begun, usual_ms = RESUME_S, time.monotonic(), 0.0
    try:
        ahead_ns = await ahead_ns_of(jobs.session, ranks[0]) if ranks else 0
        while ranks:
            found = await collect_iterations(
                jobs.session, record.spec.on_hosts, record, jobs.runs_dir / record.run
            )
            ends = ends_of(found, ahead_ns + journal.anchor_ns)
            for r, at in zip(found[-LATEST:], ends[-LATEST:], strict=True):
                if at > after_ns:
                    recorder.add(
                        "resume",
                        after_ns,
                        at,
                        f"{record.name}: first packet to the end of iteration {r['iter']}",
                    )
                    if was is not None and was != record.id:
                        ends += await ends_before(
                            jobs.session, jobs.store.job(was), jobs.runs_dir, journal.anchor_ns
                        )
                    pairs = itertools.pairwise(sorted(end for end in ends if end <= at))
                    return at, max(
                        (end - before for before, end in pairs if end > since_ns), default=0
                    )
            usual_ms = median_ms(found) or usual_ms
            patience_s = max(RESUME_S, min(3 * usual_ms / 1e3, LONGEST_RESUME_S))
            if time.monotonic() - begun > patience_s:
                break
            await asyncio.sleep(RESUME_LOOK_S)
    except (TestbedError, KeyError):
        pass  # how soon a job resumed is no reason to fail the change
    return 0, 0
