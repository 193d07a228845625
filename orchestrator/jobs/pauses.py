"""Whether a job that was paused still is, and why not."""

from __future__ import annotations

import dataclasses
import time

from orchestrator.jobs.record import ranks_of
from orchestrator.session import Session
from orchestrator.store.job_spec import Pause
from orchestrator.store.records import JobRecord
from orchestrator.store.store import Store


async def paused(session: Session, store: Store, lab: str, record: JobRecord) -> tuple[str, str]:
    """The state of a job that was paused, and until when; one that goes on is recorded as running.

    lab: its key in the store.
    """
    pause = record.pause
    assert pause is not None
    states = await session.hosts.ring_changes.states(
        record.spec.on_hosts, ranks_of(record, session.lab)
    )
    if any(s.state == "held" and s.move == pause.move for s in states):
        return (
            "paused",
            f"until {time.strftime('%H:%M:%S', time.localtime(pause.until))}; to go on: testbed job resume",
        )
    now = store.job(record.id) or record  # it may have changed rings meanwhile
    store.set_job_spec(record.id, dataclasses.replace(now.spec, pause=None))
    text = _ended_early(store, lab, pause)
    store.set_job(record.id, "running", text)
    return "running", text


def _ended_early(store: Store, lab: str, pause: Pause) -> str:
    """Why a pause ended before its time: hosts end what an older run asked for when a newer one
    begins; empty if it did not.
    """
    if time.time() >= pause.until:
        return ""
    # beside slots a pause has their turner's token, older than its own run's
    silent = ("sample", "job pause")
    later = [
        run for run in store.history(lab, 0) if run.token > pause.token and run.verb not in silent
    ]
    by = (
        f"run {later[-1].id} ({later[-1].verb}) took over its hosts"
        if later
        else "a rank or a host ended it"
    )
    return f"its pause until {time.strftime('%H:%M:%S', time.localtime(pause.until))} ended early: {by}"
