"""What packet switches have counted for a job that was lent functions of them, brought home."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drivers.functions import SIZES
from optics.leases import FunctionUse, Lease
from orchestrator.engine.change.functions import GONE, Asked
from orchestrator.inventory.lab import Lab
from orchestrator.store.records import JobRecord
from orchestrator.telemetry.journal import Journal
from orchestrator.telemetry.names import MEASUREMENTS

COUNTED = tuple(name for name, field in MEASUREMENTS["function"].fields.items() if field.kind == "int")
HIGHEST = 2**53


async def status(record: JobRecord, lab: Lab, run_dir: Path, asked: Asked) -> tuple[Mapping[str, int | float | str], ...]:
    """Each of the job's leases, as `JobStatus.functions`, and into the run's journal; none once the job has ended."""
    if record.ended is not None:
        return ()
    return tuple([await _one(lease, record, lab, run_dir, asked) for lease in record.spec.leases])


async def _one(lease: Lease, record: JobRecord, lab: Lab, run_dir: Path, asked: Asked) -> Mapping[str, int | float | str]:
    named = {"function": lease.function, "segment": lease.segment}
    own = {"allocation": lease.allocation}
    key = SIZES[lease.function][0]
    at = lab.segments.get(lease.segment)
    had: dict[str, Any] = {"size": lease.size, "each_bytes": lease.each_bytes}
    had["total"] = at.functions.get(lease.function, {}).get(key) if at is not None else None
    answer = await asked.counters(lease.segment, lease.control)
    if isinstance(answer, str):
        return {**named, **own, "state": "silent", "lacks": str(FunctionUse(lease.segment, lease.function, error=answer))}
    said = next((each for each in answer if each.get("allocation") == lease.allocation), None)
    if said is None:
        return {**named, **own, "state": "gone", "lacks": str(FunctionUse(lease.segment, lease.function, error=GONE))}
    had |= {name: value for name in COUNTED if type(value := said.get(name)) is int and 0 <= value < HIGHEST}
    left_s = said.get("lease_left_s")
    had["lease_left_s"] = float(left_s) if isinstance(left_s, (int, float)) and 0 <= left_s < HIGHEST else None
    run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with Journal(run_dir, record.run, lab.name) as journal:
        journal.point("function", {"job": record.name, **named}, had)
    return {**named, **own, "state": "leased", **{name: value for name, value in had.items() if value is not None}}
