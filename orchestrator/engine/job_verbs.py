"""`testbed job status` and `testbed job logs`."""

from __future__ import annotations

import asyncio

from optics import Missing
from orchestrator.engine.change.jobs import _connect, _facts, _latest, _opened, _ranks, look
from orchestrator.results import JobLogs, JobStatus
from orchestrator.session import Command


async def job_status(command: Command) -> JobStatus:
    """The latest job as its ranks report it now; its iterations so far are brought home."""
    async with _opened(command, "job status") as (session, key):
        record = _latest(command.store, key)
        await _connect(session, _ranks(record, session.lab))
        return await look(session, command.store, record, command.settings.run_dir(record.run))


async def job_logs(command: Command, *, lines: int, host: str | None) -> JobLogs:
    """The last `lines` lines each rank wrote. Raises: Missing - no job, or no rank on `host`."""
    async with _opened(command, "job logs") as (session, key):
        record = _latest(command.store, key)
        name, ranks = _facts(record)[0], _ranks(record, session.lab)
        chosen = [(i, h) for i, h in enumerate(ranks) if host in (None, h)]
        if not chosen:
            raise Missing(f"job {record.name} has no rank on {host}", hint=f"its hosts: {', '.join(ranks)}")
        await _connect(session, [h for _, h in chosen])
        tails = await asyncio.gather(*(session.hosts.tail(name, h, "log", -200 * lines) for _, h in chosen))
    found = {f"rank {i} ({h})": tuple(t.text.splitlines()[-lines:]) for (i, h), t in zip(chosen, tails, strict=True)}
    return JobLogs(record.name, found)
