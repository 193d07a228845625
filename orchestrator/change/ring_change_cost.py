"""What a ring change cost the job: measured by the iterations of rank 0, and written to the
journal."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, cast

from optics import TestbedError
from orchestrator.change.report import JobChange
from orchestrator.change.standstill import Standstill, standstill
from orchestrator.jobs.attempt import LOOK_S, Attempt
from orchestrator.jobs.iterations import (
    ahead_ns_of,
    collect_iterations,
    ends_of,
    last_before,
    rings_changed_at,
)
from orchestrator.jobs.record import counts_collectives, ranks_of
from orchestrator.results import to_json
from orchestrator.session import Session
from orchestrator.store.records import JobRecord
from orchestrator.telemetry.journal import Journal
from orchestrator.telemetry.recorder import Recorder

SETTLED, SETTLED_S = 4, 5.0
"""The new iteration time is the median of at least so many iterations; they are waited for this
long (s).
"""


async def measured_standstill(
    session: Session,
    record: JobRecord,
    runs: Path,
    journal: Journal | None,
    move: int,
    since_ns: int,
    after: int,
) -> tuple[Standstill, int]:
    """The standstill since `since_ns`, and the last iteration on the earlier rings: `after`, unless
    the job counts collectives.

    runs: the folder of all runs. Empty where iterations cannot be fetched, which is no reason to
    fail the change.
    """
    ranks, name = ranks_of(record, session.lab), record.spec.on_hosts
    until, found = time.monotonic() + SETTLED_S, Standstill()
    if journal is None or not ranks:
        return found, after
    try:
        ahead_ns = await ahead_ns_of(session, ranks[0]) + journal.anchor_ns
        at_ns = (
            await rings_changed_at(session, name, ranks[0], move)
            if counts_collectives(record)
            else None
        )
        while True:
            records = await collect_iterations(session, name, record, runs / record.run)
            if at_ns is not None:
                after = last_before(records, at_ns)
            found = standstill(records, ends_of(records, ahead_ns), since_ns, after)
            if (
                sum(int(r["iter"]) > after + 1 for r in records) >= SETTLED
                or time.monotonic() > until
            ):
                return found, after
            await asyncio.sleep(LOOK_S)
    except (TestbedError, KeyError):
        return found, after


def record_ring_change_cost(
    recorder: Recorder, found: JobChange, attempt: Attempt, *, done: bool, begun_ns: int
) -> None:
    """Write to the journal what the ring change cost the job and each rank. done: the ranks use
    their next rings, or have gone on.
    """
    if recorder.journal is None:
        return
    job = attempt.record.name
    figures = {
        k: v for k, v in cast(dict[str, Any], to_json(found)).items() if k not in ("mode", "note")
    }
    tags = {"job": job, "mode": found.mode, "ok": str(int(done))}
    recorder.journal.point(
        "ring_change", tags, {"reconfig_id": recorder.reconfig_id, **figures}, begun_ns
    )
    for state in attempt.states.values():
        recorder.journal.point(
            "ring_change_rank",
            {"job": job, "rank": str(state.rank), "host": state.host},
            {
                "move": attempt.move,
                "state": state.state,
                "iteration": state.iteration,
                "took_ms": attempt.took_ms.get(state.rank),
                "held_ms": state.held_ms,
                "stall_ms": state.stall_ms,
            },
            begun_ns,
        )
